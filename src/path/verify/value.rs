//! What every block holds at the end, as a formula of the ranks' contributions.
//!
//! Plans are free of races when they come here, so that every order of steps which respects the dependencies gives
//! every block the same values; the order of the play is taken. A contribution is a block of what a rank hands in. Blocks never
//! mix, so that a reduction is of the same block of several ranks, and equal formulas (same operands, same order, same rounding)
//! are equal numbers.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use crate::path::plan::{Action, Collective, Plan, Post, Range, RankPlan, Source, Space, StepId};
use crate::path::verify::{VerifiedPlan, VerifyError, Wiring};
use crate::rank::Rank;

/// Checks that the right formula is where it belongs, and is the same on all ranks. Says whether all that is reduced is so in the
/// order of the ranks.
pub(super) fn check(plan: &Plan, wiring: &Wiring, order: &[(Rank, StepId)]) -> Result<bool, VerifyError> {
    let mut memory = Memory::new(plan);
    memory.run(plan, wiring, order)?;
    let mut in_rank_order = true;
    let shared = matches!(plan.collective, Collective::AllReduce);
    for block in 0..plan.blocks {
        let mut first = None;
        for rank in ranks(plan) {
            let expected = Expected::of(plan, rank, block);
            if expected == Expected::Anything {
                continue;
            }
            let formula = memory.get(rank, Space::Output, block);
            expected.check(&memory.formulas, rank, block, formula)?;
            in_rank_order &= memory.formulas.node(formula).in_rank_order;
            let expected = *first.get_or_insert(formula);
            if shared && formula != expected {
                let text = |formula| memory.formulas.text(formula, block);
                let (found, expected) = (text(formula), text(expected));
                return Err(VerifyError::Differs { rank, block, found, expected });
            }
        }
    }
    Ok(in_rank_order)
}

/// The formula of a block of the result, on the rank in whose result most ranks are, or the first of them.
pub(super) fn formula(
    plan: &Plan,
    wiring: &Wiring,
    order: &[(Rank, StepId)],
    block: u32,
) -> Result<String, VerifyError> {
    let mut memory = Memory::new(plan);
    memory.run(plan, wiring, order)?;
    let results = ranks(plan).filter_map(|rank| match Expected::of(plan, rank, block) {
        Expected::Anything | Expected::Nothing => None,
        Expected::Moved(..) => Some((0, rank)),
        Expected::Reduced { of, .. } => Some((of.count_ones(), rank)),
    });
    let holder = results.max_by_key(|(most, rank)| (*most, std::cmp::Reverse(*rank))).unwrap_or_default().1;
    Ok(memory.formulas.text(memory.get(holder, Space::Output, block), block))
}

/// What is in a range of the output when a step reads or lends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// What was handed in; also in every other space.
    Given,
    /// What was written since.
    Written,
    /// Some of both.
    Both,
}

/// What a rank's steps find in its output.
pub(crate) struct Touched {
    /// For each range that a step lends or reads, in the order of [`Action::local_reads`].
    pub reads: Vec<Vec<Found>>,
    /// Blocks of the output that some step writes.
    pub written: HashSet<u32>,
}

/// Per rank, which steps of a plan that was proved find what was handed in, and which what came since.
pub(crate) fn touched(plan: &VerifiedPlan) -> Vec<Touched> {
    let wiring = Wiring::of(plan);
    let order = super::play::play(plan, &wiring, 1).expect("a verified plan is still right");
    let none =
        |part: &RankPlan| Touched { reads: vec![Vec::new(); part.steps.len()], written: HashSet::new() };
    let mut all: Vec<Touched> = plan.ranks.iter().map(none).collect();
    for (rank, step) in order {
        let action = &plan.ranks[rank.index()].steps[usize::from(step)].action;
        for (from, message) in action.messages_in() {
            all[from.index()].look(plan, from, wiring.sender(from, rank, message));
        }
        all[rank.index()].look(plan, rank, step);
        if let Some(range) = action.written().filter(|range| range.space == Space::Output) {
            all[rank.index()].written.extend(range.blocks());
        }
    }
    all
}

impl Touched {
    fn look(&mut self, plan: &Plan, rank: Rank, step: StepId) {
        let written = |range: Range| match range.blocks().filter(|block| self.written.contains(block)).count()
        {
            _ if range.space != Space::Output => Found::Given,
            0 => Found::Given,
            count if count == range.count as usize => Found::Written,
            _ => Found::Both,
        };
        let action = &plan.ranks[rank.index()].steps[usize::from(step)].action;
        self.reads[usize::from(step)] = action.local_reads().map(written).collect();
    }
}

fn ranks(plan: &Plan) -> impl Iterator<Item = Rank> + use<> {
    (0..plan.ranks.len() as u32).map(Rank)
}

/// What a block of the output is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Anything,
    /// Nothing: it stays as it was.
    Nothing,
    /// This block of what this rank has handed in.
    Moved(Rank, u32),
    /// The reduction over these ranks, by bit; of all ranks, where it is finished.
    Reduced {
        of: u64,
        finished: bool,
    },
}

impl Expected {
    fn of(plan: &Plan, rank: Rank, block: u32) -> Expected {
        let is_in = |range: Option<Range>| range.is_some_and(|range| range.blocks().contains(&block));
        if !is_in(plan.got(rank)) {
            // What is not asked for may be used to work in, but not where others would look for it again.
            let keeps = matches!(plan.collective, Collective::Gather { .. } | Collective::Scatter { .. });
            let is_given =
                plan.given(rank).is_some_and(|given| given.space == Space::Output) && is_in(plan.given(rank));
            return if keeps && is_given { Expected::Moved(rank, block) } else { Expected::Anything };
        }
        let world = plan.ranks.len();
        let first = |count: usize| if count == 0 { 0 } else { u64::MAX >> (64 - count) };
        match plan.collective {
            Collective::AllGather | Collective::Gather { .. } => Expected::Moved(Rank(block), block),
            Collective::Broadcast { root } | Collective::Scatter { root } => Expected::Moved(root, block),
            Collective::AllToAll if !plan.has_edge(Rank(block), rank) => Expected::Nothing,
            Collective::AllToAll => Expected::Moved(Rank(block), rank.0),
            // The average over one rank is that rank's contribution, so there is nothing to finish.
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. } => {
                Expected::Reduced { of: first(world), finished: world > 1 }
            }
            Collective::Scan => Expected::Reduced { of: first(rank.index() + 1), finished: false },
            Collective::ExScan if rank.0 > 0 => {
                Expected::Reduced { of: first(rank.index()), finished: false }
            }
            Collective::ExScan if plan.given(rank).is_some_and(|given| given.space == Space::Output) => {
                Expected::Moved(rank, block)
            }
            Collective::ExScan => Expected::Nothing,
        }
    }

    fn check(self, formulas: &Formulas, rank: Rank, block: u32, formula: u32) -> Result<(), VerifyError> {
        let wrong = |expected: String| {
            Err(VerifyError::Wrong { rank, block, found: formulas.text(formula, block), expected })
        };
        match self {
            Expected::Anything => Ok(()),
            Expected::Nothing if formula == NOTHING => Ok(()),
            Expected::Nothing => wrong("nothing, and as it was before".to_string()),
            Expected::Moved(from, of) if formula == formulas.contribution(from, of) => Ok(()),
            Expected::Moved(from, of) if of == block => wrong(format!("rank {from}'s")),
            Expected::Moved(from, of) => wrong(format!("block {of} of rank {from}")),
            Expected::Reduced { of, finished } => {
                let node = formulas.node(formula);
                if node.ranks != of || node.block != block {
                    let last = of.ilog2();
                    let all = if finished || formulas.ranks == last + 1 {
                        "all ranks".to_string()
                    } else {
                        format!("ranks 0 to {last}")
                    };
                    return wrong(format!("a reduction over {all}"));
                }
                if finished && !node.finished {
                    return Err(VerifyError::Unfinished { rank, block });
                }
                if !finished && node.finished && formulas.ranks > 1 {
                    return wrong(
                        "a reduction that is not finished, as one that leaves ranks out".to_string(),
                    );
                }
                Ok(())
            }
        }
    }
}

const NOTHING: u32 = 0;

/// Formulas, each stored once. The first numbers are nothing and the contributions.
struct Formulas {
    ranks: u32,
    blocks: u32,
    reductions: Vec<(Node, Vec<u32>)>,
    known: HashMap<(Vec<u32>, bool), u32>,
}

#[derive(Clone, Copy)]
struct Node {
    /// Whose contributions are in it, one bit per rank.
    ranks: u64,
    /// Which block of theirs.
    block: u32,
    finished: bool,
    /// Whether they stand in the order of the ranks, whatever the parentheses.
    in_rank_order: bool,
}

/// Why operands can't be reduced.
enum Refused {
    Finished,
    Twice(Rank),
    /// This is of another block than the first.
    Mixed(u32),
}

impl Formulas {
    fn new(plan: &Plan) -> Self {
        let (ranks, blocks) = (plan.ranks.len() as u32, plan.blocks);
        Formulas { ranks, blocks, reductions: Vec::new(), known: HashMap::new() }
    }

    fn contribution(&self, rank: Rank, block: u32) -> u32 {
        1 + rank.0 * self.blocks + block
    }

    fn first_reduction(&self) -> u32 {
        1 + self.ranks * self.blocks
    }

    /// The rank and block of a contribution.
    fn origin(&self, formula: u32) -> Option<(Rank, u32)> {
        let at = formula.checked_sub(1).filter(|_| formula < self.first_reduction())?;
        Some((Rank(at / self.blocks), at % self.blocks))
    }

    fn node(&self, formula: u32) -> Node {
        match self.origin(formula) {
            Some((rank, block)) => Node { ranks: 1 << rank.0, block, finished: false, in_rank_order: true },
            None if formula == NOTHING => Node { ranks: 0, block: 0, finished: false, in_rank_order: true },
            None => self.reductions[(formula - self.first_reduction()) as usize].0,
        }
    }

    fn reduction(&mut self, operands: &[u32], finish: bool) -> Result<u32, Refused> {
        let mut ranks = 0u64;
        let mut in_rank_order = true;
        let block = self.node(operands[0]).block;
        for &operand in operands {
            let node = self.node(operand);
            if node.finished {
                return Err(Refused::Finished);
            }
            if node.block != block {
                return Err(Refused::Mixed(operand));
            }
            if ranks & node.ranks != 0 {
                return Err(Refused::Twice(Rank((ranks & node.ranks).trailing_zeros())));
            }
            // The lowest rank of this one comes after the highest of those before it.
            in_rank_order &=
                node.in_rank_order && node.ranks.trailing_zeros() >= u64::BITS - ranks.leading_zeros();
            ranks |= node.ranks;
        }
        if let ([only], false) = (operands, finish) {
            return Ok(*only);
        }
        if let Some(&known) = self.known.get(&(operands.to_vec(), finish)) {
            return Ok(known);
        }
        // Each step makes at most one per block, and memory for as many blocks was there.
        let id = self.first_reduction() + self.reductions.len() as u32;
        self.reductions.push((Node { ranks, block, finished: finish, in_rank_order }, operands.to_vec()));
        self.known.insert((operands.to_vec(), finish), id);
        Ok(id)
    }

    /// As it is told of a block: contributions are the ranks' own to it, unless said otherwise.
    fn text(&self, formula: u32, block: u32) -> String {
        if formula == NOTHING {
            return "nothing".to_string();
        }
        if let Some((rank, of)) = self.origin(formula) {
            return if of == block { rank.to_string() } else { format!("block {of} of rank {rank}") };
        }
        let operands = &self.reductions[(formula - self.first_reduction()) as usize].1;
        let mut text = String::from("(");
        for (at, &operand) in operands.iter().enumerate() {
            let _ = write!(text, "{}{}", if at > 0 { " + " } else { "" }, self.text(operand, block));
        }
        text + ")"
    }
}

/// What every block of every rank's spaces holds.
struct Memory {
    formulas: Formulas,
    /// Per rank: the input, the output, then the scratch areas.
    cells: Vec<Vec<Area>>,
}

#[derive(Default)]
struct Area {
    first: u32,
    cells: Vec<u32>,
}

impl Memory {
    fn new(plan: &Plan) -> Self {
        let formulas = Formulas::new(plan);
        let cells = ranks(plan).zip(&plan.ranks).map(|(rank, part)| {
            let given = plan.given(rank);
            let scratch = (0..part.scratch.len()).map(|area| Space::Scratch(area as u16));
            let spaces = [Space::Input, Space::Output].into_iter().chain(scratch);
            let area = |space: Space| {
                let Some(span) = plan.span(rank, space) else { return Area::default() };
                let holds = |block: u32| {
                    given.is_some_and(|given| given.space == space && given.blocks().contains(&block))
                };
                let cell =
                    |block: u32| if holds(block) { formulas.contribution(rank, block) } else { NOTHING };
                Area { first: span.first, cells: span.blocks().map(cell).collect() }
            };
            spaces.map(area).collect()
        });
        let cells = cells.collect();
        Memory { formulas, cells }
    }

    fn run(&mut self, plan: &Plan, wiring: &Wiring, order: &[(Rank, StepId)]) -> Result<(), VerifyError> {
        for &(rank, step) in order {
            let action = &plan.ranks[rank.index()].steps[step as usize].action;
            let range = action.range();
            // All of it is read before any is written: what moves within a buffer is not read again.
            let values = (0..range.count)
                .map(|at| self.value(plan, wiring, (rank, step), action, at))
                .collect::<Result<Vec<u32>, _>>()?;
            for (block, value) in range.blocks().zip(values) {
                self.set(rank, range.space, block, value);
            }
        }
        Ok(())
    }

    /// What a step writes to the block with so many before it in its range.
    fn value(
        &mut self,
        plan: &Plan,
        wiring: &Wiring,
        (rank, step): (Rank, StepId),
        action: &Action,
        at: u32,
    ) -> Result<u32, VerifyError> {
        let sent = |from: Rank, message| {
            let send = wiring.sender(from, rank, message);
            let src = plan.ranks[from.index()].steps[send as usize].action.range();
            self.read(from, send, src, at)
        };
        match action {
            Action::Send { .. } => unreachable!("the order of play has no sends"),
            Action::Place { from, message, .. } => sent(*from, *message),
            Action::Copy { src, .. } => self.read(rank, step, *src, at),
            Action::Reduce { dst, srcs, post } => {
                let read = |source: &Source| match *source {
                    Source::Local(src) => self.read(rank, step, src, at),
                    Source::Peer { from, message } => sent(from, message),
                };
                let operands = srcs.iter().map(read).collect::<Result<Vec<u32>, VerifyError>>()?;
                let block = dst.first + at;
                let reduction = self.formulas.reduction(&operands, *post == Post::Finish);
                reduction.map_err(|refused| match refused {
                    Refused::Twice(contributor) => VerifyError::Twice { rank, step, block, contributor },
                    Refused::Finished => VerifyError::Finished { rank, step, block },
                    Refused::Mixed(operand) => {
                        let text = |formula| self.formulas.text(formula, block);
                        VerifyError::Mixed {
                            rank,
                            step,
                            block,
                            found: text(operand),
                            expected: text(operands[0]),
                        }
                    }
                })
            }
        }
    }

    fn read(&self, rank: Rank, step: StepId, range: Range, at: u32) -> Result<u32, VerifyError> {
        let block = range.first + at;
        match self.get(rank, range.space, block) {
            NOTHING => Err(VerifyError::Undefined { rank, step, space: range.space, block }),
            formula => Ok(formula),
        }
    }

    fn get(&self, rank: Rank, space: Space, block: u32) -> u32 {
        let area = &self.cells[rank.index()][area_index(space)];
        let at = block.checked_sub(area.first).and_then(|at| area.cells.get(at as usize));
        at.copied().unwrap_or(NOTHING)
    }

    fn set(&mut self, rank: Rank, space: Space, block: u32, formula: u32) {
        let area = &mut self.cells[rank.index()][area_index(space)];
        area.cells[(block - area.first) as usize] = formula;
    }
}

fn area_index(space: Space) -> usize {
    match space {
        Space::Input => 0,
        Space::Output => 1,
        Space::Scratch(area) => area as usize + 2,
    }
}
