//! [`verify`], and the plan that it gives back.

use std::ops::Deref;

use crate::path::plan::Plan;
use crate::path::verify::{VerifyError, fingerprint, play, races, structure, value};

/// The most ranks a plan can have: contributions are counted in the bits of a word.
pub const RANKS_MAX: usize = 64;

/// The most sources of one reduction: one per rank.
pub(super) const SOURCES_MAX: usize = RANKS_MAX;

/// The most steps of one rank, so that the table of their order stays within 2 MiB. The largest built-in plan has
/// about four for each rank.
pub(super) const STEPS_MAX: usize = 4096;

/// The most bytes of an algorithm's name: ranks tell each other what they call, many calls in one frame of 16 KiB.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// The most blocks of a vector, so that a rank's table of them stays small. The built-in plans have one per rank.
pub(super) const BLOCKS_MAX: u32 = 4096;

/// Into how many chunks each step is cut when the plan is played.
const CHUNKS_PLAYED: [u32; 3] = [1, 2, 3];

/// A plan that was proved to work. Only [`verify`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedPlan {
    plan: Plan,
    fingerprint: u64,
    is_direct: bool,
    keeps_places: bool,
    in_rank_order: bool,
}

impl VerifiedPlan {
    /// Whether each part goes straight from whom it is of to whom it is for.
    pub(crate) const fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether each block stays in its place, wherever it goes.
    pub(crate) const fn keeps_places(&self) -> bool {
        self.keeps_places
    }

    /// A hash over everything in the plan; the same on every machine and in every build of this version.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Whether every reduction in the result has the ranks' contributions in the order of the ranks, whatever the
    /// parentheses: `((0 + 1) + (2 + 3))` has, `((1 + 2) + 0)` has not. Where it is so, the result is the right one also for
    /// an operation that is associative but does not commute.
    ///
    /// ```
    /// use hcomm::path::{Algorithm, Collective, Placement, prove};
    ///
    /// let all_reduce = |algorithm| prove(algorithm, Collective::AllReduce, Placement::InPlace, 4).unwrap();
    /// assert!(all_reduce(Algorithm::RecursiveDoubling).keeps_rank_order());
    /// assert!(!all_reduce(Algorithm::Ring).keeps_rank_order());
    /// ```
    pub const fn keeps_rank_order(&self) -> bool {
        self.in_rank_order
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
/// A plan has at most 4096 steps per rank and 4096 blocks; a reduction, one source per rank.
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
    let in_rank_order = value::check(&plan, &wiring, &order)?;
    let fingerprint = fingerprint::fingerprint(&plan);
    let (is_direct, keeps_places) = (plan.is_direct(), structure::keeps_places(&plan, &wiring));
    Ok(VerifiedPlan { plan, fingerprint, is_direct, keeps_places, in_rank_order })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::builder::{Operand, PlanBuilder, Sent};
    use crate::path::plan::{Action, After, Collective, Post, Range, Space, StepId};
    use crate::rank::Rank;

    const ALL: Range = Range::new(Space::Output, 0, 1);
    const ZERO: Rank = Rank(0);
    const ONE: Rank = Rank(1);

    fn block(block: u32) -> Range {
        Range::new(Space::Output, block, 1)
    }

    fn all_reduce() -> PlanBuilder {
        PlanBuilder::new(Collective::AllReduce, "test", 2, 1, 1)
    }

    fn all_gather(blocks: u32) -> PlanBuilder {
        PlanBuilder::new(Collective::AllGather, "test", 2, blocks, 1)
    }

    /// Rank 1 reduces and sends the result back; rank 0 stores it after `after` of its own send.
    fn there_and_back(
        after: impl Fn(Sent) -> Vec<After>,
        operands: impl Fn(Sent) -> Vec<Operand>,
        post: Post,
    ) -> Plan {
        let mut plan = all_reduce();
        let there = plan.send(ZERO, ONE, ALL, &[]);
        let reduced = plan.reduce(ONE, ALL, &operands(there), post, &[]);
        let back = plan.send(ONE, ZERO, ALL, &[After::Stream(reduced)]);
        plan.place(back.message, ALL, &after(there));
        plan.build()
    }

    fn released(sent: Sent) -> Vec<After> {
        vec![After::Stream(sent.step)]
    }

    fn both(sent: Sent) -> Vec<Operand> {
        vec![Operand::Message(sent.message), Operand::Local(ALL)]
    }

    #[test]
    fn a_right_plan_is_proved_and_explained() {
        let plan = verify(there_and_back(released, both, Post::Finish)).unwrap();
        assert_eq!(association(&plan, 0), "(0 + 1)");
    }

    #[test]
    fn a_plan_that_swaps_its_operands_does_not_keep_the_order_of_the_ranks() {
        let swapped = |sent| both(sent).into_iter().rev().collect();
        let plans =
            [there_and_back(released, both, Post::Finish), there_and_back(released, swapped, Post::Finish)];
        let plans = plans.map(|plan| verify(plan).unwrap());
        assert_eq!([&plans[0], &plans[1]].map(|plan| association(plan, 0)), ["(0 + 1)", "(1 + 0)"]);
        assert_eq!([&plans[0], &plans[1]].map(|plan| plan.keeps_rank_order()), [true, false]);
    }

    /// The flag and the text of the association come from the same formulas in different ways. Of the built-in plans, those that
    /// go round a ring alone do not keep the order, also where the root is not rank 0.
    #[test]
    fn what_goes_round_a_ring_alone_does_not_keep_the_order_of_the_ranks() {
        use crate::path::{Algorithm, Placement, prove};
        let of = |ranks: u32| {
            let rooted = [0, 1, ranks - 1].map(|root| Collective::Reduce { root: Rank(root) });
            let others =
                [Collective::AllReduce, Collective::ReduceScatter, Collective::Scan, Collective::ExScan];
            rooted.into_iter().chain(others)
        };
        let mut proved = 0;
        for ranks in 2..=9 {
            for (algorithm, collective) in Algorithm::ALL
                .iter()
                .flat_map(|algorithm| of(ranks).map(move |collective| (*algorithm, collective)))
            {
                for placement in [Placement::InPlace, Placement::OutOfPlace] {
                    let Ok(plan) = prove(algorithm, collective, placement, ranks) else { continue };
                    let ascends = |block| {
                        let text = association(&plan, block);
                        let named = text.split(|c: char| !c.is_ascii_digit()).filter(|rank| !rank.is_empty());
                        named.map(|rank| rank.parse::<u32>().unwrap()).is_sorted()
                    };
                    let what = format!("{algorithm} of {collective:?}, {ranks} ranks, {placement:?}");
                    assert_eq!(plan.keeps_rank_order(), (0..plan.blocks).all(ascends), "{what}");
                    let is_round = matches!(algorithm, Algorithm::Ring | Algorithm::Bruck);
                    assert_eq!(plan.keeps_rank_order(), !is_round, "{what}");
                    proved += 1;
                }
            }
        }
        assert!(proved > 100, "{proved} plans");
    }

    #[test]
    fn hearing_from_the_peer_does_not_release_what_was_lent() {
        let plan = there_and_back(|_| Vec::new(), both, Post::Finish);
        let race =
            VerifyError::Race { rank: ZERO, first: 0, second: 1, writer: 1, space: Space::Output, block: 0 };
        assert_eq!(verify(plan), Err(race));
    }

    #[test]
    fn a_release_does_not_tell_that_the_peer_has_taken_it() {
        let mut plan = PlanBuilder::new(Collective::Broadcast { root: ZERO }, "test", 2, 1, 1);
        let scratch = Range { space: plan.scratch(ONE, 0, 1), ..ALL };
        let first = plan.send(ZERO, ONE, ALL, &[]);
        let second = plan.send(ZERO, ONE, ALL, &[After::Whole(first.step)]);
        plan.place(first.message, scratch, &[]);
        let placed = plan.place(second.message, scratch, &[]);
        plan.copy(ONE, scratch, ALL, &[After::Stream(placed)]);
        assert!(matches!(
            verify(plan.build()),
            Err(VerifyError::Race { rank: ONE, first: 0, second: 1, .. })
        ));
    }

    #[test]
    fn an_answer_orders_the_steps_of_the_rank_that_gave_the_cause() {
        let plan = |answers: bool| {
            let mut plan = all_gather(2);
            let scratch = Range { space: plan.scratch(ONE, 0, 1), ..block(0) };
            let first = plan.send(ZERO, ONE, block(0), &[]);
            let placed = plan.place(first.message, scratch, &[]);
            let after: &[After] = if answers { &[After::Whole(placed)] } else { &[] };
            let answer = plan.send(ONE, ZERO, block(1), after);
            let heard = plan.place(answer.message, block(1), &[]);
            let second = plan.send(ZERO, ONE, block(0), &[After::Whole(heard)]);
            let placed = plan.place(second.message, scratch, &[]);
            plan.copy(ONE, scratch, block(0), &[After::Stream(placed)]);
            verify(plan.build())
        };
        assert!(plan(true).is_ok());
        assert!(matches!(plan(false), Err(VerifyError::Race { rank: ONE, .. })));
    }

    #[test]
    fn waiting_in_a_circle_is_a_deadlock_and_the_circle_is_named() {
        let mut plan = all_gather(2);
        let messages = [plan.message(ZERO, ONE), plan.message(ONE, ZERO)];
        let placed = [plan.place(messages[1], block(1), &[]), plan.place(messages[0], block(0), &[])];
        plan.send_as(messages[0], block(0), &[After::Whole(placed[0])]);
        plan.send_as(messages[1], block(1), &[After::Whole(placed[1])]);
        let Err(VerifyError::Deadlock { chain, .. }) = verify(plan.build()) else { panic!("no deadlock") };
        let start = "rank 0 step 0, waits for the message of rank 1 step 1, waits for rank 1 step 0, waits for the \
                     message of rank 0 step 1";
        assert!(chain.starts_with(start), "{chain}");
    }

    #[test]
    fn messages_taken_against_their_order_are_a_deadlock_on_the_weakest_link() {
        let plan = |reversed: bool| {
            let mut plan = PlanBuilder::new(Collective::Broadcast { root: ZERO }, "test", 2, 2, 1);
            let sent = [0, 1].map(|b| plan.send(ZERO, ONE, block(b), &[]));
            let order = if reversed { [1, 0] } else { [0, 1] };
            let first = plan.place(sent[order[0]].message, block(order[0] as u32), &[]);
            plan.place(sent[order[1]].message, block(order[1] as u32), &[After::Whole(first)]);
            verify(plan.build())
        };
        assert!(plan(false).is_ok());
        assert!(matches!(plan(true), Err(VerifyError::Deadlock { .. })));
    }

    #[test]
    fn parts_are_blocks() {
        let cut = |blocks, granule| {
            verify(PlanBuilder::new(Collective::AllGather, "test", 2, blocks, granule).build())
        };
        // A part of one element can't be cut in two, nor into whole granules.
        assert!(matches!(cut(4, 1), Err(VerifyError::Cut { blocks: 4, .. })));
        assert!(matches!(cut(2, 16), Err(VerifyError::Cut { granule: 16, .. })));
    }

    /// Rank 0 lends parts 0 and 1, and puts what comes back into parts 1 and 2 as far as they are released.
    #[test]
    fn a_stream_orders_only_what_is_as_far_from_the_start() {
        let plan = |after: fn(StepId) -> After, first: u32| {
            let mut plan = PlanBuilder::new(Collective::AllGather, "test", 4, 4, 1);
            let two = |first| Range::new(Space::Output, first, 2);
            let scratch = Range { space: plan.scratch(ONE, 0, 2), ..two(0) };
            let filled = (1..4).map(|rank| {
                let sent = plan.send(Rank(rank), ZERO, block(rank), &[]);
                plan.place(sent.message, block(rank), &[])
            });
            let filled: Vec<StepId> = filled.collect();
            let there = plan.send(ZERO, ONE, two(0), &[After::Whole(filled[0])]);
            let placed = plan.place(there.message, scratch, &[]);
            let back = plan.send(ONE, ZERO, scratch, &[After::Stream(placed)]);
            let mut afters: Vec<After> = filled.iter().map(|step| After::Whole(*step)).collect();
            afters.push(after(there.step));
            plan.place(back.message, two(first), &afters);
            verify(plan.build())
        };
        let race = |result: Result<VerifiedPlan, VerifyError>| {
            matches!(result, Err(VerifyError::Race { rank: ZERO, .. }))
        };
        assert!(race(plan(After::Stream, 1)));
        // There and back to the same place is in order; that this is no all_gather is another matter.
        assert!(!race(plan(After::Stream, 0)));
        assert!(!race(plan(After::Whole, 1)));
    }

    #[test]
    fn what_does_not_belong_together_is_not_reduced() {
        let mut plan = PlanBuilder::new(Collective::ReduceScatter, "test", 2, 2, 1);
        let sent = plan.send(ONE, ZERO, block(1), &[]);
        let operands = [Operand::Local(block(0)), Operand::Message(sent.message)];
        plan.reduce(ZERO, block(0), &operands, Post::Finish, &[]);
        let error = verify(plan.build()).unwrap_err();
        assert_eq!(error.to_string(), "rank 0, step 0: reduces block 1 of rank 1 with 0 for block 0");
    }

    #[test]
    fn rank_0_of_an_exclusive_scan_keeps_its_output() {
        let plan = |writes: bool| {
            let mut plan = PlanBuilder::new(Collective::ExScan, "test", 2, 1, 1).out_of_place();
            let input = Range { space: Space::Input, ..ALL };
            let sent = plan.send(ZERO, ONE, input, &[]);
            plan.place(sent.message, ALL, &[]);
            if writes {
                plan.copy(ZERO, input, ALL, &[]);
            }
            verify(plan.build())
        };
        assert!(plan(false).is_ok());
        assert!(matches!(plan(true), Err(VerifyError::Wrong { rank: ZERO, .. })));
    }

    /// Of which not all can be made by reading the input where the output was read: some of what is read is both.
    #[test]
    fn whatever_a_plan_does_in_place_it_does_out_of_place() {
        let two = |first, count| Range::new(Space::Output, first, count);
        let mut plan = PlanBuilder::new(Collective::ExScan, "test", 2, 2, 1);
        let there = plan.send(ZERO, ONE, two(0, 2), &[]);
        let aside = plan.scratch(ZERO, 0, 2);
        let kept = plan.copy(ZERO, two(0, 2), Range { space: aside, ..two(0, 2) }, &[]);
        let after = [After::Whole(kept), After::Whole(there.step)];
        let written = plan.copy(ZERO, Range { space: aside, ..block(0) }, block(0), &after);
        let again = Range { space: plan.scratch(ZERO, 0, 2), ..two(0, 2) };
        plan.copy(ZERO, two(0, 2), again, &[After::Whole(written)]);
        plan.place(there.message, two(0, 2), &[]);
        let plan = verify(plan.build()).unwrap();
        let apart = crate::path::out_of_place(&plan).unwrap();
        let writes = |plan: &Plan| {
            let written = plan.ranks[0].steps.iter().filter_map(|step| step.action.written());
            written.filter(|range| range.space == Space::Output).count()
        };
        assert_eq!((writes(&plan), writes(&apart)), (1, 0));
    }

    #[test]
    fn a_second_buffer_is_only_where_there_is_one() {
        let input = Range { space: Space::Input, ..ALL };
        let copy = |collective, apart: bool| {
            let plan = PlanBuilder::new(collective, "test", 1, 1, 1);
            let mut plan = if apart { plan.out_of_place() } else { plan };
            plan.copy(ZERO, input, ALL, &[]);
            verify(plan.build())
        };
        assert!(copy(Collective::Scan, true).is_ok());
        assert!(matches!(copy(Collective::Scan, false), Err(VerifyError::OutOfRange { .. })));
        let broadcast = copy(Collective::Broadcast { root: ZERO }, true).unwrap_err();
        assert_eq!(broadcast.to_string(), "broadcast from rank 0 is done in place only");
    }

    #[test]
    fn contributions_are_counted() {
        let twice = |sent| [both(sent), vec![Operand::Local(ALL)]].concat();
        let error = verify(there_and_back(released, twice, Post::Finish));
        assert_eq!(error, Err(VerifyError::Twice { rank: ONE, step: 0, block: 0, contributor: ONE }));
        let lost = |sent| both(sent)[..1].to_vec();
        let error = verify(there_and_back(released, lost, Post::Finish));
        assert!(matches!(error, Err(VerifyError::Wrong { rank: ZERO, block: 0, .. })));
    }

    #[test]
    fn a_sum_is_finished_once() {
        let error = verify(there_and_back(released, both, Post::None));
        assert_eq!(error, Err(VerifyError::Unfinished { rank: ZERO, block: 0 }));
        let mut plan = all_reduce();
        let there = plan.send(ZERO, ONE, ALL, &[]);
        let reduced = plan.reduce(ONE, ALL, &both(there), Post::Finish, &[]);
        let again = plan.reduce(ONE, ALL, &[Operand::Local(ALL)], Post::Finish, &[After::Stream(reduced)]);
        let back = plan.send(ONE, ZERO, ALL, &[After::Stream(again)]);
        plan.place(back.message, ALL, &released(there));
        assert_eq!(verify(plan.build()), Err(VerifyError::Finished { rank: ONE, step: 1, block: 0 }));
    }

    #[test]
    fn ranks_must_sum_in_the_same_order() {
        let mut plan = all_reduce();
        let mut sent = Vec::new();
        let mut copies = Vec::new();
        for (rank, peer) in [(ZERO, ONE), (ONE, ZERO)] {
            let copy = Range { space: plan.scratch(rank, 0, 1), ..ALL };
            let copied = plan.copy(rank, ALL, copy, &[]);
            sent.push(plan.send(rank, peer, copy, &[After::Stream(copied)]));
            copies.push((copy, copied));
        }
        for rank in [ZERO, ONE] {
            let (copy, copied) = copies[rank.index()];
            let own_first = [Operand::Local(copy), Operand::Message(sent[1 - rank.index()].message)];
            plan.reduce(rank, ALL, &own_first, Post::Finish, &[After::Stream(copied)]);
        }
        let differs =
            VerifyError::Differs { rank: ONE, block: 0, found: "(1 + 0)".into(), expected: "(0 + 1)".into() };
        assert_eq!(verify(plan.build()), Err(differs));
    }

    #[test]
    fn what_holds_nothing_can_not_be_read() {
        let mut plan = PlanBuilder::new(Collective::Broadcast { root: ZERO }, "test", 2, 1, 1);
        let scratch = Range { space: plan.scratch(ZERO, 0, 1), ..ALL };
        let sent = plan.send(ZERO, ONE, scratch, &[]);
        plan.place(sent.message, ALL, &[]);
        let undefined = VerifyError::Undefined { rank: ZERO, step: 0, space: Space::Scratch(0), block: 0 };
        assert_eq!(verify(plan.build()), Err(undefined));
    }

    #[test]
    fn the_structure_is_checked_first() {
        let right = there_and_back(released, both, Post::Finish);
        let refused = |change: &dyn Fn(&mut Plan)| {
            let mut plan = right.clone();
            change(&mut plan);
            verify(plan).expect_err("it is broken")
        };
        use VerifyError as E;
        assert!(matches!(refused(&|plan| plan.ranks.clear()), E::Ranks { ranks: 0 }));
        assert!(matches!(refused(&|plan| plan.ranks.resize(65, Default::default())), E::Ranks { ranks: 65 }));
        assert!(matches!(refused(&|plan| plan.blocks = 0), E::Cut { .. }));
        assert!(matches!(refused(&|plan| plan.blocks = u32::MAX), E::Cut { .. }));
        assert!(matches!(refused(&|plan| plan.granule = 0), E::Cut { .. }));
        let root = Collective::Broadcast { root: Rank(2) };
        assert!(matches!(refused(&|plan| plan.collective = root), E::Root { .. }));
        let long = "one byte more than is told of a call, whoever is told of it, and why";
        assert!(matches!(
            refused(&|plan| plan.algorithm = &long[..NAME_BYTES_MAX + 1]),
            E::Name { bytes: 65 }
        ));
        assert!(matches!(refused(&|plan| plan.ranks[0].scratch.push(ALL)), E::Scratch { .. }));
        let forward = vec![After::Whole(0)];
        assert!(matches!(refused(&|plan| plan.ranks[0].steps[0].after = forward.clone()), E::Forward { .. }));
        let place = |dst| Action::Place { from: ONE, message: 0, dst };
        let with = |action: Action| refused(&|plan| plan.ranks[0].steps[1].action = action.clone());
        assert!(matches!(with(place(block(1))), E::OutOfRange { .. }));
        assert!(matches!(with(place(Range { count: u32::MAX, ..ALL })), E::OutOfRange { .. }));
        assert!(matches!(with(place(Range { space: Space::Input, ..ALL })), E::InputWritten { .. }));
        assert!(matches!(with(Action::Copy { src: ALL, dst: ALL }), E::Blocks { .. }));
        assert!(matches!(with(Action::Place { from: ZERO, message: 0, dst: ALL }), E::Peer { .. }));
        assert!(matches!(with(Action::Place { from: ONE, message: 1, dst: ALL }), E::Unsent { .. }));
        assert!(matches!(with(Action::Send { to: ONE, message: 0, src: ALL }), E::MessageOrder { .. }));
        assert!(matches!(with(Action::Send { to: ONE, message: 1, src: ALL }), E::Untaken { .. }));
        let srcs = Vec::new();
        assert!(matches!(with(Action::Reduce { dst: ALL, srcs, post: Post::None }), E::Sources { .. }));
    }
}
