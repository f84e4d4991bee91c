//! How long to look before sleeping.
//!
//! Waking a sleeping core costs tens of microseconds, looking costs a fraction of one: a short look pays whenever the
//! peer is nearly there. It must not cost others anything, so it is bounded, given up early where ranks outnumber
//! processors, and yields its processor there.

use std::time::Duration;

/// How long one poll may look. Short enough that other tasks of the runtime hardly notice.
pub(crate) const POLL_SPIN: Duration = Duration::from_micros(20);
/// How long a wait may look in all, over several polls, before it sleeps.
pub(crate) const WAIT_SPIN: Duration = Duration::from_micros(100);
/// With more ranks than processors: how often to hand the processor on before sleeping.
pub(crate) const YIELDS: u32 = 20;

/// How waits of this process behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinPolicy {
    /// Every rank of this host can have a processor: look.
    Look,
    /// Ranks outnumber processors: look rarely, yield in between.
    Yield,
}

impl SpinPolicy {
    pub(crate) fn choose(ranks_on_host: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if ranks_on_host > processors { SpinPolicy::Yield } else { SpinPolicy::Look }
    }
}

/// Hands the processor to whoever waits for it.
pub(crate) fn yield_processor() {
    rustix::thread::sched_yield();
}
