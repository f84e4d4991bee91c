//! The algorithms that are built in: their names, what they can do, and what they cost.

use std::fmt;
use std::str::FromStr;

use crate::path::algorithms::{
    binomial_tree, bruck, chain, double_tree, flat_tree, halving_doubling, mesh_one_shot, mesh_two_shot,
    pairwise, recursive_doubling, ring, scatter_all_gather,
};
use crate::path::plan::Collective;

/// The algorithms that are built in.
///
/// Costs are in α, the time of a message, β, that of a byte sent by one rank, and γ, that of a byte reduced, for a vector
/// of m bytes on n ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Algorithm {
    /// Everybody sends to everybody at once: for small vectors on few ranks. Sums are in rank order.
    ///
    /// all_reduce: α(n−1) + β(n−1)m + γ(n−1)m, and one latency where links are parallel; reduce_scatter and all_gather:
    /// the nth part of the bytes.
    MeshOneShot,
    /// Everybody reduces one block and hands it round: for large vectors on few ranks. Sums are in rank order.
    ///
    /// all_reduce: 2α(n−1) + 2βm(n−1)/n + γm(n−1)/n.
    MeshTwoShot,
    /// All to one rank, and from it to all: for few ranks, and small vectors of those that share processors. Sums are in rank
    /// order.
    ///
    /// all_reduce: 2α(n−1) + 2β(n−1)m + γ(n−1)m at rank 0, two messages at the others; reduce: (α + βm + γm)(n−1) at the root;
    /// gather and scatter: (α + βm/n)(n−1) there.
    FlatTree,
    /// Whole vectors between ranks at distance 1, 2, 4, …: for small vectors on many ranks. Sums are a tree over
    /// neighbouring ranks.
    ///
    /// all_reduce: (α + βm + γm)·⌊log₂ n⌋, and 2α + 2βm + γm if n is no power of two.
    RecursiveDoubling,
    /// Half of the vector to the rank at distance 1, half of the rest to the one at distance 2, …, and back: for large
    /// vectors on many ranks. Sums are the same tree as those of recursive doubling.
    ///
    /// all_reduce: 2α⌊log₂ n⌋ + (2β + γ)m(N−1)/N with N = 2^⌊log₂ n⌋, and 2α + 2βm + γm if n ≠ N.
    HalvingDoubling,
    /// Blocks round a ring, to the next rank only: for very large vectors. Where a sum begins depends on the block, so it is
    /// taken by request, or where [`Order::Any`](crate::path::Order::Any) allows it.
    ///
    /// all_reduce: 2α(n−1) + 2βm(n−1)/n + γm(n−1)/n.
    Ring,
    /// To or from one rank in ⌈log₂ n⌉ hops. Sums are those of recursive doubling.
    ///
    /// broadcast, passed on as it comes: (α + βm)·⌈log₂ n⌉ at most; reduce: (α + βm + γm)·⌈log₂ n⌉; gather and scatter:
    /// α⌈log₂ n⌉ + βm(n−1)/n.
    BinomialTree,
    /// From each rank to the next, passed on as it comes: scans of large vectors. Sums are rounded rank by rank.
    ///
    /// (α + βm + γm)(n−1) at most, and α(n−1) + (β + γ)m for large vectors.
    Chain,
    /// Each rank with each other, some at a time: all_to_all of many ranks.
    ///
    /// α(n−1) + βm(n−1)/n.
    Pairwise,
    /// Exchanges at distance 1, 2, 4, … round the ring of ranks, whatever their number: all_to_all of small parts on many ranks, and
    /// reduce_scatter with the same traffic at all ranks. There, where a sum begins depends on the rank that gets it, so it is taken by
    /// request, or where [`Order::Any`](crate::path::Order::Any) allows it.
    ///
    /// reduce_scatter: α⌈log₂ n⌉ + (β + γ)m(n−1)/n; all_to_all: (α + βm/2)·⌈log₂ n⌉ at most. The all-gather of this kind is
    /// that of [`RecursiveDoubling`](Self::RecursiveDoubling).
    Bruck,
    /// Two binary trees with half of the vector each, passed on as it comes; who passes on in one is a leaf of the other: for large
    /// vectors on many ranks. Sums are those of recursive doubling.
    ///
    /// broadcast: α(⌈log₂ n⌉ + 1) + 1½βm; all_reduce: 2α(⌈log₂ n⌉ + 1) + (3β + γ)m; reduce: α(⌈log₂ n⌉ + 2) + (2β + γ)m.
    DoubleTree,
    /// The vector in parts down a binomial tree, and then each part to all: broadcasts of large vectors.
    ///
    /// 2α⌈log₂ n⌉ + 2βm(n−1)/n at most.
    ScatterAllGather,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: &'static [Algorithm] = &[
        Algorithm::MeshOneShot,
        Algorithm::MeshTwoShot,
        Algorithm::FlatTree,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::Ring,
        Algorithm::BinomialTree,
        Algorithm::Chain,
        Algorithm::Pairwise,
        Algorithm::Bruck,
        Algorithm::DoubleTree,
        Algorithm::ScatterAllGather,
    ];

    /// The name, as users give it.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::MeshOneShot => mesh_one_shot::NAME,
            Algorithm::MeshTwoShot => mesh_two_shot::NAME,
            Algorithm::FlatTree => flat_tree::NAME,
            Algorithm::RecursiveDoubling => recursive_doubling::NAME,
            Algorithm::HalvingDoubling => halving_doubling::NAME,
            Algorithm::Ring => ring::NAME,
            Algorithm::BinomialTree => binomial_tree::NAME,
            Algorithm::Chain => chain::NAME,
            Algorithm::Pairwise => pairwise::NAME,
            Algorithm::Bruck => bruck::NAME,
            Algorithm::DoubleTree => double_tree::NAME,
            Algorithm::ScatterAllGather => scatter_all_gather::NAME,
        }
    }

    /// Whether it can do this collective.
    pub const fn supports(self, collective: Collective) -> bool {
        use Collective as C;
        match self {
            Algorithm::MeshOneShot => matches!(
                collective,
                C::AllReduce
                    | C::AllGather
                    | C::ReduceScatter
                    | C::Broadcast { .. }
                    | C::AllToAll
                    | C::Scan
                    | C::ExScan
            ),
            Algorithm::MeshTwoShot => matches!(
                collective,
                C::AllReduce | C::AllGather | C::ReduceScatter | C::Broadcast { .. } | C::Reduce { .. }
            ),
            Algorithm::FlatTree => {
                matches!(collective, C::AllReduce | C::Reduce { .. } | C::Gather { .. } | C::Scatter { .. })
            }
            Algorithm::RecursiveDoubling => {
                matches!(collective, C::AllReduce | C::AllGather | C::Scan | C::ExScan)
            }
            Algorithm::HalvingDoubling => {
                matches!(collective, C::AllReduce | C::ReduceScatter | C::Reduce { .. })
            }
            Algorithm::Ring => matches!(collective, C::AllReduce | C::AllGather | C::ReduceScatter),
            Algorithm::BinomialTree => {
                matches!(
                    collective,
                    C::Broadcast { .. } | C::Reduce { .. } | C::Gather { .. } | C::Scatter { .. }
                )
            }
            Algorithm::Chain => matches!(collective, C::Scan | C::ExScan),
            Algorithm::Pairwise => matches!(collective, C::AllToAll),
            Algorithm::Bruck => matches!(collective, C::ReduceScatter | C::AllToAll),
            Algorithm::DoubleTree => {
                matches!(collective, C::AllReduce | C::Broadcast { .. } | C::Reduce { .. })
            }
            Algorithm::ScatterAllGather => matches!(collective, C::Broadcast { .. }),
        }
    }

    /// What is promised of bits: on which ranks, and in which order sums are associated.
    pub(super) const fn association(self, collective: Collective) -> &'static str {
        use Algorithm as A;
        use Collective as C;
        if !collective.reduces() {
            return "as they were: nothing is computed";
        }
        // Only of an all-reduce have two ranks the same result.
        let shared = matches!(collective, C::AllReduce);
        match (self, collective) {
            (A::MeshOneShot | A::Chain, C::Scan | C::ExScan) => {
                "same bits from run to run, and for every count: sums are in rank order, rounded at each rank"
            }
            (A::MeshOneShot | A::MeshTwoShot | A::FlatTree | A::Chain, _) if shared => {
                "same bits on all ranks, from run to run, and for every count: sums are in rank order"
            }
            (A::MeshOneShot | A::MeshTwoShot | A::FlatTree | A::Chain, _) => {
                "same bits from run to run, and for every count: sums are in rank order"
            }
            (A::Ring, _) if shared => {
                "same bits on all ranks and from run to run; the order of a sum depends on its place and on the count"
            }
            (A::Ring | A::Bruck, C::ReduceScatter) => {
                "same bits from run to run; the order of a sum depends on the rank that gets it, not on the count"
            }
            _ if shared => {
                "same bits on all ranks, from run to run, and for every count: sums are a tree over neighbouring ranks"
            }
            _ => "same bits from run to run, and for every count: sums are a tree over neighbouring ranks",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No algorithm has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no algorithm \"{0}\"; there are mesh-one-shot, mesh-two-shot, flat-tree, recursive-doubling, halving-doubling, ring, \
     binomial-tree, chain, pairwise, bruck, double-tree and scatter-all-gather"
)]
pub struct UnknownAlgorithm(pub String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let known = Algorithm::ALL.iter().copied().find(|algorithm| algorithm.name() == name);
        known.ok_or_else(|| UnknownAlgorithm(name.to_string()))
    }
}

/// The cost formula; see the algorithms' own docs for what the letters mean.
pub(super) const fn cost(algorithm: Algorithm, collective: Collective) -> &'static str {
    use Algorithm as A;
    use Collective as C;
    match (algorithm, collective) {
        (A::FlatTree, C::Reduce { .. }) => "(α + βm + γm)(n−1) at the root, and α + βm at the others",
        (A::FlatTree, C::Gather { .. } | C::Scatter { .. }) => {
            "(α + βm/n)(n−1) at the root, and α + βm/n at the others"
        }
        (A::MeshTwoShot, C::Reduce { .. }) => "αn + (β + γ)m",
        (A::HalvingDoubling, C::Reduce { .. }) => {
            "2α⌊log₂ n⌋ + (2β + γ)m(N−1)/N with N = 2^⌊log₂ n⌋, and α + βm + γm if n ≠ N"
        }
        (A::BinomialTree, C::Reduce { .. }) => "(α + βm + γm)·⌈log₂ n⌉",
        (A::BinomialTree, C::Gather { .. } | C::Scatter { .. }) => "α⌈log₂ n⌉ + βm(n−1)/n",
        (A::MeshOneShot, C::Scan | C::ExScan) => {
            "(α + βm)(n−1) at rank 0, and as much with γm(n−1) at the last"
        }
        (A::RecursiveDoubling, C::Scan | C::ExScan) => "(α + βm + 2γm)·⌈log₂ n⌉",
        (A::Chain, _) => "(α + βm + γm)(n−1), and α(n−1) + (β + γ)m for large vectors",
        (A::Bruck, C::AllToAll) => "(α + βm/2)·⌈log₂ n⌉ at most",
        (A::Bruck, _) => "α⌈log₂ n⌉ (twice where a run of blocks wraps round) + (β + γ)m(n−1)/n",
        (A::DoubleTree, C::AllReduce) => "2α(⌈log₂ n⌉ + 1) + (3β + γ)m, passed on as it comes",
        (A::DoubleTree, C::Reduce { .. }) => "α(⌈log₂ n⌉ + 2) + (2β + γ)m, passed on as it comes",
        (A::DoubleTree, _) => "α(⌈log₂ n⌉ + 1) + 1½βm, passed on as it comes",
        (A::ScatterAllGather, _) => "2α⌈log₂ n⌉ + 2βm(n−1)/n at most",
        (A::Pairwise, _) | (_, C::AllToAll) => "α(n−1) + βm(n−1)/n",
        (A::MeshOneShot, C::AllReduce) => "α(n−1) + β(n−1)m + γ(n−1)m",
        (A::MeshOneShot, C::Broadcast { .. }) => "α(n−1) + β(n−1)m",
        (A::MeshTwoShot | A::Ring, C::AllReduce) => "2α(n−1) + 2βm(n−1)/n + γm(n−1)/n",
        (A::MeshTwoShot, C::Broadcast { .. }) => "2α(n−1) + 2βm(n−1)/n",
        (A::FlatTree, _) => "2α(n−1) + 2β(n−1)m + γ(n−1)m at rank 0, and 2α + 2βm at the others",
        (A::RecursiveDoubling, C::AllReduce) => "(α + βm + γm)·⌊log₂ n⌋, and 2α + 2βm + γm if n ≠ 2^k",
        (A::RecursiveDoubling, _) => "α⌈log₂ n⌉ + βm(n−1)/n",
        (A::HalvingDoubling, C::AllReduce) => {
            "2α⌊log₂ n⌋ + (2β + γ)m(N−1)/N with N = 2^⌊log₂ n⌋, and 2α + 2βm + γm if n ≠ N"
        }
        (A::HalvingDoubling, _) => {
            "α(1 + ⌊log₂ n⌋) + (β + γ)m(N−1)/N + βm/N with N = 2^⌊log₂ n⌋, and α + βm + γm if n ≠ N"
        }
        (A::BinomialTree, _) => "(α + βm)·⌈log₂ n⌉",
        (_, C::AllGather) => "α(n−1) + βm(n−1)/n",
        (_, _) => "α(n−1) + (β + γ)m(n−1)/n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(*algorithm));
        }
        let unknown = "mesh".parse::<Algorithm>().unwrap_err().to_string();
        assert!(Algorithm::ALL.iter().all(|algorithm| unknown.contains(algorithm.name())));
    }
}
