//! Plays a plan on numbers: events in random order, chunks of random size, on links of both kinds.
//!
//! It knows nothing of the verifier. A link that copies takes the data when a chunk is sent and releases it at once;
//! one that does not takes it when the chunk is consumed. Which of the two a message meets is random.

use hcomm::Rank;
use hcomm::path::{Action, After, Collective, Placement, Plan, Post, Range, Source, Space};

/// Xorshift (George Marsaglia, 2003), with a seed that is spread over all bits.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 11) % bound as u64) as usize
    }
}

pub trait Number: Copy + PartialEq + std::fmt::Debug {
    fn combine(operands: &[Self]) -> Self;
    fn finish(self) -> Self;
}

impl Number for i64 {
    fn combine(operands: &[i64]) -> i64 {
        operands.iter().sum()
    }

    /// No sum of the tests comes near it, so a second one would be seen.
    fn finish(self) -> i64 {
        self + 1_000_000_000
    }
}

impl Number for f32 {
    fn combine(operands: &[f32]) -> f32 {
        operands[1..].iter().fold(operands[0], |sum, operand| sum + operand)
    }

    fn finish(self) -> f32 {
        self / 3.0
    }
}

pub fn inputs<T>(n: u32, count: usize, value: impl Fn(u32, usize) -> T) -> Vec<Vec<T>> {
    (0..n).map(|rank| (0..count).map(|at| value(rank, at)).collect()).collect()
}

/// Compares with the naive result.
pub fn check(plan: &Plan, inputs: &[Vec<i64>], results: &[Vec<Option<i64>>]) -> Result<(), String> {
    let n = inputs.len();
    let part = inputs[0].len() / n;
    for (rank, result) in results.iter().enumerate() {
        for (at, found) in result.iter().enumerate() {
            let of = |ranks: &[Vec<i64>]| ranks.iter().map(|input| input[at]).sum::<i64>();
            let all = || if n == 1 { of(inputs) } else { of(inputs).finish() };
            let in_place = plan.placement == Placement::InPlace;
            let is_own = || at / part == rank;
            let expected = match plan.collective {
                Collective::AllReduce => all(),
                Collective::ReduceScatter if is_own() => all(),
                Collective::Reduce { root } if root.index() == rank => all(),
                Collective::ReduceScatter | Collective::Reduce { .. } => continue,
                Collective::AllGather => inputs[at / part][at],
                Collective::Gather { root } if root.index() == rank => inputs[at / part][at],
                // Not the result, but nothing to be spoilt either.
                Collective::Gather { .. } if in_place && is_own() => inputs[rank][at],
                Collective::Scatter { root } if is_own() || in_place && root.index() == rank => {
                    inputs[root.index()][at]
                }
                Collective::Gather { .. } | Collective::Scatter { .. } => continue,
                Collective::Broadcast { root } => inputs[root.index()][at],
                Collective::AllToAll => inputs[at / part][rank * part + at % part],
                Collective::Scan => of(&inputs[..=rank]),
                Collective::ExScan if rank > 0 => of(&inputs[..rank]),
                Collective::ExScan if in_place => inputs[0][at],
                Collective::ExScan => continue,
                _ => return Err("unknown collective".to_string()),
            };
            if *found != Some(expected) {
                return Err(format!("rank {rank}, element {at}: {found:?}, should be {expected}"));
            }
        }
    }
    Ok(())
}

/// What the links are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Each message has all the room it needs; it is copied or not at random.
    Roomy,
    /// One chunk at a time from one rank to another, messages of a pair in order, nothing is copied.
    Weakest,
}

/// Memory, and how far each step has come, in elements.
pub struct Player<'a, T> {
    plan: &'a Plan,
    random: &'a mut Random,
    links: Links,
    count: usize,
    /// Per rank: output, input, then scratch areas, each as long as the vector.
    memory: Vec<Vec<Vec<Option<T>>>>,
    /// Elements moved; of a send, elements sent.
    moved: Vec<Vec<usize>>,
    /// Elements done; of a send, elements released.
    done: Vec<Vec<usize>>,
    /// What a copying link carries: per rank and step, the elements taken so far.
    carried: Vec<Vec<Option<Vec<Option<T>>>>>,
}

impl<'a, T: Number> Player<'a, T> {
    pub fn new(plan: &'a Plan, inputs: &[Vec<T>], links: Links, random: &'a mut Random) -> Self {
        let count = inputs[0].len();
        let memory = plan.ranks.iter().zip(inputs).enumerate().map(|(rank, (part, input))| {
            let mut spaces = vec![vec![None; count]; part.scratch.len() + 2];
            if let Some(given) = plan.given(Rank(rank as u32)) {
                for at in plan.partition(count).elements(given) {
                    spaces[space(given.space)][at] = Some(input[at]);
                }
            }
            spaces
        });
        let memory = memory.collect();
        let zeros: Vec<Vec<usize>> = plan.ranks.iter().map(|part| vec![0; part.steps.len()]).collect();
        let carried = plan.ranks.iter().map(|part| {
            part.steps
                .iter()
                .map(|_| (links == Links::Roomy && random.below(2) == 0).then(Vec::new))
                .collect::<Vec<_>>()
        });
        let carried = carried.collect();
        Player { plan, random, links, count, memory, moved: zeros.clone(), done: zeros, carried }
    }

    /// The outputs, or who is stuck.
    pub fn run(mut self) -> Result<Vec<Vec<Option<T>>>, String> {
        loop {
            let open: Vec<(usize, usize)> = self.open();
            if open.is_empty() {
                return Ok(self.memory.into_iter().map(|mut spaces| spaces.swap_remove(0)).collect());
            }
            let ready: Vec<_> =
                open.iter().copied().filter(|&at| self.reach(at) > self.moved[at.0][at.1]).collect();
            if ready.is_empty() {
                return Err(format!("stuck at {open:?}"));
            }
            // Several moves per look at what is ready: whatever was ready stays so.
            for _ in 0..ready.len() {
                let at = ready[self.random.below(ready.len())];
                let (from, reach) = (self.moved[at.0][at.1], self.reach(at));
                if reach > from {
                    let most = reach - from;
                    let step = if self.random.below(3) == 0 { 1 + self.random.below(most) } else { most };
                    self.advance(at, from + step);
                }
            }
        }
    }

    fn elements(&self, range: Range) -> std::ops::Range<usize> {
        self.plan.partition(self.count).elements(range)
    }

    fn len(&self, (rank, step): (usize, usize)) -> usize {
        self.elements(self.plan.ranks[rank].steps[step].action.range()).len()
    }

    fn open(&self) -> Vec<(usize, usize)> {
        let all = self.plan.ranks.iter().enumerate();
        let all = all.flat_map(|(rank, part)| (0..part.steps.len()).map(move |step| (rank, step)));
        all.filter(|&at| self.moved[at.0][at.1] < self.len(at)).collect()
    }

    /// How far the step may go now.
    fn reach(&self, (rank, step): (usize, usize)) -> usize {
        let what = &self.plan.ranks[rank].steps[step];
        let mut reach = self.len((rank, step));
        for after in &what.after {
            let on = after.step() as usize;
            let done = self.done[rank][on];
            reach = match after {
                After::Stream(_) => reach.min(done),
                After::Whole(_) if done < self.len((rank, on)) => 0,
                After::Whole(_) => reach,
                other => panic!("{other:?} is new"),
            };
        }
        for (from, message) in what.action.messages_in() {
            let send = self.sender(from, rank, message);
            reach = reach.min(self.moved[from.index()][send]);
        }
        if let Action::Send { to, message, .. } = what.action {
            reach = reach.min(self.link_reach((rank, step), to.index(), message));
        }
        reach
    }

    fn link_reach(&self, (rank, step): (usize, usize), to: usize, message: u16) -> usize {
        let busy = |send: usize| self.done[rank][send] < self.len((rank, send));
        let before = message.checked_sub(1).map(|before| self.sender(Rank(rank as u32), to, before));
        let in_flight = self.moved[rank][step] > self.done[rank][step];
        if self.links == Links::Weakest && (in_flight || before.is_some_and(busy)) { 0 } else { usize::MAX }
    }

    fn sender(&self, from: Rank, rank: usize, number: u16) -> usize {
        let sends = &self.plan.ranks[from.index()].steps;
        let found = sends.iter().position(
            |step| matches!(step.action, Action::Send { to, message, .. } if to.index() == rank && message == number),
        );
        found.expect("every message has a sender")
    }

    fn advance(&mut self, at: (usize, usize), to: usize) {
        let (rank, step) = at;
        let action = &self.plan.ranks[rank].steps[step].action;
        let from = self.moved[rank][step];
        let start = self.elements(action.range()).start;
        for offset in from..to {
            let element = start + offset;
            match action {
                Action::Send { src, .. } => {
                    let value = self.memory[rank][space(src.space)][element];
                    if let Some(carried) = &mut self.carried[rank][step] {
                        carried.push(value);
                        self.done[rank][step] += 1;
                    }
                }
                _ => {
                    let value = self.value(rank, action, offset);
                    self.memory[rank][space(action.range().space)][element] = value;
                    self.done[rank][step] += 1;
                }
            }
            self.moved[rank][step] += 1;
        }
        for (from, message) in action.messages_in() {
            let send = self.sender(from, rank, message);
            if self.carried[from.index()][send].is_none() {
                self.done[from.index()][send] = to;
            }
        }
    }

    fn value(&self, rank: usize, action: &Action, offset: usize) -> Option<T> {
        match action {
            Action::Place { from, message, .. } => self.sent(*from, rank, *message, offset),
            Action::Copy { src, .. } => self.local(rank, *src, offset),
            Action::Reduce { srcs, post, .. } => {
                let operands: Option<Vec<T>> = srcs
                    .iter()
                    .map(|source| match source {
                        Source::Local(range) => self.local(rank, *range, offset),
                        Source::Peer { from, message } => self.sent(*from, rank, *message, offset),
                        other => panic!("{other:?} is new"),
                    })
                    .collect();
                let sum = T::combine(&operands?);
                Some(if *post == Post::Finish { sum.finish() } else { sum })
            }
            _ => None,
        }
    }

    fn local(&self, rank: usize, range: Range, offset: usize) -> Option<T> {
        self.memory[rank][space(range.space)][self.elements(range).start + offset]
    }

    fn sent(&self, from: Rank, rank: usize, message: u16, offset: usize) -> Option<T> {
        let send = self.sender(from, rank, message);
        match &self.carried[from.index()][send] {
            Some(carried) => carried[offset],
            None => {
                let src = self.plan.ranks[from.index()].steps[send].action.range();
                self.local(from.index(), src, offset)
            }
        }
    }
}

fn space(space: Space) -> usize {
    match space {
        Space::Output => 0,
        Space::Input => 1,
        Space::Scratch(area) => area as usize + 2,
        other => unreachable!("{other:?} is new"),
    }
}
