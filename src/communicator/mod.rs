//! [`Communicator`]: ranks that do things together, and the futures of what they do.
//!
//! - `builder`: how processes become one
//! - `calls`: collectives in one buffer, `into`: from one buffer to another; `view`: options for a call, `collectives`: its plan
//! - `unequal`: of parts of which each rank knows its own
//! - `neighbors`: between each rank and those that it names
//! - `point`: send and recv by (peer, tag); `messages`: receives and looks that leave one of both open; `incoming`: messages as a stream
//! - `contributions`: the first of many messages, reduced: for those who don't wait for stragglers; `parameters`: held by one,
//!   pulled and pushed by others, as stale as they allow
//! - `prepared`: a collective agreed once and run often
//! - `split`: communicators made from communicators, `create`: from groups
//! - `hosts`: which ranks are on one host, and a communicator of them
//! - `rebuild`: a communicator made anew after a failure, and the states it can be in
//! - `keyed`: streams of calls beside a communicator's own
//! - `links`: what is known about the links to other ranks
//! - `scheduling`: what is urgent, what can wait, and how often which moved
//! - `resources`: what a rank uses, and the limit that it keeps to
//! - `scope`: limits that operations inherit from what they are called for, and operations that end with it
//! - `admission`: how many collectives are in flight, and waiting until one more may be
//! - `observing`: what a rank has done last
//! - `suspend`: pauses in which no deadline passes
//! - `close`: leaving in order
//! - `operation`: the future of all of these
//! - `blocking`: the same on a thread that waits
//! - `local`: ranks in one process

mod admission;
mod alloc;
pub mod blocking;
mod builder;
mod calls;
mod close;
mod collectives;
mod contributions;
mod create;
mod hosts;
mod incoming;
mod into;
mod keyed;
mod links;
mod local;
mod messages;
mod neighbors;
mod observing;
mod operation;
mod parameters;
mod point;
mod prepared;
mod rebuild;
mod resources;
mod scheduling;
mod scope;
mod split;
mod suspend;
mod unequal;
mod view;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::buffer::lend::{Lend, Lent, Staging};
use crate::domain::Phase;
use crate::engine::channel::Channel;
use crate::engine::{CallDesc, Engine, Priority, Request, Work};
use crate::error::Error;
use crate::path::{Facts, PlanCache};
use crate::rank::Rank;

pub use admission::Ready;
pub use builder::{Builder, Connect};
pub use close::Close;
pub use contributions::{Contributions, ReduceFirst, Reduced};
pub use incoming::Incoming;
pub use keyed::Keyed;
#[cfg(feature = "testing")]
pub(crate) use local::run;
pub use messages::{MatchedProbe, Message, Probe, Receive, Received, Source, Status, Tags};
pub use neighbors::{Neighborhood, Neighbors};
pub use operation::Operation;
pub use parameters::{Parameters, Pulled, ServedParameters, Update};
pub use point::SendRecv;
pub use prepared::Prepared;
pub use rebuild::{Rebuild, State};
pub use resources::Resources;
pub use scheduling::SchedulerStats;
pub use scope::{CancelOnDrop, until, within};
pub use split::{Dup, Split};
pub use suspend::SuspendedDeadlines;
pub use unequal::{ScatterV, Scattered};
pub use view::View;

/// How long an operation may take unless it is told otherwise.
const OPERATION_DEADLINE: Duration = Duration::from_secs(300);

/// A group of ranks with an order of calls of its own.
///
/// Collectives are called by *all* ranks, in the same order, with equal arguments; they take `&mut self` and a number
/// at the call, whichever way their futures are polled. Operations begin at the call. What ranks call is compared:
/// a contradiction is an error on all of them, never a hang and never wrong data. What is not compared is what the program means
/// by a call: of one that failed by its deadline or was given up, some ranks may have the result and others the error. So
/// [agree on where to go on](Error#after-an-error-that-is-not-fatal) before a step is tried again, or sums are of
/// different steps.
///
/// The first call of a shape (a collective on so many ranks by one algorithm) takes longer than those that follow: its
/// plan is built and proved then, once for all ranks and communicators of its world in this process, on the thread that
/// calls. [`prepare_all_reduce`](Self::prepare_all_reduce) and [`explain`](Self::explain) do that ahead of time.
///
/// Once a rank is lost it has failed, and its operations with it; [`state`](Self::state) says so, and
/// [`rebuild`](Self::rebuild) makes it anew among the ranks that are left, who may differ by the call in which it failed.
///
/// Dropping a communicator closes it once its operations have ended, but for receives that nobody awaits and no message has
/// come for; the others see that this rank has left. Where it is dropped because its thread panics, they are told of a lost
/// rank ([`Error::PeerLost`]), and its operations end.
pub struct Communicator {
    engine: Arc<Engine>,
    channel: usize,
    id: u64,
    /// Of this object, in this process: other ranks and other worlds have others, where `id` may be equal.
    identity: u64,
    name: Arc<str>,
    /// The communicators that it was made from, by `id`.
    lineage: Arc<[u64]>,
    members: Arc<[u32]>,
    rank: usize,
    /// Number of the next collective, and of the next point-to-point call.
    next: u64,
    points: AtomicU64,
    facts: Facts,
    deadline: Duration,
    plans: Arc<Mutex<PlanCache>>,
    programs: Vec<collectives::Known>,
    staging: Staging,
    phases: Arc<[(Phase, Duration)]>,
    /// How often it was rebuilt, and whether its successor was made.
    epoch: u64,
    succession: Arc<rebuild::Succession>,
    /// Where it was rebuilt: what its ranks were before.
    former: Vec<Rank>,
    keys: Arc<keyed::Keys>,
    /// What its key adds to fingerprints, if it is the stream of one; else 0.
    key_word: u64,
}

impl Communicator {
    pub(crate) fn open(
        engine: Arc<Engine>,
        id: u64,
        name: Arc<str>,
        members: Arc<[u32]>,
        rank: usize,
        facts: Facts,
        plans: Arc<Mutex<PlanCache>>,
    ) -> Self {
        Self::open_channel(engine, Channel::new(id, name, members, rank), facts, plans)
    }

    fn open_channel(
        engine: Arc<Engine>,
        channel: Channel,
        facts: Facts,
        plans: Arc<Mutex<PlanCache>>,
    ) -> Self {
        let (id, name, members, rank) =
            (channel.id, channel.name.clone(), channel.members.clone(), channel.rank);
        let lineage = channel.lineage.clone();
        let facts = facts.sharing(engine.all_share(&members));
        let channel = engine.open(channel);
        let staging = Staging(engine.pool().clone());
        Communicator {
            engine,
            channel,
            id,
            identity: next_identity(),
            name,
            lineage,
            members,
            rank,
            next: 0,
            points: AtomicU64::new(0),
            facts,
            deadline: OPERATION_DEADLINE,
            plans,
            programs: Vec::new(),
            staging,
            phases: Arc::new([]),
            epoch: 0,
            succession: Arc::default(),
            former: Vec::new(),
            keys: Arc::default(),
            key_word: 0,
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        Rank(self.rank as u32)
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Its name in errors and reports: "world", or what it was split from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long operations may take from now on; 300 s at first. Expiry is an error that names who is late.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// How long operations may take.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// How long each phase of set-up took; empty for ranks of one process and for what was split. One that was rebuilt has
    /// those of its predecessor.
    pub fn phases(&self) -> &[(Phase, Duration)] {
        &self.phases
    }

    /// Writes a report of every operation that fails, for deadline, contradiction or a lost rank, to the end of this
    /// file: what waited for whom, what each rank was last known to do, and the counters of its links. Each rank writes
    /// a line of its own; `hcomm why FILE` puts those of all ranks together and tells one story. Between processes
    /// the file in `HCOMM_REPORT`, if it is set, is taken without this call, before ranks meet; ranks made by
    /// [`local`](Self::local) don't look at it.
    ///
    /// The file is made if need be, opened at the call, and kept open. It is that of the rank and of all that is split
    /// from it, for good. If a report can't be written later, as on a full disk, a `tracing` warning says so.
    ///
    /// # Errors
    ///
    /// If the file can't be opened; [`AlreadyExists`](std::io::ErrorKind::AlreadyExists) if reports go to another one
    /// already.
    pub fn report_to(&self, path: impl Into<PathBuf>) -> Result<(), std::io::Error> {
        self.engine.report_to(path.into())
    }

    fn submit_lent<B: Lend>(
        &self,
        seq: u64,
        desc: CallDesc,
        work: Result<Work, Error>,
        lent: Lent,
        guard: B::Guard,
    ) -> Operation<B> {
        self.submit_as::<B>(Priority::Normal, seq, desc, desc.digest(), work, lent, guard)
    }

    #[allow(clippy::too_many_arguments)]
    fn submit_as<B: Lend>(
        &self,
        priority: Priority,
        seq: u64,
        desc: CallDesc,
        digest: u64,
        work: Result<Work, Error>,
        lent: Lent,
        guard: B::Guard,
    ) -> Operation<B> {
        self.submit_within::<B>(self.deadline, priority, seq, desc, digest, work, lent, guard)
    }

    #[allow(clippy::too_many_arguments)]
    fn submit_within<B: Lend>(
        &self,
        deadline: Duration,
        priority: Priority,
        seq: u64,
        desc: CallDesc,
        digest: u64,
        work: Result<Work, Error>,
        lent: Lent,
        guard: B::Guard,
    ) -> Operation<B> {
        let work = work.unwrap_or_else(|error| Work::Refuse(Box::new(error)));
        let left = scope::left(|| self.engine.now());
        let deadline = left.map_or(deadline, |left| deadline.min(left));
        let (channel, parts) = (self.channel, lent.0);
        let request = Request { channel, seq, digest, desc, work, parts, deadline, priority };
        let span = self.span(seq, &desc);
        let call = {
            let _entered = span.as_ref().map(|span| span.enter());
            self.engine.submit(request)
        };
        Operation::new(self.engine.clone(), call, guard, left, span)
    }

    /// Of one call, for who traces at level debug.
    fn span(&self, seq: u64, desc: &CallDesc) -> Option<Box<tracing::Span>> {
        let span = tracing::debug_span!(
            "operation",
            operation = desc.operation,
            seq,
            communicator = &*self.name,
            rank = self.rank,
            count = desc.count,
            dtype = desc.dtype.name(),
            algorithm = desc.algorithm,
            error = tracing::field::Empty,
        );
        (!span.is_disabled()).then(|| Box::new(span))
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Communicator");
        shown.field("name", &self.name).field("rank", &self.rank).field("size", &self.size());
        shown.finish_non_exhaustive()
    }
}

/// Different for every communicator that this process ever has.
fn next_identity() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Before its keys go: they share its fate.
            self.engine.abandon(self.channel);
        }
        self.keys.close();
        self.engine.close(self.channel);
    }
}
