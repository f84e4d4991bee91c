//! Everybody sends to everybody at once.
//!
//! | collective | cost |
//! |---|---|
//! | all_reduce | α(n−1) + β(n−1)m + γ(n−1)m; the messages are independent, so one latency where links are parallel |
//! | reduce_scatter, all_gather | α(n−1) + β(n−1)m/n (+ γ(n−1)m/n) |
//! | broadcast | α(n−1) + β(n−1)m at the root |
//! | all_to_all | α(n−1) + βm(n−1)/n |
//! | scan, exscan | (α + βm)(n−1) at rank 0, and as much, with γm(n−1), at the last |
//!
//! Every sum is in rank order, as in [`mesh_two_shot`]: both give the same bits. Those of scans are rounded rank by rank, as in
//! [`chain`](super::chain).
//!
//! Source: NVIDIA, "TensorRT-LLM", custom all-reduce kernels (2023), which has it as the "one-shot" strategy.

use crate::path::algorithms::{GRANULE, mesh_two_shot, pairwise};
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

/// The same from one buffer to another, where nothing needs to be copied.
pub fn all_reduce_out_of_place(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllReduce, NAME, n, 1, GRANULE).out_of_place();
    let input = Range { space: Space::Input, ..ALL };
    let mut sent = Exchange::new(n);
    for p in 0..n {
        for q in peers(p, n) {
            sent.put(p, q, plan.send(Rank(p), Rank(q), input, &[]));
        }
    }
    for p in 0..n {
        if n == 1 {
            plan.copy(Rank(p), input, ALL, &[]);
            break;
        }
        let operands = sent.in_rank_order(p, input);
        plan.reduce(Rank(p), ALL, &operands, Post::Finish, &[]);
    }
    plan.build()
}

/// Each rank's part for each other, all at once.
pub fn all_to_all(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllToAll, NAME, n, n, 1);
    pairwise::exchange(&mut plan, n as usize);
    plan.build()
}

/// The same from one buffer to another.
pub fn all_to_all_out_of_place(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllToAll, NAME, n, n, 1).out_of_place();
    pairwise::rotate(&mut plan, n as usize);
    plan.build()
}

/// Each rank's vector to all after it, which sum them one after the other.
pub fn scan(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Scan, NAME, n, 1, GRANULE);
    let sent = to_all_after(&mut plan);
    for q in 1..n {
        let (sum, mut after) = sum_before(&mut plan, &sent, q, q);
        after.extend(released(&sent, q));
        plan.reduce(Rank(q), ALL, &[sum, Operand::Local(ALL)], Post::None, &after);
    }
    plan.build()
}

/// The same without one's own.
pub fn exscan(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::ExScan, NAME, n, 1, GRANULE);
    let sent = to_all_after(&mut plan);
    for q in 1..n {
        let Some(last) = sent.get(q - 1, q) else { continue };
        let released = released(&sent, q);
        if q == 1 {
            plan.place(last.message, ALL, &released);
            continue;
        }
        let (sum, mut after) = sum_before(&mut plan, &sent, q, q - 1);
        after.extend(released);
        plan.reduce(Rank(q), ALL, &[sum, Operand::Message(last.message)], Post::None, &after);
    }
    plan.build()
}

fn to_all_after(plan: &mut PlanBuilder) -> Exchange {
    let n = plan.ranks();
    let mut sent = Exchange::new(n);
    for p in 0..n {
        for q in p + 1..n {
            sent.put(p, q, plan.send(Rank(p), Rank(q), ALL, &[]));
        }
    }
    sent
}

/// What is waited for until rank `q`'s vector is lent no more.
fn released(sent: &Exchange, q: u32) -> Vec<After> {
    (0..sent.n).filter_map(|to| sent.get(q, to)).map(|sent| After::Stream(sent.step)).collect()
}

/// The sum of the vectors of the first ranks, of which there is one at least, and what it waits for.
fn sum_before(plan: &mut PlanBuilder, sent: &Exchange, q: u32, ranks: u32) -> (Operand, Vec<After>) {
    let mut messages = (0..ranks).filter_map(|p| sent.get(p, q)).map(|sent| Operand::Message(sent.message));
    let Some(first) = messages.next() else { unreachable!("each rank sends to all after it") };
    let messages: Vec<Operand> = messages.collect();
    if messages.is_empty() {
        return (first, Vec::new());
    }
    let sum = Range { space: plan.scratch(Rank(q), 0, 1), ..ALL };
    let mut so_far = (first, Vec::new());
    for message in messages {
        let step = plan.reduce(Rank(q), sum, &[so_far.0, message], Post::None, &so_far.1);
        so_far = (Operand::Local(sum), vec![After::Stream(step)]);
    }
    so_far
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
