//! Everybody reduces one block and hands it round.
//!
//! | collective | cost |
//! |---|---|
//! | all_reduce | 2α(n−1) + 2β(n−1)m/n + γ(n−1)m/n; the messages of a half are independent |
//! | reduce_scatter, all_gather | its halves |
//! | broadcast | 2α(n−1) + 2β(n−1)m/n at the root, half of it at every other rank |
//! | reduce | αn + (β + γ)m, and the root takes in (α + βm/n)(n−1) twice |
//!
//! Every sum is in rank order, as in [`mesh_one_shot`](super::mesh_one_shot): both give the same bits.
//!
//! Source: Rolf Rabenseifner, "Optimization of Collective Reduction Operations" (2004) for all-reduce as
//! reduce-scatter and all-gather; Mike Barnett and others, "Building a High-Performance Collective Communication
//! Library" (1994) for broadcast as scatter and all-gather; NVIDIA, "TensorRT-LLM", custom all-reduce kernels (2023),
//! which has it as the "two-shot" strategy.

use crate::path::algorithms::GRANULE;
use crate::path::algorithms::mesh_one_shot::{Exchange, peers};
use crate::path::builder::PlanBuilder;
use crate::path::plan::{After, Collective, Plan, Post, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "mesh-two-shot";

/// Each rank sums its block in rank order and sends it to all.
pub fn all_reduce(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllReduce, NAME, n, n, GRANULE);
    let reduced = scatter_reduce(&mut plan);
    gather(&mut plan, Some(&reduced));
    plan.build()
}

/// The first half of the all-reduce.
pub fn reduce_scatter(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::ReduceScatter, NAME, n, n, 1);
    scatter_reduce(&mut plan);
    plan.build()
}

/// The second half of the all-reduce.
pub fn all_gather(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllGather, NAME, n, n, 1);
    gather(&mut plan, None);
    plan.build()
}

/// Each rank sums its block in rank order and sends it to the root.
pub fn reduce(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Reduce { root }, NAME, n, n, GRANULE);
    let Reduced { own, lent } = scatter_reduce(&mut plan);
    for (p, own) in (0..n).zip(own).filter(|(p, _)| *p != root.0) {
        let sent = plan.send(Rank(p), root, block(p), &[After::Stream(own)]);
        let after: Vec<After> =
            lent.get(root.0, p).map(|lent| After::Stream(lent.step)).into_iter().collect();
        plan.place(sent.message, block(p), &after);
    }
    plan.build()
}

/// The root gives each rank a block, and each rank gives its block to all.
pub fn broadcast(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Broadcast { root }, NAME, n, n, GRANULE);
    let others = || peers(root.0, n);
    let mut placed = Vec::new();
    for q in others() {
        let sent = plan.send(root, Rank(q), block(q), &[]);
        placed.push((q, plan.place(sent.message, block(q), &[])));
    }
    for (q, placed) in placed {
        for r in peers(q, n).filter(|&r| r != root.0) {
            let sent = plan.send(Rank(q), Rank(r), block(q), &[After::Stream(placed)]);
            plan.place(sent.message, block(q), &[]);
        }
    }
    for q in others() {
        let sent = plan.send(root, Rank(q), block(root.0), &[]);
        plan.place(sent.message, block(root.0), &[]);
    }
    plan.build()
}

/// What the first half leaves to the second.
pub(super) struct Reduced {
    /// Each rank's own reduction.
    own: Vec<StepId>,
    /// Which rank lent which block.
    lent: Exchange,
}

/// Block q to rank q, which sums it in rank order.
pub(super) fn scatter_reduce(plan: &mut PlanBuilder) -> Reduced {
    let n = plan.ranks();
    let mut lent = Exchange::new(n);
    if n == 1 {
        return Reduced { own: Vec::new(), lent };
    }
    for p in 0..n {
        for q in peers(p, n) {
            lent.put(p, q, plan.send(Rank(p), Rank(q), block(q), &[]));
        }
    }
    let own = (0..n)
        .map(|p| plan.reduce(Rank(p), block(p), &lent.in_rank_order(p, block(p)), Post::Finish, &[]))
        .collect();
    Reduced { own, lent }
}

/// Rank p's block to all; after a first half, as it is reduced, and not before the block there is lent no more.
pub(super) fn gather(plan: &mut PlanBuilder, reduced: Option<&Reduced>) {
    let n = plan.ranks();
    let mut sent = Exchange::new(n);
    for p in 0..n {
        let own = reduced.and_then(|reduced| reduced.own.get(p as usize));
        let after: Vec<After> = own.map(|&step| After::Stream(step)).into_iter().collect();
        for q in peers(p, n) {
            sent.put(p, q, plan.send(Rank(p), Rank(q), block(p), &after));
        }
    }
    for q in 0..n {
        // Backwards from the predecessor: whose sends to this rank come first.
        for p in (1..n).map(|i| (q + n - i) % n) {
            let lent = reduced.and_then(|reduced| reduced.lent.get(q, p));
            let after: Vec<After> = lent.map(|lent| After::Stream(lent.step)).into_iter().collect();
            if let Some(sent) = sent.get(p, q) {
                plan.place(sent.message, block(p), &after);
            }
        }
    }
}

fn block(p: u32) -> Range {
    Range::new(Space::Output, p, 1)
}
