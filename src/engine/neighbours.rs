//! The other processes of this host that share memory with this one: they are woken only where they sleep.

use crate::link::shm::{Bell, Naps};

#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// By rank of the world.
    bells: Vec<Option<Bell>>,
    pub(super) naps: Naps,
}

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

    /// Before the last look before sleep: from then on they call.
    pub(super) fn await_call(&self) {
        self.naps.announce();
    }
}
