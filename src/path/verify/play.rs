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
//! dependency and a message lead from a part to the same part, since both ends cover the same blocks; and each
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

/// Why a step can't move.
enum Wait {
    Step(Rank, StepId),
    /// For the message that this step sends.
    Message(Rank, StepId),
    /// For the link, which this step's message has.
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
        while matches!(self.wait(rank, step), Some(None)) {
            self.move_on(rank, step);
        }
    }

    /// `None` if the step is finished, `Some(None)` if it can move, else what it waits for.
    fn wait(&self, rank: Rank, step: StepId) -> Option<Option<Wait>> {
        let at = (rank.index(), step as usize);
        let what = &self.plan.ranks[at.0].steps[at.1];
        let is_send = matches!(what.action, Action::Send { .. });
        let next = if is_send { self.started[at.0][at.1] } else { self.done[at.0][at.1] };
        if next == self.chunks {
            return None;
        }
        let unmet = what.after.iter().find(|after| {
            let needed = if matches!(after, After::Stream(_)) { next + 1 } else { self.chunks };
            self.done[at.0][after.step() as usize] < needed
        });
        if let Some(after) = unmet {
            return Some(Some(Wait::Step(rank, after.step())));
        }
        if let Action::Send { to, message, .. } = what.action {
            return Some(self.link_wait(rank, step, to, message));
        }
        Some(what.action.messages_in().find_map(|(from, message)| {
            let send = self.wiring.sender(from, rank, message);
            (self.started[from.index()][send as usize] <= next).then_some(Wait::Message(from, send))
        }))
    }

    fn link_wait(&self, rank: Rank, step: StepId, to: Rank, message: u16) -> Option<Wait> {
        let own = (self.started[rank.index()][step as usize], self.done[rank.index()][step as usize]);
        if own.0 > own.1 {
            return Some(Wait::Link(rank, step));
        }
        let before = message.checked_sub(1).map(|before| self.wiring.sender(rank, to, before))?;
        (self.done[rank.index()][before as usize] < self.chunks).then_some(Wait::Link(rank, before))
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
            let (next_rank, next, words) = match self.wait(rank, step).flatten() {
                Some(Wait::Step(rank, step)) => (rank, step, "waits for"),
                Some(Wait::Message(rank, step)) => (rank, step, "waits for the message of"),
                // What is on the link has to be taken by the peer.
                Some(Wait::Link(from, send)) => (from, send, "waits for the link, used by"),
                // A send that has started all its chunks waits to be released.
                None => match self.plan.ranks[rank.index()].steps[step as usize].action {
                    Action::Send { to, message, .. } => {
                        (to, self.wiring.taker(rank, to, message), "waits to be released by")
                    }
                    _ => return chain,
                },
            };
            let stuck_on_itself = (next_rank, next) == (rank, step);
            if stuck_on_itself
                && let Action::Send { to, message, .. } =
                    self.plan.ranks[rank.index()].steps[step as usize].action
            {
                (rank, step) = (to, self.wiring.taker(rank, to, message));
                chain += &format!(", waits to be released by rank {rank} step {step}");
                continue;
            }
            (rank, step) = (next_rank, next);
            chain += &format!(", {words} rank {rank} step {step}");
        }
        chain
    }
}
