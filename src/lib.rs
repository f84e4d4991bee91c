//! Collective communication for Rust.

#[expect(dead_code, unused_imports, reason = "the communicator will call it")]
pub mod domain;
pub mod element;
pub mod error;
mod kernel;
pub mod path;
pub mod rank;
