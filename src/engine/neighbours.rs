//! The other processes of this host that share memory with this one: they are woken only where they sleep.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::link::shm::{Bell, Naps};
use crate::runtime::spin;

#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// By rank of the world.
    bells: Vec<Option<Bell>>,
    pub(super) naps: Naps,
    /// When this process was last moved.
    parted: Mutex<Option<Instant>>,
}

/// Moving costs some tens of microseconds, and the other's processor is known as it was.
const AGAIN: Duration = Duration::from_millis(5);

impl Neighbours {
    pub(super) fn add(&mut self, rank: usize, bell: Bell) {
        if self.bells.len() <= rank {
            self.bells.resize_with(rank + 1, || None);
        }
        self.bells[rank] = Some(bell);
    }

    /// Something was published for this rank.
    #[inline]
    pub(super) fn notify(&self, rank: usize) {
        if let Some(Some(bell)) = self.bells.get(rank) {
            bell.notify();
        }
    }

    /// Whether this rank may sleep.
    #[inline]
    pub(super) fn sleeps(&self, rank: usize) -> bool {
        matches!(self.bells.get(rank), Some(Some(bell)) if bell.sleeps())
    }

    /// Whether this rank has last called from this processor.
    #[inline]
    pub(super) fn is_at(&self, rank: usize, processor: usize) -> bool {
        matches!(self.bells.get(rank), Some(Some(bell)) if bell.is_at(processor))
    }

    /// This rank has looked for a while and found nothing: if a lower one looks on the same processor, each keeps the other from
    /// what it waits for, and the system may leave them there, since both seem busy. The higher one goes elsewhere.
    pub(super) fn part(&self, me: usize, now: Instant) {
        if self.bells.is_empty() {
            return;
        }
        let (processor, ms) = (spin::processor(), spin::system_ms());
        self.naps.tell_processor(processor, ms);
        let meets = |(rank, bell): (usize, &Option<Bell>)| {
            rank < me && bell.as_ref().is_some_and(|bell| bell.is_on(processor, ms))
        };
        if !self.bells.iter().enumerate().any(meets) {
            return;
        }
        let Ok(mut parted) = self.parted.try_lock() else { return };
        if parted.is_none_or(|at| now.saturating_duration_since(at) >= AGAIN) {
            *parted = Some(now);
            spin::leave(processor);
        }
    }

    /// Before the last look before sleep: from then on they call.
    pub(super) fn await_call(&self) {
        self.naps.announce();
    }
}
