//! WHEN each step runs: operations in flight, and who moves them.
//!
//! - `shared`: the engine as callers, runtimes and the service thread share it: driving, sleeping, waking;
//!   [`wait`]: how a call is waited for; the protocols of that: [`turns`]: who drives, [`sleepers`]: who is woken, [`watch`]: what the service thread sees
//! - `forked`: a child of the process
//! - [`served`], `service`: the one thread per process that keeps deadlines and drives when nobody else does
//! - `keeper`: who does that for an engine; `simulated`: the same on simulated time (feature `testing`)
//! - `core`: state and links together: one turn moves all that can move
//! - `state`: what is in flight, `flight`: what that has in common; [`doubtful`]: calls that may not begin; [`incoming`]: what arrives; [`due`]: what falls
//!   due, and deadlines that don't run; [`trouble`]: what goes wrong, [`dispute`]: where ranks disagree, [`tombs`]: outcomes that are known before the call, and [`reports`]: how it is told; `log`: where that is written; [`panicked`]: a thread that panics; [`circle`]: ranks that
//!   wait for each other on several communicators
//! - [`order`]: who moves first, where some are urgent and others can wait
//! - `run`: a collective, [`exchange`]: a small one, [`direct`]: one within a process, [`meet`], [`swap`], [`near`]: which may be over at once; [`point`]: a message between two ranks, [`matching`], [`board`]: which is for whom, [`program`]: a plan made ready for one rank
//! - `borrowed`: memory of other processes
//! - [`rebuild`]: how the ranks that are left agree on who they are
//! - `wires`: links as they are made; [`links`]: what is known about links, and which are slow
//! - `look`: what an engine is asked beside calls
//! - [`settle`]: calls that wait for what was called before, [`delayed`]: that are over before they begin; [`room`]: memory beyond the callers' buffers, and its limit; [`admission`]: how many may be in flight, and who waits to call
//! - `channel`: a communicator's numbers and memory, [`history`]: what was called under them; [`family`]: those under its keys; [`leaving`]: ranks that close one, [`closed`]: those that are not used any more; `peer`: another process; [`status`]: how far ranks are
//! - `recording`: what the flight recorder is told of each call
//! - `io`: what operations want sent; [`call`], [`head`]: one call, as caller and engine share it
//!
//! The engine moves only what the verifier has proved, holds no pointer itself, and has no unsafe code.

mod admission;
mod board;
mod borrowed;
pub(crate) mod call;
pub(crate) mod channel;
mod circle;
mod closed;
pub(crate) mod core;
mod delayed;
mod direct;
mod dispute;
mod doubtful;
mod due;
mod endings;
mod exchange;
pub(crate) mod family;
mod fifos;
mod flight;
mod forked;
mod head;
mod history;
mod incoming;
mod io;
mod keeper;
mod leaving;
mod links;
mod log;
mod look;
mod matching;
mod meet;
#[cfg(all(test, hcomm_loom))]
mod models;
mod near;
mod neighbours;
mod order;
mod panicked;
mod peer;
mod point;
pub(crate) mod program;
mod rebuild;
mod recording;
mod reports;
pub(crate) mod room;
mod run;
mod served;
mod service;
mod settle;
pub(crate) mod shared;
#[cfg(feature = "testing")]
pub(crate) mod simulated;
mod sleepers;
mod spaces;
mod state;
mod status;
mod swap;
#[cfg(all(test, not(hcomm_loom)))]
mod tests;
mod tombs;
mod trouble;
mod turns;
pub(crate) mod wait;
mod watch;
mod wires;

pub(crate) use board::Wish;
pub(crate) use call::{Arrival, CallDesc, Op, Request, Tagged, Take, Work};
pub(crate) use order::Priority;
pub(crate) use program::Program;
pub(crate) use rebuild::successor_id;
pub(crate) use shared::Engine;
pub(crate) use shared::Submitted;
pub(crate) use wires::PeerLink;
