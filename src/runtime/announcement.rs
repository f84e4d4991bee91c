//! Sleep that is announced, so that nobody who sleeps misses what comes, and nobody who is awake is called.
//!
//! Who is about to sleep announces it and then looks at everything once more. Who publishes something does that first,
//! and then looks whether sleep was announced. Between the two steps both have a sequentially consistent fence, and of
//! two fences one is first: either the look after the announcement finds what was published, or who published finds
//! the announcement. He takes it away, so one call is made, and who has not fallen asleep yet sees that he was called.

use std::sync::atomic::Ordering;

use super::sync::{AtomicBool, fence};

#[derive(Debug, Default)]
pub(crate) struct Announcement {
    stands: AtomicBool,
}

impl Announcement {
    /// Before the last look.
    #[inline]
    pub(crate) fn make(&self) {
        self.stands.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether nobody has called since. Sequentially consistent, for those who compare it with another flag.
    #[inline]
    pub(crate) fn stands(&self) -> bool {
        self.stands.load(Ordering::SeqCst)
    }

    /// After something was published: whether somebody sleeps for it, and must be called by him who asks.
    #[inline]
    pub(crate) fn answer(&self) -> bool {
        fence(Ordering::SeqCst);
        self.stands.load(Ordering::Relaxed) && self.stands.swap(false, Ordering::SeqCst)
    }

    /// Sleep is over, called or not.
    #[inline]
    pub(crate) fn withdraw(&self) {
        self.stands.store(false, Ordering::Relaxed);
    }
}
