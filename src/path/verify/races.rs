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
//! it is stream dependencies and messages, whose ends cover the same blocks: the element in the one comes before the
//! same element in the other. Or there is a whole dependency in it: all of the one comes before all of the other.
//!
//! # Lent ranges
//!
//! A send reads its range from its start until its release. Since it is *done* when released, whoever writes
//! must come after the send itself, and hearing from the peer is not enough.

use crate::path::plan::{Action, Plan, RankPlan, Space, StepId};
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
}

fn accesses(part: &RankPlan) -> Vec<Access> {
    let mut all = Vec::new();
    for (step, what) in steps(part) {
        for (ranges, writes) in [
            (what.action.local_reads().collect::<Vec<_>>(), false),
            (what.action.written().into_iter().collect(), true),
        ] {
            let blocks = ranges.iter().flat_map(|range| range.blocks().map(|block| (range.space, block)));
            all.extend(blocks.map(|(space, block)| Access { space, block, writes, step }));
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
        for other in group[at + 1..].iter().filter(|other| other.step != write.step) {
            let (first, second) = (write.step.min(other.step), write.step.max(other.step));
            let ordered = before.has(second, first)
                || follows(plan, wiring, rank, first, second)
                || follows(plan, wiring, rank, second, first);
            if !ordered {
                let Access { space, block, step: writer, .. } = *write;
                return Err(VerifyError::Race { rank, first, second, writer, space, block });
            }
        }
    }
    Ok(())
}

/// For each step of a rank, the steps of that rank that it comes after by way of that rank's steps only.
struct Before {
    words: usize,
    bits: Vec<u64>,
}

impl Before {
    fn new(part: &RankPlan) -> Self {
        let words = part.steps.len().div_ceil(64);
        let mut bits = vec![0; words * part.steps.len()];
        for (step, what) in steps(part) {
            let (earlier, this) = bits.split_at_mut(step as usize * words);
            for on in what.after.iter().map(|after| after.step() as usize) {
                this[on / 64] |= 1 << (on % 64);
                for (word, theirs) in this.iter_mut().zip(&earlier[on * words..(on + 1) * words]) {
                    *word |= theirs;
                }
            }
        }
        Before { words, bits }
    }

    fn has(&self, step: StepId, earlier: StepId) -> bool {
        let word = self.bits[step as usize * self.words + earlier as usize / 64];
        word >> (earlier % 64) & 1 == 1
    }
}

/// Whether the end of `first` comes before the start of `second` by way of any rank's steps. Few plans need this.
fn follows(plan: &Plan, wiring: &Wiring, rank: Rank, first: StepId, second: StepId) -> bool {
    let mut reached: Vec<Vec<bool>> = plan.ranks.iter().map(|part| vec![false; part.steps.len()]).collect();
    let mut stack = Vec::new();
    // A send's own message leaves before the send is done, so only those that wait for `first` follow it.
    let dependents = |rank: Rank, step: StepId| {
        let waits = move |what: &crate::path::plan::Step| what.after.iter().any(|after| after.step() == step);
        steps(&plan.ranks[rank.index()]).filter(move |(_, what)| waits(what)).map(move |(id, _)| (rank, id))
    };
    stack.extend(dependents(rank, first));
    while let Some((at, step)) = stack.pop() {
        if std::mem::replace(&mut reached[at.index()][step as usize], true) {
            continue;
        }
        if (at, step) == (rank, second) {
            return true;
        }
        stack.extend(dependents(at, step));
        if let Action::Send { to, message, .. } = plan.ranks[at.index()].steps[step as usize].action {
            stack.push((to, wiring.taker(at, to, message)));
        }
    }
    false
}
