//! What every block holds at the end, as a formula of the ranks' contributions.
//!
//! Plans are free of races when they come here, so that every order of steps which respects the dependencies gives
//! every block the same values; the order of the play is taken. Blocks never mix, hence a contribution is named by
//! its rank alone, and equal formulas (same operands, same order, same rounding) are equal numbers.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::path::plan::{Action, Collective, Plan, Post, Range, Source, Space, StepId};
use crate::path::verify::{VerifyError, Wiring};
use crate::rank::Rank;

/// Checks that the right formula is where it belongs, and is the same on all ranks.
pub(super) fn check(plan: &Plan, wiring: &Wiring, order: &[(Rank, StepId)]) -> Result<(), VerifyError> {
    let mut memory = Memory::new(plan);
    memory.run(plan, wiring, order)?;
    for block in 0..plan.blocks {
        let mut first = None;
        for rank in holders(plan, block) {
            let formula = memory.get(rank, Space::Output, block);
            check_result(plan, &memory.formulas, rank, block, formula)?;
            let expected = *first.get_or_insert(formula);
            if formula != expected {
                let (found, expected) = (memory.formulas.text(formula), memory.formulas.text(expected));
                return Err(VerifyError::Differs { rank, block, found, expected });
            }
        }
    }
    Ok(())
}

/// The formula of a block of the result, where it is held first.
pub(super) fn formula(
    plan: &Plan,
    wiring: &Wiring,
    order: &[(Rank, StepId)],
    block: u32,
) -> Result<String, VerifyError> {
    let mut memory = Memory::new(plan);
    memory.run(plan, wiring, order)?;
    let holder = holders(plan, block).next().unwrap_or_default();
    Ok(memory.formulas.text(memory.get(holder, Space::Output, block)))
}

/// The ranks whose result includes this block.
fn holders(plan: &Plan, block: u32) -> impl Iterator<Item = Rank> {
    let all = 0..plan.ranks.len() as u32;
    let scattered = plan.collective == Collective::ReduceScatter;
    let owner = owner(plan, block);
    all.map(Rank).filter(move |&rank| !scattered || rank == owner)
}

/// The rank whose `1/n` of the vector this block is in.
fn owner(plan: &Plan, block: u32) -> Rank {
    Rank((u64::from(block) * plan.ranks.len() as u64 / u64::from(plan.blocks)) as u32)
}

fn check_result(
    plan: &Plan,
    formulas: &Formulas,
    rank: Rank,
    block: u32,
    formula: u32,
) -> Result<(), VerifyError> {
    let wrong =
        |expected: String| Err(VerifyError::Wrong { rank, block, found: formulas.text(formula), expected });
    let moved = |from: Rank| {
        if formula == formulas.contribution(from) { Ok(()) } else { wrong(format!("rank {from}'s")) }
    };
    match plan.collective {
        Collective::AllGather => moved(owner(plan, block)),
        Collective::Broadcast { root } => moved(root),
        Collective::AllReduce | Collective::ReduceScatter => {
            let node = &formulas.nodes[formula as usize];
            let everybody = u64::MAX >> (64 - plan.ranks.len());
            if node.ranks != everybody {
                return wrong("a reduction over all ranks".to_string());
            }
            // The average over one rank is that rank's contribution, so there is nothing to finish.
            if !node.finished && plan.ranks.len() > 1 {
                return Err(VerifyError::Unfinished { rank, block });
            }
            Ok(())
        }
    }
}

const NOTHING: u32 = 0;

/// Formulas, each stored once.
struct Formulas {
    nodes: Vec<Node>,
    known: HashMap<(Vec<u32>, bool), u32>,
}

struct Node {
    /// Operands in their order; empty for nothing and for contributions.
    operands: Vec<u32>,
    /// Whose contributions are in it, one bit per rank.
    ranks: u64,
    finished: bool,
}

impl Formulas {
    fn new(ranks: u32) -> Self {
        let leaf = |ranks| Node { operands: Vec::new(), ranks, finished: false };
        let nodes = std::iter::once(leaf(0)).chain((0..ranks).map(|rank| leaf(1 << rank))).collect();
        Formulas { nodes, known: HashMap::new() }
    }

    fn contribution(&self, rank: Rank) -> u32 {
        rank.0 + 1
    }

    /// A reduction, or the rank that is in two operands, or `None` if an operand is finished already.
    fn reduction(&mut self, operands: &[u32], finish: bool) -> Result<u32, Option<Rank>> {
        let mut ranks = 0;
        for &operand in operands {
            let node = &self.nodes[operand as usize];
            if node.finished {
                return Err(None);
            }
            if ranks & node.ranks != 0 {
                return Err(Some(Rank((ranks & node.ranks).trailing_zeros())));
            }
            ranks |= node.ranks;
        }
        if let ([only], false) = (operands, finish) {
            return Ok(*only);
        }
        if let Some(&known) = self.known.get(&(operands.to_vec(), finish)) {
            return Ok(known);
        }
        // Each step makes at most one per block, and memory for as many blocks was there.
        let id = self.nodes.len() as u32;
        self.nodes.push(Node { operands: operands.to_vec(), ranks, finished: finish });
        self.known.insert((operands.to_vec(), finish), id);
        Ok(id)
    }

    fn text(&self, formula: u32) -> String {
        let node = &self.nodes[formula as usize];
        if formula == NOTHING {
            return "nothing".to_string();
        }
        if node.operands.is_empty() {
            return (formula - 1).to_string();
        }
        let mut text = String::from("(");
        for (at, &operand) in node.operands.iter().enumerate() {
            let _ = write!(text, "{}{}", if at > 0 { " + " } else { "" }, self.text(operand));
        }
        text + ")"
    }
}

/// What every block of every rank's spaces holds.
struct Memory {
    formulas: Formulas,
    /// Per rank: the output, then the scratch areas.
    cells: Vec<Vec<Area>>,
}

struct Area {
    first: u32,
    cells: Vec<u32>,
}

impl Memory {
    fn new(plan: &Plan) -> Self {
        let formulas = Formulas::new(plan.ranks.len() as u32);
        let cells = (0..).map(Rank).zip(&plan.ranks).map(|(rank, part)| {
            let own = formulas.contribution(rank);
            let holds = |block| match plan.collective {
                Collective::AllReduce | Collective::ReduceScatter => true,
                Collective::AllGather => owner(plan, block) == rank,
                Collective::Broadcast { root } => root == rank,
            };
            let output = (0..plan.blocks).map(|block| if holds(block) { own } else { NOTHING }).collect();
            let scratch = part
                .scratch
                .iter()
                .map(|span| Area { first: span.first, cells: vec![NOTHING; span.count as usize] });
            std::iter::once(Area { first: 0, cells: output }).chain(scratch).collect()
        });
        let cells = cells.collect();
        Memory { formulas, cells }
    }

    fn run(&mut self, plan: &Plan, wiring: &Wiring, order: &[(Rank, StepId)]) -> Result<(), VerifyError> {
        for &(rank, step) in order {
            let action = &plan.ranks[rank.index()].steps[step as usize].action;
            for block in action.range().blocks() {
                let value = self.value(plan, wiring, (rank, step), action, block)?;
                self.set(rank, action.range().space, block, value);
            }
        }
        Ok(())
    }

    fn value(
        &mut self,
        plan: &Plan,
        wiring: &Wiring,
        (rank, step): (Rank, StepId),
        action: &Action,
        block: u32,
    ) -> Result<u32, VerifyError> {
        let sent = |from: Rank, message| {
            let send = wiring.sender(from, rank, message);
            let src = plan.ranks[from.index()].steps[send as usize].action.range();
            self.read(from, send, src, block)
        };
        match action {
            Action::Send { .. } => unreachable!("the order of play has no sends"),
            Action::Place { from, message, .. } => sent(*from, *message),
            Action::Copy { src, .. } => self.read(rank, step, *src, block),
            Action::Reduce { srcs, post, .. } => {
                let read = |source: &Source| match *source {
                    Source::Local(src) => self.read(rank, step, src, block),
                    Source::Peer { from, message } => sent(from, message),
                };
                let operands = srcs.iter().map(read).collect::<Result<Vec<u32>, VerifyError>>()?;
                let reduction = self.formulas.reduction(&operands, *post == Post::Finish);
                reduction.map_err(|contributor| match contributor {
                    Some(contributor) => VerifyError::Twice { rank, step, block, contributor },
                    None => VerifyError::Finished { rank, step, block },
                })
            }
        }
    }

    fn read(&self, rank: Rank, step: StepId, range: Range, block: u32) -> Result<u32, VerifyError> {
        match self.get(rank, range.space, block) {
            NOTHING => Err(VerifyError::Undefined { rank, step, space: range.space, block }),
            formula => Ok(formula),
        }
    }

    fn get(&self, rank: Rank, space: Space, block: u32) -> u32 {
        let Some(area) = area_index(space) else { return NOTHING };
        let area = &self.cells[rank.index()][area];
        area.cells[(block - area.first) as usize]
    }

    fn set(&mut self, rank: Rank, space: Space, block: u32, formula: u32) {
        let Some(area) = area_index(space) else { return };
        let area = &mut self.cells[rank.index()][area];
        area.cells[(block - area.first) as usize] = formula;
    }
}

/// The collectives start with all data in the output, so that the input holds nothing.
fn area_index(space: Space) -> Option<usize> {
    match space {
        Space::Input => None,
        Space::Output => Some(0),
        Space::Scratch(area) => Some(area as usize + 1),
    }
}
