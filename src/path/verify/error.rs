//! What is wrong with a plan.

use crate::path::plan::{After, Collective, Range, Space, StepId};
use crate::path::verify::{NAME_BYTES_MAX, RANKS_MAX, SOURCES_MAX, STEPS_MAX};
use crate::rank::Rank;

/// The first thing found wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// Too few or too many ranks.
    #[error("a plan is for 1 to {RANKS_MAX} ranks, this one is for {ranks}")]
    Ranks {
        /// How many it has.
        ranks: usize,
    },
    /// Reports, and what ranks tell each other of their calls, hold names of this length.
    #[error("the algorithm's name has {bytes} bytes, the most is {NAME_BYTES_MAX}")]
    Name {
        /// How many it has.
        bytes: usize,
    },
    /// The vector can't be cut as told.
    #[error("the cut into {blocks} blocks of whole {granule}s does not suit the collective on {ranks} ranks")]
    Cut {
        /// Number of blocks.
        blocks: u32,
        /// Elements per granule.
        granule: u32,
        /// Number of ranks.
        ranks: usize,
    },
    /// There is nothing that a second buffer would be for.
    #[error("{collective} is done in place only")]
    Placement {
        /// What was to be done out of place.
        collective: Collective,
    },
    /// The root is no rank.
    #[error("there is no rank {root} to be the root")]
    Root {
        /// The root.
        root: Rank,
    },
    /// Parts between some ranks only, of what has none, or of ranks that there are not.
    #[error(
        "parts go between some of the ranks in an all_to_all from one buffer to another only, and between those that there are"
    )]
    Edges,
    /// More steps than the verifier takes.
    #[error("rank {rank} has {steps} steps, the most is {STEPS_MAX}")]
    Steps {
        /// Whose.
        rank: Rank,
        /// How many.
        steps: usize,
    },
    /// A scratch area is empty, out of the vector, or under a wrong number.
    #[error("rank {rank}: scratch area {area} is no span of the vector under its own number")]
    Scratch {
        /// Whose.
        rank: Rank,
        /// Which entry.
        area: usize,
    },
    /// A range is empty or lies outside of what the rank has of its space.
    #[error("rank {rank}, step {step}: {range:?} is empty or outside of what the rank has there")]
    OutOfRange {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The range.
        range: Range,
    },
    /// The caller's source buffer is never written.
    #[error("rank {rank}, step {step}: writes to the input")]
    InputWritten {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
    },
    /// A dependency does not point backwards.
    #[error("rank {rank}, step {step}: waits for {after:?}, which is not an earlier step")]
    Forward {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The dependency.
        after: After,
    },
    /// A stream dependency between blocks of different sizes.
    #[error("rank {rank}, step {step}: streams after step {on}, which covers blocks of other sizes")]
    StreamBlocks {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The step waited for.
        on: StepId,
    },
    /// A reduction without inputs or with too many.
    #[error("rank {rank}, step {step}: reduces {sources} sources, 1 to {SOURCES_MAX} can be")]
    Sources {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// How many.
        sources: usize,
    },
    /// A step's ranges differ, or a copy goes from a range to itself.
    #[error("rank {rank}, step {step}: {range:?} does not go with {with:?}")]
    Blocks {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The destination.
        range: Range,
        /// The source.
        with: Range,
    },
    /// A peer that does not exist or is the rank itself.
    #[error("rank {rank}, step {step}: rank {peer} can't be a peer")]
    Peer {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The peer.
        peer: Rank,
    },
    /// Messages of a pair are not numbered 0, 1, 2, … in the order of the sender's steps.
    #[error("rank {rank}, step {step}: sends message {found} to rank {to}, message {expected} is next")]
    MessageOrder {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The receiver.
        to: Rank,
        /// The number that is next.
        expected: u16,
        /// The number found.
        found: u16,
    },
    /// A message is consumed that nobody sends.
    #[error("rank {rank}, step {step}: takes message {message} from rank {from}, who does not send it")]
    Unsent {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The sender.
        from: Rank,
        /// Its number.
        message: u16,
    },
    /// A message is sent that nobody consumes.
    #[error("rank {rank}, step {step}: sends message {message} to rank {to}, who does not take it")]
    Untaken {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The receiver.
        to: Rank,
        /// Its number.
        message: u16,
    },
    /// A message is consumed twice.
    #[error("rank {rank}, step {step}: takes message {message} from rank {from} a second time")]
    TakenTwice {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The sender.
        from: Rank,
        /// Its number.
        message: u16,
    },
    /// A message and its consumer speak of blocks of different sizes.
    #[error(
        "rank {rank}, step {step}: takes message {message} from rank {from} for blocks of other sizes than are sent"
    )]
    MessageBlocks {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// The sender.
        from: Rank,
        /// Its number.
        message: u16,
    },
    /// The plan does not end.
    #[error("deadlock with {chunks} chunk(s) per step: {chain}")]
    Deadlock {
        /// A rank that waits.
        rank: Rank,
        /// Its step.
        step: StepId,
        /// Into how many chunks each step was cut.
        chunks: u32,
        /// Who waits for whom.
        chain: String,
    },
    /// Two steps of a rank use the same block, one writes it, and nothing orders them.
    #[error(
        "rank {rank}: steps {first} and {second} race for block {block} of {space:?}, and step {writer} writes it"
    )]
    Race {
        /// Whose steps.
        rank: Rank,
        /// One step.
        first: StepId,
        /// The other.
        second: StepId,
        /// The one of them that writes (or the first, if both do).
        writer: StepId,
        /// Where.
        space: Space,
        /// Which block.
        block: u32,
    },
    /// A block is read or lent that holds nothing yet.
    #[error("rank {rank}, step {step}: reads block {block} of {space:?}, which holds nothing yet")]
    Undefined {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// Where.
        space: Space,
        /// Which block.
        block: u32,
    },
    /// A reduction takes elements that do not belong together.
    #[error("rank {rank}, step {step}: reduces {found} with {expected} for block {block}")]
    Mixed {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// Which block.
        block: u32,
        /// One operand.
        found: String,
        /// An operand before it.
        expected: String,
    },
    /// A reduction takes a rank's contribution twice.
    #[error("rank {rank}, step {step}: takes rank {contributor}'s contribution to block {block} twice")]
    Twice {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// Which block.
        block: u32,
        /// Whose contribution.
        contributor: Rank,
    },
    /// A finished sum is reduced further.
    #[error("rank {rank}, step {step}: reduces block {block} after it was finished")]
    Finished {
        /// Whose step.
        rank: Rank,
        /// Which step.
        step: StepId,
        /// Which block.
        block: u32,
    },
    /// A result that no reduction finished.
    #[error("rank {rank}: block {block} of the result was never finished")]
    Unfinished {
        /// Whose result.
        rank: Rank,
        /// Which block.
        block: u32,
    },
    /// A result lacks contributions, or is something else altogether.
    #[error("rank {rank}: block {block} of the result is {found}, it should be {expected}")]
    Wrong {
        /// Whose result.
        rank: Rank,
        /// Which block.
        block: u32,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// Two ranks would get different bits.
    #[error("block {block} of the result is {found} on rank {rank} but {expected} on rank 0")]
    Differs {
        /// Whose result.
        rank: Rank,
        /// Which block.
        block: u32,
        /// What it holds.
        found: String,
        /// What rank 0 holds.
        expected: String,
    },
}
