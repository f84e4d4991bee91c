//! A communicator, as the engine sees it: numbers, members, what came early and what is remembered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::board::Board;
use super::call::{Op, Request, Take, Work, mix};
use super::direct::Standing;
use super::due::Holds;
pub(crate) use super::family::Family;
use super::fifos::Fifos;
use super::history::{History, Past};
use super::io::Io;
use super::matching::Matching;
use super::point::{Point, Side};
use super::rebuild::Rebuild;
use super::status::Status;
use super::tombs::Tombs;
use super::trouble::Cause;
use crate::error::{CallInfo, Error};
use crate::link::RunKey;
use crate::link::frame::{EAGER, Header};
use crate::link::memory::Lease;
use crate::rank::{Rank, Seq};

/// Frames of one rank kept for numbers not called yet. Payload among them is bounded by the eager budget already.
pub(super) const STASH_MAX: usize = 65_536;

#[derive(Debug)]
pub(crate) struct Channel {
    pub id: u64,
    pub name: Arc<str>,
    /// World rank of each rank.
    pub members: Arc<[u32]>,
    pub rank: usize,
    /// If it is for a key of another communicator.
    pub family: Option<Family>,
    /// The communicators that it was made from, by identifier.
    pub lineage: Arc<[u64]>,
    pub holds: Holds,
    /// Number that the next collective will have.
    pub called: u64,
    pub inflight: VecDeque<(u64, RunKey)>,
    /// Operations of any kind in flight.
    pub live: usize,
    /// Collectives that wait for room to begin, in order, and since when.
    pub delayed: VecDeque<(Arc<Op>, Request, Instant)>,
    /// How many collectives may be in flight at once, and who waits until one more may.
    pub admission: usize,
    pub awaiting_admission: Vec<RunKey>,
    /// By the number that they are for.
    stash: Fifos<u64, Stashed>,
    /// How many of these are of each rank.
    stashed: Vec<usize>,
    pub(super) tombs: Tombs,
    history: History,
    /// Why nothing can be done on it any more.
    pub failed: Option<Error>,
    /// Some caller has been told who is lost: from then on, calls are told that it failed.
    pub failure_told: bool,
    /// Collectives from this number on wait until nothing is under way any more.
    pub settles: Option<u64>,
    /// Its handle is gone; it closes once nothing is in flight.
    pub closing: bool,
    /// It will not be used again, as its communicator if it is for a key, or as the thread that has it panics; it closes once
    /// nothing is in flight, and keeps its place as long as somebody has it.
    pub winding_up: bool,
    /// The others have been told that it will not be used again.
    pub parted: bool,
    /// Per rank, this one among them: whether it has begun to close it, and so sends no more messages, and begins to receive none.
    pub leaving: Vec<bool>,
    /// A contradiction that came after its operation had ended: told with the next one.
    pub late: Option<Error>,
    /// Per rank, once all it sent has come: the first number that it will not call.
    pub closed: Vec<Option<u64>>,
    /// Per rank, whether it closed because its thread panicked; of this one, whether it does.
    pub panicked: Vec<bool>,
    /// On how many of its connections each rank has said so.
    pub closes: Vec<u8>,
    /// What each rank called last, as it said when it closed.
    pub parting: Vec<Vec<(u64, CallInfo)>>,
    pub statuses: Vec<Option<(Instant, Status)>>,
    pub matching: Vec<Matching>,
    pub board: Board,
    pub rebuild: Rebuild,
    pub standing: Standing,
}

/// A frame for a number that was not called yet.
#[derive(Debug)]
pub(crate) struct Stashed {
    pub from: usize,
    pub header: Header,
    pub kept: Kept,
}

#[derive(Debug)]
pub(crate) enum Kept {
    Frame(Vec<u8>),
    Lease(Arc<Lease>),
}

impl Stashed {
    pub(crate) fn bytes(&self) -> usize {
        match &self.kept {
            Kept::Frame(bytes) => bytes.len(),
            Kept::Lease(_) => 0,
        }
    }

    /// Nobody will ask for it: its eager budget goes back to the rank of the world that sent it.
    pub(crate) fn discard(self, world: usize, io: &mut Io) {
        if let Kept::Frame(bytes) = self.kept {
            if self.header.flags & EAGER != 0 {
                io.discard_eager(world, bytes);
            } else {
                io.recycle(bytes);
            }
        }
    }
}

impl Channel {
    pub(crate) fn new(id: u64, name: Arc<str>, members: Arc<[u32]>, rank: usize) -> Self {
        let ranks = members.len();
        Channel {
            id,
            name,
            members,
            rank,
            family: None,
            lineage: Arc::default(),
            holds: Holds::new(ranks),
            called: 0,
            inflight: VecDeque::new(),
            admission: usize::MAX,
            awaiting_admission: Vec::new(),
            live: 0,
            delayed: VecDeque::new(),
            stash: Fifos::default(),
            stashed: vec![0; ranks],
            tombs: Tombs::default(),
            history: History::default(),
            failed: None,
            failure_told: false,
            settles: None,
            closing: false,
            winding_up: false,
            parted: false,
            leaving: vec![false; ranks],
            late: None,
            closed: vec![None; ranks],
            panicked: vec![false; ranks],
            closes: vec![0; ranks],
            parting: vec![Vec::new(); ranks],
            statuses: (0..ranks).map(|_| None).collect(),
            matching: (0..ranks).map(|_| Matching::default()).collect(),
            board: Board::new(ranks),
            rebuild: Rebuild::new(ranks),
            standing: Standing::default(),
        }
    }

    /// The identifiers of this communicator and of those that it was made from.
    pub(super) fn line(&self) -> impl Iterator<Item = u64> {
        self.lineage.iter().copied().chain([self.id])
    }

    /// Rank in this communicator of a world rank.
    pub(crate) fn rank_of(&self, world: usize) -> Option<usize> {
        // Members are few or, in large worlds, mostly the identity.
        if self.members.get(world) == Some(&(world as u32)) {
            return Some(world);
        }
        self.members.iter().position(|member| *member as usize == world)
    }

    pub(crate) fn flight(&self, seq: u64) -> Option<RunKey> {
        self.inflight.iter().find(|(of, _)| *of == seq).map(|(_, key)| *key)
    }

    /// Whether a collective would begin at once, as far as their number goes.
    pub(super) fn admits(&self) -> bool {
        self.inflight.len() + self.delayed.len() < self.admission
    }

    /// One is in flight no more: mostly one of the first.
    pub(super) fn landed(&mut self, key: RunKey) {
        if let Some(at) = self.inflight.iter().position(|(_, of)| *of == key) {
            self.inflight.remove(at);
        }
    }

    /// The place of a number among those that wait to begin, which follow each other.
    pub(super) fn delayed_at(&self, seq: u64) -> Option<usize> {
        let (_, first, _) = self.delayed.front()?;
        let at = usize::try_from(seq.checked_sub(first.seq)?).ok()?;
        self.delayed.get(at).filter(|(_, request, _)| request.seq == seq).map(|_| at)
    }

    pub(super) fn is_to_settle(&self, seq: u64) -> bool {
        self.settles.is_some_and(|from| seq >= from)
    }

    /// The lowest number that is not over here.
    pub(crate) fn oldest(&self) -> u64 {
        let flying = self.inflight.iter().map(|(seq, _)| *seq);
        flying.chain(self.delayed.front().map(|(_, request, _)| request.seq)).min().unwrap_or(self.called)
    }

    pub(crate) fn called(&mut self, request: &Request) {
        self.called = self.called.max(request.seq + 1);
        self.history.push(request.seq, request.desc, request.cut());
    }

    /// The last calls made here, to be told when this rank leaves.
    pub(crate) fn last_calls(&self) -> Vec<(u64, CallInfo)> {
        /// More than can be in question: others are as far back as what this rank has sent ahead lets them be.
        const LAST: usize = 16;
        self.history.last(LAST).collect()
    }

    /// What ranks that have closed it had called under this number, as far as they said.
    pub(super) fn parting_calls(&self, seq: u64) -> impl Iterator<Item = (usize, &CallInfo)> {
        let last = self.parting.iter().enumerate();
        last.filter_map(move |(rank, last)| Some((rank, &last.iter().find(|(of, _)| *of == seq)?.1)))
    }

    pub(crate) fn past_call(&mut self, seq: u64) -> Option<&mut Past> {
        self.history.find(seq)
    }

    /// The caller of this number learns that it failed.
    pub(crate) fn told(&mut self, seq: u64) {
        if let Some(past) = self.past_call(seq) {
            past.told = true;
        }
    }

    pub(crate) fn keep(&mut self, stashed: Stashed) -> Result<(), String> {
        let of = &mut self.stashed[stashed.from];
        if *of >= STASH_MAX {
            return Err("too many frames for operations that were not called".into());
        }
        *of += 1;
        self.stash.push([stashed.header.number], stashed);
        Ok(())
    }

    /// The next frame kept for a number, in the order of arrival.
    pub(crate) fn unkeep(&mut self, seq: u64) -> Option<Stashed> {
        let stashed = self.stash.pop(seq)?;
        self.stashed[stashed.from] -= 1;
        Some(stashed)
    }

    /// Whether a rank sends no more messages.
    pub(crate) fn is_silent(&self, rank: usize) -> bool {
        self.leaving[rank] || self.closed[rank].is_some()
    }

    /// Drops every trace of a message between two ranks whose operation has ended.
    pub(crate) fn forget_point(&mut self, key: RunKey, point: &Point) {
        if let Some(place) = point.known.place {
            self.board.forget(key, place);
        }
        if matches!(point.take, Take::Look | Take::Claim) {
            self.board.watchers.retain(|watcher| watcher.key != key);
        }
        if point.peer == Some(self.rank) && matches!(point.side, Side::Send { .. }) {
            self.board.forget_claimed(key);
        }
        if let (Some(peer), Some(number)) = (point.peer, point.known.number) {
            self.matching[peer].forget(key, number);
        }
    }

    /// Payload bytes kept for calls that were not made yet.
    pub(crate) fn kept_bytes(&self) -> usize {
        let stash: usize = self.stash.iter().map(Stashed::bytes).sum();
        stash + self.board.kept_bytes()
    }

    /// Bytes of its records: what it has for each rank, and the calls that it remembers. What is kept for calls to come is
    /// counted by itself.
    pub(crate) fn record_bytes(&self) -> usize {
        let of_ranks = allocated(&self.stashed)
            + allocated(&self.leaving)
            + allocated(&self.closed)
            + allocated(&self.panicked)
            + allocated(&self.closes)
            + allocated(&self.parting)
            + allocated(&self.statuses)
            + allocated(&self.matching);
        let names = size_of_val(&*self.members) + size_of_val(&*self.lineage) + self.name.len();
        let inflight = self.inflight.capacity() * size_of::<(u64, RunKey)>();
        size_of::<Channel>() + names + of_ranks + inflight + self.history.bytes()
    }

    /// All frames kept for numbers that will not be called any more.
    pub(crate) fn take_kept(&mut self) -> impl Iterator<Item = Stashed> + use<> {
        self.stashed.fill(0);
        self.stash.take()
    }

    /// Whether the outcome of a number that has not begun is known, so that what comes for it is of no use.
    pub(crate) fn is_buried(&self, seq: u64) -> bool {
        let given_up = |at: usize| matches!(self.delayed[at].1.work, Work::GivenUp);
        self.delayed_at(seq).is_some_and(given_up) || self.tombs.has(seq)
    }

    /// Nothing is known that the next call would have to take into account.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_blameless() && self.stash.is_empty() && self.delayed.is_empty() && self.settles.is_none()
    }

    /// Nothing is known that a caller would have to be told.
    pub(crate) fn is_blameless(&self) -> bool {
        self.failed.is_none() && self.late.is_none() && self.tombs.is_empty()
    }

    /// What a caller is told once it has failed: first who is lost, then that it can't be used.
    pub(crate) fn failure(&mut self, request: &Request) -> Option<Error> {
        let failed = self.failed.clone()?;
        if matches!(failed, Error::Closed { .. }) {
            return Some(failed);
        }
        if std::mem::replace(&mut self.failure_told, true) {
            let lost = failed.blamed().first().copied();
            let communicator = self.name.clone();
            // Which call would have met it first says nothing about this one.
            let cause = match failed {
                Error::PeerLost { rank, host, cause, .. } => {
                    format!("rank {rank} ({host}) is lost: {cause}").into()
                }
                Error::Left { rank, host, .. } => format!("rank {rank} ({host}) has left").into(),
                other => other.to_string().into(),
            };
            return Some(Error::Failed { communicator, lost, cause });
        }
        Some(met_by(failed, request.desc.operation, request.seq))
    }

    /// What the caller of a number is told that `by` has given up.
    pub(crate) fn aborted(&self, request: &Request, by: usize, cause: Cause) -> Error {
        let operation = request.desc.operation.into();
        if let Cause::Departed { rank, host } = cause {
            let communicator = self.name.clone();
            let host = host.into();
            return Error::Left { operation, seq: Seq(request.seq), communicator, rank, host };
        }
        let cause = cause.to_string().into();
        Error::Aborted {
            operation,
            seq: Seq(request.seq),
            communicator: self.name.clone(),
            by: Rank(by as u32),
            cause,
        }
    }

    pub(crate) fn mismatch(&self, operation: &str, seq: u64, calls: &[(usize, CallInfo)]) -> Error {
        let mut calls: Vec<_> = calls.iter().map(|(rank, call)| (Rank(*rank as u32), call.clone())).collect();
        calls.sort_by_key(|(rank, _)| *rank);
        Error::Mismatch { operation: operation.into(), seq: Seq(seq), communicator: self.name.clone(), calls }
    }
}

/// Bytes that a list has for itself.
fn allocated<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

/// Equal on all members, different for every split (number of the call and color) and every epoch (number and members):
/// these, scrambled with the parent's.
pub(crate) fn channel_id(parent: u64, words: &[u64]) -> u64 {
    let mut id = parent;
    for word in words {
        id = mix(id ^ word.wrapping_add(0x51_7c_c1_b7_27_22_0a_95));
    }
    id | 1
}

/// The failure of a communicator, as the call is told that meets it.
pub(super) fn met_by(mut failed: Error, call: &str, number: u64) -> Error {
    if let Error::PeerLost { operation, seq, .. } | Error::Left { operation, seq, .. } = &mut failed {
        *operation = call.into();
        *seq = Seq(number);
    }
    failed
}
