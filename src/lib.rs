//! Collective communication for Rust.

pub mod buffer;
pub mod communicator;
pub mod domain;
pub mod element;
mod engine;
pub mod error;
mod kernel;
mod link;
pub mod path;
pub mod rank;
mod runtime;

pub use buffer::Buffer;
pub use communicator::{Builder, Communicator, Connect, Operation, blocking};
pub use domain::{Phase, Token};
pub use element::{DType, Element, ReduceOp};
pub use error::{Error, InitError, OpError, Report};
pub use rank::{Rank, Seq, Tag};

/// The instruction set that reductions use on this machine, for reports: "avx2", "sse2", "neon" or "baseline".
pub fn instruction_set() -> &'static str {
    kernel::level()
}
