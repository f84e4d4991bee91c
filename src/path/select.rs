//! Which algorithm for which call, and why.
//!
//! A choice must be the same on all ranks, so it depends on [`Facts`] that all have agreed on and on the call alone.
//!
//! It must also not change bits from one call to the next. Sums are associated in one of two ways: in rank order by
//! the mesh algorithms and the flat tree, in a tree over neighbouring ranks by the doubling algorithms. Which of the two it is depends
//! on the number of ranks; within each, the size of the vector decides. A ring associates differently in every
//! block, so it is taken by request only.

use std::fmt;

use crate::path::algorithm::{Algorithm, cost};
use crate::path::algorithms::{
    binomial_tree, bruck, chain, double_tree, flat_tree, halving_doubling, mesh_one_shot, mesh_two_shot,
    pairwise, recursive_doubling, ring, scatter_all_gather,
};
use crate::path::out_of_place;
use crate::path::plan::{Action, Collective, Placement, Plan};
use crate::path::verify::{RANKS_MAX, VerifiedPlan, VerifyError, verify};

/// The largest world on which everybody sends to everybody: from there on 2(n − 1) messages per rank cost more than
/// 2 log₂ n rounds.
const MESH_RANKS_MAX: u32 = 8;

/// The largest vector that is sent as a whole to everybody, in bytes.
const ONE_SHOT_BYTES_MAX: u64 = 16 << 10;

/// The same between two ranks, where one-shot sends no more than two-shot does.
const ONE_SHOT_BYTES_MAX_PAIR: u64 = 64 << 10;

/// The largest vector that is sent as a whole in each round of recursive doubling, in bytes.
const DOUBLING_BYTES_MAX: u64 = 16 << 10;

/// The largest vector that goes to rank 0 and back where ranks share processors, in bytes: up to here, messages cost more
/// than what is in them.
const FLAT_TREE_BYTES_MAX: u64 = 16 << 10;

/// The smallest block for which a ring's n − 1 latencies are worth it, in bytes.
const RING_BLOCK_BYTES_MIN: u64 = 64 << 10;

const ALONE: &str = "a rank alone has nothing to send";

/// Whether the association of sums may depend on more than the world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// It depends on the number of ranks only, not on the count.
    #[default]
    Fixed,
    /// Any: whatever is fastest. All ranks still get the same bits.
    Any,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Order::Fixed => "fixed",
            Order::Any => "any",
        })
    }
}

/// What all ranks have agreed on, and a choice depends on beside the call: how many they are, where, and which order of
/// sums is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The number of ranks.
    pub(crate) world: u32,
    /// The largest world for the mesh algorithms.
    mesh_ranks_max: u32,
    /// The largest vector for one-shot, in bytes.
    one_shot_bytes_max: u64,
    /// The same between two ranks, as they are in parts of a world.
    one_shot_bytes_max_pair: u64,
    /// The largest vector for recursive doubling, in bytes.
    doubling_bytes_max: u64,
    /// The largest vector for the flat tree, in bytes.
    flat_tree_bytes_max: u64,
    /// The smallest block for a ring, in bytes.
    ring_block_bytes_min: u64,
    /// Whether a ring may be taken.
    order: Order,
    /// Whether all ranks are in one process.
    in_process: bool,
    /// Whether all ranks are on one host that has fewer processors for them. Not compared: it follows from what the root
    /// tells all about all.
    crowded: bool,
    /// Whether all ranks share memory with each other across processes. Not compared either, for the same reason.
    sharing: bool,
}

impl Facts {
    /// Those of a world of this many processes.
    pub const fn new(world: u32) -> Self {
        Facts {
            world,
            mesh_ranks_max: MESH_RANKS_MAX,
            one_shot_bytes_max: ONE_SHOT_BYTES_MAX,
            one_shot_bytes_max_pair: ONE_SHOT_BYTES_MAX_PAIR,
            doubling_bytes_max: DOUBLING_BYTES_MAX,
            flat_tree_bytes_max: FLAT_TREE_BYTES_MAX,
            ring_block_bytes_min: RING_BLOCK_BYTES_MIN,
            order: Order::Fixed,
            in_process: false,
            crowded: false,
            sharing: false,
        }
    }

    /// The same, with this order of sums.
    pub const fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// The same for ranks of one process, which read and write each other's memory directly.
    pub const fn within_process(mut self) -> Self {
        self.in_process = true;
        self
    }

    /// The same for ranks of one host that share its processors, or don't.
    pub const fn crowded(mut self, crowded: bool) -> Self {
        self.crowded = crowded;
        self
    }

    /// The same for ranks of which each shares memory with each other's process, or not.
    pub const fn sharing(mut self, sharing: bool) -> Self {
        self.sharing = sharing;
        self
    }

    /// The facts of a part of this world, of that many ranks: all else is as it was, also whether they are crowded, since
    /// the ranks of the other parts are at work as well.
    pub(crate) const fn of_part(&self, ranks: u32) -> Self {
        Facts { world: ranks, ..*self }
    }

    /// The largest vector that is sent as a whole to everybody.
    const fn one_shot_bytes_max(&self) -> u64 {
        if self.world == 2 { self.one_shot_bytes_max_pair } else { self.one_shot_bytes_max }
    }

    /// The facts by name, so that one on which ranks disagree can be named: all that a choice depends on and that may
    /// differ between programs or machines.
    pub(crate) fn entries(&self) -> Vec<(&'static str, String)> {
        vec![
            ("world", self.world.to_string()),
            ("mesh_ranks_max", self.mesh_ranks_max.to_string()),
            ("one_shot_bytes_max", self.one_shot_bytes_max.to_string()),
            ("one_shot_bytes_max_pair", self.one_shot_bytes_max_pair.to_string()),
            ("doubling_bytes_max", self.doubling_bytes_max.to_string()),
            ("flat_tree_bytes_max", self.flat_tree_bytes_max.to_string()),
            ("ring_block_bytes_min", self.ring_block_bytes_min.to_string()),
            ("order", self.order.to_string()),
            ("in_process", self.in_process.to_string()),
        ]
    }
}

/// An algorithm and why it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Choice {
    /// Which.
    pub algorithm: Algorithm,
    /// Why.
    pub reason: &'static str,
}

/// What can't be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The algorithm can't do the collective.
    #[error("{algorithm} has no {}", .collective.name())]
    #[non_exhaustive]
    Collective {
        /// Which algorithm.
        algorithm: Algorithm,
        /// Which collective.
        collective: Collective,
    },
    /// Too few or too many ranks.
    #[error("plans are for 1 to {RANKS_MAX} ranks, not for {ranks}")]
    #[non_exhaustive]
    Ranks {
        /// How many.
        ranks: u32,
    },
    /// The root is no rank.
    #[error("there is no rank {root} among {ranks} to be the root: give one from 0 to {}", .ranks.saturating_sub(1))]
    #[non_exhaustive]
    Root {
        /// The root.
        root: u32,
        /// How many ranks there are.
        ranks: u32,
    },
}

/// The algorithm for a collective on a vector of `bytes` bytes (the whole of it, as it is in the output), or the
/// `forced` one. Does not allocate. A barrier is an all-reduce of one byte.
///
/// # Errors
///
/// If the forced algorithm can't do it, or there are too many ranks.
pub fn choose(
    facts: &Facts,
    collective: Collective,
    bytes: u64,
    forced: Option<Algorithm>,
) -> Result<Choice, Unsupported> {
    if let Some(algorithm) = forced {
        check(algorithm, collective, facts.world)?;
        return Ok(Choice { algorithm, reason: "it was asked for" });
    }
    let (algorithm, reason) = preferred(facts, collective, bytes);
    check(algorithm, collective, facts.world)?;
    Ok(Choice { algorithm, reason })
}

fn preferred(facts: &Facts, collective: Collective, bytes: u64) -> (Algorithm, &'static str) {
    let mesh = facts.world <= facts.mesh_ranks_max;
    let ring =
        facts.order == Order::Any && bytes / u64::from(facts.world.max(1)) >= facts.ring_block_bytes_min;
    match collective {
        Collective::Reduce { .. } | Collective::Gather { .. } | Collective::Scatter { .. }
            if facts.world <= 1 =>
        {
            (Algorithm::FlatTree, ALONE)
        }
        _ if facts.world <= 1 => (Algorithm::MeshOneShot, ALONE),
        Collective::AllGather | Collective::ReduceScatter if mesh => {
            (Algorithm::MeshOneShot, "few ranks: each block goes straight to where it is needed")
        }
        Collective::AllReduce if mesh && facts.in_process => {
            (Algorithm::MeshTwoShot, "few ranks of one process: each reduces its share for all, in place")
        }
        Collective::AllReduce
            if mesh
                && facts.crowded
                && !facts.sharing
                && facts.world > 2
                && bytes <= facts.flat_tree_bytes_max =>
        {
            (Algorithm::FlatTree, "few ranks, but more than processors, and a small vector: fewest messages")
        }
        Collective::AllReduce | Collective::Broadcast { .. }
            if mesh && bytes <= facts.one_shot_bytes_max() =>
        {
            (Algorithm::MeshOneShot, "few ranks and a small vector: one message each way")
        }
        Collective::AllReduce | Collective::Broadcast { .. } if mesh => {
            (Algorithm::MeshTwoShot, "few ranks and a large vector: each rank carries its share of the bytes")
        }
        Collective::Reduce { .. } => preferred_reduce(facts, bytes),
        Collective::Scan | Collective::ExScan => preferred_scan(facts, bytes, ring),
        Collective::AllToAll if mesh => {
            (Algorithm::MeshOneShot, "few ranks: each part goes straight to where it is needed")
        }
        Collective::AllToAll => {
            (Algorithm::Pairwise, "many ranks: no receiver has more to take than one sender gives")
        }
        Collective::Gather { .. } | Collective::Scatter { .. } if mesh => {
            (Algorithm::FlatTree, "few ranks: each part goes straight to where it is needed")
        }
        Collective::Gather { .. } | Collective::Scatter { .. } if bytes > facts.doubling_bytes_max => {
            (Algorithm::FlatTree, "many ranks and large parts: nobody passes on what is not his")
        }
        Collective::Gather { .. } | Collective::Scatter { .. } => {
            (Algorithm::BinomialTree, "many ranks and small parts: fewest messages at the root")
        }
        Collective::Broadcast { .. } => {
            (Algorithm::BinomialTree, "many ranks: fewest hops, passed on as it comes")
        }
        _ if ring => {
            (Algorithm::Ring, "many ranks, a large vector, and any order of sums allowed: fewest bytes")
        }
        Collective::AllReduce if bytes <= facts.doubling_bytes_max => {
            (Algorithm::RecursiveDoubling, "many ranks and a small vector: fewest rounds")
        }
        Collective::AllGather => (Algorithm::RecursiveDoubling, "many ranks: fewest rounds"),
        Collective::AllReduce => {
            (Algorithm::HalvingDoubling, "many ranks and a large vector: few rounds and few bytes")
        }
        Collective::ReduceScatter => (Algorithm::HalvingDoubling, "many ranks: few rounds and few bytes"),
    }
}

fn preferred_reduce(facts: &Facts, bytes: u64) -> (Algorithm, &'static str) {
    let mesh = facts.world <= facts.mesh_ranks_max;
    if mesh && bytes <= facts.one_shot_bytes_max() {
        (Algorithm::FlatTree, "few ranks and a small vector: one message each")
    } else if mesh {
        (Algorithm::MeshTwoShot, "few ranks and a large vector: each rank sums its share of the bytes")
    } else if bytes <= facts.doubling_bytes_max {
        (Algorithm::BinomialTree, "many ranks and a small vector: fewest hops")
    } else {
        (Algorithm::HalvingDoubling, "many ranks and a large vector: few rounds and few bytes")
    }
}

fn preferred_scan(facts: &Facts, bytes: u64, any_order: bool) -> (Algorithm, &'static str) {
    let mesh = facts.world <= facts.mesh_ranks_max;
    if mesh && bytes <= facts.one_shot_bytes_max() {
        (Algorithm::MeshOneShot, "few ranks and a small vector: one message to each rank after one's own")
    } else if mesh {
        (Algorithm::Chain, "few ranks and a large vector: one message each, passed on as it comes")
    } else if any_order {
        (Algorithm::Chain, "a large vector, and any order of sums allowed: passed on as it comes")
    } else {
        (Algorithm::RecursiveDoubling, "many ranks: fewest rounds")
    }
}

/// The algorithm by which each part goes straight to where it is needed, whose length only its sender knows.
pub(crate) fn direct(facts: &Facts, collective: Collective, placement: Placement) -> Algorithm {
    match collective {
        Collective::Gather { .. } | Collective::Scatter { .. } => Algorithm::FlatTree,
        // In one buffer, it is the one that puts parts aside each for itself.
        _ if facts.world <= facts.mesh_ranks_max || placement == Placement::InPlace => Algorithm::MeshOneShot,
        _ => Algorithm::Pairwise,
    }
}

/// The plan of an algorithm for `n` ranks, in place.
///
/// # Errors
///
/// If the algorithm can't do the collective, or not on `n` ranks.
pub fn build(algorithm: Algorithm, collective: Collective, n: u32) -> Result<Plan, Unsupported> {
    check(algorithm, collective, n)?;
    let plan = match (algorithm, collective) {
        (Algorithm::MeshOneShot, Collective::AllReduce) => mesh_one_shot::all_reduce(n),
        (Algorithm::MeshOneShot, Collective::AllGather) => mesh_one_shot::all_gather(n),
        (Algorithm::MeshOneShot, Collective::ReduceScatter) => mesh_one_shot::reduce_scatter(n),
        (Algorithm::MeshOneShot, Collective::Broadcast { root }) => mesh_one_shot::broadcast(root, n),
        (Algorithm::MeshTwoShot, Collective::AllReduce) => mesh_two_shot::all_reduce(n),
        (Algorithm::MeshTwoShot, Collective::AllGather) => mesh_two_shot::all_gather(n),
        (Algorithm::MeshTwoShot, Collective::ReduceScatter) => mesh_two_shot::reduce_scatter(n),
        (Algorithm::MeshTwoShot, Collective::Broadcast { root }) => mesh_two_shot::broadcast(root, n),
        (Algorithm::FlatTree, Collective::AllReduce) => flat_tree::all_reduce(n),
        (Algorithm::RecursiveDoubling, Collective::AllReduce) => recursive_doubling::all_reduce(n),
        (Algorithm::RecursiveDoubling, Collective::AllGather) => recursive_doubling::all_gather(n),
        (Algorithm::HalvingDoubling, Collective::AllReduce) => halving_doubling::all_reduce(n),
        (Algorithm::HalvingDoubling, Collective::ReduceScatter) => halving_doubling::reduce_scatter(n),
        (Algorithm::Ring, Collective::AllReduce) => ring::all_reduce(n),
        (Algorithm::Ring, Collective::AllGather) => ring::all_gather(n),
        (Algorithm::Ring, Collective::ReduceScatter) => ring::reduce_scatter(n),
        (Algorithm::BinomialTree, Collective::Broadcast { root }) => binomial_tree::broadcast(root, n),
        (Algorithm::MeshTwoShot, Collective::Reduce { root }) => mesh_two_shot::reduce(root, n),
        (Algorithm::FlatTree, Collective::Reduce { root }) => flat_tree::reduce(root, n),
        (Algorithm::HalvingDoubling, Collective::Reduce { root }) => halving_doubling::reduce(root, n),
        (Algorithm::BinomialTree, Collective::Reduce { root }) => binomial_tree::reduce(root, n),
        (Algorithm::FlatTree, Collective::Gather { root }) => flat_tree::gather(root, n),
        (Algorithm::BinomialTree, Collective::Gather { root }) => binomial_tree::gather(root, n),
        (Algorithm::FlatTree, Collective::Scatter { root }) => flat_tree::scatter(root, n),
        (Algorithm::BinomialTree, Collective::Scatter { root }) => binomial_tree::scatter(root, n),
        (Algorithm::MeshOneShot, Collective::AllToAll) => mesh_one_shot::all_to_all(n),
        (Algorithm::Pairwise, Collective::AllToAll) => pairwise::all_to_all(n),
        (Algorithm::MeshOneShot, Collective::Scan) => mesh_one_shot::scan(n),
        (Algorithm::Chain, Collective::Scan) => chain::scan(n),
        (Algorithm::RecursiveDoubling, Collective::Scan) => recursive_doubling::scan(n),
        (Algorithm::MeshOneShot, Collective::ExScan) => mesh_one_shot::exscan(n),
        (Algorithm::Chain, Collective::ExScan) => chain::exscan(n),
        (Algorithm::RecursiveDoubling, Collective::ExScan) => recursive_doubling::exscan(n),
        (Algorithm::Bruck, Collective::ReduceScatter) => bruck::reduce_scatter(n),
        (Algorithm::Bruck, Collective::AllToAll) => bruck::all_to_all(n),
        (Algorithm::DoubleTree, Collective::AllReduce) => double_tree::all_reduce(n),
        (Algorithm::DoubleTree, Collective::Broadcast { root }) => double_tree::broadcast(root, n),
        (Algorithm::DoubleTree, Collective::Reduce { root }) => double_tree::reduce(root, n),
        (Algorithm::ScatterAllGather, Collective::Broadcast { root }) => {
            scatter_all_gather::broadcast(root, n)
        }
        _ => return Err(Unsupported::Collective { algorithm, collective }),
    };
    Ok(plan)
}

/// The plan of an algorithm for `n` ranks, proved.
///
/// # Errors
///
/// If the algorithm can't do the collective, or not on `n` ranks, or there is no second buffer for it. [`PlanError::Wrong`] of
/// another kind would be a bug here.
pub fn prove(
    algorithm: Algorithm,
    collective: Collective,
    placement: Placement,
    n: u32,
) -> Result<VerifiedPlan, PlanError> {
    let in_place = build(algorithm, collective, n)?;
    if placement == Placement::InPlace {
        return Ok(verify(in_place)?);
    }
    // What can do with less than what comes of the plan in place.
    let own = match (algorithm, collective) {
        (Algorithm::MeshOneShot, Collective::AllReduce) => Some(mesh_one_shot::all_reduce_out_of_place(n)),
        (Algorithm::MeshOneShot, Collective::AllToAll) => Some(mesh_one_shot::all_to_all_out_of_place(n)),
        (Algorithm::Pairwise, Collective::AllToAll) => Some(pairwise::all_to_all_out_of_place(n)),
        _ => None,
    };
    match own {
        Some(plan) => Ok(verify(plan)?),
        None => Ok(out_of_place(&verify(in_place)?)?),
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The algorithm can't do this.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The plan is wrong.
    #[error("the plan is wrong: {0}")]
    Wrong(#[from] VerifyError),
}

fn check(algorithm: Algorithm, collective: Collective, n: u32) -> Result<(), Unsupported> {
    if n == 0 || n as usize > RANKS_MAX {
        return Err(Unsupported::Ranks { ranks: n });
    }
    match collective {
        _ if !algorithm.supports(collective) => Err(Unsupported::Collective { algorithm, collective }),
        _ => match collective.root() {
            Some(root) if root.0 >= n => Err(Unsupported::Root { root: root.0, ranks: n }),
            _ => Ok(()),
        },
    }
}

/// What a call will do, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The algorithm and why.
    pub choice: Choice,
    /// What is computed.
    pub collective: Collective,
    /// Steps of the rank that has most.
    pub steps: usize,
    /// Messages sent by the rank that sends most.
    pub messages: usize,
    /// Bytes sent by the rank that sends most.
    pub bytes: u64,
    /// Cost in α (per message), β (per byte sent) and γ (per byte reduced).
    pub cost: &'static str,
    /// What is promised about bits.
    pub guarantee: &'static str,
}

impl Explanation {
    /// Explains a plan that was built by `choice`, for `count` elements of `element_bytes` each.
    pub fn new(choice: Choice, plan: &Plan, count: usize, element_bytes: usize) -> Self {
        let partition = plan.partition(count);
        let sent = |part: &crate::path::plan::RankPlan| {
            let ranges = part.steps.iter().filter_map(|step| match step.action {
                Action::Send { src, .. } => Some(partition.elements(src).len() as u64),
                _ => None,
            });
            ranges.fold((0, 0), |(messages, elements): (usize, u64), more| {
                (messages + 1, elements.saturating_add(more))
            })
        };
        Explanation {
            choice,
            collective: plan.collective,
            steps: plan.ranks.iter().map(|part| part.steps.len()).max().unwrap_or(0),
            messages: plan.ranks.iter().map(|part| sent(part).0).max().unwrap_or(0),
            bytes: plan
                .ranks
                .iter()
                .map(|part| sent(part).1.saturating_mul(element_bytes as u64))
                .max()
                .unwrap_or(0),
            cost: cost(choice.algorithm, plan.collective),
            guarantee: choice.algorithm.association(plan.collective),
        }
    }
}

fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { algorithm, reason } = self.choice;
        writeln!(f, "{} by {algorithm}: {reason}", self.collective.name())?;
        writeln!(
            f,
            "per rank: up to {}, {}, {} sent",
            counted(self.steps as u64, "step"),
            counted(self.messages as u64, "message"),
            counted(self.bytes, "byte"),
        )?;
        writeln!(f, "cost: {}", self.cost)?;
        write!(f, "bits: {}", self.guarantee)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;

    fn chosen(world: u32, bytes: u64, order: Order) -> Algorithm {
        let facts = Facts { order, ..Facts::new(world) };
        choose(&facts, Collective::AllReduce, bytes, None).unwrap().algorithm
    }

    #[test]
    fn few_ranks_use_the_mesh_and_many_a_tree() {
        assert_eq!(chosen(2, 32 << 10, Order::Fixed), Algorithm::MeshOneShot);
        assert_eq!(chosen(3, 32 << 10, Order::Fixed), Algorithm::MeshTwoShot);
        let near = Facts::new(4).within_process().of_part(2);
        assert_eq!(near, Facts::new(2).within_process());
        let choice = choose(&near, Collective::AllReduce, 8, None).unwrap();
        assert_eq!(choice.algorithm, Algorithm::MeshTwoShot);
        assert_eq!(chosen(8, 16 << 10, Order::Fixed), Algorithm::MeshOneShot);
        let crowded = |world, bytes| {
            choose(&Facts::new(world).crowded(true), Collective::AllReduce, bytes, None).unwrap().algorithm
        };
        assert_eq!(crowded(2, 8), Algorithm::MeshOneShot);
        assert_eq!(crowded(4, 16 << 10), Algorithm::FlatTree);
        assert_eq!(crowded(4, 1 << 20), Algorithm::MeshTwoShot);
        assert_eq!(crowded(9, 8), Algorithm::RecursiveDoubling);
        assert_eq!(chosen(9, 16 << 10, Order::Fixed), Algorithm::RecursiveDoubling);
        assert_eq!(chosen(9, 1 << 30, Order::Fixed), Algorithm::HalvingDoubling);
        assert_eq!(chosen(9, 1 << 30, Order::Any), Algorithm::Ring);
        assert_eq!(chosen(9, 100_000, Order::Any), Algorithm::HalvingDoubling);
    }

    /// Each threshold is that of the facts, which ranks compare, and none is the program's own.
    #[test]
    fn a_choice_depends_on_compared_thresholds_only() {
        let all_reduce =
            |facts: Facts, bytes| choose(&facts, Collective::AllReduce, bytes, None).unwrap().algorithm;
        let few = Facts::new(4);
        let none = Facts { flat_tree_bytes_max: 0, ..few.crowded(true) };
        assert_eq!(all_reduce(none, 8), Algorithm::MeshOneShot);
        let pairs = Facts { one_shot_bytes_max_pair: 1, ..few };
        assert_eq!(all_reduce(pairs.of_part(2), 8), Algorithm::MeshTwoShot);
        let many = Facts { ring_block_bytes_min: 1, ..Facts::new(9).order(Order::Any) };
        assert_eq!(all_reduce(many, 9), Algorithm::Ring);
    }

    #[test]
    fn a_forced_algorithm_is_taken_or_refused() {
        let facts = Facts::new(4);
        let forced = |collective, algorithm| choose(&facts, collective, 1, Some(algorithm));
        assert_eq!(forced(Collective::AllReduce, Algorithm::Ring).unwrap().algorithm, Algorithm::Ring);
        let refused = forced(Collective::Broadcast { root: Rank(0) }, Algorithm::Ring).unwrap_err();
        assert_eq!(refused.to_string(), "ring has no broadcast");
        assert!(forced(Collective::Broadcast { root: Rank(4) }, Algorithm::BinomialTree).is_err());
        assert!(choose(&Facts::new(65), Collective::AllReduce, 1, None).is_err());
        assert!(choose(&Facts::new(0), Collective::AllReduce, 1, None).is_err());
    }

    #[test]
    fn every_fact_is_compared() {
        let facts = Facts::new(4);
        let changed = [
            Facts { world: 5, ..facts },
            Facts { mesh_ranks_max: 9, ..facts },
            Facts { one_shot_bytes_max: 1, ..facts },
            Facts { one_shot_bytes_max_pair: 1, ..facts },
            Facts { doubling_bytes_max: 1, ..facts },
            Facts { flat_tree_bytes_max: 1, ..facts },
            Facts { ring_block_bytes_min: 1, ..facts },
            Facts { order: Order::Any, ..facts },
            Facts { in_process: true, ..facts },
        ];
        assert_eq!(facts.entries().len(), changed.len());
        for other in changed {
            let differ = facts.entries().into_iter().zip(other.entries()).filter(|(one, other)| one != other);
            assert_eq!(differ.count(), 1);
        }
    }

    #[test]
    fn what_can_be_built_is_what_is_supported() {
        let root = Collective::Broadcast { root: Rank(1) };
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, root] {
            for algorithm in Algorithm::ALL.iter().copied() {
                assert_eq!(build(algorithm, collective, 4).is_ok(), algorithm.supports(collective));
            }
        }
    }

    #[test]
    fn an_explanation_counts_what_is_sent() {
        let choice = choose(&Facts::new(4), Collective::AllReduce, 1 << 20, None).unwrap();
        let plan = build(choice.algorithm, Collective::AllReduce, 4).unwrap();
        let explanation = Explanation::new(choice, &plan, 1 << 18, 4);
        assert_eq!((explanation.messages, explanation.bytes), (6, 6 << 18));
        let text = explanation.to_string();
        assert!(text.starts_with("all_reduce by mesh-two-shot: few ranks and a large vector"), "{text}");
        assert!(text.contains("sums are in rank order"), "{text}");
    }
}
