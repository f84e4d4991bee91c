//! What is told about an operation that fails: who waited for whom, what was known of the others, and of the links.

use std::fmt;
use std::time::Duration;

use super::list_ranks;
use crate::observe::OperationRecord;
use crate::rank::{Rank, Seq};

/// What is known about an operation that does not end.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// What this rank waits in.
    pub operation: String,
    /// Under which number.
    pub seq: Seq,
    /// Name of the communicator.
    pub communicator: String,
    /// Rank that wrote this.
    pub rank: Rank,
    /// How long it has waited.
    pub waited: Duration,
    /// Who has not done his part.
    pub late: Vec<Rank>,
    /// The last known state of each late rank, in words, with its age.
    pub states: Vec<(Rank, String)>,
    /// The likely cause.
    pub cause: String,
    /// The last collective that this rank has completed together with all before it; `None` if there is none.
    #[serde(default)]
    pub completed: Option<Seq>,
    /// Whom this operation itself waits for; `late` are those at whom a chain of waiting ends.
    #[serde(default)]
    pub waits_for: Vec<Rank>,
    /// What other ranks have told about themselves.
    #[serde(default)]
    pub known: Vec<RankReport>,
    /// In an [`Error::Deadline`](super::Error::Deadline) of this rank, the links to the late ranks; where a report is written to a file, those to
    /// all other ranks of the communicator.
    #[serde(default)]
    pub links: Vec<LinkReport>,
    /// The last operations of this rank, on all its communicators, and what was in flight: 128 at most. Filled in where a report is
    /// written to a file, in the last of those that are written together.
    #[serde(default)]
    pub recent: Vec<OperationRecord>,
    /// What went wrong.
    #[serde(default)]
    pub kind: ReportKind,
    /// Equal on all ranks of a world, and different for every world. Filled in where a report is written to a file, like
    /// what follows.
    #[serde(default)]
    pub run: String,
    /// When it was written: milliseconds since 1970.
    #[serde(default)]
    pub unix_ms: u64,
    /// The process that wrote it.
    #[serde(default)]
    pub pid: u32,
}

/// What a report is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum ReportKind {
    /// A deadline passed.
    #[default]
    Deadline,
    /// A rank is lost.
    PeerLost,
    /// Ranks called different things.
    Mismatch,
    /// A rank broke the protocol.
    Protocol,
    /// A rank has left in order.
    Left,
}

/// What a rank has told about itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct RankReport {
    /// Who.
    pub rank: Rank,
    /// The number that its next collective will have.
    pub next: Seq,
    /// The oldest operation that it waits in, and its number.
    pub operation: Option<(String, Seq)>,
    /// Whom that waits for.
    pub waits_for: Vec<Rank>,
    /// How long ago it told this.
    pub age: Duration,
}

/// How a rank is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum LinkKind {
    /// It is this rank.
    Myself,
    /// In the same process: its memory is read where it lies.
    Memory,
    /// In another process of this host, through memory that both have mapped.
    SharedMemory,
    /// By two TCP connections.
    Tcp,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LinkKind::Myself => "myself",
            LinkKind::Memory => "memory",
            LinkKind::SharedMemory => "shared memory",
            LinkKind::Tcp => "TCP",
        })
    }
}

/// Whether a link works as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum LinkState {
    /// It does.
    Ready,
    /// It works, but much slower than it did before.
    Degraded,
    /// The rank's process is lost, or has left.
    Down,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkState::Ready => "ready",
            LinkState::Degraded => "degraded (slow)",
            LinkState::Down => "down",
        })
    }
}

/// A link to another rank, and what was counted since it was made; ranks of one process count nothing.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct LinkReport {
    /// The other rank.
    pub rank: Rank,
    /// How it is reached.
    pub kind: LinkKind,
    /// Whether that works as it should.
    pub state: LinkState,
    /// Host, address and process of the other rank.
    pub address: String,
    /// Bytes handed to the system, headers included.
    pub sent_bytes: u64,
    /// Bytes taken from the system, headers included.
    pub received_bytes: u64,
    /// Bytes that were read in the other rank's memory, where they lie, and so were not received: of buffers of
    /// [`Communicator::alloc`](crate::Communicator::alloc) in another process.
    #[serde(default)]
    pub pulled_bytes: u64,
    /// Frames that have left.
    pub sent_frames: u64,
    /// Frames that have begun to arrive.
    pub received_frames: u64,
    /// Segments that the system has sent again: more than a few mean a bad network.
    pub retransmissions: u64,
    /// Round-trip time, smoothed by the system, in microseconds.
    pub rtt_us: u32,
    /// The best rate that it has sustained while there was something to send, in bytes per second; 0 while unknown.
    pub best_bytes_per_s: u64,
    /// How long it has been in its state: since set-up, where that has never changed.
    #[serde(default)]
    pub state_age: Duration,
    /// Why it is in its state; empty where that has never changed.
    #[serde(default)]
    pub reason: String,
}

impl fmt::Display for Report {
    /// Names who waited: a deadline ends an operation on all ranks, with the report of the one that gave it up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} on \"{}\": rank {} waited {:.1?} for {}",
            self.operation,
            self.seq,
            self.communicator,
            self.rank,
            self.waited,
            list_ranks(&self.late)
        )?;
        for (rank, state) in &self.states {
            write!(f, "; rank {rank} {state}")?;
        }
        for link in self.links.iter().filter(|link| self.late.contains(&link.rank)) {
            if link.retransmissions > 0 {
                let LinkReport { rank, retransmissions, .. } = link;
                write!(f, "; the link to rank {rank} has sent {retransmissions} segments again")?;
            }
        }
        if !self.cause.is_empty() {
            write!(f, "; {}", self.cause)?;
        }
        Ok(())
    }
}
