//! Indices, ranges, and the two ends of each message.

use crate::path::plan::{Action, After, Collective, Placement, Plan, Range, RankPlan, Space, Step, StepId};
use crate::path::verify::{
    BLOCKS_MAX, NAME_BYTES_MAX, RANKS_MAX, SOURCES_MAX, STEPS_MAX, VerifiedPlan, VerifyError,
};
use crate::rank::Rank;

/// Which steps are the two ends of each message.
#[derive(Clone, Debug)]
pub(crate) struct Wiring {
    ranks: usize,
    /// For each ordered pair and each number: the sender's step and the receiver's.
    messages: Vec<Vec<Ends>>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    send: StepId,
    take: Option<StepId>,
}

impl Wiring {
    /// The ends of the messages of a plan that was proved.
    pub(crate) fn of(plan: &VerifiedPlan) -> Self {
        check(plan).expect("a verified plan is still right")
    }

    /// The step of `from` that sends this message. It must exist in the plan.
    pub(crate) fn sender(&self, from: Rank, to: Rank, message: u16) -> StepId {
        self.messages[from.index() * self.ranks + to.index()][message as usize].send
    }

    /// The step of `to` that takes this message. It must exist in the plan.
    pub(crate) fn taker(&self, from: Rank, to: Rank, message: u16) -> StepId {
        let ends = &self.messages[from.index() * self.ranks + to.index()][message as usize];
        ends.take.expect("a checked plan takes every message")
    }

    /// The step of `from` that sends the next message to `to`.
    pub(crate) fn next_sender(&self, from: Rank, to: Rank, message: u16) -> Option<StepId> {
        let ends = self.messages[from.index() * self.ranks + to.index()].get(message as usize + 1);
        ends.map(|ends| ends.send)
    }
}

/// Whether each block stays in its place, wherever it goes, so that the parts of a vector may differ in length.
pub(super) fn keeps_places(plan: &Plan, wiring: &Wiring) -> bool {
    ranks(plan).all(|(rank, part)| {
        let first =
            |rank: Rank, step: StepId| plan.ranks[rank.index()].steps[step as usize].action.range().first;
        steps(part).all(|(_, step)| {
            let at = step.action.range().first;
            let mut local = step.action.local_reads();
            let mut came = step.action.messages_in();
            // As far as another part has come would be how far of this one?
            let mut streams = step.after.iter().filter(|after| matches!(after, After::Stream(_)));
            local.all(|with| with.first == at)
                && came.all(|(from, message)| first(from, wiring.sender(from, rank, message)) == at)
                && streams.all(|on| first(rank, on.step()) == at)
        })
    })
}

/// All that can be seen without playing the plan.
pub(super) fn check(plan: &Plan) -> Result<Wiring, VerifyError> {
    check_frame(plan)?;
    for (rank, part) in ranks(plan) {
        check_scratch(plan, rank, part)?;
        for (step, what) in steps(part) {
            check_step(plan, rank, step, what)?;
        }
    }
    let mut wiring = wire_senders(plan)?;
    wire_takers(plan, &mut wiring)?;
    check_taken(plan, &wiring)?;
    Ok(wiring)
}

/// The ranks with their parts.
pub(super) fn ranks(plan: &Plan) -> impl Iterator<Item = (Rank, &RankPlan)> {
    (0..).map(Rank).zip(&plan.ranks)
}

/// A rank's steps with their numbers.
pub(super) fn steps(part: &RankPlan) -> impl Iterator<Item = (StepId, &Step)> {
    (0..).zip(&part.steps)
}

fn check_frame(plan: &Plan) -> Result<(), VerifyError> {
    let ranks = plan.ranks.len();
    if ranks == 0 || ranks > RANKS_MAX {
        return Err(VerifyError::Ranks { ranks });
    }
    if plan.algorithm.len() > NAME_BYTES_MAX {
        return Err(VerifyError::Name { bytes: plan.algorithm.len() });
    }
    let parted = plan.collective.has_parts();
    let misses_parts = parted && (plan.blocks as usize != ranks || plan.granule != 1);
    if plan.blocks == 0 || plan.blocks > BLOCKS_MAX || plan.granule == 0 || misses_parts {
        return Err(VerifyError::Cut { blocks: plan.blocks, granule: plan.granule, ranks });
    }
    if plan.placement == Placement::OutOfPlace && !plan.collective.has_input() {
        return Err(VerifyError::Placement { collective: plan.collective });
    }
    if let Some(edges) = &plan.edges {
        let is_sparse = plan.collective == Collective::AllToAll && plan.placement == Placement::OutOfPlace;
        let fits = |edges: &u64| ranks == 64 || edges >> ranks == 0;
        if !is_sparse || edges.len() != ranks || !edges.iter().all(fits) {
            return Err(VerifyError::Edges);
        }
    }
    match plan.collective.root() {
        Some(root) if root.index() >= ranks => Err(VerifyError::Root { root }),
        _ => Ok(()),
    }
}

fn check_scratch(plan: &Plan, rank: Rank, part: &RankPlan) -> Result<(), VerifyError> {
    for (area, span) in part.scratch.iter().enumerate() {
        let named = matches!(span.space, Space::Scratch(number) if number as usize == area);
        if !named || !within(*span, 0, plan.blocks) {
            return Err(VerifyError::Scratch { rank, area });
        }
    }
    if part.steps.len() > STEPS_MAX {
        return Err(VerifyError::Steps { rank, steps: part.steps.len() });
    }
    Ok(())
}

fn check_step(plan: &Plan, rank: Rank, step: StepId, what: &Step) -> Result<(), VerifyError> {
    let range = what.action.range();
    if what.action.written().is_some_and(|range| range.space == Space::Input) {
        return Err(VerifyError::InputWritten { rank, step });
    }
    check_range(plan, rank, step, range)?;
    if let Action::Reduce { srcs, .. } = &what.action
        && (srcs.is_empty() || srcs.len() > SOURCES_MAX)
    {
        return Err(VerifyError::Sources { rank, step, sources: srcs.len() });
    }
    for with in what.action.local_reads() {
        check_range(plan, rank, step, with)?;
        let onto_itself = matches!(what.action, Action::Copy { .. }) && with == range;
        if onto_itself || !plan.fits(&with, &range) {
            return Err(VerifyError::Blocks { rank, step, range, with });
        }
    }
    check_after(plan, rank, step, what)?;
    let receiver = match what.action {
        Action::Send { to, .. } => Some(to),
        _ => None,
    };
    for peer in receiver.into_iter().chain(what.action.messages_in().map(|(from, _)| from)) {
        if peer == rank || peer.index() >= plan.ranks.len() {
            return Err(VerifyError::Peer { rank, step, peer });
        }
    }
    Ok(())
}

fn check_after(plan: &Plan, rank: Rank, step: StepId, what: &Step) -> Result<(), VerifyError> {
    for &after in &what.after {
        let on = after.step();
        if on >= step {
            return Err(VerifyError::Forward { rank, step, after });
        }
        let covered = plan.ranks[rank.index()].steps[on as usize].action.range();
        if matches!(after, After::Stream(_)) && !plan.fits(&covered, &what.action.range()) {
            return Err(VerifyError::StreamBlocks { rank, step, on });
        }
    }
    Ok(())
}

fn check_range(plan: &Plan, rank: Rank, step: StepId, range: Range) -> Result<(), VerifyError> {
    let span = plan.span(rank, range.space);
    let fits = span.is_some_and(|span| within(range, span.first, span.first + span.count));
    if fits { Ok(()) } else { Err(VerifyError::OutOfRange { rank, step, range }) }
}

fn within(range: Range, first: u32, end: u32) -> bool {
    let range_end = range.first.checked_add(range.count);
    range.count > 0 && range.first >= first && range_end.is_some_and(|range_end| range_end <= end)
}

fn wire_senders(plan: &Plan) -> Result<Wiring, VerifyError> {
    let count = plan.ranks.len();
    let mut wiring = Wiring { ranks: count, messages: vec![Vec::new(); count * count] };
    for (rank, part) in ranks(plan) {
        for (step, what) in steps(part) {
            if let Action::Send { to, message, .. } = what.action {
                let sent = &mut wiring.messages[rank.index() * count + to.index()];
                // No more than STEPS_MAX.
                let expected = sent.len() as u16;
                if message != expected {
                    return Err(VerifyError::MessageOrder { rank, step, to, expected, found: message });
                }
                sent.push(Ends { send: step, take: None });
            }
        }
    }
    Ok(wiring)
}

fn wire_takers(plan: &Plan, wiring: &mut Wiring) -> Result<(), VerifyError> {
    for (rank, part) in ranks(plan) {
        for (step, what) in steps(part) {
            for (from, message) in what.action.messages_in() {
                let sent = &mut wiring.messages[from.index() * wiring.ranks + rank.index()];
                let Some(ends) = sent.get_mut(message as usize) else {
                    return Err(VerifyError::Unsent { rank, step, from, message });
                };
                if ends.take.replace(step).is_some() {
                    return Err(VerifyError::TakenTwice { rank, step, from, message });
                }
                let src = plan.ranks[from.index()].steps[ends.send as usize].action.range();
                if !plan.fits(&src, &what.action.range()) {
                    return Err(VerifyError::MessageBlocks { rank, step, from, message });
                }
            }
        }
    }
    Ok(())
}

fn check_taken(plan: &Plan, wiring: &Wiring) -> Result<(), VerifyError> {
    for (rank, part) in ranks(plan) {
        for (step, what) in steps(part) {
            if let Action::Send { to, message, .. } = what.action {
                let ends = wiring.messages[rank.index() * wiring.ranks + to.index()][message as usize];
                if ends.take.is_none() {
                    return Err(VerifyError::Untaken { rank, step, to, message });
                }
            }
        }
    }
    Ok(())
}
