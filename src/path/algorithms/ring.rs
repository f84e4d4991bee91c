//! Blocks round a ring, to the next rank only.
//!
//! | collective | cost |
//! |---|---|
//! | all_reduce | 2α(n−1) + 2β(n−1)m/n + γ(n−1)m/n |
//! | reduce_scatter, all_gather | its halves |
//!
//! Least bytes and two connections per rank, but the sum of block b starts at rank b + 1 and goes round: the
//! association of an element depends on which block it is in and thus on the count. It is taken only by request.
//!
//! Source: Pitch Patarasuk and Xin Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations" (2009).

use crate::path::algorithms::GRANULE;
use crate::path::builder::{Operand, PlanBuilder, Sent};
use crate::path::plan::{After, Collective, Plan, Post, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "ring";

/// Sums go round once, results once more.
pub fn all_reduce(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllReduce, NAME, n, n, GRANULE);
    let round = reduce_round(&mut plan);
    gather_round(&mut plan, Some(&round));
    plan.build()
}

/// Sums go round, each ending at its owner.
pub fn reduce_scatter(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::ReduceScatter, NAME, n, n, 1);
    reduce_round(&mut plan);
    plan.build()
}

/// Blocks go round.
pub fn all_gather(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllGather, NAME, n, n, 1);
    gather_round(&mut plan, None);
    plan.build()
}

/// What the first round leaves to the second, per rank.
struct Round {
    /// The last reduction, of the rank's own block.
    own: Vec<Option<StepId>>,
    /// The send of block b, at b.
    lent: Vec<Vec<Option<StepId>>>,
}

/// In turn t, rank p sends the sum of block p − 1 − t on and adds to that of block p − 2 − t.
fn reduce_round(plan: &mut PlanBuilder) -> Round {
    let n = plan.ranks();
    let mut round = Round { own: vec![None; n as usize], lent: vec![vec![None; n as usize]; n as usize] };
    for turn in 1..n {
        let mut sent: Vec<Sent> = Vec::new();
        for p in 0..n {
            let block = back(p, turn, n);
            let after: Vec<After> = round.own[p as usize].map(After::Stream).into_iter().collect();
            let one = plan.send(Rank(p), Rank((p + 1) % n), range(block), &after);
            round.lent[p as usize][block as usize] = Some(one.step);
            sent.push(one);
        }
        let post = if turn + 1 == n { Post::Finish } else { Post::None };
        for p in 0..n {
            let dst = range(back(p, turn + 1, n));
            let message = sent[back(p, 1, n) as usize].message;
            let operands = [Operand::Message(message), Operand::Local(dst)];
            round.own[p as usize] = Some(plan.reduce(Rank(p), dst, &operands, post, &[]));
        }
    }
    round
}

/// In turn t, rank p sends block p − t on and stores block p − 1 − t.
fn gather_round(plan: &mut PlanBuilder, round: Option<&Round>) {
    let n = plan.ranks();
    let mut held: Vec<Option<StepId>> = round.map_or(vec![None; n as usize], |round| round.own.clone());
    for turn in 1..n {
        let mut sent: Vec<Sent> = Vec::new();
        for p in 0..n {
            let after: Vec<After> = held[p as usize].map(After::Stream).into_iter().collect();
            sent.push(plan.send(Rank(p), Rank((p + 1) % n), range(back(p, turn - 1, n)), &after));
        }
        for p in 0..n {
            let block = back(p, turn, n);
            let lent = round.and_then(|round| round.lent[p as usize][block as usize]);
            let after: Vec<After> = lent.map(After::Stream).into_iter().collect();
            held[p as usize] = Some(plan.place(sent[back(p, 1, n) as usize].message, range(block), &after));
        }
    }
}

/// `p − by`, modulo n.
fn back(p: u32, by: u32, n: u32) -> u32 {
    (p + n - by % n) % n
}

fn range(block: u32) -> Range {
    Range::new(Space::Output, block, 1)
}
