//! Waking a process that sleeps, and only one that does.
//!
//! Who is about to sleep counts up a word of its own in all its lanes, has a fence, and looks at everything once more. Who
//! has published something has a fence, and looks at that word: if it has not rung for this sleep yet, it rings. Of the two
//! fences one is first: either the last look finds what was published, or who published finds the sleep.
//!
//! The word is never taken back. Who was not asleep after all, or woke by itself, is rung for once at most.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::words::Words;
use crate::runtime::sync::{AtomicU64, Mutex, fence};

/// Behind the word for sleeps: where it calls from.
const PLACE: usize = 4;

/// What this process tells the others of its sleeps.
#[derive(Debug, Default)]
pub(crate) struct Naps {
    /// In each of its own lanes, where it says so.
    words: Vec<(Words, usize)>,
    /// Behind a lock, so that words only grow: of two threads that announce, the later one's is what stays.
    count: Mutex<u64>,
    /// Where it said last that it calls from.
    place: AtomicU64,
}

impl Naps {
    pub(super) fn add(&mut self, words: Words, at: usize) {
        self.words.push((words, at));
    }

    /// On which processor this process looks in vain for what the others write, and when, in the system's milliseconds: the
    /// word after.
    pub(crate) fn tell_processor(&self, processor: usize, ms: u64) {
        for (words, at) in &self.words {
            words.at(*at + 1).store(seen(processor, ms), Ordering::Relaxed);
        }
    }

    /// On which processor this process calls.
    #[inline]
    pub(crate) fn tell_place(&self, processor: usize) {
        let place = processor as u64 + 1;
        if self.place.swap(place, Ordering::Relaxed) != place {
            for (words, at) in &self.words {
                words.at(*at + PLACE).store(place, Ordering::Relaxed);
            }
        }
    }

    /// Before the last look before sleep.
    #[inline]
    pub(crate) fn announce(&self) {
        if self.words.is_empty() {
            return;
        }
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        for (words, at) in &self.words {
            words.at(*at).store(*count, Ordering::Relaxed);
        }
        drop(count);
        fence(Ordering::SeqCst);
    }
}

/// A processor and a time in one word.
fn seen(processor: usize, ms: u64) -> u64 {
    const PROCESSORS: u64 = 1 << 16;
    ms.wrapping_mul(PROCESSORS) + processor as u64 % PROCESSORS
}

/// The other process of a pair, as it is woken.
#[derive(Debug)]
pub(super) struct Sleeper {
    words: Words,
    at: usize,
    /// The last sleep that was ended.
    ended: AtomicU64,
}

impl Sleeper {
    pub(super) fn new(words: Words, at: usize) -> Sleeper {
        Sleeper { words, at, ended: AtomicU64::default() }
    }

    /// Whether it looked in vain on this processor just now, too.
    pub(super) fn is_on(&self, processor: usize, ms: u64) -> bool {
        let told = self.words.at(self.at + 1).load(Ordering::Relaxed);
        told == seen(processor, ms) || told == seen(processor, ms.saturating_sub(1))
    }

    /// Whether it has last called from this processor.
    #[inline]
    pub(super) fn is_at(&self, processor: usize) -> bool {
        self.words.at(self.at + PLACE).load(Ordering::Relaxed) == processor as u64 + 1
    }

    /// Whether it has said that it sleeps, and nobody has rung since: it may have woken by itself.
    pub(super) fn sleeps(&self) -> bool {
        self.words.at(self.at).load(Ordering::Relaxed) != self.ended.load(Ordering::Relaxed)
    }

    /// After something was published: whether it sleeps, and must be rung for by him who asks.
    #[inline]
    pub(super) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        let nap = self.words.at(self.at).load(Ordering::Relaxed);
        nap != self.ended.load(Ordering::Relaxed) && nap != self.ended.swap(nap, Ordering::Relaxed)
    }
}
