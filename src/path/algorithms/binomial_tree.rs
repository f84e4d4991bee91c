//! Down a binomial tree, or up.
//!
//! | collective | cost, with L = ⌊log₂ n⌋ |
//! |---|---|
//! | broadcast | ⌈log₂ n⌉(α + βm) without a pipeline |
//! | reduce | (α + βm + γm)·L, and α + βm + γm more where n is no power of two |
//! | gather, scatter | α⌈log₂ n⌉ + βm(n−1)/n |
//!
//! A broadcast's parts are passed on while the rest still comes, so that for large
//! vectors it is about ⌈log₂ n⌉βm at the root and one latency per hop more at the leaves.
//!
//! Sums are those of [`recursive_doubling`](super::recursive_doubling), whoever is the root: groups of neighbours join, and the
//! sum of a group is at its first rank, or at the root where that is in it.
//!
//! Source: Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of Collective Communication Operations
//! in MPICH" (2005).

use crate::path::algorithms::GRANULE;
use crate::path::algorithms::core::{Core, in_order};
use crate::path::builder::{Operand, PlanBuilder};
use crate::path::plan::{After, Collective, Plan, Post, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "binomial-tree";

/// The rank at distance v from the root, with lowest set bit b, has its data from v − b and gives it to v + b/2,
/// v + b/4, …, v + 1: the largest subtree first.
pub fn broadcast(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Broadcast { root }, NAME, n, 1, GRANULE);
    let all = Range::new(Space::Output, 0, 1);
    let rank = |v: u32| Rank((root.0 + v) % n);
    let mut placed: Vec<Option<StepId>> = vec![None; n as usize];
    // A parent is nearer to the root than its children, so it has its data when its turn comes.
    for v in 0..n {
        let after: Vec<After> = placed[v as usize].map(After::Stream).into_iter().collect();
        let reach = if v == 0 { n.next_power_of_two() } else { v & v.wrapping_neg() };
        let mut distance = reach / 2;
        while distance > 0 {
            if v + distance < n {
                let sent = plan.send(rank(v), rank(v + distance), all, &after);
                placed[(v + distance) as usize] = Some(plan.place(sent.message, all, &[]));
            }
            distance /= 2;
        }
    }
    plan.build()
}

/// Each rank's vector into the sum of its group, until that is the sum of all.
pub fn reduce(root: Rank, n: u32) -> Plan {
    let all = Range::new(Space::Output, 0, 1);
    let mut plan = PlanBuilder::new(Collective::Reduce { root }, NAME, n, 1, GRANULE);
    if n == 1 {
        return plan.build();
    }
    let core = Core::new(n);
    // Of each group, who has its sum, and the step that wrote it.
    let mut groups: Vec<(Rank, Option<StepId>)> = Vec::new();
    for j in 0..core.size() {
        let Some(folded) = core.folded(j) else {
            groups.push((core.rank(j), None));
            continue;
        };
        let (to, from) = if folded == root { (folded, core.rank(j)) } else { (core.rank(j), folded) };
        let message = Operand::Message(plan.send(from, to, all, &[]).message);
        let operands =
            if to == folded { [message, Operand::Local(all)] } else { [Operand::Local(all), message] };
        groups.push((to, Some(plan.reduce(to, all, &operands, Post::None, &[]))));
    }
    while groups.len() > 1 {
        let post = if groups.len() == 2 { Post::Finish } else { Post::None };
        let join = |pair: &[(Rank, Option<StepId>)]| {
            let after = |step: Option<StepId>| step.map(After::Stream).into_iter().collect::<Vec<_>>();
            let into = usize::from(pair[1].0 == root);
            let ((to, own), (from, theirs)) = (pair[into], pair[1 - into]);
            let message = plan.send(from, to, all, &after(theirs)).message;
            let operands = in_order(into as u32, 1, Operand::Local(all), Operand::Message(message));
            (to, Some(plan.reduce(to, all, &operands, post, &after(own))))
        };
        groups = groups.chunks(2).map(join).collect();
    }
    plan.build()
}

/// The parts of groups of neighbours, which are next to each other in the vector, to whoever has those of the larger group.
pub fn gather(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Gather { root }, NAME, n, n, 1);
    let joins = joins(root, n);
    let mut holders: Vec<Holder> = (0..n).map(|p| Holder::new(&mut plan, Rank(p), root, &joins)).collect();
    for holder in &mut holders {
        // A leaf sends its part from where it is.
        if let Space::Scratch(_) = holder.space {
            let src = Range::new(Space::Output, holder.rank.0, 1);
            let dst = Range { space: holder.space, ..src };
            let copied = plan.copy(holder.rank, src, dst, &[]);
            holder.written.push((dst, copied));
        }
    }
    for Join { to, from, blocks } in joins {
        let sent = {
            let holder = &holders[from.index()];
            plan.send(from, to, Range { space: holder.space, ..blocks }, &holder.after(blocks))
        };
        let holder = &mut holders[to.index()];
        let dst = Range { space: holder.space, ..blocks };
        let placed = plan.place(sent.message, dst, &[]);
        holder.written.push((dst, placed));
    }
    plan.build()
}

/// The same, backwards.
pub fn scatter(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Scatter { root }, NAME, n, n, 1);
    let joins = joins(root, n);
    let mut holders: Vec<Holder> = (0..n).map(|p| Holder::new(&mut plan, Rank(p), root, &joins)).collect();
    for Join { to, from, blocks } in joins.into_iter().rev() {
        let sent = {
            let holder = &holders[to.index()];
            plan.send(to, from, Range { space: holder.space, ..blocks }, &holder.after(blocks))
        };
        let holder = &mut holders[from.index()];
        let dst = Range { space: holder.space, ..blocks };
        let placed = plan.place(sent.message, dst, &[]);
        holder.written.push((dst, placed));
    }
    for holder in holders {
        if let Space::Scratch(_) = holder.space {
            let dst = Range::new(Space::Output, holder.rank.0, 1);
            plan.copy(holder.rank, Range { space: holder.space, ..dst }, dst, &holder.after(dst));
        }
    }
    plan.build()
}

/// Two groups become one: `from` has these blocks, and `to` will have them.
struct Join {
    to: Rank,
    from: Rank,
    blocks: Range,
}

/// In the order of a gather.
fn joins(root: Rank, n: u32) -> Vec<Join> {
    let mut joins = Vec::new();
    let mut size = 1;
    while size < n {
        for first in (0..n).step_by(2 * size as usize).filter(|first| first + size < n) {
            let (low, high) = (first..first + size, first + size..(first + 2 * size).min(n));
            let holder =
                |group: &std::ops::Range<u32>| if group.contains(&root.0) { root } else { Rank(group.start) };
            let (to, from) = if high.contains(&root.0) { (high, low) } else { (low, high) };
            let blocks = Range::new(Space::Output, from.start, from.end - from.start);
            joins.push(Join { to: holder(&to), from: holder(&from), blocks });
        }
        size *= 2;
    }
    joins
}

/// A rank and where it has the parts of its groups.
struct Holder {
    rank: Rank,
    space: Space,
    written: Vec<(Range, StepId)>,
}

impl Holder {
    /// Who passes parts of others on has them in a scratch area, but for the root.
    fn new(plan: &mut PlanBuilder, rank: Rank, root: Rank, joins: &[Join]) -> Self {
        let others = joins.iter().filter(|join| join.to == rank).map(|join| join.blocks.blocks());
        let span = others
            .fold(rank.0..rank.0 + 1, |span, blocks| span.start.min(blocks.start)..span.end.max(blocks.end));
        let space = match span.len() {
            _ if rank == root => Space::Output,
            1 => Space::Output,
            count => plan.scratch(rank, span.start, count as u32),
        };
        Holder { rank, space, written: Vec::new() }
    }

    /// What a reader of these blocks waits for.
    fn after(&self, blocks: Range) -> Vec<After> {
        let meets =
            |written: &Range| written.first < blocks.blocks().end && blocks.first < written.blocks().end;
        let after = |(written, step): &(Range, StepId)| {
            if written.blocks() == blocks.blocks() { After::Stream(*step) } else { After::Whole(*step) }
        };
        self.written.iter().filter(|(written, _)| meets(written)).map(after).collect()
    }
}
