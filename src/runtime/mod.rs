//! The executor seam: what the engine needs of the system and of whichever runtime polls it.
//!
//! - `poller`: the one set of descriptors, as one descriptor
//! - `park`: sleeping on that descriptor inside a tokio runtime
//! - `spin`: how long to look before sleeping

pub(crate) mod park;
pub(crate) mod poller;
pub(crate) mod spin;
