//! The executor seam: what the engine needs of the system and of whichever runtime polls it.
//!
//! - `allowance`: what limits of the system leave
//! - `clock`: the time, real or simulated
//! - `fork`: whether this process is another one by now
//! - `poller`: the one set of descriptors, as one descriptor
//! - `park`: sleeping on that descriptor inside a tokio runtime
//! - `quiet`: asking a runtime for what it may not have
//! - `spin`: how long to look before sleeping
//! - `announcement`: sleep that whoever publishes something ends
//! - `sync`: atomics and locks, or what models explore in their place
//! - `congestion`: congestion control within one host
//! - `tcp_info`: what the system counts about a connection

pub(crate) mod allowance;
pub(crate) mod announcement;
pub(crate) mod clock;
pub(crate) mod congestion;
pub(crate) mod fork;
pub(crate) mod park;
pub(crate) mod poller;
mod quiet;
pub(crate) mod spin;
pub(crate) mod sync;
pub(crate) mod tcp_info;
