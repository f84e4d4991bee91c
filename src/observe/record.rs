//! One operation, as it is told to users and in reports.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::element::{DType, ReduceOp};
use crate::error::Error;
use crate::rank::{Rank, Seq, Tag};

/// How soon an operation moves, beside others of its rank: see [`Communicator::urgent`](crate::Communicator::urgent).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Priority {
    /// Before all others.
    Urgent,
    /// As it comes.
    #[default]
    Normal,
    /// Where nothing else moves.
    Bulk,
}

/// How an operation has ended, if it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Outcome {
    /// It has not.
    #[default]
    InFlight,
    /// It went well.
    Ok,
    /// By [`Error::Mismatch`].
    Mismatch,
    /// By [`Error::Truncated`].
    Truncated,
    /// By [`Error::Deadline`].
    Deadline,
    /// By [`Error::PeerLost`].
    PeerLost,
    /// By [`Error::Left`].
    Left,
    /// By [`Error::Aborted`].
    Aborted,
    /// By [`Error::Cancelled`].
    Cancelled,
    /// By [`Error::Protocol`].
    Protocol,
    /// By [`Error::InvalidArgument`] or [`Error::Limit`].
    Refused,
    /// By [`Error::Failed`] or [`Error::Closed`]: the communicator was of no use any more.
    Unusable,
    /// By another error.
    Other,
}

impl Outcome {
    /// In one or two words: "ok", "in flight", "peer lost".
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::InFlight => "in flight",
            Outcome::Ok => "ok",
            Outcome::Mismatch => "mismatch",
            Outcome::Truncated => "truncated",
            Outcome::Deadline => "deadline",
            Outcome::PeerLost => "peer lost",
            Outcome::Left => "left",
            Outcome::Aborted => "aborted",
            Outcome::Cancelled => "cancelled",
            Outcome::Protocol => "protocol",
            Outcome::Refused => "refused",
            Outcome::Unusable => "unusable",
            Outcome::Other => "other",
        }
    }
}

impl From<&Error> for Outcome {
    fn from(error: &Error) -> Self {
        match error {
            Error::Mismatch { .. } => Outcome::Mismatch,
            Error::Truncated { .. } => Outcome::Truncated,
            Error::Deadline(_) => Outcome::Deadline,
            Error::PeerLost { .. } => Outcome::PeerLost,
            Error::Left { .. } => Outcome::Left,
            Error::Aborted { .. } => Outcome::Aborted,
            Error::Cancelled { .. } => Outcome::Cancelled,
            Error::Protocol { .. } => Outcome::Protocol,
            Error::InvalidArgument { .. } | Error::Limit { .. } => Outcome::Refused,
            Error::Failed { .. } | Error::Closed { .. } => Outcome::Unusable,
            Error::Forked { .. } | Error::KeyInUse { .. } | Error::TooFew { .. } | Error::Init(_) => {
                Outcome::Other
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One call of this rank: see [`Communicator::recent_operations`](crate::Communicator::recent_operations).
///
/// Times are of a clock that never goes back, from when the rank's engine was made. They are those of the turn in which
/// something was seen. A small call that is over before it returns has one time only, at which it began: reading the clock twice
/// would take as long as a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperationRecord {
    /// Name of the communicator.
    pub communicator: String,
    /// Its identifier: equal on all its ranks, and different for each communicator and key, where names may be equal.
    pub communicator_id: u64,
    /// This rank in it.
    pub rank: Rank,
    /// "all_reduce", "send", …
    pub operation: String,
    /// Under which number.
    pub seq: Seq,
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub count: u64,
    /// Reduction, where there is one.
    pub op: Option<ReduceOp>,
    /// Root, where there is one.
    pub root: Option<Rank>,
    /// The other rank, of a message; `None` while it is not known who that is.
    pub peer: Option<Rank>,
    /// Tag, of a message.
    pub tag: Option<Tag>,
    /// Algorithm of the plan, of a collective.
    pub algorithm: String,
    /// How soon it moves.
    pub priority: Priority,
    /// When it was called, as far as the engine has seen: where another thread drove, when that took it up.
    pub called: Duration,
    /// When it began; `None` where it waits for [room](crate::Resources::delayed), or ended before.
    pub begun: Option<Duration>,
    /// When it ended; `None` where it has not.
    pub ended: Option<Duration>,
    /// How long ago it was called, when this was told.
    pub age: Duration,
    /// How it ended.
    pub outcome: Outcome,
}

impl OperationRecord {
    /// Size of the vector that it was called with; of a receive that got a shorter message, of that.
    pub fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.dtype.size() as u64)
    }

    /// From its beginning to its end, or to when this was told; `None` where it has not begun.
    pub fn took(&self) -> Option<Duration> {
        let until = self.ended.unwrap_or(self.called + self.age);
        Some(until.saturating_sub(self.begun?))
    }
}

impl fmt::Display for OperationRecord {
    /// `all_reduce #12 on "world" (1000 × f32, sum, ring), called 1.2s ago: ok in 13.0µs`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperationRecord { operation, seq, communicator, count, dtype, .. } = self;
        write!(f, "{operation} {seq} on \"{communicator}\" ({count} × {dtype}")?;
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        if let Some(peer) = self.peer {
            write!(f, ", peer {peer}")?;
        }
        if let Some(tag) = self.tag {
            write!(f, ", tag {tag}")?;
        }
        if !self.algorithm.is_empty() {
            write!(f, ", {}", self.algorithm)?;
        }
        match self.priority {
            Priority::Urgent => f.write_str(", urgent")?,
            Priority::Bulk => f.write_str(", bulk")?,
            Priority::Normal => {}
        }
        match self.age {
            Duration::ZERO => f.write_str("), called just before: ")?,
            age => write!(f, "), called {age:.1?} ago: ")?,
        }
        self.outcome.fmt(f)?;
        match (self.took(), self.ended) {
            (None, None) => f.write_str(", has not begun"),
            (None, Some(_)) => f.write_str(" before it began"),
            (Some(Duration::ZERO), Some(_)) => f.write_str(" at once"),
            (Some(Duration::ZERO), None) => Ok(()),
            (Some(took), None) => write!(f, " for {took:.1?}"),
            (Some(took), Some(_)) => write!(f, " in {took:.1?}"),
        }
    }
}
