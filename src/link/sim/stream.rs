//! One end of a reliable, ordered connection over datagrams: what the system does for a TCP socket.
//!
//! Frames are numbered by the `frame` of their header and acknowledged, all before a number together, by `acknowledged`.
//! The first frame without an acknowledgement is sent again after a time that doubles. Frames that came early are kept in
//! a window, others dropped. Nothing acknowledged for 20 s, or no answer to ten probes, ends the connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::link::frame::Header;

/// Bytes that left the engine and are not acknowledged at most; one frame more may begin before.
const SEND_BYTES: usize = 256 << 10;
/// Frames likewise, so that small ones meet a bound as well.
const SEND_FRAMES: usize = 64;
/// Frames that came early are kept up to this far ahead: a sender has no more on its way.
const WINDOW: u32 = SEND_FRAMES as u32 + 1;
/// Frames that an engine has not read at most; more are dropped, and come again.
const UNREAD_FRAMES: usize = 256;
/// The time until a frame is sent again stops doubling here, so that a healed network is used soon.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// As for TCP: data without acknowledgement for this long means that the host has vanished.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// As for TCP: when an idle connection is probed, how often, and how many probes stay without answer.
const KEEPALIVE: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBES: u32 = 10;

/// A frame, or the end of a direction.
#[derive(Clone, Debug)]
pub(super) enum Segment {
    Frame(Header, Arc<Vec<u8>>),
    Fin,
}

/// What travels.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub number: u32,
    /// All before this number have come.
    pub acknowledged: u32,
    pub what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Segment(Segment),
    /// `full`: what came was dropped for want of room.
    Acknowledge {
        full: bool,
    },
    /// Asks for an answer.
    Probe,
    /// The connection does not exist any more.
    Reset,
}

/// What the engine finds when it reads.
#[derive(Debug)]
pub(super) enum Next {
    Frame(Header, Arc<Vec<u8>>),
    Nothing,
    /// The peer closed in order.
    End,
    Broken(String),
}

/// What has become possible for the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Change {
    pub readable: bool,
    pub writable: bool,
}

#[derive(Debug)]
pub(super) struct Stream {
    /// Sent and not acknowledged, from number `oldest` on.
    flying: VecDeque<Segment>,
    flying_bytes: usize,
    oldest: u32,
    retry_first: Duration,
    retry_after: Duration,
    retry_at: Option<Instant>,
    stalled_since: Instant,
    ending: bool,
    wants_room: bool,
    expected: u32,
    early: BTreeMap<u32, Segment>,
    unread: VecDeque<Segment>,
    heard: Instant,
    probes: u32,
    broken: Option<String>,
    /// The engine has let go of it: what comes is refused.
    closed: bool,
    /// Time of the event that will call [`fire`](Self::fire), if there is one.
    pub armed: Option<Instant>,
    /// What happened that the engine has not collected.
    pub news: Change,
    /// The engine was given a part only and gets the next one later.
    pub halted: [bool; 2],
}

impl Stream {
    pub(super) fn new(retry_first: Duration, now: Instant) -> Self {
        Stream {
            flying: VecDeque::new(),
            flying_bytes: 0,
            oldest: 0,
            retry_first,
            retry_after: retry_first,
            retry_at: None,
            stalled_since: now,
            ending: false,
            wants_room: false,
            expected: 0,
            early: BTreeMap::new(),
            unread: VecDeque::new(),
            heard: now,
            probes: 0,
            broken: None,
            closed: false,
            armed: None,
            news: Change { readable: false, writable: true },
            halted: [false; 2],
        }
    }

    /// Whether a frame may begin to leave.
    pub(super) fn has_room(&mut self) -> Result<bool, String> {
        if let Some(cause) = &self.broken {
            return Err(cause.clone());
        }
        let room = self.flying.len() < SEND_FRAMES && self.flying_bytes < SEND_BYTES;
        self.wants_room |= !room;
        Ok(room)
    }

    /// Takes the next segment; gives what leaves.
    pub(super) fn send(&mut self, segment: Segment, now: Instant) -> Option<Packet> {
        if self.broken.is_some() || self.ending {
            return None;
        }
        self.ending = matches!(segment, Segment::Fin);
        if self.flying.is_empty() {
            self.retry_at = Some(now + self.retry_after);
            self.stalled_since = now;
        }
        let number = self.oldest.wrapping_add(self.flying.len() as u32);
        self.flying_bytes += bytes(&segment);
        self.flying.push_back(segment.clone());
        Some(self.packet(number, What::Segment(segment)))
    }

    fn packet(&self, number: u32, what: What) -> Packet {
        Packet { number, acknowledged: self.expected, what }
    }

    pub(super) fn next(&mut self) -> Next {
        match self.unread.front() {
            Some(Segment::Frame(..)) => {}
            // The end stays to be seen again.
            Some(Segment::Fin) => return Next::End,
            None => return self.broken.clone().map_or(Next::Nothing, Next::Broken),
        }
        match self.unread.pop_front() {
            Some(Segment::Frame(header, payload)) => Next::Frame(header, payload),
            _ => Next::Nothing,
        }
    }

    /// How many segments the peer's system has taken.
    pub(super) fn delivered(&self) -> u32 {
        self.oldest
    }

    /// Whether reading will give no more than what has come.
    pub(super) fn is_over(&self) -> bool {
        self.broken.is_some() || matches!(self.unread.back(), Some(Segment::Fin))
    }

    /// The engine lets go of both directions. What it has sent still arrives; what it has not read makes a reset.
    pub(super) fn close(&mut self, now: Instant) -> Option<Packet> {
        if std::mem::replace(&mut self.closed, true) || self.broken.is_some() {
            return None;
        }
        let unread = self.unread.iter().any(|segment| matches!(segment, Segment::Frame(..)));
        if unread || !self.early.is_empty() {
            return Some(self.reset());
        }
        self.send(Segment::Fin, now)
    }

    fn reset(&mut self) -> Packet {
        self.fail("it was closed here");
        self.packet(0, What::Reset)
    }

    fn fail(&mut self, cause: &str) {
        self.broken.get_or_insert_with(|| cause.into());
        self.flying.clear();
        self.flying_bytes = 0;
        self.early.clear();
        self.retry_at = None;
    }

    /// A datagram has come. `answers`: what is sent for it.
    pub(super) fn receive(&mut self, packet: Packet, now: Instant, answers: &mut Vec<Packet>) -> Change {
        if self.broken.is_some() {
            // Who does not know yet that it is over asks, and is told.
            if self.closed && matches!(packet.what, What::Segment(_) | What::Probe) {
                answers.push(self.packet(0, What::Reset));
            }
            return Change::default();
        }
        self.heard = now;
        self.probes = 0;
        let mut change = Change { readable: false, writable: self.acknowledged(packet.acknowledged, now) };
        match packet.what {
            What::Acknowledge { full } => {
                if full {
                    // It lives; it only does not read.
                    self.stalled_since = now;
                }
            }
            What::Probe => answers.push(self.packet(0, What::Acknowledge { full: false })),
            What::Reset => {
                self.fail("connection reset by peer");
                change = Change { readable: true, writable: true };
            }
            // One that had come already is acknowledged once more.
            What::Segment(Segment::Frame(..))
                if self.closed && packet.number.wrapping_sub(self.expected) < WINDOW =>
            {
                answers.push(self.reset());
            }
            What::Segment(segment) => {
                let full = self.unread.len() >= UNREAD_FRAMES;
                if !full && packet.number.wrapping_sub(self.expected) < WINDOW {
                    self.early.entry(packet.number).or_insert(segment);
                    change.readable = self.order();
                }
                answers.push(self.packet(0, What::Acknowledge { full }));
            }
        }
        change
    }

    /// Puts what came early into its place. Says whether the engine can read more.
    fn order(&mut self) -> bool {
        let before = self.unread.len();
        while let Some(segment) = self.early.remove(&self.expected) {
            self.expected = self.expected.wrapping_add(1);
            self.unread.push_back(segment);
        }
        self.unread.len() > before
    }

    /// The peer has all before `number`. Says whether that lets the engine write again.
    fn acknowledged(&mut self, number: u32, now: Instant) -> bool {
        let count = number.wrapping_sub(self.oldest) as usize;
        // Older acknowledgements are overtaken ones.
        if count == 0 || count > self.flying.len() {
            return false;
        }
        for segment in self.flying.drain(..count) {
            self.flying_bytes -= bytes(&segment);
        }
        self.oldest = number;
        self.retry_after = self.retry_first;
        self.retry_at = (!self.flying.is_empty()).then(|| now + self.retry_after);
        self.stalled_since = now;
        let room = self.flying.len() < SEND_FRAMES && self.flying_bytes < SEND_BYTES;
        room && std::mem::take(&mut self.wants_room)
    }

    /// When time brings something about here.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.broken.is_some() || self.closed && self.flying.is_empty() {
            return None;
        }
        let probe = self.heard + KEEPALIVE + PROBE_EVERY * self.probes;
        Some(self.retry_at.map_or(probe, |retry| retry.min(probe)))
    }

    /// Does what is due.
    pub(super) fn fire(&mut self, now: Instant, leaving: &mut Vec<Packet>) -> Change {
        if self.due().is_none_or(|due| now < due) {
            return Change::default();
        }
        let stalled = !self.flying.is_empty() && now - self.stalled_since >= USER_TIMEOUT;
        let probe_due = now >= self.heard + KEEPALIVE + PROBE_EVERY * self.probes;
        if stalled || probe_due && self.probes == PROBES {
            self.fail("connection timed out");
            return Change { readable: true, writable: true };
        }
        if self.retry_at.is_some_and(|at| now >= at)
            && let Some(segment) = self.flying.front().cloned()
        {
            leaving.push(self.packet(self.oldest, What::Segment(segment)));
            self.retry_after = (self.retry_after * 2).min(RETRY_MAX.max(self.retry_first));
            self.retry_at = Some(now + self.retry_after);
        }
        if probe_due {
            self.probes += 1;
            leaving.push(self.packet(0, What::Probe));
        }
        Change::default()
    }
}

fn bytes(segment: &Segment) -> usize {
    match segment {
        Segment::Frame(_, payload) => payload.len(),
        Segment::Fin => 0,
    }
}
