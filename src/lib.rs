//! Collective communication for Rust.

pub mod domain;
pub mod element;
pub mod error;
mod kernel;
pub mod buffer;
mod engine;
pub use buffer::Buffer;
mod link;
pub mod path;
pub mod rank;
mod runtime;
