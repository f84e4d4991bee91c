//! How long to look before sleeping.
//!
//! Waking a sleeping core costs tens of microseconds, looking costs a fraction of one: a short look pays whenever the
//! peer is nearly there. It must not cost others anything, so it is bounded, given up early where ranks outnumber
//! processors, and yields its processor there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long one poll may look. Short enough that other tasks of the runtime hardly notice.
pub(crate) const POLL_SPIN: Duration = Duration::from_micros(20);
/// How long a wait may look in all, over several polls, before it sleeps: at least, and where sleeping has turned out
/// to last no longer than waking takes.
const WAIT_SPIN: Duration = Duration::from_micros(100);
const WAIT_SPIN_MAX: Duration = Duration::from_micros(800);
/// A sleep as short as this was not worth it.
const NAP: Duration = Duration::from_micros(600);
/// With more ranks than processors: how often to hand the processor on before sleeping.
pub(crate) const YIELDS: u32 = 20;

/// How waits of this process behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinPolicy {
    /// Every rank of this host can have a processor: look.
    Look,
    /// Ranks outnumber processors: look rarely, yield in between.
    Yield,
    /// Time is simulated and nobody else runs: looking would see nothing new.
    #[cfg(feature = "testing")]
    Never,
}

impl SpinPolicy {
    /// For so many ranks on a host, and processors that they have there together.
    pub(crate) fn choose(ranks: usize, processors: usize) -> Self {
        if ranks > processors { SpinPolicy::Yield } else { SpinPolicy::Look }
    }
}

/// How long waits look before they sleep, as learned.
///
/// Where waking takes longer than peers look, each would find the other asleep, for ever: whoever is woken is late, and
/// the other has gone to sleep meanwhile. So a short sleep makes the next look longer, and a long one shorter.
#[derive(Debug)]
pub(crate) struct Patience(AtomicU64);

impl Default for Patience {
    fn default() -> Self {
        Patience(AtomicU64::new(WAIT_SPIN.as_micros() as u64))
    }
}

impl Patience {
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    /// A sleep lasted this long.
    pub(crate) fn learn(&self, slept: Duration) {
        let now = self.limit();
        let next = if slept < NAP { (now * 2).min(WAIT_SPIN_MAX) } else { (now / 2).max(WAIT_SPIN) };
        if next != now {
            self.0.store(next.as_micros() as u64, Ordering::Relaxed);
        }
    }
}

/// Hands the processor to whoever waits for it.
pub(crate) fn yield_processor() {
    rustix::thread::sched_yield();
}

/// The processor that this thread is on just now.
pub(crate) fn processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// Milliseconds of a clock that all processes of a host have in common.
pub(crate) fn system_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Lets this thread go on elsewhere, if it may run on any other processor. What it may run on stays as it was.
#[cold]
pub(crate) fn leave(processor: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let mut others = allowed;
    others.unset(processor);
    if others.count() > 0 && rustix::thread::sched_setaffinity(None, &others).is_ok() {
        let _ = rustix::thread::sched_setaffinity(None, &allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sleeps_make_looks_longer_and_long_ones_shorter() {
        let patience = Patience::default();
        assert_eq!(patience.limit(), WAIT_SPIN);
        for _ in 0..10 {
            patience.learn(NAP / 2);
        }
        assert_eq!(patience.limit(), WAIT_SPIN_MAX);
        for _ in 0..10 {
            patience.learn(NAP);
        }
        assert_eq!(patience.limit(), WAIT_SPIN);
    }
}
