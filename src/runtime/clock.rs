//! The time that engines go by.

#![allow(unsafe_code)]

use std::time::Instant;

/// Where an engine takes the time from. Without the feature `testing` this is nothing, and the time is the system's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    #[cfg(feature = "testing")]
    simulated: bool,
}

impl Clock {
    /// The system's.
    pub(crate) const REAL: Clock = Clock {
        #[cfg(feature = "testing")]
        simulated: false,
    };

    /// That of the tokio runtime in which it is asked, which may be paused: the time-outs of users agree with it.
    #[cfg(feature = "testing")]
    pub(crate) const SIMULATED: Clock = Clock { simulated: true };

    #[inline]
    pub(crate) fn now(self) -> Instant {
        #[cfg(feature = "testing")]
        if self.simulated {
            return tokio::time::Instant::now().into_std();
        }
        Instant::now()
    }
}

/// Nanoseconds on the system's monotonic clock, a tick of some milliseconds old at most: reading it costs a fraction of what the
/// exact one costs.
#[inline]
pub(crate) fn coarse_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC_COARSE)
}

/// The same, exact: never behind what [`coarse_ns`] says before or at the same time.
pub(crate) fn exact_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

#[inline]
fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // By the system's library: rustix looks for the clock itself, and ends a program that valgrind runs.
    // SAFETY: the system writes one timespec there.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
