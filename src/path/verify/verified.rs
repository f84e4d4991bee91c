//! [`verify`], and the plan that it gives back.

use std::ops::Deref;

use crate::path::plan::Plan;
use crate::path::verify::{VerifyError, fingerprint, play, races, structure, value};

/// The most ranks a plan can have: contributions are counted in the bits of a word.
pub const RANKS_MAX: usize = 64;

/// The most sources of one reduction: one per rank.
pub const SOURCES_MAX: usize = RANKS_MAX;

/// The most steps of one rank, so that the table of their order stays within 2 MiB. The largest built-in plan has
/// about four for each rank.
pub const STEPS_MAX: usize = 4096;

/// The most blocks of a vector, so that a rank's table of them stays small. The built-in plans have one per rank.
pub const BLOCKS_MAX: u32 = 4096;

/// Into how many chunks each step is cut when the plan is played.
const CHUNKS_PLAYED: [u32; 3] = [1, 2, 3];

/// A plan that was proved to work. Only [`verify`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedPlan {
    plan: Plan,
    fingerprint: u64,
}

impl VerifiedPlan {
    /// A hash over everything in the plan; the same on every machine and in every build of this version.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl Deref for VerifiedPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

/// Proves that a plan works, with any chunk size, under any schedule and on any link.
///
/// That is, over all ranks together:
///
/// - its indices, ranges and messages fit together;
/// - it comes to an end on the weakest link: one chunk at a time from one rank to another, messages of a pair in the
///   order of their numbers, nothing taken before the consuming step moves;
/// - no block is written while another step may use it; a lent block is in use until it is released;
/// - nothing is read that was not written;
/// - every rank gets the result: each contribution exactly once, finished exactly once if it is a reduction, and in
///   the same association on all ranks, hence with the same bits.
///
/// # Errors
///
/// The first thing found wrong.
pub fn verify(plan: Plan) -> Result<VerifiedPlan, VerifyError> {
    let wiring = structure::check(&plan)?;
    let mut order = Vec::new();
    for chunks in CHUNKS_PLAYED.into_iter().rev() {
        order = play::play(&plan, &wiring, chunks)?;
    }
    races::check(&plan, &wiring)?;
    value::check(&plan, &wiring, &order)?;
    let fingerprint = fingerprint::fingerprint(&plan);
    Ok(VerifiedPlan { plan, fingerprint })
}

/// In which order the ranks' contributions to a block of the result are combined: `((0 + 1) + (2 + 3))`. Operands
/// within one pair of parentheses are rounded once.
///
/// # Panics
///
/// If the plan has no such block.
pub fn association(plan: &VerifiedPlan, block: u32) -> String {
    assert!(block < plan.blocks, "block {block} of {}", plan.blocks);
    let formula = structure::check(plan)
        .and_then(|wiring| value::formula(plan, &wiring, &play::play(plan, &wiring, 1)?, block));
    formula.expect("a verified plan is still right")
}
