//! Whole vectors between ranks at distance 1, 2, 4, …
//!
//! | collective | cost, with L = ⌊log₂ n⌋ |
//! |---|---|
//! | all_reduce | (α + (β + γ)m)·L, and α·2 + (2β + γ)m where n is no power of two |
//! | all_gather | α⌈log₂ n⌉ (twice where a run of blocks wraps round) + β(n−1)m/n |
//!
//! Sums are a balanced tree over neighbouring ranks, the lower rank's operand first:
//! `((0∘1)∘(2∘3))∘((4∘5)∘(6∘7))`; [`halving_doubling`](super::halving_doubling) gives the same bits.
//!
//! Source: Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of Collective Communication Operations
//! in MPICH" (2005); the all-gather for any number of ranks is from Jehoshua Bruck and others, "Efficient Algorithms
//! for All-to-All Communications in Multiport Message-Passing Systems" (1997), without its final rotation since
//! blocks are placed where they belong.

use crate::path::algorithms::GRANULE;
use crate::path::algorithms::core::{Core, in_order};
use crate::path::builder::{Operand, PlanBuilder, Sent};
use crate::path::plan::{After, Collective, Plan, Post, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "recursive-doubling";

const OUTPUT: Range = at(Space::Output);

const fn at(space: Space) -> Range {
    Range::new(space, 0, 1)
}

/// Whole vectors, summed in a tree over neighbouring ranks.
///
/// A partial sum never goes where the lent one lies: sums alternate between two scratch areas, and the last one
/// goes back to where the vector was.
pub fn all_reduce(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllReduce, NAME, n, 1, GRANULE);
    if n == 1 {
        return plan.build();
    }
    let core = Core::new(n);
    let mut sums: Vec<Sum> = (0..core.size()).map(|j| Sum::start(&mut plan, core, j)).collect();
    for level in 0..core.levels {
        let sent: Vec<Sent> =
            (0..core.size()).map(|j| sums[j as usize].send(&mut plan, core, j, level)).collect();
        for j in 0..core.size() {
            let message = sent[(j ^ 1 << level) as usize].message;
            sums[j as usize].add(&mut plan, core, j, level, Operand::Message(message));
        }
    }
    for (j, sum) in (0..core.size()).zip(sums) {
        if let (Some(folded), Some(lent)) = (core.folded(j), sum.folded) {
            let sent = plan.send(core.rank(j), folded, OUTPUT, &sum.after());
            plan.place(sent.message, OUTPUT, &[After::Stream(lent)]);
        }
    }
    plan.build()
}

/// A core rank's partial sum.
struct Sum {
    space: Space,
    /// The step that wrote it, if any.
    written: Option<StepId>,
    /// The last send from each space that was lent.
    lent: Vec<(Space, StepId)>,
    scratch: [Space; 2],
    /// The folded rank's send.
    folded: Option<StepId>,
}

impl Sum {
    /// The vector of core rank `j` and of the rank that it stands for. With only one level, it is moved to scratch:
    /// the one exchange writes to the output, and so can't lend it.
    fn start(plan: &mut PlanBuilder, core: Core, j: u32) -> Self {
        let rank = core.rank(j);
        let areas = if core.levels < 3 { 1 } else { 2 };
        let scratch: Vec<Space> = (0..areas).map(|_| plan.scratch(rank, 0, 1)).collect();
        let scratch = [scratch[0], scratch[areas - 1]];
        let space = if core.levels == 1 { scratch[0] } else { Space::Output };
        let sent = core.folded(j).map(|folded| plan.send(folded, rank, OUTPUT, &[]));
        let written = match sent {
            Some(sent) => {
                let operands = [Operand::Local(OUTPUT), Operand::Message(sent.message)];
                Some(plan.reduce(rank, at(space), &operands, Post::None, &[]))
            }
            None if space == Space::Output => None,
            None => Some(plan.copy(rank, OUTPUT, at(space), &[])),
        };
        Sum { space, written, lent: Vec::new(), scratch, folded: sent.map(|sent| sent.step) }
    }

    fn send(&mut self, plan: &mut PlanBuilder, core: Core, j: u32, level: u32) -> Sent {
        let peer = core.rank(j ^ 1 << level);
        let sent = plan.send(core.rank(j), peer, at(self.space), &self.after());
        self.lent.retain(|&(space, _)| space != self.space);
        self.lent.push((self.space, sent.step));
        sent
    }

    fn add(&mut self, plan: &mut PlanBuilder, core: Core, j: u32, level: u32, peer: Operand) {
        let last = level + 1 == core.levels;
        let space = if last { Space::Output } else { self.scratch[level as usize % 2] };
        let post = if last { Post::Finish } else { Post::None };
        let operands = in_order(j, 1 << level, Operand::Local(at(self.space)), peer);
        let lent = self.lent.iter().filter(|&&(lent, _)| lent == space).map(|&(_, step)| After::Stream(step));
        let after: Vec<After> = self.after().into_iter().chain(lent).collect();
        self.written = Some(plan.reduce(core.rank(j), at(space), &operands, post, &after));
        self.space = space;
    }

    fn after(&self) -> Vec<After> {
        self.written.map(After::Stream).into_iter().collect()
    }
}

/// Each rank hands what it has to the rank before it, at distance 1, 2, 4, …
pub fn all_gather(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllGather, NAME, n, n, 1);
    let mut placed: Vec<Vec<(Range, StepId)>> = vec![Vec::new(); n as usize];
    let mut distance = 1;
    while distance < n {
        let count = distance.min(n - distance);
        let mut messages = Vec::new();
        for p in 0..n {
            for run in runs(p, count, n) {
                let to = (p + n - distance) % n;
                let after = after_writes(&placed[p as usize], run);
                messages.push((to, run, plan.send(Rank(p), Rank(to), run, &after).message));
            }
        }
        for (to, run, message) in messages {
            let step = plan.place(message, run, &[]);
            placed[to as usize].push((run, step));
        }
        distance *= 2;
    }
    plan.build()
}

/// Blocks `first .. first + count`, modulo n, as runs.
fn runs(first: u32, count: u32, n: u32) -> impl Iterator<Item = Range> {
    let head = count.min(n - first);
    let tail = (count > head).then(|| Range::new(Space::Output, 0, count - head));
    std::iter::once(Range::new(Space::Output, first, head)).chain(tail)
}

/// What a reader of `range` waits for.
fn after_writes(writes: &[(Range, StepId)], range: Range) -> Vec<After> {
    let overlapping = writes.iter().filter(|(written, _)| {
        written.blocks().start < range.blocks().end && range.blocks().start < written.blocks().end
    });
    overlapping
        .map(|&(written, step)| if written == range { After::Stream(step) } else { After::Whole(step) })
        .collect()
}
