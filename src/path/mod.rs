//! WHAT moves, from whom to whom, in which order: plans, and the proof that they work.
//!
//! Pure: no sockets, no clock, no bytes. A plan is data, and every use of it reads the same data:
//! the engine runs it, the verifier proves it, selection explains it, `hcomm plan` draws it.

pub mod plan;

pub use plan::{Action, After, Collective, Partition, Plan, Post, Range, RankPlan, Source, Space, Step};
