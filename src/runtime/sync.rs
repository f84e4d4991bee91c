//! What protocols between threads are made of: the standard library's, or stand-ins that loom explores.
//!
//! Code whose order of reads and writes matters takes its atomics and locks from here. Everywhere but in models this
//! is a list of names and costs nothing. Under `--cfg hcomm_loom` it is [`stand_in`], and the models
//! (`engine/models.rs`, `link/models.rs`) run the same code in all orders that the memory model allows.

#[cfg(hcomm_loom)]
#[path = "stand_in.rs"]
mod stand_in;

#[cfg(hcomm_loom)]
pub(crate) use stand_in::*;

// An address says nothing by itself: what it publishes is ordered by something else.
pub(crate) use std::sync::atomic::AtomicPtr;

#[cfg(not(hcomm_loom))]
pub(crate) use {
    atomic_waker::AtomicWaker,
    crossbeam_queue::ArrayQueue,
    std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence},
    std::sync::{Mutex, MutexGuard},
    std::sync::{Mutex as TryMutex, MutexGuard as TryMutexGuard},
};
