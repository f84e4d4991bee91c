//! Errors: what went wrong, who is to blame, and what to do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::element::{DType, ReduceOp};
use crate::rank::{Rank, Seq, Tag};

/// Why a communicator could not be made.
#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum InitError {
    /// An environment variable is missing, unreadable, or contradicts another.
    #[error("{message}; seen: {seen}")]
    #[non_exhaustive]
    Environment {
        /// What is wrong, and what to do.
        message: String,
        /// Every variable looked at, with its value.
        seen: String,
    },
    /// A setting that can't work.
    #[error("{0}")]
    Config(String),
    /// Not everybody came before the deadline.
    #[error("rendezvous at {root}: after {waited:.1?} still missing {}; present: {present}{}", list_ranks(.missing), clause(.refused))]
    #[non_exhaustive]
    MissingRanks {
        /// Where the root listens.
        root: String,
        /// Who has not come.
        missing: Vec<Rank>,
        /// Who has, with addresses.
        present: String,
        /// How long was waited.
        waited: Duration,
        /// Who was turned away meanwhile and why; empty if nobody was.
        refused: String,
    },
    /// Two processes claim one rank.
    #[error("rank {rank} was claimed by two processes: {first} and {second}")]
    #[non_exhaustive]
    DuplicateRank {
        /// The rank claimed twice.
        rank: Rank,
        /// Address, host and process id of the first.
        first: String,
        /// Address, host and process id of the second.
        second: String,
    },
    /// Two ranks claim one device.
    #[error("ranks {first} and {second} both claim device {device} of host {host}")]
    #[non_exhaustive]
    DuplicateDevice {
        /// Device index.
        device: u32,
        /// Its host.
        host: String,
        /// One rank.
        first: Rank,
        /// The other.
        second: Rank,
    },
    /// Processes disagree on how many there are.
    #[error("world size disagreement: {claims}")]
    #[non_exhaustive]
    WorldSize {
        /// Which ranks claim which size.
        claims: String,
    },
    /// A fact that plans are chosen from differs between ranks.
    #[error("ranks disagree on {key}: {values}")]
    #[non_exhaustive]
    FactsDiffer {
        /// The fact.
        key: String,
        /// Which ranks hold which value.
        values: String,
    },
    /// The other side speaks another version.
    #[error("protocol version mismatch: this is {ours}, {peer} has {theirs}")]
    #[non_exhaustive]
    Version {
        /// Ours.
        ours: u16,
        /// Theirs.
        theirs: u16,
        /// Who.
        peer: String,
    },
    /// The job token was not proved.
    #[error("{peer} did not prove the job's token: {reason}")]
    #[non_exhaustive]
    Authentication {
        /// Who.
        peer: String,
        /// What was wrong.
        reason: String,
    },
    /// Nobody answers at an address.
    #[error("rank {from} can't reach {to} at {address}: {reason}")]
    #[non_exhaustive]
    Unreachable {
        /// Who tried.
        from: Rank,
        /// Whom ("the root", "rank 3").
        to: String,
        /// Where.
        address: String,
        /// Last error, how often and how long was tried.
        reason: String,
    },
    /// A member or the root went away during set-up.
    #[error("{who} went away during {phase}: {reason}")]
    #[non_exhaustive]
    Lost {
        /// Who ("the root (rank 0) at 10.0.0.1:29500").
        who: String,
        /// In which phase.
        phase: String,
        /// What was seen.
        reason: String,
    },
    /// The machine grants too little of something.
    #[error("not enough {what}: {needed} needed, {available} available; {hint}")]
    #[non_exhaustive]
    Limit {
        /// Of what.
        what: String,
        /// Need.
        needed: u64,
        /// Have.
        available: u64,
        /// What to do.
        hint: String,
    },
    /// The operating system refused. Other ranks are told in words, as [`InitError::Lost`].
    #[error("{what}: {source}")]
    #[serde(skip)]
    #[non_exhaustive]
    Io {
        /// What was tried.
        what: String,
        /// Its answer.
        source: std::io::Error,
    },
}

fn clause(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; {text}") }
}

fn list_ranks(list: &[Rank]) -> String {
    let names: Vec<String> = list.iter().map(Rank::to_string).collect();
    format!("rank{} {}", if list.len() == 1 { "" } else { "s" }, names.join(", "))
}

/// A call, as ranks compare it: everything that must be equal on all of them.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct CallInfo {
    /// "all_reduce", "send", …
    pub operation: String,
    /// Element type.
    pub dtype: DType,
    /// Elements per rank.
    pub count: u64,
    /// Reduction, where there is one.
    pub op: Option<ReduceOp>,
    /// Root or peer, where there is one.
    pub root: Option<Rank>,
    /// Tag, for point to point.
    pub tag: Option<Tag>,
    /// Algorithm of the plan.
    pub algorithm: String,
}

impl fmt::Display for CallInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} × {}", self.operation, self.count, self.dtype)?;
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", {} {root}", if self.tag.is_some() { "peer" } else { "root" })?;
        }
        if let Some(tag) = self.tag {
            write!(f, ", tag {tag}")?;
        }
        if !self.algorithm.is_empty() {
            write!(f, ", {}", self.algorithm)?;
        }
        f.write_str(")")
    }
}

/// Why an operation did not do what it was asked.
///
/// After [`PeerLost`](Self::PeerLost) the communicator has failed: every later call says so. After the others it can be
/// used on, on all ranks.
///
/// ```
/// use hcomm::{Communicator, Error, OpError, ReduceOp};
///
/// fn step(comm: &mut Communicator, gradient: Vec<f32>) -> Result<Vec<f32>, OpError<Vec<f32>>> {
///     comm.all_reduce(gradient, ReduceOp::Avg).wait()
/// }
///
/// let mut comm = Communicator::local(2).remove(0);
/// comm.set_deadline(std::time::Duration::from_millis(50));
/// let failed = step(&mut comm, vec![1.0; 8]).unwrap_err();
/// match &failed.error {
///     Error::Deadline(report) => assert_eq!(report.late[0].0, 1),
///     Error::PeerLost { rank, .. } => assert_eq!(rank.0, 1),
///     other => panic!("{other}"),
/// }
/// // The gradient comes back, with undefined contents.
/// assert_eq!(failed.into_buffer().map(|gradient| gradient.len()), Some(8));
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Ranks called different things under the same number.
    #[error("{operation} {seq} on \"{communicator}\": ranks disagree: {}", list_calls(.calls))]
    #[non_exhaustive]
    Mismatch {
        /// What this rank called.
        operation: String,
        /// Under which number.
        seq: Seq,
        /// Name of the communicator.
        communicator: String,
        /// What each rank called, as far as known.
        calls: Vec<(Rank, CallInfo)>,
    },
    /// The operation's deadline passed: this rank's, or that of the rank in the report, which gave it up for all.
    #[error("{0}")]
    Deadline(Box<Report>),
    /// A rank's process or host is gone.
    #[error("{operation} {seq} on \"{communicator}\": rank {rank} ({host}) is lost: {cause}")]
    #[non_exhaustive]
    PeerLost {
        /// What this rank was doing.
        operation: String,
        /// Under which number.
        seq: Seq,
        /// Name of the communicator.
        communicator: String,
        /// Who is lost.
        rank: Rank,
        /// Host, address and process id.
        host: String,
        /// What was seen.
        cause: String,
    },
    /// Another rank gave the operation up.
    #[error("{operation} {seq} on \"{communicator}\" was aborted by rank {by}: {cause}")]
    #[non_exhaustive]
    Aborted {
        /// What this rank was doing.
        operation: String,
        /// Under which number.
        seq: Seq,
        /// Name of the communicator.
        communicator: String,
        /// Who gave it up.
        by: Rank,
        /// Why.
        cause: String,
    },
    /// This rank gave the operation up.
    #[error("{operation} {seq} on \"{communicator}\" was cancelled here")]
    #[non_exhaustive]
    Cancelled {
        /// What this rank was doing.
        operation: String,
        /// Under which number.
        seq: Seq,
        /// Name of the communicator.
        communicator: String,
    },
    /// An argument that can't be right, whatever the other ranks say.
    #[error("{operation}: {problem}")]
    #[non_exhaustive]
    InvalidArgument {
        /// What was called.
        operation: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The communicator failed earlier and can't be used.
    #[error("communicator \"{communicator}\" has failed: {cause}")]
    #[non_exhaustive]
    Failed {
        /// Its name.
        communicator: String,
        /// Why it failed.
        cause: String,
    },
    /// The communicator was closed.
    #[error("communicator \"{0}\" is closed")]
    Closed(String),
    /// A peer broke the protocol.
    #[error("rank {rank} broke the protocol: {problem}")]
    #[non_exhaustive]
    Protocol {
        /// Who.
        rank: Rank,
        /// How.
        problem: String,
    },
    /// A communicator could not be made: for callers who join and call in one function.
    #[error(transparent)]
    Init(Arc<InitError>),
}

impl From<InitError> for Error {
    fn from(error: InitError) -> Self {
        Error::Init(Arc::new(error))
    }
}

fn list_calls(calls: &[(Rank, CallInfo)]) -> String {
    let each: Vec<String> = calls.iter().map(|(rank, call)| format!("rank {rank} calls {call}")).collect();
    each.join("; ")
}

/// What is known about an operation that does not end.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// The links to the other ranks of the communicator. Filled in where a report is written to a file.
    #[serde(default)]
    pub links: Vec<LinkReport>,
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
}

/// What a rank has told about itself.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// By two TCP connections.
    Tcp,
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
        if !self.cause.is_empty() {
            write!(f, "; {}", self.cause)?;
        }
        Ok(())
    }
}

/// An operation's error, with the buffer that was handed in, if it could be given back safely.
///
/// `?` takes it into an [`Error`], or into a `Box<dyn Error>` and the like: there the [`Error`] is its
/// [source](std::error::Error::source), whatever the buffer's type, and can be downcast to.
#[derive(thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct OpError<B> {
    /// What went wrong.
    #[source]
    pub error: Error,
    /// The buffer; its contents are undefined. `None` while a peer might still touch it.
    pub buffer: Option<B>,
}

impl<B> fmt::Debug for OpError<B> {
    /// Leaves the buffer's contents out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = if self.buffer.is_some() { "given back" } else { "kept" };
        write!(f, "{} [buffer {buffer}]", self.error)
    }
}

impl<B> From<OpError<B>> for Error {
    fn from(error: OpError<B>) -> Self {
        error.error
    }
}

impl<B> OpError<B> {
    /// The buffer that was handed in; its contents are undefined.
    pub fn into_buffer(self) -> Option<B> {
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_found_whatever_the_buffer_is() {
        let error = Error::Closed("world".into());
        let boxed: Box<dyn std::error::Error> = Box::new(OpError { error, buffer: Some(vec![1u8]) });
        let found = boxed.source().and_then(|source| source.downcast_ref::<Error>());
        assert!(matches!(found, Some(Error::Closed(_))));
        assert!(matches!(Error::from(InitError::Config("no".into())), Error::Init(_)));
    }

    /// What is public is sent by position: a variant or field that moves needs another protocol version.
    #[test]
    fn what_travels_is_encoded_as_before() {
        let call = CallInfo {
            operation: "x".into(),
            dtype: DType::F32,
            count: 300,
            op: Some(ReduceOp::Max),
            root: Some(Rank(1)),
            tag: None,
            algorithm: "y".into(),
        };
        let pinned = [1, b'x', 0, 0xac, 2, 1, 3, 1, 1, 0, 1, b'y'];
        assert_eq!(postcard::to_stdvec(&call).unwrap(), pinned);
        let dtypes = DType::ALL.map(|dtype| postcard::to_stdvec(&dtype).unwrap()[0]);
        assert!(dtypes.into_iter().eq(0..dtypes.len() as u8));
        let reductions = ReduceOp::ALL.map(|op| postcard::to_stdvec(&op).unwrap()[0]);
        assert!(reductions.into_iter().eq(0..reductions.len() as u8));
        let init = [
            (0, InitError::Environment { message: String::new(), seen: String::new() }),
            (1, InitError::Config(String::new())),
            (5, InitError::WorldSize { claims: String::new() }),
            (7, InitError::Version { ours: 1, theirs: 2, peer: String::new() }),
            (
                9,
                InitError::Unreachable {
                    from: Rank(0),
                    to: String::new(),
                    address: String::new(),
                    reason: String::new(),
                },
            ),
            (11, InitError::Limit { what: String::new(), needed: 1, available: 0, hint: String::new() }),
        ];
        for (number, error) in init {
            assert_eq!(postcard::to_stdvec(&error).unwrap()[0], number, "{error:?}");
        }
    }
}
