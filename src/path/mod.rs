//! WHAT moves, from whom to whom, in which order: plans, and the proof that they work.
//!
//! Pure: no sockets, no clock, no bytes. A plan is data, and every use of it reads the same data:
//! the engine runs it, the verifier proves it, selection explains it, `hcomm plan` draws it.
//!
//! - [`Plan`] says what a plan is, and [`Collective`] what it computes; [`PlanBuilder`] writes one.
//! - [`verify`] proves it. A [`VerifiedPlan`] is run by [`Communicator::with_plan`](crate::Communicator::with_plan).
//! - [`Algorithm`] lists the built-in ones; [`build`] gives their plans, [`choose`] says which is taken for a call, and an
//!   [`Explanation`] why, and what it costs.
//! - [`draw`] shows a plan as a table and as a picture.
//!
//! What may come later is marked `#[non_exhaustive]`; what selection weighs, and from which size on, may change with any
//! version.

mod algorithm;
pub(crate) mod algorithms;
mod builder;
mod cache;
pub mod draw;
mod out_of_place;
mod plan;
mod select;
mod verify;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use builder::{Message, Operand, PlanBuilder, Sent};
pub(crate) use cache::PlanCache;
pub use out_of_place::out_of_place;
pub(crate) use plan::Extent;
pub use plan::{
    Action, After, Collective, Partition, Placement, Plan, Post, Range, RankPlan, Source, Space, Step, StepId,
};
pub(crate) use select::direct;
pub use select::{Choice, Explanation, Facts, Order, PlanError, Unsupported, build, choose, prove};
pub use verify::{RANKS_MAX, VerifiedPlan, VerifyError, association, verify};
