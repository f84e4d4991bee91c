//! Hosts, the edges between them, and what is on its way.
//!
//! Nothing happens by itself: whoever runs the world asks when the next event is due and lets it happen. What is decided
//! by chance is drawn from one seed, and everything runs on one thread, so that a seed stands for a schedule.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::random::{Random, scramble};
use super::stream::{Change, Next, Packet, Segment, Stream, What};
use crate::link::Class;
use crate::link::frame::{HEADER_BYTES, Header};
use crate::runtime::clock::Clock;

/// A reordered datagram is late by up to this many times the longest delay of its edge.
const OVERTAKEN_BY: u32 = 4;
/// A frame's payload from this size on may leave and arrive in parts.
const PART_MIN: usize = 1024;
/// How often it does.
const PART_CHANCE: f64 = 0.125;
/// When the next part follows.
const PART_AFTER: Duration = Duration::from_micros(300);
/// The shortest time until a frame is sent again: more than a fast network takes to answer.
const RETRY_MIN: Duration = Duration::from_millis(20);

/// How the network behaves.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    pub delay: Range<Duration>,
    /// Edges with a delay of their own, one way each.
    pub edges: Vec<(usize, usize, Range<Duration>)>,
    /// Probabilities, for each datagram.
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
}

/// A network and its hosts, one rank on each.
#[derive(Debug)]
pub(crate) struct Fabric {
    inner: Mutex<Inner>,
    /// Who is woken when something has come for a rank.
    wakers: Vec<OnceLock<Waker>>,
    clock: Clock,
    ranks: usize,
}

#[derive(Debug)]
struct Inner {
    random: Random,
    weather: Weather,
    edges: Vec<Edge>,
    hosts: Vec<Host>,
    streams: Vec<Stream>,
    events: BinaryHeap<Event>,
    scheduled: u64,
    /// Ranks that are to be woken.
    called: Vec<usize>,
    killed: Vec<usize>,
    begun: Instant,
    trace: u64,
}

#[derive(Debug)]
struct Edge {
    delay: Range<Duration>,
    /// The last arrival in order.
    last: Instant,
}

#[derive(Debug)]
struct Host {
    /// Its process runs.
    alive: bool,
    /// It sends and receives.
    up: bool,
    /// Hosts on different sides do not reach each other.
    side: u32,
    resumes: Option<Instant>,
    /// Streams with news that the engine has not collected.
    news: Vec<usize>,
}

#[derive(Debug)]
struct Event {
    at: Instant,
    order: u64,
    stream: usize,
    what: Happening,
}

#[derive(Debug)]
enum Happening {
    /// A datagram comes to the stream, with its header as it is on the wire.
    Arrival(Packet, Option<[u8; HEADER_BYTES]>),
    /// The stream looks at its time.
    Alarm,
    /// The next part may leave (0) or arrive (1).
    Part(usize),
}

impl Ord for Event {
    /// The earliest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

/// What the world's runner has to know before each step.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// The next event.
    pub due: Option<Instant>,
    /// Ranks whose process has ended since the last look.
    pub killed: Vec<usize>,
}

impl Fabric {
    pub(crate) fn new(ranks: usize, seed: u64, weather: Weather) -> Arc<Self> {
        let clock = Clock::SIMULATED;
        let now = clock.now();
        let edge = |index: usize| {
            let (from, to) = (index / ranks, index % ranks);
            let own = weather.edges.iter().rev().find(|(of, at, _)| (*of, *at) == (from, to));
            Edge { delay: own.map_or(&weather.delay, |(.., delay)| delay).clone(), last: now }
        };
        let edges: Vec<Edge> = (0..ranks * ranks).map(edge).collect();
        let longest = edges.iter().map(|edge| edge.delay.end).max().unwrap_or_default();
        let retry = RETRY_MIN.max(longest * 3);
        let host = |_| Host { alive: true, up: true, side: 0, resumes: None, news: Vec::new() };
        let mut inner = Inner {
            random: Random::new(seed),
            weather,
            edges,
            hosts: (0..ranks).map(host).collect(),
            streams: (0..ranks * ranks * 2).map(|_| Stream::new(retry, now)).collect(),
            events: BinaryHeap::new(),
            scheduled: 0,
            called: Vec::new(),
            killed: Vec::new(),
            begun: now,
            trace: seed,
        };
        // A connection is probed from its beginning on, whether it is ever used or not.
        (0..ranks * ranks * 2)
            .filter(|line| line / 2 / ranks != line / 2 % ranks)
            .for_each(|line| inner.arm(line));
        let wakers = (0..ranks).map(|_| OnceLock::new()).collect();
        Arc::new(Fabric { inner: Mutex::new(inner), wakers, clock, ranks })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is woken when something has come for `rank`.
    pub(crate) fn attach(&self, rank: usize, waker: Waker) {
        let _ = self.wakers[rank].set(waker);
    }

    /// Wakers are called without the lock.
    fn unlock_and_wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let called = std::mem::take(&mut inner.called);
        drop(inner);
        for rank in called {
            if let Some(waker) = self.wakers[rank].get() {
                waker.wake_by_ref();
            }
        }
    }

    /// The stream of a rank to a peer.
    pub(crate) fn line(&self, rank: usize, peer: usize, class: Class) -> usize {
        (rank * self.ranks + peer) * 2 + class as usize
    }

    // --- for whoever runs the world

    pub(crate) fn agenda(&self) -> Agenda {
        let mut inner = self.inner();
        let due = inner.events.peek().map(|event| event.at);
        Agenda { due, killed: std::mem::take(&mut inner.killed) }
    }

    /// Lets the next event happen, if it is due.
    pub(crate) fn step(&self, now: Instant) {
        let mut inner = self.inner();
        if inner.events.peek().is_some_and(|event| event.at <= now)
            && let Some(event) = inner.events.pop()
        {
            inner.happen(event, now, self.ranks);
        }
        self.unlock_and_wake(inner);
    }

    /// Notes something that happened elsewhere, so that it counts in the trace.
    pub(crate) fn note(&self, what: u64) {
        self.inner().mark(what);
    }

    /// Stands for all that has happened so far, in its order.
    pub(crate) fn trace(&self) -> u64 {
        self.inner().trace
    }

    pub(crate) fn elapsed(&self) -> Duration {
        let begun = self.inner().begun;
        self.clock.now().saturating_duration_since(begun)
    }

    /// The process of a rank ends, and its system closes what it had open; or its host vanishes.
    pub(crate) fn kill(&self, rank: usize, silently: bool) {
        let now = self.clock.now();
        let mut inner = self.inner();
        if !std::mem::replace(&mut inner.hosts[rank].alive, false) {
            return;
        }
        inner.killed.push(rank);
        inner.mark(2 << 32 | rank as u64);
        if silently {
            inner.hosts[rank].up = false;
            return;
        }
        for line in rank * self.ranks * 2..(rank + 1) * self.ranks * 2 {
            if !self.is_own(line) {
                inner.close(line, now, self.ranks);
            }
        }
    }

    fn is_own(&self, line: usize) -> bool {
        let pair = line / 2;
        pair / self.ranks == pair % self.ranks
    }

    pub(crate) fn is_alive(&self, rank: usize) -> bool {
        self.inner().hosts[rank].alive
    }

    /// These ranks do not reach the others any more.
    pub(crate) fn partition(&self, ranks: &[usize]) {
        let mut inner = self.inner();
        inner.mark(3 << 32);
        let side = inner.hosts.iter().map(|host| host.side).max().unwrap_or(0) + 1;
        for rank in ranks {
            inner.hosts[*rank].side = side;
        }
    }

    /// All reach each other again.
    pub(crate) fn heal(&self) {
        let mut inner = self.inner();
        inner.mark(4 << 32);
        inner.hosts.iter_mut().for_each(|host| host.side = 0);
    }

    /// The process of a rank stands still for a time; its system goes on.
    pub(crate) fn pause(&self, rank: usize, time: Duration) {
        let until = self.clock.now() + time;
        let mut inner = self.inner();
        inner.mark(5 << 32 | rank as u64);
        let resumes = &mut inner.hosts[rank].resumes;
        *resumes = Some(resumes.map_or(until, |known| known.max(until)));
    }

    /// Until when the process of a rank stands still.
    pub(crate) fn paused(&self, rank: usize, now: Instant) -> Option<Instant> {
        let mut inner = self.inner();
        let resumes = &mut inner.hosts[rank].resumes;
        *resumes = resumes.filter(|at| *at > now);
        *resumes
    }

    // --- for engines

    /// Takes what happened to a rank's streams since the last call: `found(peer, class, readable, writable)`.
    pub(crate) fn collect(&self, rank: usize, mut found: impl FnMut(usize, Class, bool, bool)) {
        let mut inner = self.inner();
        while let Some(line) = inner.hosts[rank].news.pop() {
            let Change { readable, writable } = std::mem::take(&mut inner.streams[line].news);
            let class = if line & 1 == 0 { Class::Fast } else { Class::Bulk };
            found(line / 2 % self.ranks, class, readable, writable);
        }
    }

    /// Whether anything has happened that was not collected.
    pub(crate) fn has_news(&self, rank: usize) -> bool {
        !self.inner().hosts[rank].news.is_empty()
    }

    /// How many of `wanted` bytes of a frame's payload may leave, at least one if any; `None` for "not now".
    pub(super) fn room(&self, line: usize, wanted: usize) -> Result<Option<usize>, String> {
        let now = self.clock.now();
        let mut inner = self.inner();
        if !inner.streams[line].has_room()? {
            return Ok(None);
        }
        Ok(inner.part(line, 0, wanted, now))
    }

    /// How many of `wanted` bytes of a frame's payload are there to be read; `None` for "not yet".
    pub(super) fn arrived(&self, line: usize, wanted: usize) -> Option<usize> {
        let now = self.clock.now();
        let mut inner = self.inner();
        // What came before the end is there.
        if inner.streams[line].is_over() { Some(wanted) } else { inner.part(line, 1, wanted, now) }
    }

    pub(super) fn send(&self, line: usize, header: Header, payload: Vec<u8>) {
        let now = self.clock.now();
        let mut inner = self.inner();
        inner.send(line, Segment::Frame(header, Arc::new(payload)), now, self.ranks);
        self.unlock_and_wake(inner);
    }

    pub(super) fn next(&self, line: usize) -> Next {
        self.inner().streams[line].next()
    }

    pub(super) fn delivered(&self, line: usize) -> u32 {
        self.inner().streams[line].delivered()
    }

    /// Nothing more will be written.
    pub(super) fn finish(&self, line: usize) {
        let now = self.clock.now();
        self.inner().send(line, Segment::Fin, now, self.ranks);
    }

    pub(super) fn close(&self, line: usize) {
        let now = self.clock.now();
        self.inner().close(line, now, self.ranks);
    }
}

impl Inner {
    fn mark(&mut self, what: u64) {
        self.trace = scramble(self.trace ^ what).wrapping_add(0x9e37_79b9_7f4a_7c15);
    }

    fn schedule(&mut self, at: Instant, stream: usize, what: Happening) {
        self.scheduled += 1;
        self.events.push(Event { at, order: self.scheduled, stream, what });
    }

    /// A part of what is wanted, now and then; the rest follows.
    fn part(&mut self, line: usize, way: usize, wanted: usize, now: Instant) -> Option<usize> {
        if self.streams[line].halted[way] {
            return None;
        }
        if wanted < PART_MIN || !self.random.chance(PART_CHANCE) {
            return Some(wanted);
        }
        self.streams[line].halted[way] = true;
        self.schedule(now + PART_AFTER, line, Happening::Part(way));
        Some(1 + self.random.below(wanted - 1))
    }

    fn send(&mut self, line: usize, segment: Segment, now: Instant, ranks: usize) {
        if let Some(packet) = self.streams[line].send(segment, now) {
            self.transmit(line, packet, now, ranks);
        }
        self.arm(line);
    }

    fn close(&mut self, line: usize, now: Instant, ranks: usize) {
        if let Some(packet) = self.streams[line].close(now) {
            self.transmit(line, packet, now, ranks);
        }
        self.arm(line);
    }

    /// One event per stream stands for its next alarm: one that comes too early is put off, one that would come too late
    /// is overtaken by another.
    fn arm(&mut self, line: usize) {
        let stream = &mut self.streams[line];
        if let Some(due) = stream.due()
            && stream.armed.is_none_or(|armed| due < armed)
        {
            stream.armed = Some(due);
            self.schedule(due, line, Happening::Alarm);
        }
    }

    /// A datagram leaves for the other end of a stream, or gets lost.
    fn transmit(&mut self, line: usize, packet: Packet, now: Instant, ranks: usize) {
        let (from, to) = (line / 2 / ranks, line / 2 % ranks);
        if !self.hosts[from].up || self.hosts[from].side != self.hosts[to].side {
            return;
        }
        if self.random.chance(self.weather.loss) {
            return;
        }
        let bytes = match &packet.what {
            What::Segment(Segment::Frame(header, _)) => {
                let mut header = *header;
                header.frame = packet.number;
                header.acknowledged = packet.acknowledged;
                Some(header.encode())
            }
            _ => None,
        };
        let other = (to * ranks + from) * 2 + (line & 1);
        let twice = self.random.chance(self.weather.duplicate);
        for _ in 0..1 + u32::from(twice) {
            let overtaken = self.random.chance(self.weather.reorder);
            let edge = &mut self.edges[from * ranks + to];
            let mut at = now + self.random.within(&edge.delay);
            if overtaken {
                at += self.random.within(&(Duration::ZERO..edge.delay.end * OVERTAKEN_BY));
            } else {
                at = at.max(edge.last);
                edge.last = at;
            }
            self.schedule(at, other, Happening::Arrival(packet.clone(), bytes));
        }
    }

    fn happen(&mut self, event: Event, now: Instant, ranks: usize) {
        let Event { at, stream: line, what, .. } = event;
        let kind = match &what {
            Happening::Arrival(packet, _) => u64::from(packet.number) << 3,
            Happening::Alarm => 1,
            Happening::Part(way) => 2 + *way as u64,
        };
        self.mark((at - self.begun).as_nanos() as u64 ^ (line as u64) << 40 ^ kind << 52);
        let mut leaving = Vec::new();
        let stream = &mut self.streams[line];
        let change = match what {
            Happening::Arrival(packet, bytes) => {
                let (to, from) = (line / 2 / ranks, line / 2 % ranks);
                if !self.hosts[to].up || self.hosts[from].side != self.hosts[to].side {
                    return;
                }
                let Some(packet) = unwrap(packet, bytes) else { return };
                stream.receive(packet, now, &mut leaving)
            }
            Happening::Alarm => {
                if stream.armed != Some(at) {
                    return;
                }
                stream.armed = None;
                stream.fire(now, &mut leaving)
            }
            Happening::Part(way) => {
                stream.halted[way] = false;
                Change { readable: way == 1, writable: way == 0 }
            }
        };
        for packet in leaving {
            self.transmit(line, packet, now, ranks);
        }
        self.arm(line);
        self.tell(line, change, ranks);
    }

    /// Lets the engine know what has become possible.
    fn tell(&mut self, line: usize, change: Change, ranks: usize) {
        if !change.readable && !change.writable {
            return;
        }
        let rank = line / 2 / ranks;
        let news = &mut self.streams[line].news;
        news.readable |= change.readable;
        news.writable |= change.writable;
        let host = &mut self.hosts[rank];
        if !host.news.contains(&line) {
            host.news.push(line);
        }
        self.called.push(rank);
    }
}

/// A frame is what its bytes on the wire say.
fn unwrap(mut packet: Packet, bytes: Option<[u8; HEADER_BYTES]>) -> Option<Packet> {
    if let Some(bytes) = bytes
        && let What::Segment(Segment::Frame(header, _)) = &mut packet.what
    {
        // A datagram that is none of ours is dropped.
        *header = Header::decode(&bytes).ok()?;
        packet.number = header.frame;
        packet.acknowledged = header.acknowledged;
    }
    Some(packet)
}
