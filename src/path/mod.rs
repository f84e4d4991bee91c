//! WHAT moves, from whom to whom, in which order: plans, and the proof that they work.
//!
//! Pure: no sockets, no clock, no bytes. A plan is data, and every use of it reads the same data:
//! the engine runs it, the verifier proves it, selection explains it, `hcomm plan` draws it. One's own is run by
//! [`Communicator::with_plan`](crate::Communicator::with_plan).
//!
//! - [`plan`]: what a plan is.
//! - [`builder`]: writing one.
//! - [`algorithms`]: the built-in ones, one file each.
//! - [`mod@verify`]: the proof.
//! - [`select`]: which algorithm for which call, and why.
//! - [`cache`]: plans that were proved before.
//! - [`draw`]: a plan as a table and as a picture.

pub mod algorithms;
pub mod builder;
pub mod cache;
pub mod draw;
pub mod plan;
pub mod select;
pub mod verify;

pub use builder::{Message, Operand, PlanBuilder, Sent};
pub use cache::{PlanCache, PlanError};
pub use plan::{
    Action, After, Collective, Partition, Plan, Post, Range, RankPlan, Source, Space, Step, StepId,
};
pub use select::{Algorithm, Choice, Explanation, Facts, Order, Unsupported, build, choose};
pub use verify::{VerifiedPlan, VerifyError, association, verify};
