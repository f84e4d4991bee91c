//! Processes of one host that share memory.
//!
//! - `words`: atomics in a mapping
//! - `ring`: frames from one to the other
//! - `bell`: waking who sleeps
//! - `lane`: what one process writes for another: its layout, making it and mapping it
//! - `reach`: memory that is read where it lies; `attach`: the same where it is not mapped;
//!   `hand_over`: descriptors from one to the other
//! - `conn`: a pair's two connections, and what watches whether the other process lives
//!
//! A pair has two lanes. Each is a segment that one of them writes and the other maps to read: rings with its frames, and
//! its words about the rings of the other one.

mod attach;
mod bell;
mod conn;
pub(crate) mod hand_over;
mod lane;
#[cfg(all(test, hcomm_loom))]
mod models;
mod reach;
mod ring;
#[cfg(all(test, not(hcomm_loom)))]
mod tests;
mod words;

#[cfg(all(test, not(hcomm_loom)))]
pub(crate) use tests::Far;
pub(crate) use {
    attach::{Process, read as read_process},
    bell::Naps,
    conn::{Bell, Conn},
    lane::{Ends, Lane, Sizes},
    reach::{Found, Grant, Loan, Reach},
};
