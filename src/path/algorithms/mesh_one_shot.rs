//! Everybody sends to everybody at once.
//!
//! | collective | cost |
//! |---|---|
//! | all_reduce | α(n−1) + β(n−1)m + γ(n−1)m; the messages are independent, so one latency where links are parallel |
//! | reduce_scatter, all_gather | α(n−1) + β(n−1)m/n (+ γ(n−1)m/n) |
//! | broadcast | α(n−1) + β(n−1)m at the root |
//!
//! Every sum is in rank order, as in [`mesh_two_shot`]: both give the same bits.
//!
//! Source: NVIDIA, "TensorRT-LLM", custom all-reduce kernels (2023), which has it as the "one-shot" strategy.

use crate::path::algorithms::{GRANULE, mesh_two_shot};
use crate::path::builder::{Operand, PlanBuilder, Sent};
use crate::path::plan::{After, Collective, Plan, Post, Range, Space};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "mesh-one-shot";

const ALL: Range = Range::new(Space::Output, 0, 1);

/// All ranks' vectors to all ranks, each of which sums all of it in rank order.
///
/// What is sent is a copy in scratch memory: the result goes to where the vector was, and does not wait until the
/// peers have read it.
pub fn all_reduce(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllReduce, NAME, n, 1, GRANULE);
    if n == 1 {
        return plan.build();
    }
    let mut copies = Vec::new();
    let mut sent = Exchange::new(n);
    for p in 0..n {
        let copy = Range { space: plan.scratch(Rank(p), 0, 1), ..ALL };
        let copied = plan.copy(Rank(p), ALL, copy, &[]);
        for q in peers(p, n) {
            sent.put(p, q, plan.send(Rank(p), Rank(q), copy, &[After::Stream(copied)]));
        }
        copies.push((copy, copied));
    }
    for (p, (copy, copied)) in (0..n).zip(copies) {
        let operands = sent.in_rank_order(p, copy);
        plan.reduce(Rank(p), ALL, &operands, Post::Finish, &[After::Stream(copied)]);
    }
    plan.build()
}

/// To each rank its block from all others, summed in rank order.
pub fn reduce_scatter(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::ReduceScatter, NAME, n, n, 1);
    mesh_two_shot::scatter_reduce(&mut plan);
    plan.build()
}

/// Each rank's block to all others.
pub fn all_gather(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllGather, NAME, n, n, 1);
    mesh_two_shot::gather(&mut plan, None);
    plan.build()
}

/// The root's vector to all others.
pub fn broadcast(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Broadcast { root }, NAME, n, 1, GRANULE);
    for q in peers(root.0, n) {
        let sent = plan.send(root, Rank(q), ALL, &[]);
        plan.place(sent.message, ALL, &[]);
    }
    plan.build()
}

/// The other ranks from `p`'s successor round to its predecessor, so that not all send to the same one first.
pub(super) fn peers(p: u32, n: u32) -> impl Iterator<Item = u32> {
    (1..n).map(move |i| (p + i) % n)
}

/// One message from each rank to each other.
pub(super) struct Exchange {
    n: u32,
    sent: Vec<Option<Sent>>,
}

impl Exchange {
    pub(super) fn new(n: u32) -> Self {
        Exchange { n, sent: vec![None; n as usize * n as usize] }
    }

    pub(super) fn put(&mut self, from: u32, to: u32, sent: Sent) {
        let at = self.at(from, to);
        self.sent[at] = Some(sent);
    }

    pub(super) fn get(&self, from: u32, to: u32) -> Option<Sent> {
        self.sent[self.at(from, to)]
    }

    /// What `rank` gets from all, with its own contribution at its place.
    pub(super) fn in_rank_order(&self, rank: u32, own: Range) -> Vec<Operand> {
        (0..self.n)
            .map(|from| {
                self.get(from, rank).map_or(Operand::Local(own), |sent| Operand::Message(sent.message))
            })
            .collect()
    }

    fn at(&self, from: u32, to: u32) -> usize {
        (from * self.n + to) as usize
    }
}
