//! How long a call looks for what it waits for before it goes on in flight.
//!
//! Where ranks outnumber processors, who is missing may want this very processor: then it is handed on at once, and those who
//! share it come in turn. Who calls from another one needs no help, and is there sooner than two switches take.

use super::super::neighbours::Neighbours;
use crate::runtime::spin;

/// How often a processor that ranks share is handed on: with it, they come in turn.
const YIELDS: usize = 8;
/// Looks for ranks on other processors before it is handed on all the same, as they may wait for one on this: a microsecond.
const SPINS: usize = 24;

#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Before the processor is handed on, or the call goes on in flight.
    spins: usize,
    yields: usize,
    /// The processor, if ranks share it.
    shared: Option<usize>,
}

impl Looks {
    /// Of a rank that has a processor for itself.
    pub(super) fn alone(spins: usize) -> Looks {
        Looks { spins, ..Looks::default() }
    }

    /// Of ranks that outnumber processors.
    pub(super) fn shared(neighbours: &Neighbours) -> Looks {
        Looks { spins: SPINS, yields: YIELDS, shared: Some(here(neighbours)) }
    }

    /// A pause between two looks, for these ranks. `false`: they are not waited for any longer.
    #[inline]
    pub(super) fn pause(
        &mut self,
        neighbours: &Neighbours,
        mut missing: impl Iterator<Item = usize>,
    ) -> bool {
        let is_here = self.shared.is_some_and(|here| missing.any(|rank| neighbours.is_at(rank, here)));
        if self.spins > 0 && !is_here {
            self.spins -= 1;
            std::hint::spin_loop();
            return true;
        }
        if self.yields == 0 {
            return false;
        }
        self.yields -= 1;
        spin::yield_processor();
        (self.spins, self.shared) = (SPINS, Some(here(neighbours)));
        true
    }
}

/// The processor that this rank calls from, as the others are told.
fn here(neighbours: &Neighbours) -> usize {
    let here = spin::processor();
    neighbours.naps.tell_place(here);
    here
}
