//! The flight recorder: the last operations of an engine, kept whether anybody asks or not.
//!
//! It belongs to who has the turn, as all of the engine's state: whoever looks waits for a turn to end, as for
//! [`Resources`](crate::Resources), and nobody who waits for a rank holds one. An entry is written where the last but so
//! many was, so nothing is allocated; its memory is the system's until it is written to the first time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::record::{OperationRecord, Outcome, Priority};
use crate::element::{DType, ReduceOp};
use crate::rank::{Rank, Seq, Tag};

/// Operations kept, a power of two: steps of a training program for some seconds, in 200 KiB.
const KEPT: usize = 2048;
/// Names of communicators kept beside those in use: not gone through more often than once per so many new ones.
const NAMES_SPARE: usize = 64;
/// No time.
const NEVER: u64 = u64::MAX;

/// What is kept of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub operation: &'static str,
    pub algorithm: &'static str,
    /// Identifier of the communicator.
    pub channel: u64,
    pub seq: u64,
    pub count: u64,
    /// Root, or the other rank of a message.
    pub root: Option<Rank>,
    pub tag: Option<Tag>,
    pub is_message: bool,
    pub dtype: DType,
    pub op: Option<ReduceOp>,
    pub priority: Priority,
}

/// One operation. Times are nanoseconds from the recorder's beginning.
#[derive(Clone, Copy, Debug)]
struct Entry {
    call: Call,
    outcome: Outcome,
    called: u64,
    begun: u64,
    ended: u64,
}

#[derive(Debug)]
struct Name {
    name: Arc<str>,
    rank: Rank,
    is_open: bool,
}

/// The last operations.
#[derive(Debug)]
pub(crate) struct Recorder {
    origin: Instant,
    /// The latest time that was given: none goes back.
    latest: u64,
    ring: Vec<Entry>,
    /// Operations recorded so far.
    count: u64,
    /// When the operation was called that begins next, if that was before.
    waited_since: Option<Instant>,
    /// Of communicators that are open, or that entries are of.
    names: HashMap<u64, Name>,
    /// So many names at least, before those of no use are looked for again.
    names_due: usize,
}

impl Recorder {
    pub(crate) fn new(origin: Instant) -> Recorder {
        Recorder {
            origin,
            latest: 0,
            ring: Vec::with_capacity(KEPT),
            count: 0,
            waited_since: None,
            names: HashMap::new(),
            names_due: NAMES_SPARE,
        }
    }

    /// Bytes that it takes at most.
    pub(crate) fn bytes(&self) -> usize {
        self.ring.capacity() * size_of::<Entry>() + self.names.capacity() * size_of::<(u64, Name)>()
    }

    /// Nanoseconds from its beginning.
    #[inline]
    pub(crate) fn since(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin);
        since.as_secs().wrapping_mul(1_000_000_000).wrapping_add(since.subsec_nanos().into())
    }

    /// Under which name operations on a communicator are told.
    pub(crate) fn open(&mut self, channel: u64, name: Arc<str>, rank: Rank) {
        if self.names.len() >= self.names_due {
            let ring = &self.ring;
            self.names.retain(|id, name| name.is_open || ring.iter().any(|entry| entry.call.channel == *id));
            self.names_due = 2 * self.names.len() + NAMES_SPARE;
        }
        self.names.insert(channel, Name { name, rank, is_open: true });
    }

    pub(crate) fn close(&mut self, channel: u64) {
        if let Some(name) = self.names.get_mut(&channel) {
            name.is_open = false;
        }
    }

    /// The operation that begins next was called then.
    pub(crate) fn has_waited(&mut self, since: Instant) {
        self.waited_since = Some(since);
    }

    /// An operation begins. Says by which number it [`end`](Self::end)s.
    #[inline]
    pub(crate) fn begin(&mut self, call: Call, at: Instant) -> u64 {
        let begun = self.latest.max(self.since(at));
        self.latest = begun;
        let called = match self.waited_since.take() {
            None => begun,
            Some(since) => self.since(since),
        };
        self.push(Entry { call, outcome: Outcome::InFlight, called, begun, ended: NEVER })
    }

    /// One is over before its call returns, so many nanoseconds from the beginning, or about then.
    #[inline]
    pub(crate) fn over(&mut self, call: Call, at: u64) {
        let at = self.latest.max(at);
        self.latest = at;
        self.push(Entry { call, outcome: Outcome::Ok, called: at, begun: at, ended: at });
    }

    /// One ends that has not begun.
    pub(crate) fn never_began(&mut self, call: Call, called: Instant, at: Instant, outcome: Outcome) {
        let (called, ended) = (self.since(called), self.since(at));
        self.push(Entry { call, outcome, called, begun: NEVER, ended });
    }

    #[inline]
    fn push(&mut self, entry: Entry) -> u64 {
        let number = self.count;
        self.count += 1;
        match self.ring.get_mut(number as usize % KEPT) {
            Some(oldest) => *oldest = entry,
            None => self.ring.push(entry),
        }
        number
    }

    /// One that began has ended; nothing is kept of it if very many have begun since.
    #[inline]
    pub(crate) fn end(&mut self, number: u64, at: Instant, outcome: Outcome) -> Option<&mut Call> {
        let ended = self.latest.max(self.since(at));
        self.latest = ended;
        if !self.has(number) {
            return None;
        }
        let entry = self.ring.get_mut(number as usize % KEPT)?;
        (entry.ended, entry.outcome) = (ended, outcome);
        Some(&mut entry.call)
    }

    /// Whether it is one of the last.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.count.saturating_sub(number) <= KEPT as u64
    }

    /// All that are kept, and others that are in flight or wait to begin, with when they were called and begun; by when they were
    /// called.
    pub(crate) fn told(
        &self,
        others: impl Iterator<Item = (Call, Instant, Option<Instant>)>,
        now: Instant,
    ) -> Vec<OperationRecord> {
        let others = others.map(|(call, called, begun)| {
            let (called, begun) = (self.since(called), begun.map_or(NEVER, |at| self.since(at)));
            Entry { call, outcome: Outcome::InFlight, called, begun, ended: NEVER }
        });
        let mut entries: Vec<Entry> = self.ring.iter().copied().chain(others).collect();
        entries.sort_by_key(|entry| entry.called);
        let now = self.latest.max(self.since(now));
        entries.into_iter().map(|entry| self.tell(entry, now)).collect()
    }

    fn tell(&self, entry: Entry, now: u64) -> OperationRecord {
        let Entry { call, outcome, called, begun, ended } = entry;
        let name = self.names.get(&call.channel);
        let time = |at: u64| (at != NEVER).then_some(Duration::from_nanos(at));
        let (root, peer) = if call.is_message { (None, call.root) } else { (call.root, None) };
        OperationRecord {
            communicator: name.map(|name| name.name.to_string()).unwrap_or_default(),
            communicator_id: call.channel,
            rank: name.map_or(Rank(0), |name| name.rank),
            operation: call.operation.into(),
            seq: Seq(call.seq),
            dtype: call.dtype,
            count: call.count,
            op: call.op,
            root,
            peer,
            tag: call.tag,
            algorithm: call.algorithm.into(),
            priority: call.priority,
            called: Duration::from_nanos(called),
            begun: time(begun),
            ended: time(ended),
            age: Duration::from_nanos(now.saturating_sub(called)),
            outcome,
        }
    }
}
