//! Whole vectors between ranks at distance 1, 2, 4, …
//!
//! | collective | cost, with L = ⌊log₂ n⌋ |
//! |---|---|
//! | all_reduce | (α + (β + γ)m)·L, and α·2 + (2β + γ)m where n is no power of two |
//! | all_gather | α⌈log₂ n⌉ (twice where a run of blocks wraps round) + β(n−1)m/n |
//! | scan, exscan | (α + βm + 2γm)·⌈log₂ n⌉ |
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
use crate::path::builder::{Message, Operand, PlanBuilder, Sent};
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

/// Sums of groups of 1, 2, 4, … neighbours, of which each rank adds those before it.
pub fn scan(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Scan, NAME, n, 1, GRANULE);
    prefix(&mut plan, true);
    plan.build()
}

/// The same without one's own.
pub fn exscan(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::ExScan, NAME, n, 1, GRANULE);
    prefix(&mut plan, false);
    plan.build()
}

/// In each round, ranks at a distance exchange the sums of their groups. The higher one adds what comes to its own result; both
/// make of it the sum of the group that is twice as large, unless nobody will ask them for it.
fn prefix(plan: &mut PlanBuilder, own: bool) {
    let n = plan.ranks();
    let mut ranks: Vec<Prefix> = (0..n).map(|p| Prefix::new(Rank(p), own)).collect();
    let goes_on = |p: u32, distance: u32| is_asked(p, distance, n);
    let mut distance = 1;
    while distance < n {
        let meets = (0..n).filter(|p| p & distance == 0 && p ^ distance < n);
        let mut messages = Vec::new();
        for low in meets {
            let high = low ^ distance;
            let up = ranks[low as usize].send(plan, Rank(high));
            let down = goes_on(low, distance).then(|| ranks[high as usize].send(plan, Rank(low)));
            messages.push((low, high, up, down));
        }
        for (low, high, up, down) in messages {
            if let Some(down) = down {
                ranks[low as usize].join_next(plan, down);
            }
            ranks[high as usize].join_before(plan, up, goes_on(high, distance));
        }
        distance *= 2;
    }
    for rank in ranks {
        rank.end(plan);
    }
}

/// Whether a later round needs the sum of this rank's group: the higher one of two always does, the lower one for rounds after that.
fn is_asked(p: u32, distance: u32, n: u32) -> bool {
    let mut later = std::iter::successors(Some(2 * distance), |d| Some(2 * d)).take_while(|d| *d < n);
    later.any(|d| p ^ d < n && (p & d == 0 || is_asked(p ^ d, d, n)))
}

/// A place in a rank's memory, with the last step that wrote it and those that have read it since.
#[derive(Debug)]
struct Cell {
    range: Range,
    written: Option<StepId>,
    read: Vec<StepId>,
}

/// An operand of a prefix sum.
#[derive(Clone, Copy)]
enum Part {
    /// By its number.
    Cell(usize),
    Message(Message),
}

/// A rank on its way through the rounds.
struct Prefix {
    rank: Rank,
    /// The output, then scratch areas.
    cells: Vec<Cell>,
    /// Where the sum of its group is.
    sum: usize,
    /// Where the result is so far, if there is one: of an exclusive scan, not yet in the output.
    result: Option<usize>,
}

impl Prefix {
    fn new(rank: Rank, own: bool) -> Self {
        let output = Cell { range: OUTPUT, written: None, read: Vec::new() };
        Prefix { rank, cells: vec![output], sum: 0, result: own.then_some(0) }
    }

    fn send(&mut self, plan: &mut PlanBuilder, to: Rank) -> Message {
        let after = self.before_reading(self.sum);
        let cell = &mut self.cells[self.sum];
        let sent = plan.send(self.rank, to, cell.range, &after);
        cell.read.push(sent.step);
        sent.message
    }

    /// The sum of the group after its own has come.
    fn join_next(&mut self, plan: &mut PlanBuilder, message: Message) {
        let into = self.free(plan, &[]);
        self.combine(plan, Part::Cell(self.sum), Part::Message(message), into);
        self.sum = into;
    }

    /// The sum of the group before its own has come.
    fn join_before(&mut self, plan: &mut PlanBuilder, message: Message, goes_on: bool) {
        let result = match self.result {
            Some(result) if !goes_on => {
                self.combine(plan, Part::Message(message), Part::Cell(result), result);
                return;
            }
            result => result,
        };
        let came = self.free(plan, &[]);
        let placed = plan.place(message, self.cells[came].range, &self.before_writing(came));
        self.was_written(came, placed);
        if goes_on {
            let into = self.free(plan, &[came]);
            self.combine(plan, Part::Cell(came), Part::Cell(self.sum), into);
            self.sum = into;
        }
        match result {
            Some(result) => self.combine(plan, Part::Cell(came), Part::Cell(result), result),
            None => self.result = Some(came),
        }
    }

    fn end(self, plan: &mut PlanBuilder) {
        if let Some(result) = self.result.filter(|result| *result != 0) {
            let after = [self.before_reading(result), self.before_writing(0)].concat();
            plan.copy(self.rank, self.cells[result].range, OUTPUT, &after);
        }
    }

    fn combine(&mut self, plan: &mut PlanBuilder, low: Part, high: Part, into: usize) {
        let mut after = self.before_writing(into);
        for part in [low, high] {
            if let Part::Cell(cell) = part {
                after.extend(self.before_reading(cell));
            }
        }
        after.dedup();
        let operands = [low, high].map(|part| match part {
            Part::Cell(cell) => Operand::Local(self.cells[cell].range),
            Part::Message(message) => Operand::Message(message),
        });
        let step = plan.reduce(self.rank, self.cells[into].range, &operands, Post::None, &after);
        for part in [low, high] {
            if let Part::Cell(cell) = part {
                self.cells[cell].read.push(step);
            }
        }
        self.was_written(into, step);
    }

    /// A scratch area in which nothing is that is still asked for.
    fn free(&mut self, plan: &mut PlanBuilder, more: &[usize]) -> usize {
        let is_used = |cell: &usize| *cell == self.sum || Some(*cell) == self.result || more.contains(cell);
        let known = (1..self.cells.len()).find(|cell| !is_used(cell));
        known.unwrap_or_else(|| {
            let range = at(plan.scratch(self.rank, 0, 1));
            self.cells.push(Cell { range, written: None, read: Vec::new() });
            self.cells.len() - 1
        })
    }

    fn before_reading(&self, cell: usize) -> Vec<After> {
        self.cells[cell].written.map(After::Stream).into_iter().collect()
    }

    fn before_writing(&self, cell: usize) -> Vec<After> {
        let Cell { written, read, .. } = &self.cells[cell];
        written.iter().chain(read).map(|step| After::Stream(*step)).collect()
    }

    fn was_written(&mut self, cell: usize, step: StepId) {
        self.cells[cell].written = Some(step);
        self.cells[cell].read.clear();
    }
}

/// Each rank hands what it has to the rank before it, at distance 1, 2, 4, …
pub fn all_gather(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllGather, NAME, n, n, 1);
    let placed = vec![Vec::new(); n as usize];
    gather(&mut plan, placed, &Rank, &|_, _| false);
    plan.build()
}

/// Each rank's block to all, and what was placed before; nothing is sent to who `has` it. Blocks are numbered as those ranks are that
/// `rank` names.
pub(super) fn gather(
    plan: &mut PlanBuilder,
    mut placed: Vec<Vec<(Range, StepId)>>,
    rank: &impl Fn(u32) -> Rank,
    has: &impl Fn(u32, &Range) -> bool,
) {
    let n = plan.ranks();
    let mut distance = 1;
    while distance < n {
        let count = distance.min(n - distance);
        let mut messages = Vec::new();
        for p in 0..n {
            let to = (p + n - distance) % n;
            for run in runs(p, count, n).filter(|run| !has(to, run)) {
                let after = after_writes(&placed[p as usize], run);
                messages.push((to, run, plan.send(rank(p), rank(to), run, &after).message));
            }
        }
        for (to, run, message) in messages {
            let step = plan.place(message, run, &[]);
            placed[to as usize].push((run, step));
        }
        distance *= 2;
    }
}

/// Blocks `first .. first + count`, modulo n, as runs.
pub(super) fn runs(first: u32, count: u32, n: u32) -> impl Iterator<Item = Range> {
    let head = count.min(n - first);
    let tail = (count > head).then(|| Range::new(Space::Output, 0, count - head));
    std::iter::once(Range::new(Space::Output, first, head)).chain(tail)
}

/// What a reader of `range` waits for.
pub(super) fn after_writes(writes: &[(Range, StepId)], range: Range) -> Vec<After> {
    let overlapping = writes.iter().filter(|(written, _)| {
        written.blocks().start < range.blocks().end && range.blocks().start < written.blocks().end
    });
    overlapping
        .map(|&(written, step)| if written == range { After::Stream(step) } else { After::Whole(step) })
        .collect()
}
