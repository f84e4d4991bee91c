//! Writing plans: an algorithm names its steps and messages, the builder numbers them.
//!
//! A message is a handle. [`PlanBuilder::send`] makes one; [`PlanBuilder::place`] and [`PlanBuilder::reduce`]
//! consume it. Where a receiver is written before its sender, [`PlanBuilder::message`] makes the handle first and
//! [`PlanBuilder::send_as`] sends it later. Messages of a pair of ranks are numbered in the order of their sends,
//! which is the order that the verifier asks for.
//!
//! The builder does not check a plan: [`verify`](crate::path::verify()) does, over all ranks together. It panics where a
//! step can't be written down.

use crate::path::plan::{
    Action, After, Collective, Placement, Plan, Post, Range, RankPlan, Source, Space, Step, StepId,
};
use crate::path::verify::RANKS_MAX;
use crate::rank::Rank;

/// The number of a message that nobody has sent yet; the verifier refuses a plan that keeps it.
const UNSENT: u16 = u16::MAX;

/// A message of the plan being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message(u32);

/// What [`PlanBuilder::send`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Sent {
    /// The step, which is done when its range is released.
    pub step: StepId,
    /// What travels, for its consumer.
    pub message: Message,
}

/// One input of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operand {
    /// A range of one's own.
    Local(Range),
    /// What comes in a message.
    Message(Message),
}

/// Writes a plan step by step; [`verify`](crate::path::verify()) proves it, and
/// [`Communicator::with_plan`](crate::Communicator::with_plan) runs it.
///
/// ```
/// use hcomm::Rank;
/// use hcomm::path::{self, Collective, PlanBuilder, Range, Space};
///
/// // Rank 0 gives rank 1 all it has.
/// let all = Range::new(Space::Output, 0, 1);
/// let mut plan = PlanBuilder::new(Collective::Broadcast { root: Rank(0) }, "my-broadcast", 2, 1, 1);
/// let sent = plan.send(Rank(0), Rank(1), all, &[]);
/// plan.place(sent.message, all, &[]);
/// assert!(path::verify(plan.build()).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct PlanBuilder {
    plan: Plan,
    /// How many messages were sent from row to column.
    sent: Vec<u16>,
    messages: Vec<Draft>,
    consumed: Vec<Consumed>,
}

/// A message before all numbers are known.
#[derive(Clone, Copy, Debug)]
struct Draft {
    from: Rank,
    to: Rank,
    number: u16,
}

/// A place in a plan where the number of a message belongs.
#[derive(Clone, Copy, Debug)]
struct Consumed {
    rank: Rank,
    step: StepId,
    /// Which of a reduction's sources; 0 for a `Place`.
    source: usize,
    message: Message,
}

impl PlanBuilder {
    /// An empty plan, in place, for `ranks` ranks over a vector cut into `blocks` blocks of whole granules: so many elements as are
    /// never cut apart. Where the vector has parts, these are the blocks, and the granule is 1. The name of the algorithm is shown in reports; it has 64 bytes at most, which
    /// [`verify`](crate::path::verify()) sees to.
    ///
    /// # Panics
    ///
    /// If there are more than [`RANKS_MAX`] ranks.
    pub fn new(
        collective: Collective,
        algorithm: &'static str,
        ranks: u32,
        blocks: u32,
        granule: u32,
    ) -> Self {
        assert!(ranks as usize <= RANKS_MAX, "a plan is for 1 to {RANKS_MAX} ranks, not for {ranks}");
        let parts = vec![RankPlan::default(); ranks as usize];
        PlanBuilder {
            plan: Plan {
                collective,
                algorithm,
                blocks,
                granule,
                placement: Placement::InPlace,
                edges: None,
                ranks: parts,
            },
            sent: vec![0; ranks as usize * ranks as usize],
            messages: Vec::new(),
            consumed: Vec::new(),
        }
    }

    /// The same for a source buffer beside that of the result. Few plans need to be written so: of one that is in place,
    /// [`out_of_place`](crate::path::out_of_place) makes one that is not.
    pub fn out_of_place(mut self) -> Self {
        self.plan.placement = Placement::OutOfPlace;
        self
    }

    /// The same for parts between some ranks only; see [`Plan::edges`].
    pub(crate) fn between(mut self, edges: &[u64]) -> Self {
        self.plan.edges = Some(edges.to_vec());
        self
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        // It was given as u32.
        self.plan.ranks.len() as u32
    }

    /// A scratch area of `rank` for `count` blocks from `first` on.
    ///
    /// # Panics
    ///
    /// If the rank does not exist or has 65536 areas.
    pub fn scratch(&mut self, rank: Rank, first: u32, count: u32) -> Space {
        let areas = &mut self.plan.ranks[rank.index()].scratch;
        let space =
            Space::Scratch(u16::try_from(areas.len()).expect("a rank has at most 65536 scratch areas"));
        areas.push(Range::new(space, first, count));
        space
    }

    /// A message from `from` to `to` that will be sent with [`send_as`](Self::send_as), once.
    pub fn message(&mut self, from: Rank, to: Rank) -> Message {
        // One message takes one step, so that 32 bits hold all messages of all ranks' u16 steps.
        let message = Message(self.messages.len() as u32);
        self.messages.push(Draft { from, to, number: UNSENT });
        message
    }

    /// `from` lends `src` to `to`.
    ///
    /// # Panics
    ///
    /// If a rank does not exist or has too many steps.
    pub fn send(&mut self, from: Rank, to: Rank, src: Range, after: &[After]) -> Sent {
        let message = self.message(from, to);
        Sent { step: self.send_as(message, src, after), message }
    }

    /// Lends `src` to the receiver of a message made by [`message`](Self::message).
    ///
    /// # Panics
    ///
    /// If a rank does not exist or has too many steps. A message of another builder is one of this builder, or panics: the
    /// plan is refused when it is verified, unless it is right.
    pub fn send_as(&mut self, message: Message, src: Range, after: &[After]) -> StepId {
        let ranks = self.plan.ranks.len();
        let draft = &mut self.messages[message.0 as usize];
        let count = &mut self.sent[draft.from.index() * ranks + draft.to.index()];
        draft.number = *count;
        *count += 1;
        let Draft { from, to, number } = *draft;
        self.step(from, Action::Send { to, message: number, src }, after)
    }

    /// The receiver of `message` stores it at `dst`.
    ///
    /// # Panics
    ///
    /// If a rank does not exist or has too many steps. A message of another builder is one of this builder, or panics: the
    /// plan is refused when it is verified, unless it is right.
    pub fn place(&mut self, message: Message, dst: Range, after: &[After]) -> StepId {
        let Draft { from, to, number } = self.messages[message.0 as usize];
        let step = self.step(to, Action::Place { from, message: number, dst }, after);
        self.consumed.push(Consumed { rank: to, step, source: 0, message });
        step
    }

    /// `rank` copies `src` to `dst`.
    ///
    /// # Panics
    ///
    /// If the rank does not exist or has too many steps.
    pub fn copy(&mut self, rank: Rank, src: Range, dst: Range, after: &[After]) -> StepId {
        self.step(rank, Action::Copy { src, dst }, after)
    }

    /// `rank` combines `operands`, in their order, into `dst`.
    ///
    /// # Panics
    ///
    /// If the rank does not exist or has too many steps; for messages of another builder, see [`place`](Self::place).
    pub fn reduce(
        &mut self,
        rank: Rank,
        dst: Range,
        operands: &[Operand],
        post: Post,
        after: &[After],
    ) -> StepId {
        let srcs = operands.iter().map(|operand| self.source(*operand)).collect();
        let step = self.step(rank, Action::Reduce { dst, srcs, post }, after);
        for (source, operand) in operands.iter().enumerate() {
            if let Operand::Message(message) = *operand {
                self.consumed.push(Consumed { rank, step, source, message });
            }
        }
        step
    }

    /// The plan, with every message numbered.
    pub fn build(mut self) -> Plan {
        for at in &self.consumed {
            let number = self.messages[at.message.0 as usize].number;
            match &mut self.plan.ranks[at.rank.index()].steps[at.step as usize].action {
                Action::Place { message, .. } => *message = number,
                Action::Reduce { srcs, .. } => {
                    if let Source::Peer { message, .. } = &mut srcs[at.source] {
                        *message = number;
                    }
                }
                Action::Send { .. } | Action::Copy { .. } => {}
            }
        }
        self.plan
    }

    fn source(&self, operand: Operand) -> Source {
        match operand {
            Operand::Local(range) => Source::Local(range),
            Operand::Message(message) => {
                let Draft { from, number, .. } = self.messages[message.0 as usize];
                Source::Peer { from, message: number }
            }
        }
    }

    fn step(&mut self, rank: Rank, action: Action, after: &[After]) -> StepId {
        let steps = &mut self.plan.ranks[rank.index()].steps;
        let id = StepId::try_from(steps.len()).expect("a rank has at most 65536 steps");
        steps.push(Step { action, after: after.to_vec() });
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Range = Range::new(Space::Output, 0, 1);

    fn broadcast() -> PlanBuilder {
        PlanBuilder::new(Collective::Broadcast { root: Rank(0) }, "test", 2, 1, 1)
    }

    #[test]
    fn a_receiver_may_be_written_before_its_sender() {
        let mut early = broadcast();
        let message = early.message(Rank(0), Rank(1));
        early.place(message, ALL, &[]);
        early.send_as(message, ALL, &[]);
        let mut late = broadcast();
        let sent = late.send(Rank(0), Rank(1), ALL, &[]);
        late.place(sent.message, ALL, &[]);
        assert_eq!(early.build(), late.build());
    }

    #[test]
    fn messages_are_numbered_per_ordered_pair() {
        let mut plan = broadcast();
        let numbers: Vec<_> = [(0, 1), (0, 1), (1, 0), (0, 1)]
            .map(|(from, to)| plan.send(Rank(from), Rank(to), ALL, &[]))
            .iter()
            .map(|sent| plan.messages[sent.message.0 as usize].number)
            .collect();
        assert_eq!(numbers, [0, 1, 0, 2]);
    }

    #[test]
    fn a_message_that_is_never_sent_is_refused() {
        let mut plan = broadcast();
        let message = plan.message(Rank(0), Rank(1));
        plan.place(message, ALL, &[]);
        assert!(crate::path::verify(plan.build()).is_err());
    }
}
