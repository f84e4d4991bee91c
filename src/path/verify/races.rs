//! No two accesses to one block, of which one writes, without an order between them.
//!
//! # What orders two steps
//!
//! A step's part comes after the same part of what it streams after, after the whole of what it waits for as a
//! whole, and after the part of each message that it takes *was sent*. Nothing else counts, least of all what one
//! schedule happened to do: that a peer has taken a message tells its sender something only on links that do not
//! copy, so a release stands for nothing but itself.
//!
//! # Why whole steps may be compared
//!
//! Two accesses meet in one element. If a path of dependencies leads from one step to the other, then either all of
//! it is stream dependencies and messages, whose ends are equally long: what is so far from the start of the one comes before
//! what is as far from the start of the other, which is the same element if both begin at the same block, or if it is the whole
//! of one block. Or there is a whole dependency in it: all of the one comes before all of the other.
//!
//! # Lent ranges
//!
//! A send reads its range from its start until its release. Since it is *done* when released, whoever writes
//! must come after the send itself, and hearing from the peer is not enough.

use crate::path::plan::{Action, After, Plan, RankPlan, Space, Step, StepId};
use crate::path::verify::structure::{ranks, steps};
use crate::path::verify::{VerifyError, Wiring};
use crate::rank::Rank;

/// Looks at every pair of accesses to every block.
pub(super) fn check(plan: &Plan, wiring: &Wiring) -> Result<(), VerifyError> {
    for (rank, part) in ranks(plan) {
        let before = Before::new(part);
        let mut accesses = accesses(part);
        accesses.sort_unstable_by_key(|access| (access.space, access.block, !access.writes));
        for group in accesses.chunk_by(|one, other| (one.space, one.block) == (other.space, other.block)) {
            check_block(plan, wiring, rank, &before, group)?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Access {
    space: Space,
    block: u32,
    writes: bool,
    step: StepId,
    /// How many blocks are before it in the step's range.
    offset: u32,
}

/// How what comes before a step does so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ahead {
    Not,
    /// As far from its start as the step.
    AsFar,
    All,
}

impl Ahead {
    fn orders(self, one: &Access, other: &Access) -> bool {
        match self {
            Ahead::Not => false,
            Ahead::AsFar => one.offset == other.offset,
            Ahead::All => true,
        }
    }

    fn of(after: After) -> Ahead {
        match after {
            After::Stream(_) => Ahead::AsFar,
            After::Whole(_) => Ahead::All,
        }
    }
}

fn accesses(part: &RankPlan) -> Vec<Access> {
    let mut all = Vec::new();
    for (step, what) in steps(part) {
        for (ranges, writes) in [
            (what.action.local_reads().collect::<Vec<_>>(), false),
            (what.action.written().into_iter().collect(), true),
        ] {
            for range in ranges {
                let access = |(offset, block)| Access { space: range.space, block, writes, step, offset };
                all.extend((0..).zip(range.blocks()).map(access));
            }
        }
    }
    all
}

/// Accesses of one block, those that write first.
fn check_block(
    plan: &Plan,
    wiring: &Wiring,
    rank: Rank,
    before: &Before,
    group: &[Access],
) -> Result<(), VerifyError> {
    for (at, write) in group.iter().enumerate().take_while(|(_, access)| access.writes) {
        for other in &group[at + 1..] {
            if other.step == write.step {
                // What a step reads, it may overwrite element by element.
                if other.offset == write.offset {
                    continue;
                }
                return Err(race(rank, write, other));
            }
            let (first, second) = (write.step.min(other.step), write.step.max(other.step));
            let is_ordered = |ahead: Ahead| ahead.orders(write, other);
            let ordered = is_ordered(before.has(second, first))
                || is_ordered(follows(plan, wiring, rank, first, second))
                || is_ordered(follows(plan, wiring, rank, second, first));
            if !ordered {
                return Err(race(rank, write, other));
            }
        }
    }
    Ok(())
}

fn race(rank: Rank, write: &Access, other: &Access) -> VerifyError {
    let (first, second) = (write.step.min(other.step), write.step.max(other.step));
    VerifyError::Race { rank, first, second, writer: write.step, space: write.space, block: write.block }
}

/// For each step of a rank, the steps of that rank that it comes after by way of that rank's steps only.
struct Before {
    words: usize,
    /// In any way, and as a whole.
    any: Vec<u64>,
    all: Vec<u64>,
}

impl Before {
    fn new(part: &RankPlan) -> Self {
        let words = part.steps.len().div_ceil(64);
        let (mut any, mut all) = (vec![0; words * part.steps.len()], vec![0; words * part.steps.len()]);
        for (step, what) in steps(part) {
            let at = step as usize * words;
            for after in &what.after {
                let (on, bits) = (after.step() as usize, |on: usize| on * words..(on + 1) * words);
                any[at + on / 64] |= 1 << (on % 64);
                if matches!(after, After::Whole(_)) {
                    all[at + on / 64] |= 1 << (on % 64);
                }
                for (word, theirs) in bits(on).enumerate() {
                    any[at + word] |= any[theirs];
                    all[at + word] |=
                        if matches!(after, After::Whole(_)) { any[theirs] } else { all[theirs] };
                }
            }
        }
        Before { words, any, all }
    }

    fn has(&self, step: StepId, earlier: StepId) -> Ahead {
        let at = step as usize * self.words + earlier as usize / 64;
        let is_in = |bits: &[u64]| bits[at] >> (earlier % 64) & 1 == 1;
        match (is_in(&self.any), is_in(&self.all)) {
            (false, _) => Ahead::Not,
            (true, false) => Ahead::AsFar,
            (true, true) => Ahead::All,
        }
    }
}

/// Whether `first` comes before `second` by way of any rank's steps. Few plans need this.
fn follows(plan: &Plan, wiring: &Wiring, rank: Rank, first: StepId, second: StepId) -> Ahead {
    let mut reached: Vec<Vec<Ahead>> =
        plan.ranks.iter().map(|part| vec![Ahead::Not; part.steps.len()]).collect();
    let mut stack = Vec::new();
    // A send's own message leaves before the send is done, so only those that wait for `first` follow it.
    let dependents = |rank: Rank, on: StepId, ahead: Ahead| {
        let by = move |what: &Step| {
            what.after.iter().filter(|after| after.step() == on).map(|after| Ahead::of(*after)).max()
        };
        let part = steps(&plan.ranks[rank.index()]);
        part.filter_map(move |(step, what)| by(what).map(|by| (rank, step, ahead.max(by))))
    };
    stack.extend(dependents(rank, first, Ahead::AsFar));
    while let Some((at, step, ahead)) = stack.pop() {
        let known = &mut reached[at.index()][step as usize];
        if *known >= ahead {
            continue;
        }
        *known = ahead;
        stack.extend(dependents(at, step, ahead));
        if let Action::Send { to, message, .. } = plan.ranks[at.index()].steps[step as usize].action {
            stack.push((to, wiring.taker(at, to, message), ahead));
        }
    }
    reached[rank.index()][second as usize]
}
