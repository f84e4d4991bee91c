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

/// What a plan computes; `n` is the number of ranks.
///
/// | | what a rank hands in | what it gets |
/// |---|---|---|
/// | `AllReduce` | a vector | the reduction over all ranks |
/// | `AllGather` | one part, the `1/n` of its rank | all parts |
/// | `ReduceScatter` | a vector | its part of the reduction |
/// | `Broadcast` | at the root, a vector | that vector |
/// | `Reduce` | a vector | at the root, the reduction |
/// | `Gather` | one part | at the root, all parts |
/// | `Scatter` | at the root, all parts | its part |
/// | `AllToAll` | a part for each rank | the part for it of each rank |
/// | `Scan` | a vector | the reduction over the ranks up to its own |
/// | `ExScan` | a vector | the reduction over the ranks before its own; nothing at rank 0 |
///
/// Where it speaks of parts, there are `n` equal ones, in the order of ranks, and each is one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// A reduction for all.
    AllReduce,
    /// The parts of all, for all.
    AllGather,
    /// A part of a reduction for each. In place, the rest of the vector is undefined afterwards.
    ReduceScatter,
    /// The root's vector for all. There is no second buffer for it.
    Broadcast {
        /// The rank whose vector all get.
        root: Rank,
    },
    /// A reduction for the root. In place, the vectors of others are undefined afterwards.
    Reduce {
        /// The rank that gets the result.
        root: Rank,
    },
    /// The parts of all, for the root. In place, it has room for all of them, and the others have their own.
    Gather {
        /// The rank that gets the parts.
        root: Rank,
    },
    /// A part of the root's for each. In place, the root keeps all of them, and the others have room for their own.
    Scatter {
        /// The rank that has the parts.
        root: Rank,
    },
    /// A part of each for each.
    AllToAll,
    /// A reduction over the ranks up to one's own.
    Scan,
    /// A reduction over the ranks before one's own. In place, rank 0 keeps its vector.
    ExScan,
}

impl Collective {
    /// Its name, as that of the operation that does it.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Broadcast { .. } => "broadcast",
            Collective::Reduce { .. } => "reduce",
            Collective::Gather { .. } => "gather",
            Collective::Scatter { .. } => "scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Scan => "scan",
            Collective::ExScan => "exscan",
        }
    }

    /// The rank that is unlike the others, if one is.
    pub const fn root(self) -> Option<Rank> {
        match self {
            Collective::Broadcast { root }
            | Collective::Reduce { root }
            | Collective::Gather { root }
            | Collective::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// Whether a vector consists of equal parts, one per rank.
    pub const fn has_parts(self) -> bool {
        matches!(
            self,
            Collective::AllGather
                | Collective::ReduceScatter
                | Collective::Gather { .. }
                | Collective::Scatter { .. }
                | Collective::AllToAll
        )
    }

    /// Whether elements are combined, and not only moved.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Collective::AllReduce
                | Collective::ReduceScatter
                | Collective::Reduce { .. }
                | Collective::Scan
                | Collective::ExScan
        )
    }

    /// Whether it can be done from one buffer to another.
    pub(crate) const fn has_input(self) -> bool {
        !matches!(self, Collective::Broadcast { .. })
    }

    /// What a buffer of `rank` has room for.
    pub(crate) const fn extent(self, placement: Placement, space: Space, rank: Rank) -> Extent {
        match (space, placement) {
            (Space::Input, Placement::OutOfPlace) => self.given(rank.index()),
            (Space::Output, Placement::InPlace) => self.in_place(rank.index()),
            (Space::Output, Placement::OutOfPlace) => self.got(rank.index()),
            (Space::Input, Placement::InPlace) | (Space::Scratch(_), _) => Extent::None,
        }
    }

    /// What `rank` hands in.
    const fn given(self, rank: usize) -> Extent {
        match self {
            Collective::AllGather | Collective::Gather { .. } => Extent::Part,
            Collective::Broadcast { root } | Collective::Scatter { root } if root.index() != rank => {
                Extent::None
            }
            _ => Extent::All,
        }
    }

    /// What `rank` gets.
    const fn got(self, rank: usize) -> Extent {
        match self {
            Collective::ReduceScatter | Collective::Scatter { .. } => Extent::Part,
            Collective::Reduce { root } | Collective::Gather { root } if root.index() != rank => Extent::None,
            _ => Extent::All,
        }
    }

    /// What the one buffer of `rank` has room for.
    const fn in_place(self, rank: usize) -> Extent {
        match self {
            Collective::Gather { root } | Collective::Scatter { root } if root.index() != rank => {
                Extent::Part
            }
            _ => Extent::All,
        }
    }
}

/// How much of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    None,
    /// The part of the rank.
    Part,
    All,
}

impl fmt::Display for Collective {
    /// As the operation that does it: "all_reduce", "broadcast from rank 2".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Collective::Broadcast { root } | Collective::Scatter { root } => write!(f, " from rank {root}"),
            Collective::Reduce { root } | Collective::Gather { root } => write!(f, " to rank {root}"),
            _ => Ok(()),
        }
    }
}

/// Whether what a rank hands in and what it gets are in one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// They are: [`Space::Output`] is both.
    #[default]
    InPlace,
    /// They are not: [`Space::Input`] holds what is handed in, and is never written.
    OutOfPlace,
}

/// Which memory a range lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Space {
    /// The caller's source buffer, in a plan that is [out of place](Placement::OutOfPlace). Never written.
    Input,
    /// The caller's result buffer; for an operation in place also its source.
    Output,
    /// Scratch area of this number ([`RankPlan::scratch`]), owned by the engine.
    Scratch(u16),
}

/// Blocks `first .. first + count` of the vector, in one space.
///
/// A buffer or scratch area holds a [span](Plan::span) of blocks, and ranges in it use the vector's block numbers: a block is the
/// same wherever it lies. Where all blocks are equally long, because the vector has as many equal parts, one may also be put where
/// another would be, as [`Collective::AllToAll`] does.
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

    /// Whether all of `other` is in it.
    pub(crate) const fn has(&self, other: &Range) -> bool {
        self.first <= other.first && other.blocks().end <= self.blocks().end
    }
}

/// Index of a step in its rank's plan.
pub type StepId = u16;

/// What must have happened before a step may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum After {
    /// This step may go as far as that one has come. Both must cover the same blocks, or [as long ones](Plan::fits).
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
    /// A range of one's own, as long as the destination. It may be the destination itself.
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
    /// Copies between one's own ranges.
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
    /// Whether there is a source buffer beside that of the result.
    pub placement: Placement,
    /// Between whom parts go, where not between all, in [`Collective::AllToAll`]: of each rank, a bit for each that it sends to.
    pub(crate) edges: Option<Vec<u64>>,
    /// One part per rank.
    pub ranks: Vec<RankPlan>,
}

impl Plan {
    /// Whether one rank has a part for another, in [`Collective::AllToAll`].
    pub(crate) fn has_edge(&self, from: Rank, to: Rank) -> bool {
        self.edges.as_ref().is_none_or(|edges| edges[from.index()] >> to.0 & 1 == 1)
    }

    /// The blocks that a buffer of `rank` holds, if it has that buffer. A buffer begins with the first of them.
    pub fn span(&self, rank: Rank, space: Space) -> Option<Range> {
        if let Space::Scratch(area) = space {
            return self.ranks.get(rank.index())?.scratch.get(usize::from(area)).copied();
        }
        self.blocks_of(self.collective.extent(self.placement, space, rank), rank, space)
    }

    /// The blocks that `rank` hands in, where they lie.
    pub fn given(&self, rank: Rank) -> Option<Range> {
        let space = match self.placement {
            Placement::InPlace => Space::Output,
            Placement::OutOfPlace => Space::Input,
        };
        self.blocks_of(self.collective.given(rank.index()), rank, space)
    }

    /// The blocks of the output in which `rank` gets something.
    pub(crate) fn got(&self, rank: Rank) -> Option<Range> {
        self.blocks_of(self.collective.got(rank.index()), rank, Space::Output)
    }

    fn blocks_of(&self, extent: Extent, rank: Rank, space: Space) -> Option<Range> {
        match extent {
            Extent::None => None,
            Extent::Part => Some(Range::new(space, rank.0, 1)),
            Extent::All => Some(Range::new(space, 0, self.blocks)),
        }
    }

    /// Whether each part goes straight from whom it is of to whom it is for, so that nobody else need know how long it is.
    pub(crate) fn is_direct(&self) -> bool {
        let is_part = |rank: usize, step: &Step| {
            let (me, range) = (Rank(rank as u32), step.action.range());
            let is_of = |other: Rank, from: Rank, to: Rank| match self.collective {
                Collective::AllToAll => range.first == other.0,
                Collective::Gather { root } => to == root && range.first == from.0,
                Collective::Scatter { root } => from == root && range.first == to.0,
                _ => false,
            };
            let fits = match &step.action {
                Action::Send { to, .. } => is_of(*to, me, *to),
                Action::Place { from, .. } => is_of(*from, *from, me),
                // In another buffer, another's part may be of another length than the one from there.
                Action::Copy { src, .. } => {
                    src.first == range.first && (src.space != Space::Input || range.first == me.0)
                }
                Action::Reduce { .. } => false,
            };
            let streams = step.after.iter().all(|after| match after {
                After::Stream(on) => {
                    let on = self.ranks[rank].steps[usize::from(*on)].action.range();
                    on.first == range.first && (on.space == Space::Input) == (range.space == Space::Input)
                }
                After::Whole(_) => true,
            });
            fits && streams && range.count == 1
        };
        self.ranks.iter().enumerate().all(|(rank, part)| part.steps.iter().all(|step| is_part(rank, step)))
    }

    /// Whether both have the same number of elements, whatever the count: the same blocks, or as many where each block is one
    /// of the equal parts.
    pub fn fits(&self, one: &Range, other: &Range) -> bool {
        one.count == other.count && (one.first == other.first || self.collective.has_parts())
    }

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
