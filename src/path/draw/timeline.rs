//! When each chunk of each step moves, if every chunk takes one unit of time.
//!
//! A rank has two hands: one sends, the other places, reduces and copies. Each moves one chunk at a time and takes,
//! of those that are ready, the chunk that is furthest to the front, then the earliest step. Links have room.

use crate::path::plan::{Action, After, StepId};
use crate::path::verify::{VerifiedPlan, Wiring};
use crate::rank::Rank;

/// One chunk of one step, moving for one unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    pub(super) rank: Rank,
    pub(super) step: StepId,
    pub(super) chunk: u32,
    pub(super) time: u32,
}

/// All chunks, in the order of time.
pub(super) fn timeline(plan: &VerifiedPlan, wiring: &Wiring, chunks: u32) -> Vec<Beat> {
    let mut clock = Clock::new(plan, wiring, chunks);
    let total: usize = plan.ranks.iter().map(|part| part.steps.len() * chunks as usize).sum();
    while clock.beats.len() < total {
        clock.tick();
    }
    clock.beats
}

struct Clock<'a> {
    plan: &'a VerifiedPlan,
    wiring: &'a Wiring,
    chunks: u32,
    /// Chunks that have moved; of a send, chunks that were sent.
    moved: Vec<Vec<u32>>,
    /// Chunks of each send that were released; the same as moved for other steps.
    done: Vec<Vec<u32>>,
    time: u32,
    beats: Vec<Beat>,
}

impl<'a> Clock<'a> {
    fn new(plan: &'a VerifiedPlan, wiring: &'a Wiring, chunks: u32) -> Self {
        let zeros: Vec<Vec<u32>> = plan.ranks.iter().map(|part| vec![0; part.steps.len()]).collect();
        Clock { plan, wiring, chunks, moved: zeros.clone(), done: zeros, time: 0, beats: Vec::new() }
    }

    /// Chooses for all hands before anything moves, since what moves now is seen one unit later.
    fn tick(&mut self) {
        let ranks = (0..).map(Rank).take(self.plan.ranks.len());
        let chosen: Vec<Beat> = ranks
            .flat_map(|rank| [self.choose(rank, Hand::Out), self.choose(rank, Hand::In)])
            .flatten()
            .collect();
        for beat in &chosen {
            self.apply(*beat);
        }
        self.beats.extend(chosen);
        self.time += 1;
    }

    fn choose(&self, rank: Rank, hand: Hand) -> Option<Beat> {
        let steps = (0..).zip(&self.plan.ranks[rank.index()].steps);
        let ready = steps.filter(|(id, step)| hand == Hand::of(&step.action) && self.ready(rank, *id));
        let first = ready.map(|(id, _)| (self.moved[rank.index()][id as usize], id)).min()?;
        Some(Beat { rank, step: first.1, chunk: first.0, time: self.time })
    }

    fn ready(&self, rank: Rank, id: StepId) -> bool {
        let step = &self.plan.ranks[rank.index()].steps[id as usize];
        let next = self.moved[rank.index()][id as usize];
        let came = |after: &After| {
            let needed = if matches!(after, After::Stream(_)) { next + 1 } else { self.chunks };
            self.done[rank.index()][after.step() as usize] >= needed
        };
        let here = |(from, message): (Rank, u16)| {
            self.moved[from.index()][self.wiring.sender(from, rank, message) as usize] > next
        };
        next < self.chunks && step.after.iter().all(came) && step.action.messages_in().all(here)
    }

    fn apply(&mut self, beat: Beat) {
        let action = &self.plan.ranks[beat.rank.index()].steps[beat.step as usize].action;
        self.moved[beat.rank.index()][beat.step as usize] += 1;
        if Hand::of(action) == Hand::In {
            self.done[beat.rank.index()][beat.step as usize] += 1;
        }
        for (from, message) in action.messages_in() {
            self.done[from.index()][self.wiring.sender(from, beat.rank, message) as usize] += 1;
        }
    }
}

/// What a rank moves chunks with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hand {
    Out,
    In,
}

impl Hand {
    pub(super) const fn of(action: &Action) -> Self {
        match action {
            Action::Send { .. } => Hand::Out,
            Action::Place { .. } | Action::Copy { .. } | Action::Reduce { .. } => Hand::In,
        }
    }
}
