//! Collective communication for Rust.

pub mod domain;
pub mod element;
pub mod error;
mod kernel;
pub mod path;
pub mod rank;
