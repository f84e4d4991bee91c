//! What can be seen of an engine while it works, and afterwards: types that everybody may know.
//!
//! - `record`: one operation, as it is told
//! - `recorder`: the last ones, always kept

mod record;
mod recorder;

pub use record::{OperationRecord, Outcome, Priority};
pub(crate) use recorder::{Call, Recorder};
