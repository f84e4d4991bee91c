//! Collective communication for Rust.

#[cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "the communicator that joins is to be wired")
)]
pub mod domain;
pub mod element;
pub mod error;
mod kernel;
pub mod path;
pub mod rank;
