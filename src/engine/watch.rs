//! How the service thread watches without delaying anybody.
//!
//! *Turns.* While users drive, it only compares counts of turns. Before it sleeps long it announces that and then looks
//! at the counts; a call takes its turn, which counts, and then looks at the announcement ([`Rest`]). One of the two
//! sees the other, so the first call after a pause wakes the thread, and no other does.
//!
//! *News.* When nobody drives it sleeps on the poll set, too, which does not show what comes from this process. So it
//! sets `watched` before it looks whether anybody has called, and a caller interrupts it if `watched` is set after he
//! has called; these accesses are sequentially consistent, so one of the two sees the other.

use std::sync::atomic::Ordering;

use crate::runtime::announcement::Announcement;
use crate::runtime::sync::{AtomicBool, AtomicU64};

/// One engine, as it shows itself to the service thread.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Turns taken by the user's threads.
    drives: AtomicU64,
    /// The service thread sleeps on the poll set and must be interrupted for what the set does not show.
    watched: AtomicBool,
}

impl Watch {
    /// A turn of a user's thread begins; before the queue of calls is looked at, so that who finds it emptied finds
    /// this counted.
    #[inline]
    pub(crate) fn count(&self) {
        // Turns are taken one at a time: nobody else counts.
        self.drives.store(self.drives.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn drives(&self) -> u64 {
        self.drives.load(Ordering::Relaxed)
    }

    /// Service thread: before it looks for news, and after its sleep.
    pub(crate) fn set(&self, watched: bool) {
        self.watched.store(watched, Ordering::SeqCst);
    }

    /// Whoever has called: whether the service thread must be interrupted.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.watched.load(Ordering::SeqCst)
    }
}

/// The service thread's long sleep.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    announced: Announcement,
}

impl Rest {
    /// Service thread: whether there is news that shortens its sleep. A long one is announced before the look.
    pub(crate) fn begin(&self, long: bool, news: impl FnOnce() -> bool) -> bool {
        if long {
            self.announced.make();
        }
        news()
    }

    /// Service thread: it is awake.
    pub(crate) fn end(&self) {
        self.announced.withdraw();
    }

    /// A caller whose turn is counted, or whose call is in the queue: whether to interrupt the sleep.
    #[inline]
    pub(crate) fn must_end(&self) -> bool {
        self.announced.answer()
    }
}
