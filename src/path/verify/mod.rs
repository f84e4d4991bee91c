//! The proof that a plan works, whatever the chunk size, the schedule and the links.
//!
//! - `verified`: [`verify`] and [`VerifiedPlan`].
//! - `error`: [`VerifyError`].
//! - `structure`: indices, ranges, and the two ends of each message.
//! - `play`: no deadlock.
//! - `races`: no two accesses of which one writes without an order between them.
//! - `value`: what every block holds, as a formula of contributions.
//! - `fingerprint`: a hash that is the same on every machine.

mod error;
mod fingerprint;
mod play;
mod races;
mod structure;
mod value;
mod verified;

pub use error::VerifyError;
use verified::{BLOCKS_MAX, NAME_BYTES_MAX, SOURCES_MAX, STEPS_MAX};
pub use verified::{RANKS_MAX, VerifiedPlan, association, verify};

pub(crate) use structure::Wiring;
pub(crate) use value::{Found, Touched, touched};
