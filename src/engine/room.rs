//! How much memory a rank uses beyond its callers' buffers, and how it is kept within the limit.
//!
//! The limit (`HCOMM_MEMORY`) is cut into shares: half for what operations in flight work in (scratch areas of plans,
//! windows of reductions), a quarter for small messages that peers send ahead, a quarter for free blocks kept for reuse.
//!
//! A collective sets aside what it may need at most when it begins. Where that is more than there is, it waits until
//! others have ended; those called later on its communicator wait behind it, so that numbers begin in order. What comes
//! for it meanwhile is kept like what comes before a call.
//!
//! So it is with what others have to keep for it: a rank may be ahead of another by as many operations as it likes, but those
//! in flight leave no more frames there than an honest rank may.
//!
//! Why this can't deadlock: where nothing of a communicator is in flight, its next collective begins whatever the share
//! says. So on every rank the lowest number that is not over has begun, or begins once those before it are over; it
//! waits only for the same number on other ranks, never for room. The limit can be exceeded by the need of one operation
//! per communicator.

use std::sync::Arc;
use std::time::Instant;

use super::call::{Op, Request, Work};
use super::channel::STASH_MAX;
use super::io::{EAGER_MAX, EAGER_OVERHEAD, EAGER_WINDOW, Via};
use super::run::WINDOW;
use super::spaces::Spaces;
use super::state::State;
use crate::buffer::parts::Sizes;
use crate::buffer::pool::Pool;

/// Memory per process beyond the users' buffers, if nothing else is said: little beside a model, and enough to keep a
/// fast network busy.
pub(crate) const MEMORY: usize = 64 << 20;

/// The limit, in shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub limit: usize,
}

impl Memory {
    /// For what operations in flight work in.
    pub(crate) fn working(self) -> usize {
        self.limit / 2
    }

    /// For free blocks.
    pub(crate) fn pooled(self) -> usize {
        self.limit / 4
    }

    /// For memory shared with processes of this host, beside the limit.
    pub(crate) fn lanes(self) -> usize {
        self.limit / 4
    }

    /// Eager bytes that each of `peers` may send ahead.
    pub(crate) fn eager_window(self, peers: usize) -> usize {
        (self.limit / 4 / peers.max(1)).clamp(EAGER_MAX + EAGER_OVERHEAD, EAGER_WINDOW)
    }

    /// What a world of so many peers needs at least: one small message from each.
    pub(crate) fn least(peers: usize) -> usize {
        4 * peers.max(1) * (EAGER_MAX + EAGER_OVERHEAD)
    }
}

/// Figures of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub working: usize,
    pub kept: usize,
    pub queued: usize,
    pub descriptors: usize,
    /// Bytes of the memory that other processes read frames from.
    pub lanes: usize,
    pub operations: usize,
    pub delayed: usize,
    pub communicators: usize,
    pub keys: usize,
    /// Bytes of the records of both.
    pub records: usize,
    /// Bytes of the flight recorder.
    pub recorder: usize,
}

/// Frames that operations in flight may leave with one peer at most, before he has called any of them: half of what he
/// keeps. The rest is for small messages of operations that are over here, which the eager budget bounds.
const FRAMES_MAX: usize = STASH_MAX / 2;
/// Every operation counts so many, so that no more than 512 are in flight: they are searched, and looked at in turn.
const FRAMES_LEAST: usize = FRAMES_MAX / 512;

/// What one operation may need at most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    bytes: usize,
    /// Frames that a peer keeps for it until he calls.
    frames: usize,
}

/// What operations in flight have set aside.
#[derive(Debug)]
pub(crate) struct Room {
    share: usize,
    used: Need,
    /// Collectives that wait to begin.
    pub(super) delayed: usize,
    /// When the first of them is due; `None` where that is not known.
    pub(super) due: Option<Instant>,
}

impl Room {
    pub(crate) fn new(pool: &Pool) -> Self {
        Room {
            share: Memory { limit: pool.memory_limit() }.working(),
            used: Need::default(),
            delayed: 0,
            due: None,
        }
    }

    /// Whether any collective waits to begin.
    pub(super) fn is_short(&self) -> bool {
        self.delayed > 0
    }

    fn has(&self, need: Need) -> bool {
        self.used.bytes + need.bytes <= self.share && self.used.frames + need.frames <= FRAMES_MAX
    }

    pub(crate) fn release(&mut self, need: Need) {
        self.used.bytes -= need.bytes;
        self.used.frames -= need.frames;
    }
}

impl State {
    /// What a collective may need at most.
    fn need(&self, request: &Request) -> Need {
        let Work::Collective(program) = &request.work else { return Need::default() };
        let spaces = Spaces::new(program, &request.desc, &request.parts);
        let bytes = request.desc.bytes();
        // Of each message, how long it is may come as well.
        let frames = match request.parts.sizes() {
            Some(Sizes::Told | Sizes::Learned) => 2,
            Some(Sizes::Agreed) | None => 1,
        };
        let windows = if self.io.hub.is_some() { 0 } else { program.windows };
        Need {
            bytes: program.scratch.iter().map(|span| spaces.bytes(*span)).sum::<usize>()
                + windows * bytes.min(WINDOW),
            frames: (program.messages * frames).max(FRAMES_LEAST),
        }
    }

    /// Sets aside what a collective may need; or lets it wait, and says so.
    pub(super) fn delays(&mut self, op: &Arc<Op>, request: &mut Request) -> bool {
        let need = self.need(request);
        let unsettled = self.is_unsettled(request.channel, request.seq);
        let Some(channel) = self.channels[request.channel].as_mut() else { return false };
        let idle = channel.inflight.is_empty();
        if !unsettled && channel.delayed.is_empty() && channel.admits() && (idle || self.room.has(need)) {
            return false;
        }
        channel.delayed.push_back((op.clone(), request.take(), self.now));
        self.room.delayed += 1;
        self.review_last(request.channel);
        true
    }

    pub(super) fn set_aside(&mut self, request: &Request) -> Need {
        let need = self.need(request);
        self.room.used.bytes += need.bytes;
        self.room.used.frames += need.frames;
        need
    }

    /// Begins collectives that have waited for room, as far as there is some. Says whether any began.
    pub(super) fn admit_delayed(&mut self) -> bool {
        let mut any = false;
        if self.room.delayed == 0 {
            return any;
        }
        for index in 0..self.channels.len() {
            while let Some((op, mut request)) = self.next_delayed(index) {
                any = true;
                self.begin(op, &mut request);
            }
            self.admit_callers(index);
            if any {
                // One that failed at once may have been the last before its end.
                self.close_idle(index);
            }
        }
        any
    }

    /// The next of a communicator, if there is room for it.
    fn next_delayed(&mut self, index: usize) -> Option<(Arc<Op>, Request)> {
        let channel = self.channels[index].as_ref()?;
        let (_, request, _) = channel.delayed.front()?;
        let full = || {
            channel.inflight.len() >= channel.admission
                || !channel.inflight.is_empty() && !self.room.has(self.need(request))
        };
        let given_up = matches!(request.work, Work::GivenUp);
        if !given_up && (self.is_unsettled(index, request.seq) || full()) {
            return None;
        }
        let now = self.now;
        let channel = self.channels[index].as_mut()?;
        let (op, mut request, since) = channel.delayed.pop_front()?;
        self.room.delayed -= 1;
        self.recorder.has_waited(since);
        // Its deadline counts from the call, so that it ends when those before it have ended, and soon.
        let deadline = op.take_limit().unwrap_or(request.deadline);
        request.deadline = deadline.saturating_sub(channel.holds.counted(since, now));
        Some((op, request))
    }

    /// All of a communicator that wait: they will not begin.
    pub(super) fn take_delayed(&mut self, index: usize) -> Vec<(Arc<Op>, Request, Instant)> {
        let Some(channel) = self.channels[index].as_mut() else { return Vec::new() };
        self.room.delayed -= channel.delayed.len();
        channel.delayed.drain(..).collect()
    }

    pub(crate) fn usage(&self) -> Usage {
        let kept: usize = self.channels.iter().flatten().map(|channel| channel.kept_bytes()).sum();
        let keys = self.channels.iter().flatten().filter(|channel| channel.family.is_some()).count();
        Usage {
            working: self.room.used.bytes,
            kept: kept + self.orphan_bytes(),
            queued: self.io.queued_bytes(),
            descriptors: 2 * self.io.peers.iter().filter(|peer| peer.via == Via::Stream).count()
                + self.io.bells(),
            lanes: self.io.lane_bytes(),
            operations: self.live,
            delayed: self.room.delayed,
            communicators: self.channels.iter().flatten().count() - keys,
            keys,
            records: self.channels.iter().flatten().map(|channel| channel.record_bytes()).sum(),
            recorder: self.recorder.bytes(),
        }
    }
}
