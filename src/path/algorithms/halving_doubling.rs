//! Half of the vector to the rank at distance 1, half of the rest to the one at distance 2, …, and back.
//!
//! | collective | cost, with N = 2^⌊log₂ n⌋ |
//! |---|---|
//! | all_reduce | 2α·log₂ N + (2β + γ)m(N−1)/N, and 2α + (2β + γ)m where n is no power of two |
//! | reduce | 2α·log₂ N + (2β + γ)m(N−1)/N at most, and α + (β + γ)m where n is no power of two |
//! | reduce_scatter | α(1 + log₂ N) + (β + γ)m(N−1)/N + βm/N, and α + (β + γ)m where n is no power of two |
//!
//! Every element is summed as in [`recursive_doubling`](super::recursive_doubling): the same pairs in the same order
//! (nearest first), the same fold. Choosing between the two by size therefore changes no bit. The price is that a
//! rank ends with the block of its bit-reversed number; a reduce-scatter sends it on to its owner.
//!
//! Source: Rolf Rabenseifner, "Optimization of Collective Reduction Operations" (2004); the fold is from Rajeev
//! Thakur, Rolf Rabenseifner and William Gropp, "Optimization of Collective Communication Operations in MPICH" (2005).

use crate::path::algorithms::GRANULE;
use crate::path::algorithms::core::{Core, in_order};
use crate::path::builder::{Operand, PlanBuilder, Sent};
use crate::path::plan::{After, Collective, Plan, Post, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "halving-doubling";

/// Halving, then doubling.
pub fn all_reduce(n: u32) -> Plan {
    let core = Core::new(n);
    let blocks = core.size();
    let mut plan = PlanBuilder::new(Collective::AllReduce, NAME, n, blocks, GRANULE);
    let all = Range::new(Space::Output, 0, blocks);
    let mut parts = halve(&mut plan, core, all, &(0..=blocks).collect::<Vec<_>>());
    double(&mut plan, core, &mut parts);
    for (j, part) in (0..core.size()).zip(parts) {
        if let (Some(folded), Some(lent)) = (core.folded(j), part.folded) {
            let sent = plan.send(core.rank(j), folded, all, &part.after());
            plan.place(sent.message, all, &[After::Stream(lent)]);
        }
    }
    plan.build()
}

/// Halving, then each block to the root.
pub fn reduce(root: Rank, n: u32) -> Plan {
    let core = Core::new(n);
    let blocks = core.size();
    let mut plan = PlanBuilder::new(Collective::Reduce { root }, NAME, n, blocks, GRANULE);
    let all = Range::new(Space::Output, 0, blocks);
    let parts = halve(&mut plan, core, all, &(0..=blocks).collect::<Vec<_>>());
    let of_root = (0..blocks).find(|&j| core.rank(j) == root || core.folded(j) == Some(root));
    let of_root = of_root.map(|j| &parts[j as usize]);
    for (j, part) in (0..blocks).zip(&parts).filter(|(j, _)| core.rank(*j) != root) {
        let sent = plan.send(core.rank(j), root, part.held, &part.after());
        // What comes back was lent before: by a core rank when it was halved away, by a folded one at once.
        let lent = of_root.and_then(|own| match core.rank(own.core) == root {
            true => own.lent.iter().find(|(range, _)| range.has(&part.held)).map(|(_, step)| *step),
            false => own.folded,
        });
        let after: Vec<After> = lent.map(After::Whole).into_iter().collect();
        plan.place(sent.message, part.held, &after);
    }
    plan.build()
}

/// Halving, then each block to its owner.
pub fn reduce_scatter(n: u32) -> Plan {
    let core = Core::new(n);
    let mut plan = PlanBuilder::new(Collective::ReduceScatter, NAME, n, n, 1);
    let all = Range::new(Space::Output, 0, n);
    let cuts: Vec<u32> = (0..=core.size()).map(|j| core.rank(j).0).collect();
    let parts = halve(&mut plan, core, all, &cuts);
    let mut moves = Vec::new();
    for (j, part) in (0..core.size()).zip(&parts) {
        for owner in part.held.blocks().map(Rank).filter(|&owner| owner != core.rank(j)) {
            let block = Range::new(Space::Output, owner.0, 1);
            moves.push((owner, block, plan.send(core.rank(j), owner, block, &part.after_for(block)).message));
        }
    }
    for (owner, block, message) in moves {
        // A block that comes back was lent before: by a core rank when it was halved away, by a folded one at once.
        let j = (0..core.size()).find(|&j| core.rank(j) == owner || core.folded(j) == Some(owner));
        let lent = j.map(|j| &parts[j as usize]).and_then(|part| part.lender(core, owner));
        let after: Vec<After> = lent.map(After::Whole).into_iter().collect();
        plan.place(message, block, &after);
    }
    plan.build()
}

/// What a core rank holds.
struct Part {
    core: u32,
    held: Range,
    /// The steps that wrote it, with what they wrote.
    written: Vec<(Range, StepId)>,
    /// What was halved away, in the order of the levels.
    lent: Vec<(Range, StepId)>,
    /// The folded rank's send.
    folded: Option<StepId>,
}

impl Part {
    /// The vector of core rank `j` and of the rank it stands for.
    fn start(plan: &mut PlanBuilder, core: Core, j: u32, all: Range) -> Self {
        let sent = core.folded(j).map(|folded| plan.send(folded, core.rank(j), all, &[]));
        let written = sent.map(|sent| {
            let operands = [Operand::Local(all), Operand::Message(sent.message)];
            (all, plan.reduce(core.rank(j), all, &operands, Post::None, &[]))
        });
        Part {
            core: j,
            held: all,
            written: written.into_iter().collect(),
            lent: Vec::new(),
            folded: sent.map(|sent| sent.step),
        }
    }

    fn after(&self) -> Vec<After> {
        self.after_for(self.held)
    }

    /// What a reader of `range`, a part of what is held, waits for.
    fn after_for(&self, range: Range) -> Vec<After> {
        let after =
            |&(written, step)| if written == range { After::Stream(step) } else { After::Whole(step) };
        self.written.iter().map(after).collect()
    }

    /// The step of `owner` that lent the owner's block.
    fn lender(&self, core: Core, owner: Rank) -> Option<StepId> {
        if (0..core.size()).any(|j| core.folded(j) == Some(owner)) {
            return self.folded;
        }
        self.lent.iter().find(|(range, _)| range.blocks().contains(&owner.0)).map(|&(_, step)| step)
    }
}

/// Folds and halves until each core rank has one part, summed. `cuts` has the first block of each part, and the end.
fn halve(plan: &mut PlanBuilder, core: Core, all: Range, cuts: &[u32]) -> Vec<Part> {
    let mut parts: Vec<Part> = (0..core.size()).map(|j| Part::start(plan, core, j, all)).collect();
    let mut spans: Vec<(u32, u32)> = vec![(0, core.size()); core.size() as usize];
    for level in 0..core.levels {
        let mask = 1 << level;
        let mut halves = Vec::new();
        for (j, span) in (0..core.size()).zip(&mut spans) {
            let middle = (span.0 + span.1) / 2;
            let (low, high) = ((span.0, middle), (middle, span.1));
            let (keep, give) = if j & mask == 0 { (low, high) } else { (high, low) };
            *span = keep;
            let part = &mut parts[j as usize];
            let give = part_range(cuts, give);
            let sent = plan.send(core.rank(j), core.rank(j ^ mask), give, &part.after_for(give));
            part.lent.push((give, sent.step));
            halves.push((part_range(cuts, keep), sent));
        }
        let post = if level + 1 == core.levels { Post::Finish } else { Post::None };
        for j in 0..core.size() {
            let (keep, _) = halves[j as usize];
            let (_, sent) = halves[(j ^ mask) as usize];
            let part = &mut parts[j as usize];
            let operands = in_order(j, mask, Operand::Local(keep), Operand::Message(sent.message));
            let reduced = plan.reduce(core.rank(j), keep, &operands, post, &part.after_for(keep));
            part.held = keep;
            part.written = vec![(keep, reduced)];
        }
    }
    parts
}

fn part_range(cuts: &[u32], (first, end): (u32, u32)) -> Range {
    let (first, end) = (cuts[first as usize], cuts[end as usize]);
    Range::new(Space::Output, first, end - first)
}

/// Exchanges what is held until all hold all.
fn double(plan: &mut PlanBuilder, core: Core, parts: &mut [Part]) {
    for level in (0..core.levels).rev() {
        let mask = 1 << level;
        let send = |(j, part): (u32, &Part)| {
            let sent = plan.send(core.rank(j), core.rank(j ^ mask), part.held, &part.after());
            (part.held, sent)
        };
        let sent: Vec<(Range, Sent)> = (0..core.size()).zip(parts.iter()).map(send).collect();
        for (j, part) in (0..core.size()).zip(parts.iter_mut()) {
            let (range, sent) = sent[(j ^ mask) as usize];
            // It was halved away at this very level, so the same blocks were lent.
            let lent = part.lent[level as usize].1;
            part.written.push((range, plan.place(sent.message, range, &[After::Stream(lent)])));
            let first = part.held.first.min(range.first);
            part.held = Range::new(Space::Output, first, part.held.count + range.count);
        }
    }
}
