//! No deadlock: all ranks' plans are played together on the weakest link.
//!
//! # The weakest link
//!
//! A link carries *one* chunk at a time from one rank to another, for all messages of that pair together. Messages
//! of a pair go in the order of their numbers, which is that of the sender's steps: a message starts when the one
//! before it was taken to its end. A chunk is taken when the consuming step moves, not earlier; a reduction moves
//! when a chunk from every one of its sources is there. A send's chunk is released when it was taken.
//!
//! A link with more room, one that copies, or one that gives each message room of its own only lets things happen
//! earlier. A link with *shared* room that does not keep the order of numbers is not covered: a chunk of a later
//! message might take the room that an earlier one needs.
//!
//! # Why one schedule is enough
//!
//! No rule above has a choice. Every event (a step starts, takes or releases a part) has a fixed set of events
//! before it, so either all schedules come to the end or all get stuck in the same place.
//!
//! # Why the number of chunks does not matter
//!
//! A cycle of waiting steps is a cycle for one chunk per step if and only if it is one for any number. A `Whole`
//! dependency and the order of messages lead from the end of one step to the start of another; a `Stream`
//! dependency and a message lead from a part to the same part, since both ends are equally long; and each
//! step's parts come front to back. So whatever waits for something with parts waits for it as a whole, and of
//! whatever waits as a whole, the last parts wait for each other. Plans are played with one, two and three chunks
//! all the same: it costs little, and it tests the argument.

use std::collections::VecDeque;

use crate::path::plan::{Action, After, Plan, StepId};
use crate::path::verify::structure::{ranks, steps};
use crate::path::verify::{VerifyError, Wiring};
use crate::rank::Rank;

/// How many waiting steps a report of a deadlock names.
const CHAIN_MAX: usize = 8;

/// Plays the plan with this many chunks per step; gives the order in which steps other than sends were finished.
pub(super) fn play(plan: &Plan, wiring: &Wiring, chunks: u32) -> Result<Vec<(Rank, StepId)>, VerifyError> {
    let mut player = Player::new(plan, wiring, chunks);
    while let Some((rank, step)) = player.queue.pop_front() {
        player.queued[rank.index()][step as usize] = false;
        player.advance(rank, step);
    }
    match player.first_unfinished() {
        None => Ok(player.finished),
        Some((rank, step)) => {
            let chain = player.chain(rank, step);
            Err(VerifyError::Deadlock { rank, step, chunks, chain })
        }
    }
}

struct Player<'a> {
    plan: &'a Plan,
    wiring: &'a Wiring,
    chunks: u32,
    /// Chunks that each send has started; unused for other steps.
    started: Vec<Vec<u32>>,
    /// Chunks that are done: for a send, released.
    done: Vec<Vec<u32>>,
    /// The steps that wait for each step.
    waiting: Vec<Vec<Vec<StepId>>>,
    queue: VecDeque<(Rank, StepId)>,
    queued: Vec<Vec<bool>>,
    finished: Vec<(Rank, StepId)>,
}

/// Whether a step can move, and if not, which step has to move first.
enum State {
    Finished,
    Ready,
    After(Rank, StepId),
    /// For the message that this step sends.
    Message(Rank, StepId),
    /// For the link, on which this step's message is.
    Link(Rank, StepId),
}

impl<'a> Player<'a> {
    fn new(plan: &'a Plan, wiring: &'a Wiring, chunks: u32) -> Self {
        let zeros: Vec<Vec<u32>> = plan.ranks.iter().map(|part| vec![0; part.steps.len()]).collect();
        let mut waiting: Vec<Vec<Vec<StepId>>> =
            plan.ranks.iter().map(|part| vec![Vec::new(); part.steps.len()]).collect();
        for (rank, part) in ranks(plan) {
            for (step, what) in steps(part) {
                for after in &what.after {
                    waiting[rank.index()][after.step() as usize].push(step);
                }
            }
        }
        let all = ranks(plan).flat_map(|(rank, part)| steps(part).map(move |(step, _)| (rank, step)));
        Player {
            plan,
            wiring,
            chunks,
            started: zeros.clone(),
            done: zeros,
            waiting,
            queue: all.collect(),
            queued: plan.ranks.iter().map(|part| vec![true; part.steps.len()]).collect(),
            finished: Vec::new(),
        }
    }

    fn advance(&mut self, rank: Rank, step: StepId) {
        while matches!(self.state(rank, step), State::Ready) {
            self.move_on(rank, step);
        }
    }

    /// The state of a step; a send is finished when all of it has started.
    fn state(&self, rank: Rank, step: StepId) -> State {
        let what = &self.plan.ranks[rank.index()].steps[step as usize];
        let is_send = matches!(what.action, Action::Send { .. });
        let moved = if is_send { &self.started } else { &self.done };
        let next = moved[rank.index()][step as usize];
        if next == self.chunks {
            return State::Finished;
        }
        let unmet = what.after.iter().find(|after| {
            let needed = if matches!(after, After::Stream(_)) { next + 1 } else { self.chunks };
            self.done[rank.index()][after.step() as usize] < needed
        });
        if let Some(after) = unmet {
            return State::After(rank, after.step());
        }
        if let Action::Send { to, message, .. } = what.action {
            return self.link_state(rank, step, to, message);
        }
        let unsent = what.action.messages_in().find_map(|(from, message)| {
            let send = self.wiring.sender(from, rank, message);
            (self.started[from.index()][send as usize] <= next).then_some((from, send))
        });
        unsent.map_or(State::Ready, |(from, send)| State::Message(from, send))
    }

    fn link_state(&self, rank: Rank, step: StepId, to: Rank, message: u16) -> State {
        let (started, done) = (&self.started[rank.index()], &self.done[rank.index()]);
        if started[step as usize] > done[step as usize] {
            return State::Link(rank, step);
        }
        let before = message.checked_sub(1).map(|before| self.wiring.sender(rank, to, before));
        match before {
            Some(before) if done[before as usize] < self.chunks => State::Link(rank, before),
            _ => State::Ready,
        }
    }

    fn move_on(&mut self, rank: Rank, step: StepId) {
        let what = &self.plan.ranks[rank.index()].steps[step as usize].action;
        if let Action::Send { to, message, .. } = *what {
            self.started[rank.index()][step as usize] += 1;
            self.wake(to, self.wiring.taker(rank, to, message));
            return;
        }
        for (from, message) in what.messages_in() {
            let send = self.wiring.sender(from, rank, message);
            self.complete(from, send);
            self.wake(from, send);
            if let Some(next) = self.wiring.next_sender(from, rank, message) {
                self.wake(from, next);
            }
        }
        self.complete(rank, step);
        if self.done[rank.index()][step as usize] == self.chunks {
            self.finished.push((rank, step));
        }
    }

    fn complete(&mut self, rank: Rank, step: StepId) {
        self.done[rank.index()][step as usize] += 1;
        for at in 0..self.waiting[rank.index()][step as usize].len() {
            self.wake(rank, self.waiting[rank.index()][step as usize][at]);
        }
    }

    fn wake(&mut self, rank: Rank, step: StepId) {
        if !std::mem::replace(&mut self.queued[rank.index()][step as usize], true) {
            self.queue.push_back((rank, step));
        }
    }

    fn first_unfinished(&self) -> Option<(Rank, StepId)> {
        let all = ranks(self.plan).flat_map(|(rank, part)| steps(part).map(move |(step, _)| (rank, step)));
        all.into_iter().find(|(rank, step)| self.done[rank.index()][*step as usize] < self.chunks)
    }

    fn chain(&self, mut rank: Rank, mut step: StepId) -> String {
        let mut chain = format!("rank {rank} step {step}");
        for _ in 0..CHAIN_MAX {
            let Some((words, next_rank, next_step)) = self.cause(rank, step) else { break };
            (rank, step) = (next_rank, next_step);
            chain += &format!(", {words} rank {rank} step {step}");
        }
        chain
    }

    /// What has to move before this step can come to its end.
    fn cause(&self, rank: Rank, step: StepId) -> Option<(&'static str, Rank, StepId)> {
        match self.state(rank, step) {
            State::Ready => None,
            State::After(rank, on) => Some(("waits for", rank, on)),
            State::Message(from, send) => Some(("waits for the message of", from, send)),
            State::Link(from, send) if send != step => Some(("waits for the link, used by", from, send)),
            // What it has sent must be taken.
            State::Link(..) | State::Finished => {
                match self.plan.ranks[rank.index()].steps[step as usize].action {
                    Action::Send { to, message, .. } => {
                        Some(("waits to be released by", to, self.wiring.taker(rank, to, message)))
                    }
                    _ => None,
                }
            }
        }
    }
}
