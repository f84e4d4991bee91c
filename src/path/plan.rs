//! The plan representation.
//!
//! A plan says for every rank which steps it takes. Steps speak of *ranges*: runs of whole blocks of one
//! logical vector. The vector is cut into [`Plan::blocks`] blocks by a [`Partition`] once the element count is
//! known, so a plan's size depends on the ranks and not on the bytes.
//!
//! A step is not one act but a *stream*: it moves through its range from front to back, and how far it has come
//! is its watermark. Dependencies are between watermarks ([`After::Stream`]) or on the end of a step
//! ([`After::Whole`]). How many bytes move at a time is the engine's affair and changes no result.
//!
//! A message goes from one `Send` to exactly one consumer on the peer: a `Place`, or a `Source::Peer` of a
//! `Reduce`. It is named by (sender, receiver, message number); numbers count from 0 for each ordered pair.
//! A `Send` *lends* its range until its consumer has read it (or, on links that copy, until it was copied out):
//! only then is the step done.

use std::fmt;

use crate::rank::Rank;

/// What a plan computes. Block layout of each is in the docs of its variant; `n` is the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// Output in: one's own vector; Output out: the reduction over all ranks.
    AllReduce,
    /// Output has a multiple of `n` blocks; in: one's own `1/n` holds data; out: all of it does.
    AllGather,
    /// Output has a multiple of `n` blocks; in: one's own vector; out: one's own `1/n` holds the reduction,
    /// the rest is undefined.
    ReduceScatter,
    /// Output in: data at the root; out: data everywhere.
    Broadcast {
        /// The rank whose data all get.
        root: Rank,
    },
}

impl fmt::Display for Collective {
    /// As the operation that does it: "all_reduce", "broadcast from rank 2".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collective::AllReduce => f.write_str("all_reduce"),
            Collective::AllGather => f.write_str("all_gather"),
            Collective::ReduceScatter => f.write_str("reduce_scatter"),
            Collective::Broadcast { root } => write!(f, "broadcast from rank {root}"),
        }
    }
}

/// Which memory a range lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Space {
    /// The caller's source buffer, where it is another than the result's. Never written. No call has one yet: all work in place,
    /// and a plan that reads it is refused.
    Input,
    /// The caller's result buffer; for an operation in place also its source.
    Output,
    /// Scratch area of this number ([`RankPlan::scratch`]), owned by the engine.
    Scratch(u16),
}

/// Blocks `first .. first + count` of the vector, in one space.
///
/// A scratch area holds a span of blocks too, and ranges in it use the vector's block numbers: the block is the
/// same wherever it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// Where it lies.
    pub space: Space,
    /// First block.
    pub first: u32,
    /// Number of blocks; never 0.
    pub count: u32,
}

impl Range {
    /// `count` blocks of `space` from `first` on.
    pub const fn new(space: Space, first: u32, count: u32) -> Self {
        Range { space, first, count }
    }

    /// The numbers of its blocks.
    pub const fn blocks(&self) -> std::ops::Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Whether both have the same blocks, wherever they lie.
    pub const fn same_blocks(&self, other: &Range) -> bool {
        self.first == other.first && self.count == other.count
    }
}

/// Index of a step in its rank's plan.
pub type StepId = u16;

/// What must have happened before a step may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum After {
    /// This step may go as far as that one has come. Both must cover the same blocks.
    /// For a `Send`, "come" means released.
    Stream(StepId),
    /// This step may start when that one is done.
    Whole(StepId),
}

impl After {
    /// The step waited for.
    pub const fn step(self) -> StepId {
        match self {
            After::Stream(step) | After::Whole(step) => step,
        }
    }
}

/// One input of a `Reduce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// A range of one's own, with the same blocks as the destination. It may be the destination itself.
    Local(Range),
    /// What `from` sends in its message `message` to this rank.
    Peer {
        /// The sender.
        from: Rank,
        /// Number among the messages from that sender to this rank.
        message: u16,
    },
}

/// What happens to a reduced element before it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Post {
    /// Nothing.
    #[default]
    None,
    /// The last reduction of this element: `Avg` divides here; the other operations do nothing.
    Finish,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Lends `src` to `to`.
    Send {
        /// The receiver.
        to: Rank,
        /// Number among the messages from this rank to that receiver.
        message: u16,
        /// What is lent.
        src: Range,
    },
    /// Stores a message as it is.
    Place {
        /// The sender.
        from: Rank,
        /// Number among the messages from that sender to this rank.
        message: u16,
        /// Where it goes.
        dst: Range,
    },
    /// Copies between one's own ranges of the same blocks.
    Copy {
        /// From here.
        src: Range,
        /// To here.
        dst: Range,
    },
    /// `dst = post(srcs[0] ∘ srcs[1] ∘ …)`, in that order, rounded once.
    Reduce {
        /// Where the result goes; may also be one of the local sources.
        dst: Range,
        /// The inputs, in the order of the sum.
        srcs: Vec<Source>,
        /// Last treatment.
        post: Post,
    },
}

impl Action {
    /// What the step moves through: the source of a `Send`, the destination of everything else.
    pub const fn range(&self) -> Range {
        match self {
            Action::Send { src, .. } => *src,
            Action::Place { dst, .. } | Action::Copy { dst, .. } | Action::Reduce { dst, .. } => *dst,
        }
    }

    /// The range it writes.
    pub const fn written(&self) -> Option<Range> {
        match self {
            Action::Send { .. } => None,
            Action::Place { dst, .. } | Action::Copy { dst, .. } | Action::Reduce { dst, .. } => Some(*dst),
        }
    }

    /// The ranges of one's own memory that it reads or lends.
    pub fn local_reads(&self) -> impl Iterator<Item = Range> + '_ {
        let (one, many): (_, &[Source]) = match self {
            Action::Send { src, .. } | Action::Copy { src, .. } => (Some(*src), &[]),
            Action::Place { .. } => (None, &[]),
            Action::Reduce { srcs, .. } => (None, srcs),
        };
        one.into_iter().chain(many.iter().filter_map(|source| match source {
            Source::Local(range) => Some(*range),
            Source::Peer { .. } => None,
        }))
    }

    /// The messages it consumes: sender and number.
    pub fn messages_in(&self) -> impl Iterator<Item = (Rank, u16)> + '_ {
        let (one, many): (_, &[Source]) = match self {
            Action::Place { from, message, .. } => (Some((*from, *message)), &[]),
            Action::Send { .. } | Action::Copy { .. } => (None, &[]),
            Action::Reduce { srcs, .. } => (None, srcs),
        };
        one.into_iter().chain(many.iter().filter_map(|source| match source {
            Source::Local(_) => None,
            Source::Peer { from, message } => Some((*from, *message)),
        }))
    }
}

/// An action and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// What it waits for; steps of the same rank, each with a smaller index than this one.
    pub after: Vec<After>,
}

/// One rank's part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RankPlan {
    /// The steps, in an order in which they could be taken one after the other.
    pub steps: Vec<Step>,
    /// The span of blocks (`space` is `Scratch(i)` for entry `i`) of each scratch area.
    pub scratch: Vec<Range>,
}

/// All ranks' parts in one collective: written by a [`PlanBuilder`](super::PlanBuilder), proved by
/// [`verify`](super::verify()). Its fields can be changed, and what comes of that is proved or refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Plan {
    /// What it computes.
    pub collective: Collective,
    /// Name of the algorithm, as users give it.
    pub algorithm: &'static str,
    /// Into how many blocks the vector is cut.
    pub blocks: u32,
    /// Elements that are never separated by a cut (except at the end of the vector).
    pub granule: u32,
    /// One part per rank.
    pub ranks: Vec<RankPlan>,
}

impl Plan {
    /// How this plan cuts a vector of `len` elements.
    pub fn partition(&self, len: usize) -> Partition {
        // A plan that was not proved yet may have neither.
        Partition { len, blocks: self.blocks.max(1), granule: self.granule.max(1) }
    }
}

/// The cut of a vector into blocks: as even as whole granules allow, larger blocks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    len: usize,
    blocks: u32,
    granule: u32,
}

impl Partition {
    /// First element of `block`; the length for the number of blocks, and for whatever is beyond.
    pub fn offset(&self, block: u32) -> usize {
        // Small plans use the ends only.
        if block == 0 {
            return 0;
        } else if block >= self.blocks {
            return self.len;
        }
        let granules = self.len.div_ceil(self.granule as usize);
        let (each, more) = (granules / self.blocks as usize, granules % self.blocks as usize);
        let before = block as usize * each + (block as usize).min(more);
        // before <= granules, so the product exceeds len by less than one granule; saturate for lengths near usize::MAX.
        before.saturating_mul(self.granule as usize).min(self.len)
    }

    /// The elements of a range.
    pub fn elements(&self, range: Range) -> std::ops::Range<usize> {
        self.offset(range.first)..self.offset(range.blocks().end)
    }
}
