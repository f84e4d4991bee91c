//! Errors: what went wrong, who is to blame, and what to do.

mod calls;
mod init;
mod report;

use std::fmt;
use std::sync::Arc;

use crate::element::DType;
use crate::rank::{Rank, Seq, Tag};

use calls::list_calls;
pub use calls::{CallInfo, Counts};
pub use init::InitError;
pub(crate) use init::list_ranks;
pub use report::{LinkKind, LinkReport, LinkState, RankReport, Report, ReportKind};

/// Why an operation did not do what it was asked.
///
/// It answers what a caller wants to know: [`is_deadline`](Self::is_deadline), whom it [blames](Self::blamed), and whether
/// the communicator [is of no more use](Self::is_fatal).
///
/// # After an error that is not fatal
///
/// **Agree on where to go on before you try a step again.** Of the call that failed here, other ranks may have the result. It
/// keeps its number on all of them, and calls go on being paired by number: if this rank repeats a step that others have done,
/// its call meets their next one, and where the two are of one shape nothing tells that they are different steps. So all ranks
/// take the least step first, by a call of another shape than the steps: ranks that are at the next step get a
/// [`Mismatch`](Self::Mismatch) there, and come to agree as well.
///
/// ```
/// use std::time::Duration;
/// use hcomm::{Communicator, Error, ReduceOp};
///
/// /// The step that all ranks go on with, of those that each has done.
/// fn agree(comm: &mut Communicator, done: u64) -> Result<u64, Error> {
///     loop {
///         match comm.all_reduce(vec![done], ReduceOp::Min).wait() {
///             Ok(least) => return Ok(least[0]),
///             Err(failed) if failed.error.is_fatal() => return Err(failed.into()),
///             Err(_) => {}
///         }
///     }
/// }
///
/// fn run(mut comm: Communicator) -> Result<(), Error> {
/// #   let mut late = comm.rank().0 == 1;
///     let mut done = 0;
///     while done < 8 {
/// #       if done == 3 && std::mem::take(&mut late) { std::thread::sleep(Duration::from_millis(60)) }
///         let step = comm.all_reduce(vec![done as f32], ReduceOp::Avg).timeout(Duration::from_millis(20));
///         match step.wait() {
///             Ok(mean) => {
///                 assert_eq!(mean, [done as f32]); // all are in the same step
///                 done += 1;
///             }
///             Err(failed) if failed.error.is_fatal() => return Err(failed.into()),
///             Err(_) => done = agree(&mut comm, done)?,
///         }
///         if done == 8 {
///             done = agree(&mut comm, done)?; // nobody is behind
///         }
///     }
///     Ok(())
/// }
/// # let ranks: Vec<_> = Communicator::local(2).into_iter().map(|comm| std::thread::spawn(|| run(comm))).collect();
/// # for rank in ranks { rank.join().unwrap().unwrap() }
/// ```
///
/// # Examples
///
/// ```
/// use hcomm::{Communicator, Error, OpError, ReduceOp};
///
/// fn step(comm: &mut Communicator, gradient: Vec<f32>) -> Result<Vec<f32>, OpError<Vec<f32>>> {
///     comm.all_reduce(gradient, ReduceOp::Avg).wait()
/// }
///
/// let mut ranks = Communicator::local(2);
/// drop(ranks.pop());
/// let mut comm = ranks.remove(0);
/// let failed = step(&mut comm, vec![1.0; 8]).unwrap_err();
/// match &failed.error {
///     Error::PeerLost { rank, cause, .. } => panic!("rank {rank} has crashed: {cause}"),
///     Error::Left { rank, .. } => assert_eq!(rank.0, 1),
///     Error::Deadline(report) => panic!("late: {:?}", report.late),
///     other => panic!("{other}"),
/// }
/// assert!(failed.error.is_fatal() && failed.error.blamed() == [hcomm::Rank(1)]);
/// // The gradient comes back, with undefined contents.
/// assert_eq!(failed.into_buffer().map(|gradient| gradient.len()), Some(8));
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Ranks called different things under the same number. The communicator can be used on.
    ///
    /// A rank can be done with a call before it is known that others called something else, say the root of a broadcast. It is
    /// told by the error of its next collective, which is given up: `operation` and `seq` say which call this is about.
    #[error("{operation} {seq} on \"{communicator}\": ranks disagree: {}", list_calls(.calls))]
    #[non_exhaustive]
    Mismatch {
        /// What this rank called where ranks disagree.
        operation: Arc<str>,
        /// Under which number: the call's own, or an earlier one.
        seq: Seq,
        /// Name of the communicator.
        communicator: Arc<str>,
        /// What each rank called, as far as known.
        calls: Vec<(Rank, CallInfo)>,
    },
    /// A message is longer than the buffer that a receive has for it. The message is gone; if it was larger than 64 KiB, its sender
    /// gets [`Aborted`](Self::Aborted).
    #[error(
        "{operation} {seq} on \"{communicator}\": the message of rank {from} with tag {tag} has {count} × {dtype}, and there is room \
         for {room}: give a longer buffer, or ask by probe how long the next message is"
    )]
    #[non_exhaustive]
    Truncated {
        /// What this rank called.
        operation: Arc<str>,
        /// Under which number.
        seq: Seq,
        /// Name of the communicator.
        communicator: Arc<str>,
        /// Who has sent the message.
        from: Rank,
        /// With which tag.
        tag: Tag,
        /// Of which type.
        dtype: DType,
        /// How many elements it has.
        count: u64,
        /// For how many there is room.
        room: u64,
    },
    /// The operation's deadline passed: this rank's, or that of the rank in the report, which gave it up for all.
    /// The communicator can be used on, by the late ranks too: they are told when they call, by [`Aborted`](Self::Aborted),
    /// which blames the rank that gave up. Ranks that did not need the late one any more may have the result: see
    /// [how to go on](Self#after-an-error-that-is-not-fatal).
    #[error("{}{}", .0, elsewhere(&.0.operation))]
    Deadline(Box<Report>),
    /// A rank's process has crashed or was killed, its thread has panicked, or its host can't be reached. The communicator has failed with it:
    /// every later call says so, until it is [rebuilt](crate::Communicator::rebuild).
    ///
    /// Also a process that ends by [`std::process::exit`], with whatever code, or while operations of it are under way: it has
    /// not said goodbye. See [`Left`](Self::Left) for one that has.
    #[error("{operation} {seq} on \"{communicator}\": rank {rank} ({host}) is lost: {cause}")]
    #[non_exhaustive]
    PeerLost {
        /// What this rank was doing.
        operation: Arc<str>,
        /// Under which number.
        seq: Seq,
        /// Name of the communicator.
        communicator: Arc<str>,
        /// Who is lost.
        rank: Rank,
        /// Host, address and process id.
        host: Arc<str>,
        /// What was seen.
        cause: Arc<str>,
    },
    /// A rank that is needed has left in order: it closed or dropped the communicator. Nothing
    /// has crashed. What needs that rank fails from then on, so all collectives do; messages between others go on, and
    /// [`rebuild`](crate::Communicator::rebuild) leaves it out.
    ///
    /// Also a program whose `main` has returned, be it with an error: the communicator is dropped on the way. Where operations
    /// are under way then, as sends whose futures were dropped, the process may end before they do: that is
    /// [`PeerLost`](Self::PeerLost), as [`std::process::exit`] is, which drops nothing.
    #[error(
        "{operation} {seq} on \"{communicator}\": rank {rank} ({host}) has left: it closed or dropped the communicator"
    )]
    #[non_exhaustive]
    Left {
        /// What this rank was doing.
        operation: Arc<str>,
        /// Under which number.
        seq: Seq,
        /// Name of the communicator.
        communicator: Arc<str>,
        /// Who has left.
        rank: Rank,
        /// Host, address and process id.
        host: Arc<str>,
    },
    /// Another rank gave the operation up: it cancelled it, or its deadline passed before this rank called. A rank that is late
    /// gets this, and not [`Deadline`](Self::Deadline): `by` is who gave up, the cause says who was late. The communicator can be
    /// used on; others may have the result: see [how to go on](Self#after-an-error-that-is-not-fatal).
    #[error("{operation} {seq} on \"{communicator}\" was aborted by rank {by}: {cause}{}", elsewhere(.operation))]
    #[non_exhaustive]
    Aborted {
        /// What this rank was doing.
        operation: Arc<str>,
        /// Under which number.
        seq: Seq,
        /// Name of the communicator.
        communicator: Arc<str>,
        /// Who gave it up.
        by: Rank,
        /// Why.
        cause: Arc<str>,
    },
    /// This rank gave the operation up. The communicator can be used on; others may have the result: see
    /// [how to go on](Self#after-an-error-that-is-not-fatal).
    #[error("{operation} {seq} on \"{communicator}\" was cancelled here{}", elsewhere(.operation))]
    #[non_exhaustive]
    Cancelled {
        /// What this rank was doing.
        operation: Arc<str>,
        /// Under which number.
        seq: Seq,
        /// Name of the communicator.
        communicator: Arc<str>,
    },
    /// Of the ranks that may contribute to a round, fewer than were asked for can come any more: others have left, or are in a later
    /// round already. The communicator can be used on, and those that have contributed are still there for whoever asks for fewer.
    #[error(
        "reduce_first on \"{communicator}\": {needed} contributions to round {round} were asked for and {} have come; none comes of {}: {cause}",
        .contributed.len(), list_ranks(.missing)
    )]
    #[non_exhaustive]
    TooFew {
        /// Name of the communicator.
        communicator: Arc<str>,
        /// Of which round.
        round: u32,
        /// How many were asked for.
        needed: u32,
        /// Who has contributed.
        contributed: Box<[Rank]>,
        /// Who will not.
        missing: Box<[Rank]>,
        /// Why, of each.
        cause: Arc<str>,
    },
    /// An argument that can't be right, whatever the other ranks say. The communicator can be used on.
    #[error("{operation}: {problem}")]
    #[non_exhaustive]
    InvalidArgument {
        /// What was called.
        operation: Arc<str>,
        /// What is wrong and what to do.
        problem: Arc<str>,
    },
    /// This process was forked from the one that the communicator belongs to, where it works on.
    #[error(
        "{operation}: this process was forked from the one that the communicator belongs to, and can't use it; fork before \
         it is made, or start a program"
    )]
    #[non_exhaustive]
    Forked {
        /// What was called.
        operation: Arc<str>,
    },
    /// Somebody else has this [key](crate::Communicator::keyed) at present. To be asked for again, once it was dropped.
    #[error("key {key:?} of \"{communicator}\" is in use: one task at a time has it")]
    #[non_exhaustive]
    KeyInUse {
        /// Name of the communicator.
        communicator: Arc<str>,
        /// Which key.
        key: Arc<str>,
    },
    /// There are as many of something as there may be. The communicator can be used on.
    #[error("{operation}: there are {limit} {what}, which is the limit: {hint}")]
    #[non_exhaustive]
    Limit {
        /// What was called.
        operation: Arc<str>,
        /// Of what.
        what: Arc<str>,
        /// How many there may be.
        limit: u64,
        /// What to do.
        hint: Arc<str>,
    },
    /// The communicator failed earlier and can't be used, until it is [rebuilt](crate::Communicator::rebuild).
    #[error("communicator \"{communicator}\" has failed: {cause}")]
    #[non_exhaustive]
    Failed {
        /// Its name.
        communicator: Arc<str>,
        /// The rank whose loss is why, where it is one.
        lost: Option<Rank>,
        /// Why it failed.
        cause: Arc<str>,
    },
    /// The communicator was rebuilt: what [`rebuild`](crate::Communicator::rebuild) gave is used instead of it. Or it is
    /// a [key](crate::Communicator::keyed), and its communicator was closed, dropped or rebuilt.
    #[error(
        "communicator \"{communicator}\" is closed: it, or the one that it is a key of, was rebuilt or dropped"
    )]
    #[non_exhaustive]
    Closed {
        /// Its name.
        communicator: Arc<str>,
    },
    /// A peer broke the protocol: its connections are closed, and the communicator fails as for a rank that is lost.
    #[error("rank {rank} broke the protocol: {problem}")]
    #[non_exhaustive]
    Protocol {
        /// Who.
        rank: Rank,
        /// How.
        problem: Arc<str>,
    },
    /// A communicator could not be made: for callers who join and call in one function.
    #[error(transparent)]
    Init(Arc<InitError>),
}

/// What has become on other ranks of an operation that was given up here.
fn elsewhere(operation: &str) -> &'static str {
    // A message's call is told with its arguments.
    match operation.split('(').next().unwrap_or(operation) {
        message if calls::is_of_message(message) => "",
        // Of no use if it did not end here.
        "ready" | "split" | "dup" | "create" | "close" | "rebuild" => "",
        "barrier" => "; other ranks may have passed it",
        _ => "; other ranks may have its result",
    }
}

impl Error {
    /// What failed, and because of whom.
    fn in_short(&self) -> String {
        let failed = match self {
            Error::Mismatch { operation, seq, .. }
            | Error::Truncated { operation, seq, .. }
            | Error::PeerLost { operation, seq, .. }
            | Error::Left { operation, seq, .. }
            | Error::Aborted { operation, seq, .. } => format!("{operation} {seq} failed"),
            Error::Deadline(report) => format!("{} {} was not done in time", report.operation, report.seq),
            Error::Cancelled { operation, seq, .. } => format!("{operation} {seq} was given up"),
            Error::TooFew { .. } => "reduce_first failed".into(),
            Error::InvalidArgument { operation, .. }
            | Error::Limit { operation, .. }
            | Error::Forked { operation } => {
                format!("{operation} was refused")
            }
            Error::KeyInUse { .. }
            | Error::Failed { .. }
            | Error::Closed { .. }
            | Error::Protocol { .. }
            | Error::Init(_) => "an operation failed".into(),
        };
        match self.blamed() {
            [] => failed,
            blamed => format!("{failed} because of {}", list_ranks(blamed)),
        }
    }

    /// What a caller has handed in can't be right.
    pub(crate) fn invalid(operation: &str, problem: String) -> Self {
        Error::InvalidArgument { operation: operation.into(), problem: problem.into() }
    }

    /// Whether time ran out, and nothing else is known to be wrong: the ranks that it blames may come yet. On a rank that
    /// was late itself the same call ends with [`Aborted`](Self::Aborted), for which this is false.
    pub const fn is_deadline(&self) -> bool {
        matches!(self, Error::Deadline(_))
    }

    /// The ranks at fault: those that are late, lost, have left, gave the operation up, or broke the protocol. Empty
    /// where no rank is, or where ranks disagree and nobody can say which of them are right. Of an operation that was given up
    /// because this rank was late, it is the rank that gave up, [`Aborted`](Self::Aborted): others blame this one.
    pub fn blamed(&self) -> &[Rank] {
        match self {
            Error::Deadline(report) => &report.late,
            Error::PeerLost { rank, .. } | Error::Left { rank, .. } | Error::Protocol { rank, .. } => {
                std::slice::from_ref(rank)
            }
            Error::TooFew { missing, .. } => missing,
            Error::Aborted { by, .. } => std::slice::from_ref(by),
            Error::Failed { lost, .. } => lost.as_slice(),
            Error::Mismatch { .. }
            | Error::Truncated { .. }
            | Error::Cancelled { .. }
            | Error::InvalidArgument { .. }
            | Error::KeyInUse { .. }
            | Error::Limit { .. }
            | Error::Closed { .. }
            | Error::Forked { .. }
            | Error::Init(_) => &[],
        }
    }

    /// Whether the communicator is of no more use: no collective on it can go well again. Among the ranks that are left,
    /// [`rebuild`](crate::Communicator::rebuild) makes another; after [`Closed`](Self::Closed) there is one already, and
    /// after [`Init`](Self::Init) there never was one. After all other errors it can be used on, on all ranks, once they have
    /// [agreed on where to go on](Self#after-an-error-that-is-not-fatal): some may have the result of the call that failed here.
    pub const fn is_fatal(&self) -> bool {
        match self {
            Error::PeerLost { .. }
            | Error::Left { .. }
            | Error::Failed { .. }
            | Error::Closed { .. }
            | Error::Protocol { .. }
            | Error::Forked { .. }
            | Error::Init(_) => true,
            Error::Mismatch { .. }
            | Error::Truncated { .. }
            | Error::Deadline(_)
            | Error::Aborted { .. }
            | Error::Cancelled { .. }
            | Error::TooFew { .. }
            | Error::InvalidArgument { .. }
            | Error::KeyInUse { .. }
            | Error::Limit { .. } => false,
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<InitError> for Error {
    fn from(error: InitError) -> Self {
        Error::Init(Arc::new(error))
    }
}

/// An operation's error, with the buffer that was handed in, if it could be given back safely.
///
/// `?` takes it into an [`Error`], or into a `Box<dyn Error>` and the like: there the [`Error`] is its
/// [source](std::error::Error::source), whatever the buffer's type, and can be downcast to.
///
/// `Display` says in short what failed and because of whom, since whoever prints errors with their sources prints the
/// [`Error`] next. `Debug` is both in one, as a `main` that returns it prints.
///
/// ```
/// use hcomm::{Communicator, Error, ReduceOp};
///
/// let mut ranks = Communicator::local(2);
/// drop(ranks.pop());
/// let failed = ranks[0].all_reduce(vec![1.0f32], ReduceOp::Sum).wait().unwrap_err();
/// assert_eq!(failed.to_string(), "all_reduce #0 failed because of rank 1; its buffer is given back");
/// let failed: Box<dyn std::error::Error> = failed.into();
/// let error = failed.source().and_then(|source| source.downcast_ref::<Error>());
/// assert!(error.is_some_and(Error::is_fatal));
/// ```
#[derive(thiserror::Error)]
#[error("{}; its buffer is {}given back", .error.in_short(), if .buffer.is_some() { "" } else { "not " })]
#[non_exhaustive]
pub struct OpError<B> {
    /// What went wrong.
    #[source]
    pub error: Error,
    /// The buffer; its contents are undefined. `None` while a peer might still touch it.
    ///
    /// What a borrowed slice holds after an error depends on how it was lent: unchanged where an operation is awaited, which
    /// has worked on a copy; undefined after a function of [`blocking`](crate::blocking), which has worked on the slice.
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
    use std::time::Duration;

    use super::*;
    use crate::element::{DType, ReduceOp};

    #[test]
    fn the_error_is_found_whatever_the_buffer_is() {
        let error = Error::Closed { communicator: "world".into() };
        let boxed: Box<dyn std::error::Error> = Box::new(OpError { error, buffer: Some(vec![1u8]) });
        let found = boxed.source().and_then(|source| source.downcast_ref::<Error>());
        assert!(matches!(found, Some(Error::Closed { .. })));
        assert!(matches!(Error::from(InitError::Config("no".into())), Error::Init(_)));
    }

    #[test]
    fn what_the_system_says_is_told_once() {
        let error = InitError::Io { what: "reading".into(), error: std::io::Error::other("no") };
        assert_eq!(error.to_string(), "reading: no");
        assert!(std::error::Error::source(&error).is_none());
    }

    #[test]
    fn what_main_prints_is_a_sentence() {
        let init = InitError::Lost { who: "rank 1".into(), phase: "set-up".into(), reason: "reset".into() };
        assert_eq!(
            format!("{init:?}"),
            "rank 1 went away during set-up: reset (see what its own output says)"
        );
        assert_eq!(
            format!("{:?}", Error::from(init)),
            "rank 1 went away during set-up: reset (see what its own output says)"
        );
        let error = Error::Protocol { rank: Rank(1), problem: "a frame of 0 bytes".into() };
        assert_eq!(format!("{error:?}"), error.to_string());
        let failed = OpError { error: error.clone(), buffer: None::<()> };
        assert_eq!(format!("{failed:?}"), format!("{error} [buffer kept]"));
        assert_eq!(failed.to_string(), "an operation failed because of rank 1; its buffer is not given back");
    }

    /// Of those that say what is wrong in their own words, whoever makes them says what to do as well.
    #[test]
    fn what_is_wrong_in_set_up_comes_with_what_to_do() {
        let text = String::new;
        let (rank, peer, address, reason) = (Rank(1), text(), text(), text());
        let hints = [
            (InitError::Environment { message: "set RANK".into(), seen: text() }, "set RANK"),
            (InitError::Config("give a port".into()), "give a port"),
            (
                InitError::MissingRanks {
                    root: text(),
                    missing: vec![rank],
                    present: text(),
                    waited: Duration::ZERO,
                    refused: "1 connection was turned away".into(),
                },
                "turned away; see whether the missing were started",
            ),
            (
                InitError::DuplicateRank { rank, first: text(), second: text() },
                "give each process a rank of its own",
            ),
            (
                InitError::DuplicateDevice {
                    device: 1,
                    host: text(),
                    first: Rank(0),
                    second: rank,
                    first_process: "10.0.0.1:5 (host a, pid 3)".into(),
                    second_process: "10.0.0.1:6 (host a, pid 4)".into(),
                },
                "at 10.0.0.1:6 (host a, pid 4); give each rank of a host another",
            ),
            (InitError::WorldSize { claims: text() }, "give all the same number of ranks"),
            (
                InitError::FactsDiffer { key: text(), values: text() },
                "run the same program with the same settings",
            ),
            (
                InitError::Version { ours: 1, theirs: 2, peer: peer.clone() },
                "run the same version of hcomm on all",
            ),
            (InitError::Authentication { peer, reason: reason.clone() }, "give all ranks the same token"),
            (
                InitError::Unreachable {
                    from: rank,
                    to: text(),
                    address,
                    reason: "is a firewall in between?".into(),
                },
                "is a firewall in between?",
            ),
            (InitError::Lost { who: text(), phase: text(), reason }, "see what its own output says"),
            (
                InitError::Limit { what: text(), needed: 1, available: 0, hint: "raise it".into() },
                "; raise it",
            ),
        ];
        for (error, hint) in hints {
            assert!(error.to_string().contains(hint), "{error}");
        }
    }

    /// Of a message nobody else has a result.
    #[test]
    fn what_was_given_up_here_may_be_done_elsewhere() {
        let late = |operation: &str| {
            let late = vec![Rank(1)];
            let report = Report { operation: operation.into(), late, ..Report::default() };
            Error::Deadline(Box::new(report)).to_string()
        };
        let aborted = |operation: &str| Error::Aborted {
            operation: operation.into(),
            seq: Seq(1),
            communicator: "world".into(),
            by: Rank(1),
            cause: "cancelled".into(),
        };
        for (operation, suffix) in [
            ("all_reduce", "; other ranks may have its result"),
            ("barrier", "; other ranks may have passed it"),
            ("recv(4 × f32, peer 1, tag 7)", ""),
            ("send", ""),
            ("recv_from(4 × f32, any tag)", ""),
            ("matched_probe(peer 1, tag 7)", ""),
            ("close", ""),
        ] {
            for text in [late(operation), aborted(operation).to_string()] {
                assert_eq!(
                    text.split_once("; ").map_or("", |(_, told)| told),
                    suffix.trim_start_matches("; ")
                );
            }
        }
    }

    #[test]
    fn a_deadline_tells_what_links_to_late_ranks_have_sent_again() {
        let link = |rank, retransmissions| LinkReport {
            rank: Rank(rank),
            kind: LinkKind::Tcp,
            state: LinkState::Ready,
            address: "host".into(),
            sent_bytes: 1,
            received_bytes: 1,
            pulled_bytes: 0,
            sent_frames: 1,
            received_frames: 1,
            retransmissions,
            rtt_us: 100,
            best_bytes_per_s: 0,
            state_age: Duration::ZERO,
            reason: String::new(),
        };
        let late = vec![Rank(1), Rank(2)];
        let links = vec![link(1, 0), link(2, 17), link(3, 5)];
        let report = Report { operation: "barrier".into(), late, links, ..Report::default() };
        let text = Error::Deadline(Box::new(report)).to_string();
        assert!(
            text.ends_with(
                "ranks 1, 2; the link to rank 2 has sent 17 segments again; other ranks may have passed it"
            ),
            "{text}"
        );
    }

    #[test]
    fn an_error_says_whom_it_blames_and_whether_the_communicator_is_of_use() {
        let (operation, seq): (Arc<str>, _) = ("".into(), Seq(1));
        let (communicator, host): (Arc<str>, Arc<str>) = ("".into(), "".into());
        let late = Report { late: vec![Rank(3)], ..Report::default() };
        let lost = Error::PeerLost {
            operation: operation.clone(),
            seq,
            communicator: communicator.clone(),
            rank: Rank(1),
            host: host.clone(),
            cause: "".into(),
        };
        let cause = lost.to_string().into();
        let failed = Error::Failed { communicator: "x".into(), lost: Some(Rank(1)), cause };
        let left = Error::Left {
            operation: operation.clone(),
            seq,
            communicator: communicator.clone(),
            rank: Rank(2),
            host,
        };
        let mismatch = Error::Mismatch { operation, seq, communicator, calls: Vec::new() };
        for (error, blamed, is_fatal) in [
            (Error::Deadline(Box::new(late)), &[Rank(3)][..], false),
            (lost, &[Rank(1)], true),
            (failed, &[Rank(1)], true),
            (left, &[Rank(2)], true),
            (mismatch, &[], false),
            (Error::KeyInUse { communicator: "x".into(), key: "y".into() }, &[], false),
            (Error::Init(Arc::new(InitError::Config("no".into()))), &[], true),
        ] {
            assert_eq!((error.blamed(), error.is_fatal()), (blamed, is_fatal), "{error}");
            assert_eq!(error.is_deadline(), matches!(error, Error::Deadline(_)));
        }
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
            plan: 5,
            counts: None,
        };
        let pinned = [1, b'x', 0, 0xac, 2, 1, 3, 1, 1, 0, 1, b'y', 5, 0];
        assert_eq!(postcard::to_stdvec(&call).unwrap(), pinned);
        let dtypes = DType::ALL.iter().map(|dtype| postcard::to_stdvec(dtype).unwrap()[0]);
        assert!(dtypes.eq(0..DType::ALL.len() as u8));
        let reductions = ReduceOp::ALL.iter().map(|op| postcard::to_stdvec(op).unwrap()[0]);
        assert!(reductions.eq(0..ReduceOp::ALL.len() as u8));
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
            (12, InitError::SharedMemory { first: Rank(0), second: Rank(1), reason: String::new() }),
        ];
        for (number, error) in init {
            let bytes = postcard::to_stdvec(&error).unwrap();
            assert_eq!(bytes[0], number, "{error:?}");
            let arrived: InitError = postcard::from_bytes(&bytes).unwrap();
            assert_eq!(arrived.to_string(), error.to_string());
        }
    }
}
