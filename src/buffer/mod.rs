//! Memory that operations work on: who owns it, and how the engine reaches it.
//!
//! - `arena`: memory of buffers that other processes read where it lies
//! - `owned`: [`Buffer`], aligned memory for the fastest paths
//! - `lend`: the sealed traits that say which types may be handed to an operation, and what comes back
//! - `parts`: a buffer with its type erased, as an operation holds it
//! - `raw`: a range of memory as the engine sees it; the only place where it is read or written
//! - `pool`: staging memory, bounded and reused
//! - `segment`: memory that other processes map

pub(crate) mod arena;
pub(crate) mod lend;
mod owned;
pub(crate) mod parts;
pub(crate) mod pool;
pub(crate) mod raw;
pub(crate) mod segment;

pub use lend::{Lend, LendMut, Nothing, Pair};
pub use owned::Buffer;
