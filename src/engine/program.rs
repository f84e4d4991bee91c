//! A verified plan, made ready for one rank: what the engine looks up per step, looked up once.

use std::collections::HashSet;
use std::sync::Arc;

use super::direct::Blocks;
use super::exchange::{Send, Shape};
use crate::kernel::SOURCES_MAX;
use crate::path::{Action, After, Partition, Post, Range, Source, Space, StepId, VerifiedPlan};
use crate::rank::Rank;

/// One rank's part of a plan.
#[derive(Debug)]
pub(crate) struct Program {
    pub plan: Arc<VerifiedPlan>,
    pub steps: Vec<Step>,
    /// Messages from others, in no order that matters.
    pub inputs: Vec<Input>,
    /// `incoming[rank][message]`: index into `inputs`.
    incoming: Vec<Vec<u16>>,
    /// `outgoing[rank][message]`: index into `steps`.
    outgoing: Vec<Vec<u16>>,
    pub scratch: Vec<Range>,
    pub first_block: FirstBlock,
    /// Messages that are reduced as they come, and need a window each if they come over byte links.
    pub windows: usize,
    /// Between this rank and one other at most, in both directions: for each of them, one frame at most may come before its
    /// call, payload or a word on it.
    pub messages: usize,
    /// If all of it is one exchange.
    pub exchange: Option<Shape>,
    /// If it can be walked step by step.
    pub straight: Option<Straight>,
    /// If all of it is a block for each rank to reduce and to write to all others.
    pub direct: Option<Blocks>,
}

/// Steps that need no memory but the caller's, and no more state than whether they are done.
#[derive(Debug)]
pub(crate) struct Straight {
    /// Of each step, those that must be done before it, by bit.
    pub before: Vec<u64>,
    /// All steps.
    pub all: u64,
    /// The ranks that it sends to or gets something from.
    pub peers: Vec<usize>,
}

/// With which block of the vector the caller's buffers begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstBlock {
    pub output: u32,
    pub input: u32,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub act: Act,
    /// Destination, or what a `Send` lends.
    pub range: Range,
    pub after: Vec<After>,
}

#[derive(Debug)]
pub(crate) enum Act {
    Send {
        to: usize,
        message: u16,
        push: Option<Push>,
    },
    /// `pushed`: a sender in this process writes it.
    Place {
        input: usize,
        pushed: bool,
    },
    Copy {
        src: Range,
    },
    Reduce {
        srcs: Vec<From>,
        post: Post,
        streams: usize,
        /// The `Send` steps whose peers this writes the result to itself, where they are in this process.
        pushes: Vec<usize>,
    },
}

/// A result that its reducer writes into a peer's memory as well, while it is in the cache: where no one but the reducer
/// reads there before, which the plan shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Push {
    /// The peer's step that the message is for.
    pub place: usize,
    /// The peer's step that lends the same range to the reducer: what he has taken of it, he may overwrite.
    pub lent: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    Local(Range),
    Input(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Input {
    /// Rank in the communicator.
    pub from: usize,
    pub message: u16,
    /// Step here that consumes it.
    pub step: usize,
    /// Step of the sender's plan that lends it.
    pub sender_step: usize,
}

impl Program {
    pub(crate) fn new(plan: Arc<VerifiedPlan>, rank: usize) -> Self {
        let ranks = plan.ranks.len();
        let first = |space| plan.span(Rank(rank as u32), space).map_or(0, |span| span.first);
        let mut program = Program {
            steps: Vec::new(),
            inputs: Vec::new(),
            incoming: vec![Vec::new(); ranks],
            outgoing: vec![Vec::new(); ranks],
            scratch: plan.ranks[rank].scratch.clone(),
            first_block: FirstBlock { output: first(Space::Output), input: first(Space::Input) },
            windows: 0,
            messages: 0,
            exchange: None,
            straight: None,
            direct: None,
            plan: plan.clone(),
        };
        for (index, step) in plan.ranks[rank].steps.iter().enumerate() {
            let (act, range) = match &step.action {
                Action::Send { to, message, src } => {
                    store(&mut program.outgoing[to.index()], *message, index as u16);
                    let push = push(&plan, rank, to.index(), *message);
                    (Act::Send { to: to.index(), message: *message, push }, *src)
                }
                Action::Place { from, message, dst } => {
                    let input = program.input(rank, from.index(), *message, index);
                    let pushed = push(&plan, from.index(), rank, *message).is_some();
                    (Act::Place { input, pushed }, *dst)
                }
                Action::Copy { src, dst } => (Act::Copy { src: *src }, *dst),
                Action::Reduce { dst, srcs, post } => {
                    let srcs: Vec<From> = srcs
                        .iter()
                        .map(|src| match src {
                            Source::Local(range) => From::Local(*range),
                            Source::Peer { from, message } => {
                                From::Input(program.input(rank, from.index(), *message, index))
                            }
                        })
                        .collect();
                    let streams = srcs.iter().filter(|src| matches!(src, From::Input(_))).count();
                    program.windows += streams;
                    (Act::Reduce { srcs, post: *post, streams, pushes: Vec::new() }, *dst)
                }
            };
            program.steps.push(Step { act, range, after: step.after.clone() });
        }
        program.messages = program.messages();
        program.fuse();
        program.exchange = program.shape();
        program.straight = program.straight();
        program.direct = program.blocks(rank);
        program
    }

    fn messages(&self) -> usize {
        let count = |table: &Vec<u16>| table.iter().filter(|at| **at != NONE).count();
        let both = self.incoming.iter().zip(&self.outgoing).map(|(from, to)| count(from) + count(to));
        both.max().unwrap_or(0)
    }

    /// Lets reductions write their results to peers as well: to where they have just read.
    fn fuse(&mut self) {
        for index in 0..self.steps.len() {
            let Step { act: Act::Send { to, push: Some(push), .. }, after, .. } = &self.steps[index] else {
                continue;
            };
            let (to, lent) = (*to, push.lent);
            let [After::Stream(reduce)] = after[..] else { continue };
            let inputs = &self.inputs;
            let is_read = |src: &From| matches!(src, From::Input(input) if inputs[*input].from == to && inputs[*input].sender_step == lent);
            if let Act::Reduce { srcs, pushes, .. } = &mut self.steps[usize::from(reduce)].act
                && srcs.iter().any(is_read)
                && pushes.len() < SOURCES_MAX - 1
            {
                pushes.push(index);
            }
        }
    }

    /// The shape of an exchange, if it has that: a copy of the vector, which goes to all others, and one reduction.
    fn shape(&self) -> Option<Shape> {
        let is_all = |range: &Range| range.blocks() == (0..self.plan.blocks);
        let [copy, sends @ .., reduce] = &self.steps[..] else { return None };
        let (Act::Copy { src }, Act::Reduce { srcs, post, .. }) = (&copy.act, &reduce.act) else {
            return None;
        };
        let ranks = self.plan.ranks.len();
        let own = copy.range;
        let fits = matches!(own.space, Space::Scratch(_))
            && reduce.range == *src
            && [src, &own].into_iter().all(is_all)
            && sends.len() == ranks - 1
            && srcs.len() == ranks
            && self.inputs.len() == ranks - 1
            && self.incoming.iter().all(|from| from.len() <= 1)
            && self.outgoing.iter().all(|to| to.len() <= 1);
        if !fits {
            return None;
        }
        let sends = sends.iter().map(|step| match step.act {
            Act::Send { to, message, .. } if step.range == own => Some(Send { to, message }),
            _ => None,
        });
        let srcs = srcs.iter().map(|src| match *src {
            From::Local(range) if range == own => Some(None),
            From::Local(_) => None,
            From::Input(input) => Some(Some(input)),
        });
        Some(Shape { sends: sends.collect::<Option<_>>()?, srcs: srcs.collect::<Option<_>>()?, post: *post })
    }

    /// Whether its steps can be walked: no scratch memory, and no reduction of two messages of one rank, of which one would be
    /// behind the other.
    fn straight(&self) -> Option<Straight> {
        let is_single = |step: &Step| {
            let Act::Reduce { srcs, .. } = &step.act else { return true };
            let from =
                |src: &From| if let From::Input(input) = src { Some(self.inputs[*input].from) } else { None };
            let ranks: HashSet<usize> = srcs.iter().filter_map(from).collect();
            ranks.len() == srcs.iter().filter_map(from).count() && srcs.len() <= SOURCES_MAX
        };
        let steps = self.steps.len() as u32;
        if !self.scratch.is_empty() || !(1..=u64::BITS).contains(&steps) || !self.steps.iter().all(is_single)
        {
            return None;
        }
        let bits =
            |step: &Step| step.after.iter().fold(0, |bits, after| bits | 1 << usize::from(after.step()));
        let table = self.incoming.iter().zip(&self.outgoing).enumerate();
        let peers = table.filter(|(_, (from, to))| !from.is_empty() || !to.is_empty()).map(|(rank, _)| rank);
        Some(Straight {
            before: self.steps.iter().map(bits).collect(),
            all: u64::MAX >> (u64::BITS - steps),
            peers: peers.collect(),
        })
    }

    /// The blocks, if each rank reduces one of its own vector from all and writes it to all.
    fn blocks(&self, me: usize) -> Option<Blocks> {
        let ranks = self.plan.ranks.len();
        let at = self.steps.iter().position(|step| matches!(step.act, Act::Reduce { .. }))?;
        let Act::Reduce { srcs, post, pushes, .. } = &self.steps[at].act else { return None };
        let own = self.steps[at].range;
        if self.steps.len() != 3 * ranks - 2 || srcs.len() != ranks || pushes.len() != ranks - 1 {
            return None;
        }
        let mut of = vec![None; ranks];
        of[me] = Some(own);
        // What is lent to a peer is what it writes back, and nothing is lent twice.
        for place in &self.steps {
            let Act::Place { input, pushed: true } = place.act else { continue };
            let from = self.inputs[input].from;
            let [After::Stream(lent)] = place.after[..] else { return None };
            let lent = &self.steps[usize::from(lent)];
            let fits = matches!(lent.act, Act::Send { to, push: None, .. } if to == from)
                && lent.after.is_empty()
                && lent.range == place.range;
            of[from] = Some(place.range).filter(|_| fits && of[from].is_none());
        }
        let of = of.into_iter().collect::<Option<Vec<_>>>()?;
        let order = srcs.iter().map(|src| match *src {
            From::Local(range) => (range == own).then_some(me),
            From::Input(input) => Some(self.inputs[input].from),
        });
        let order = order.collect::<Option<Vec<_>>>()?;
        let is_in_place = of.iter().all(|range| range.space == Space::Output);
        let is_each_once = (0..ranks).all(|rank| order.contains(&rank));
        (is_in_place && is_each_once).then_some(Blocks { of, order, post: *post })
    }

    fn input(&mut self, me: usize, from: usize, message: u16, step: usize) -> usize {
        let is_it = |action: &Action| matches!(action, Action::Send { to, message: number, .. } if to.index() == me && *number == message);
        let sender_step =
            self.plan.ranks[from].steps.iter().position(|step| is_it(&step.action)).unwrap_or(0);
        let input = self.inputs.len();
        self.inputs.push(Input { from, message, step, sender_step });
        store(&mut self.incoming[from], message, input as u16);
        input
    }

    /// The input that message `message` from rank `from` is, if the plan has it.
    pub(crate) fn incoming(&self, from: usize, message: u32) -> Option<usize> {
        find(self.incoming.get(from)?, message)
    }

    /// The step that sends message `message` to rank `to`, if the plan has it.
    pub(crate) fn outgoing(&self, to: usize, message: u32) -> Option<usize> {
        find(self.outgoing.get(to)?, message)
    }

    pub(crate) fn partition(&self, elements: usize) -> Partition {
        self.plan.partition(elements)
    }
}

/// Whether and how message `message` from rank `from` to rank `to` is pushed. Both find the same.
fn push(plan: &VerifiedPlan, from: usize, to: usize, message: u16) -> Option<Push> {
    let (sender, receiver) = (&plan.ranks[from].steps, &plan.ranks[to].steps);
    let send = sender.iter().find(|step| {
        matches!(&step.action, Action::Send { to: peer, message: number, .. } if peer.index() == to && *number == message)
    })?;
    let Action::Send { src, .. } = &send.action else { return None };
    let reduced =
        |step: StepId| matches!(&sender[usize::from(step)].action, Action::Reduce { dst, .. } if dst == src);
    if !matches!(send.after[..], [After::Stream(step)] if reduced(step)) {
        return None;
    }
    let is_it = |action: &Action| matches!(action, Action::Place { from: peer, message: number, .. } if peer.index() == from && *number == message);
    let place = receiver.iter().position(|step| is_it(&step.action))?;
    let Action::Place { dst, .. } = &receiver[place].action else { return None };
    let [After::Stream(lent)] = receiver[place].after[..] else { return None };
    match &receiver[usize::from(lent)].action {
        Action::Send { to: peer, src, .. } if peer.index() == from && src == dst => {
            Some(Push { place, lent: usize::from(lent) })
        }
        _ => None,
    }
}

/// Not in the plan.
const NONE: u16 = u16::MAX;

fn store(table: &mut Vec<u16>, at: u16, value: u16) {
    let at = usize::from(at);
    if table.len() <= at {
        table.resize(at + 1, NONE);
    }
    table[at] = value;
}

fn find(table: &[u16], at: u32) -> Option<usize> {
    table.get(at as usize).filter(|value| **value != NONE).map(|value| usize::from(*value))
}
