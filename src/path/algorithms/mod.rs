//! The algorithms: pure functions from a number of ranks to a plan.
//!
//! Costs are given in α (seconds per message), β (seconds per byte sent by one rank) and γ (seconds per byte
//! reduced by one rank), for a vector of `m` bytes on `n` ranks.
//!
//! - [`mesh_one_shot`]: everybody sends to everybody at once; for small vectors on few ranks.
//! - [`mesh_two_shot`]: everybody reduces one block and hands it round; for large vectors on few ranks.
//! - [`flat_tree`]: all to one rank, and from it to all; for few ranks, and small vectors of those that share processors.
//! - [`recursive_doubling`]: whole vectors, log₂ n exchanges; for small vectors on many ranks.
//! - [`halving_doubling`]: ever smaller parts, 2 log₂ n exchanges; for large vectors on many ranks.
//! - [`ring`]: neighbours only; for very large vectors where the order of a sum does not matter.
//! - [`binomial_tree`]: to or from one rank in log₂ n hops.
//! - [`chain`]: from each rank to the next; scans of large vectors.
//! - [`pairwise`]: each rank with each other, some at a time; for many ranks.
//! - [`neighbors`]: each rank with those that it has named.
//! - [`bruck`]: log₂ n exchanges round the ring of ranks, whatever their number; small parts of an all-to-all, and a
//!   reduce-scatter where the order of a sum does not matter.
//! - [`double_tree`]: two trees with half of the vector each; for large vectors on many ranks.
//! - [`scatter_all_gather`]: a broadcast in parts; for large vectors.
//! - `core`: what the two doubling algorithms share: which ranks exchange, and which are folded in.

pub mod binomial_tree;
pub mod bruck;
pub mod chain;
mod core;
pub mod double_tree;
pub mod flat_tree;
pub mod halving_doubling;
pub mod mesh_one_shot;
pub mod mesh_two_shot;
pub mod neighbors;
pub mod pairwise;
pub mod recursive_doubling;
pub mod ring;
pub mod scatter_all_gather;

/// Elements that the all-reduces never cut apart: one cache line of 4-byte elements, so that two blocks of an
/// aligned vector never share a line.
const GRANULE: u32 = 16;
