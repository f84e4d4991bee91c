//! The power of two of ranks that exchange in pairs, and the surplus ranks that are folded into them.
//!
//! Of the first ranks, twice as many as the surplus, each even one takes its successor in; every other rank is in
//! the core for itself. So a core rank stands for one or two neighbours, core ranks are in the order of the ranks,
//! and a tree of sums over neighbouring core ranks is a tree over neighbouring ranks.
//!
//! Source: Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of Collective Communication Operations
//! in MPICH" (2005).

use crate::path::builder::Operand;
use crate::rank::Rank;

/// Who exchanges with whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Core {
    /// log₂ of the number of core ranks.
    pub(super) levels: u32,
    surplus: u32,
}

impl Core {
    pub(super) fn new(n: u32) -> Self {
        let levels = n.ilog2();
        Core { levels, surplus: n - (1 << levels) }
    }

    /// The number of core ranks.
    pub(super) fn size(self) -> u32 {
        1 << self.levels
    }

    /// Core rank `j` among all ranks. For `j` = the size of the core: the number of ranks.
    pub(super) fn rank(self, j: u32) -> Rank {
        Rank(if j < self.surplus { 2 * j } else { j + self.surplus })
    }

    /// The rank that core rank `j` stands for beside itself.
    pub(super) fn folded(self, j: u32) -> Option<Rank> {
        (j < self.surplus).then(|| Rank(2 * j + 1))
    }
}

/// Both operands of core rank `j`'s exchange with `j ^ mask`, the lower rank's first: thus both get the same bits.
pub(super) fn in_order(j: u32, mask: u32, own: Operand, peer: Operand) -> [Operand; 2] {
    if j & mask == 0 { [own, peer] } else { [peer, own] }
}
