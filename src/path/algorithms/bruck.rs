//! Between ranks at distance 1, 2, 4, … round the ring of ranks, for any number of them.
//!
//! | collective | cost, with L = ⌈log₂ n⌉ |
//! |---|---|
//! | reduce_scatter | αL (twice where a run of blocks wraps round) + (β + γ)m(n−1)/n |
//! | all_to_all | αL + βm/2·L at most; each rank copies what it passes on |
//!
//! The reduce-scatter is the all-gather of [`recursive_doubling`](super::recursive_doubling) backwards: farthest ranks first, with
//! half of the blocks, then ever fewer. No rank is folded into another, so that traffic is the same at all ranks and least, whatever
//! their number. The price is the order of sums: a tree over ranks at a distance, which turns with the owner of the block.
//! It depends on whose block it is, not on the count; but an element may be in another's block where the count is another.
//!
//! In the all-to-all, what goes to the rank at distance j is passed on once for each bit of j that is set: fewest messages,
//! and more bytes than straight ways have. So it is for small parts on many ranks.
//!
//! Source: Jehoshua Bruck and others, "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems"
//! (1997); Sylvain Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale" (2025), which goes from
//! the farthest to the nearest as well.

use crate::path::algorithms::recursive_doubling::{after_writes, runs};
use crate::path::builder::{Operand, PlanBuilder, Sent};
use crate::path::plan::{After, Collective, Plan, Post, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "bruck";

/// Each rank hands the sums of blocks that others are nearer to on to the rank after it, at distance …, 4, 2, 1.
pub fn reduce_scatter(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::ReduceScatter, NAME, n, n, 1);
    let mut written: Vec<Vec<(Range, StepId)>> = vec![Vec::new(); n as usize];
    for distance in distances(n).rev() {
        let count = distance.min(n - distance);
        let mut messages = Vec::new();
        for p in 0..n {
            let to = (p + distance) % n;
            for run in runs(to, count, n) {
                let after = after_writes(&written[p as usize], run);
                messages.push((to, run, plan.send(Rank(p), Rank(to), run, &after).message));
            }
        }
        let post = if distance == 1 { Post::Finish } else { Post::None };
        for (to, run, message) in messages {
            let after = after_writes(&written[to as usize], run);
            let operands = [Operand::Message(message), Operand::Local(run)];
            let step = plan.reduce(Rank(to), run, &operands, post, &after);
            written[to as usize].push((run, step));
        }
    }
    plan.build()
}

/// 1, 2, 4, … below n.
fn distances(n: u32) -> impl DoubleEndedIterator<Item = u32> {
    (0..n.next_power_of_two().ilog2()).map(|bit| 1 << bit)
}

/// What goes to the rank at distance j goes on by each power of two that j is the sum of.
pub fn all_to_all(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllToAll, NAME, n, n, 1);
    let mut ranks: Vec<Carrier> = (0..n).map(|p| Carrier::new(p, n)).collect();
    for distance in distances(n) {
        let sent: Vec<Sent> = ranks.iter_mut().map(|rank| rank.pass_on(&mut plan, distance)).collect();
        for rank in &mut ranks {
            let from = (rank.rank + n - distance) % n;
            rank.take(&mut plan, distance, sent[from as usize]);
        }
    }
    for rank in ranks {
        rank.end(&mut plan);
    }
    plan.build()
}

/// A rank with the parts that it has for ranks at distance 1, 2, …: its own at first, then those of others that have
/// as far to go.
struct Carrier {
    rank: u32,
    ranks: u32,
    /// Where the part for distance j is, and the step that has put it there.
    parts: Vec<(Range, Option<StepId>)>,
    /// Who has read its own part for distance j, whose place is then free for what comes from there.
    read: Vec<Option<StepId>>,
    /// Where parts are put together to leave as one message, and the last message from there.
    packed: Vec<(Space, StepId)>,
}

impl Carrier {
    fn new(rank: u32, ranks: u32) -> Self {
        let own = |j| (Range::new(Space::Output, (rank + j) % ranks, 1), None);
        Carrier {
            rank,
            ranks,
            parts: (0..ranks).map(own).collect(),
            read: vec![None; ranks as usize],
            packed: Vec::new(),
        }
    }

    /// The distances that have this power of two.
    fn with(&self, distance: u32) -> impl Iterator<Item = u32> + use<> {
        (0..self.ranks).filter(move |j| j & distance != 0)
    }

    /// Puts the parts together whose distance has this power of two, and sends them as far.
    fn pass_on(&mut self, plan: &mut PlanBuilder, distance: u32) -> Sent {
        let count = self.with(distance).count() as u32;
        // Two areas in turn: one is filled while the other one is read.
        let free = if self.packed.len() < 2 { None } else { Some(self.packed.remove(0)) };
        // The first message is as large as any.
        let space = match free {
            Some((space, _)) => space,
            None => plan.scratch(Rank(self.rank), 0, self.ranks / 2),
        };
        let mut packed = Vec::new();
        for (at, j) in (0..).zip(self.with(distance)) {
            let (src, put) = self.parts[j as usize];
            let after: Vec<After> =
                put.into_iter().chain(free.map(|(_, sent)| sent)).map(After::Whole).collect();
            let copied = plan.copy(Rank(self.rank), src, Range::new(space, at, 1), &after);
            self.read[j as usize].get_or_insert(copied);
            packed.push(After::Whole(copied));
        }
        let to = Rank((self.rank + distance) % self.ranks);
        let sent = plan.send(Rank(self.rank), to, Range::new(space, 0, count), &packed);
        self.packed.push((space, sent.step));
        sent
    }

    /// Stores what has come as far.
    fn take(&mut self, plan: &mut PlanBuilder, distance: u32, sent: Sent) {
        let count = self.with(distance).count() as u32;
        let space = plan.scratch(Rank(self.rank), 0, count);
        let placed = plan.place(sent.message, Range::new(space, 0, count), &[]);
        for (at, j) in (0..).zip(self.with(distance)) {
            self.parts[j as usize] = (Range::new(space, at, 1), Some(placed));
        }
    }

    /// Moves each part to the place of the rank that it is from, where that for the same rank was, which has as far to go as
    /// is left of the way round.
    fn end(self, plan: &mut PlanBuilder) {
        let (rank, ranks) = (self.rank, self.ranks);
        for (j, (part, placed)) in (0..ranks).zip(self.parts).skip(1) {
            let after = [placed, self.read[(ranks - j) as usize]];
            let after: Vec<After> = after.into_iter().flatten().map(After::Whole).collect();
            let from = (rank + ranks - j) % ranks;
            plan.copy(Rank(rank), part, Range::new(Space::Output, from, 1), &after);
        }
    }
}
