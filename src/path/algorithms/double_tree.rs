//! Two binary trees, each with half of the vector, in which who passes on in one is a leaf of the other.
//!
//! | collective | cost, with L = ⌈log₂ n⌉ |
//! |---|---|
//! | broadcast | α(L + 1) + 1½βm |
//! | all_reduce | 2α(L + 1) + (3β + γ)m |
//! | reduce | α(L + 2) + (2β + γ)m |
//!
//! All is passed on as it comes, so that hops cost their latency only, and each rank sends and takes about as much as each other.
//!
//! # Sums
//!
//! They are those of [`recursive_doubling`](super::recursive_doubling), in both halves: a tree over neighbouring ranks. Each inner
//! node of that tree joins two groups of neighbours, and so lies between the last rank of the one and the first of the
//! other; no other node lies there. One half has it at the last rank of the lower group, the other half at the first rank of the
//! higher one. So each rank has one node in each half at most: in the one a node that joins two ranks, in the other one above these.
//! The price is that a rank's own vector goes to its first node, where it isn't at one: half a vector more than where sums may begin anywhere.
//!
//! Source: Peter Sanders, Jochen Speck and Jesper Larsson Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan" (2009).

use crate::path::algorithms::GRANULE;
use crate::path::algorithms::core::Core;
use crate::path::builder::{Message, Operand, PlanBuilder};
use crate::path::plan::{After, Collective, Plan, Post, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "double-tree";

/// Which half of the vector, by block.
const HALVES: [u32; 2] = [0, 1];

const fn half(block: u32) -> Range {
    Range::new(Space::Output, block, 1)
}

/// Up the tree of sums, and down again.
pub fn all_reduce(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllReduce, NAME, n, 2, GRANULE);
    if n > 1 {
        let nodes = nodes(n);
        let ups = HALVES.map(|block| Up::new(block, n));
        let ups = sum(&mut plan, &nodes, ups);
        for up in ups {
            up.back(&mut plan, &nodes);
        }
    }
    plan.build()
}

/// Up the tree of sums, and on to the root.
pub fn reduce(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Reduce { root }, NAME, n, 2, GRANULE);
    if n > 1 {
        let nodes = nodes(n);
        let ups = HALVES.map(|block| Up::new(block, n));
        for up in sum(&mut plan, &nodes, ups) {
            let top = up.host(nodes[0].between);
            if top != root {
                let after = up.summed[top.index()].map(After::Stream);
                let sent = plan.send(top, root, half(up.block), after.as_slice());
                let lent = up.lent[root.index()].map(After::Stream);
                plan.place(sent.message, half(up.block), lent.as_slice());
            }
        }
    }
    plan.build()
}

/// A group of neighbours, or a rank by itself.
#[derive(Clone, Copy, Debug)]
enum Member {
    Rank(Rank),
    /// By the number of its node.
    Group(usize),
}

/// Where two groups of neighbours are joined.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The last rank of the lower group.
    between: u32,
    low: Member,
    high: Member,
}

/// The tree of sums, from the top.
fn nodes(n: u32) -> Vec<Node> {
    fn join(core: Core, first: u32, end: u32, nodes: &mut Vec<Node>) -> Member {
        if end - first == 1 {
            let own = core.rank(first);
            if core.folded(first).is_none() {
                return Member::Rank(own);
            }
            let high = Member::Rank(Rank(own.0 + 1));
            nodes.push(Node { between: own.0, low: Member::Rank(own), high });
            return Member::Group(nodes.len() - 1);
        }
        let middle = (first + end) / 2;
        let at = nodes.len();
        nodes.push(Node {
            between: core.rank(middle).0 - 1,
            low: Member::Group(at),
            high: Member::Group(at),
        });
        nodes[at].low = join(core, first, middle, nodes);
        nodes[at].high = join(core, middle, end, nodes);
        Member::Group(at)
    }
    let core = Core::new(n);
    let mut nodes = Vec::new();
    join(core, 0, core.size(), &mut nodes);
    nodes
}

/// One half on its way up.
struct Up {
    block: u32,
    /// The step by which a rank has lent what is in its output.
    lent: Vec<Option<StepId>>,
    /// The step that wrote the sum of a rank's node.
    summed: Vec<Option<StepId>>,
}

impl Up {
    fn new(block: u32, n: u32) -> Self {
        Up { block, lent: vec![None; n as usize], summed: vec![None; n as usize] }
    }

    /// Where a node is.
    fn host(&self, between: u32) -> Rank {
        Rank(between + self.block)
    }

    fn holder(&self, nodes: &[Node], member: Member) -> Rank {
        match member {
            Member::Rank(rank) => rank,
            Member::Group(node) => self.host(nodes[node].between),
        }
    }

    /// Who sends it, and after what; `None` where it is there.
    fn send(&mut self, plan: &mut PlanBuilder, nodes: &[Node], member: Member, to: Rank) -> Option<Message> {
        let from = self.holder(nodes, member);
        if from == to {
            return None;
        }
        let written = match member {
            Member::Rank(_) => None,
            Member::Group(_) => self.summed[from.index()],
        };
        let after = written.map(After::Stream);
        let sent = plan.send(from, to, half(self.block), after.as_slice());
        self.lent[from.index()] = Some(sent.step);
        Some(sent.message)
    }

    fn join(&mut self, plan: &mut PlanBuilder, nodes: &[Node], at: usize) {
        let node = nodes[at];
        let host = self.host(node.between);
        let operands = [node.low, node.high].map(|member| match self.send(plan, nodes, member, host) {
            Some(message) => Operand::Message(message),
            None => Operand::Local(half(self.block)),
        });
        let post = if at == 0 { Post::Finish } else { Post::None };
        let after = self.lent[host.index()].map(After::Stream);
        self.summed[host.index()] =
            Some(plan.reduce(host, half(self.block), &operands, post, after.as_slice()));
    }

    /// From each node to those below it, and to the rank that has none.
    fn back(mut self, plan: &mut PlanBuilder, nodes: &[Node]) {
        for node in nodes {
            let host = self.host(node.between);
            let after = self.summed[host.index()].map(After::Stream);
            for member in [node.low, node.high] {
                let to = self.holder(nodes, member);
                // A rank that has a node gets it there.
                let has_node = |rank: Rank| nodes.iter().any(|node| self.host(node.between) == rank);
                if matches!(member, Member::Rank(rank) if has_node(rank)) {
                    continue;
                }
                let sent = plan.send(host, to, half(self.block), after.as_slice());
                let lent = self.lent[to.index()].map(After::Stream);
                self.summed[to.index()] = Some(plan.place(sent.message, half(self.block), lent.as_slice()));
            }
        }
    }
}

/// Both halves up, from the lowest nodes.
fn sum(plan: &mut PlanBuilder, nodes: &[Node], mut ups: [Up; 2]) -> [Up; 2] {
    // A node comes after the one above it in the list.
    for at in (0..nodes.len()).rev() {
        for up in &mut ups {
            up.join(plan, nodes, at);
        }
    }
    ups
}

/// The root gives each half to the top of one tree. The other ranks are the nodes of both, in the order of their distance from the
/// root; the second tree is one rank on.
pub fn broadcast(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Broadcast { root }, NAME, n, 2, GRANULE);
    let others = n - 1;
    for block in HALVES.into_iter().filter(|_| n > 1) {
        let rank = |at: u32| Rank((root.0 + 1 + (at + block) % others) % n);
        pass_down(&mut plan, block, (root, None), 0..others, &rank);
    }
    plan.build()
}

/// To the node of this run of ranks that has most below it, and on from there: nodes with an even number are leaves.
fn pass_down(
    plan: &mut PlanBuilder,
    block: u32,
    (from, has): (Rank, Option<StepId>),
    run: std::ops::Range<u32>,
    rank: &impl Fn(u32) -> Rank,
) {
    let Some(top) = run.clone().max_by_key(|at| (at + 1).trailing_zeros()) else { return };
    let after = has.map(After::Stream);
    let sent = plan.send(from, rank(top), half(block), after.as_slice());
    let placed = plan.place(sent.message, half(block), &[]);
    for below in [run.start..top, top + 1..run.end] {
        pass_down(plan, block, (rank(top), Some(placed)), below, rank);
    }
}
