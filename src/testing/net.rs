//! What happens to a world while it runs.

use std::sync::Arc;
use std::time::Duration;

use crate::link::sim::Fabric;
use crate::rank::Rank;

/// The network of a [`World`](super::World), and the processes on it. Every rank has it, and may do to it what it likes.
///
/// All methods panic if there is no such rank.
#[derive(Clone, Debug)]
pub struct Net {
    fabric: Arc<Fabric>,
    ranks: usize,
}

impl Net {
    pub(super) fn new(fabric: Arc<Fabric>, ranks: usize) -> Self {
        Net { fabric, ranks }
    }

    fn index(&self, rank: impl Into<Rank>) -> usize {
        let rank = rank.into();
        assert!(rank.index() < self.ranks, "there is no rank {rank} in a world of {} ranks", self.ranks);
        rank.index()
    }

    /// The process of `rank` ends: its program is dropped where it waits, and its system closes its connections, which the
    /// others see as soon as they hear of it. A rank that kills itself goes on to its next `await`, but nothing that it
    /// sends leaves.
    pub fn kill(&self, rank: impl Into<Rank>) {
        self.fabric.kill(self.index(rank), false);
    }

    /// The host of `rank` vanishes, with its process: as [`kill`](Self::kill), but nothing tells the others. They notice it
    /// as they would over TCP, after about 20 s.
    pub fn vanish(&self, rank: impl Into<Rank>) {
        self.fabric.kill(self.index(rank), true);
    }

    /// From now on these ranks reach each other but not the others, nor the others them; what is under way between them is
    /// lost. Several calls make several islands.
    pub fn partition(&self, ranks: &[Rank]) {
        let ranks: Vec<usize> = ranks.iter().map(|rank| self.index(*rank)).collect();
        self.fabric.partition(&ranks);
    }

    /// All ranks reach each other again. What was lost is sent again within a second or so; connections that could send
    /// nothing for 20 s are gone by then.
    pub fn heal(&self) {
        self.fabric.heal();
    }

    /// The process of `rank` stands still for a time, as on a machine that is busy or that was suspended. Its system goes
    /// on to receive what has room.
    pub fn pause(&self, rank: impl Into<Rank>, time: Duration) {
        self.fabric.pause(self.index(rank), time);
    }

    /// Simulated time since the world began.
    pub fn now(&self) -> Duration {
        self.fabric.elapsed()
    }

    /// A number that stands for all that has happened so far, in its order. Two runs of the same program with the same seed
    /// that differ here did not have the same schedule: something depends on more than the seed.
    pub fn trace(&self) -> u64 {
        self.fabric.trace()
    }
}
