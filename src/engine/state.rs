//! All that is in flight, and how it starts and ends. No system calls: frames go out through [`Io`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::{Op, Outcome, Request, Work};
use super::channel::{Channel, Kept, Stashed};
use super::closed::Closed;
use super::direct::{self, Direct, Part};
use super::exchange::{self, Exchange};
use super::head::Head;
use super::io::Io;
use super::links::SAMPLE_BYTES;
use super::meet::Meetings;
use super::order::Order;
use super::peer::{Peer, Standing};
use super::point::Point;
use super::program::Program;
use super::rebuild::Waiting;
use super::room::{Need, Room};
use super::run::{Recycled, Run};
use crate::buffer::parts::Parts;
use crate::buffer::pool::Block;
use crate::error::{CallInfo, Error, Report};
use crate::link::RunKey;
use crate::link::frame::Payload;
use crate::link::memory::Lease;
use crate::observe::Recorder;
use crate::runtime::clock::exact_ns;

/// An operation that waits this long tells the others where it is.
pub(crate) const STALL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct State {
    pub io: Io,
    pub channels: Vec<Option<Channel>>,
    ids: HashMap<u64, usize>,
    /// Where the last call was: most frames that come are for it.
    pub(super) recent: usize,
    flights: Vec<Slot>,
    free: Vec<u32>,
    /// Operations to be looked at in this turn, and in every turn.
    pub(super) touched: Vec<RunKey>,
    pub(super) polled: Vec<RunKey>,
    /// Operations that wait for room on a connection.
    crowded: Vec<RunKey>,
    /// Operations that could go on, and let others have their turn first.
    pub(super) unfinished: Vec<RunKey>,
    /// Who moves first, and who waits for that.
    pub(super) order: Order,
    pub(super) recycled: Vec<Recycled>,
    pub(super) exchanged: Vec<exchange::Kept>,
    pub(super) directed: Vec<direct::Kept>,
    pub(super) meetings: Meetings,
    /// Ended, but links may still know their memory.
    pub ended: Vec<Ended>,
    /// Wakers are called by whoever holds no lock.
    pub woken: Vec<Arc<Op>>,
    /// A large operation has ended.
    pub large: bool,
    pub(super) orphans: Vec<(usize, Stashed)>,
    /// Peers that broke the protocol in what they had sent before: their connections are to be closed.
    pub offenders: Vec<usize>,
    pub(super) closed: Closed,
    pub peers: Vec<Peer>,
    pub now: Instant,
    pub live: usize,
    /// Of these, exchanges.
    pub(super) exchanging: usize,
    pub room: Room,
    /// What went wrong, to be written where the user says.
    pub reports: Vec<(Arc<[u32]>, Report)>,
    /// Some have not been told yet whose deadlines this rank holds.
    pub(super) untold_holds: bool,
    /// When the user's program last polled anything here; and whether it has since, at a time that nobody has looked at.
    pub polled_at: Instant,
    pub(super) polled_since: bool,
    /// When those who sleep in an await were last called to see whether they come.
    pub(super) called_at: Option<Instant>,
    /// The last operations; and its beginning on the clock that the coarse one lags behind.
    pub(super) recorder: Recorder,
    pub(super) coarse_origin: u64,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    flight: Option<Flight>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(crate) enum Flight {
    Collective(Run),
    Exchange(Exchange),
    Direct(Direct),
    Point(Point),
    Rebuild(Waiting),
}

/// An operation that did not go well: links must forget its memory before its owner gets it back.
#[derive(Debug)]
pub(crate) struct Ended {
    pub op: Arc<Op>,
    /// If it had begun.
    pub key: Option<RunKey>,
    pub outcome: Outcome,
    /// Staging memory that links may still know.
    pub blocks: Vec<Block>,
    pub windows: Option<exchange::Kept>,
}

impl State {
    pub(crate) fn new(io: Io, labels: Vec<String>, now: Instant) -> Self {
        State {
            room: Room::new(&io.pool),
            io,
            channels: Vec::new(),
            ids: HashMap::new(),
            recent: 0,
            flights: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            polled: Vec::new(),
            crowded: Vec::new(),
            unfinished: Vec::new(),
            order: Order::default(),
            recycled: Vec::new(),
            exchanged: Vec::new(),
            directed: Vec::new(),
            meetings: Meetings::default(),
            ended: Vec::new(),
            woken: Vec::new(),
            large: false,
            orphans: Vec::new(),
            offenders: Vec::new(),
            closed: Closed::default(),
            peers: labels.into_iter().map(|label| Peer::new(label, now)).collect(),
            now,
            live: 0,
            exchanging: 0,
            reports: Vec::new(),
            untold_holds: false,
            polled_at: now,
            polled_since: false,
            called_at: None,
            recorder: Recorder::new(now),
            coarse_origin: exact_ns(),
        }
    }

    pub(crate) fn open(&mut self, channel: Channel) -> usize {
        let id = channel.id;
        let index = self.channels.iter().position(Option::is_none).unwrap_or(self.channels.len());
        if index == self.channels.len() {
            self.channels.push(None);
        }
        self.ids.insert(id, index);
        let lost = channel
            .members
            .iter()
            .position(|world| matches!(self.peers[*world as usize].standing, Standing::Lost(_)));
        self.channels[index] = Some(channel);
        self.record_open(index);
        if let Some(rank) = lost {
            self.fail_channel(index, rank);
        }
        self.review_holds();
        self.announce_key(index);
        for (peer, stashed) in std::mem::take(&mut self.orphans) {
            if stashed.header.channel == id {
                self.uncount_orphan(peer, &stashed);
                self.adopt_orphan(peer, stashed);
            } else {
                self.orphans.push((peer, stashed));
            }
        }
        self.inherit_closed(index);
        index
    }

    pub(crate) fn close(&mut self, index: usize) {
        self.discard_kept(index);
        if let Some(channel) = self.channels[index].take() {
            self.ids.remove(&channel.id);
            self.recorder.close(channel.id);
            self.remember_closed(channel.id);
            self.close_successor(channel.id, &channel.rebuild);
            self.discard_unused_keys(channel.id);
            self.review_holds();
        }
    }

    pub(crate) fn channel_of(&self, id: u64) -> Option<usize> {
        match self.channels.get(self.recent) {
            Some(Some(channel)) if channel.id == id => Some(self.recent),
            _ => self.ids.get(&id).copied(),
        }
    }

    pub(crate) fn flight(&mut self, key: RunKey) -> Option<&mut Flight> {
        find(&mut self.flights, key)
    }

    /// The same, to look at.
    pub(super) fn look_up(&self, key: RunKey) -> Option<&Flight> {
        let slot = self.flights.get(key.index as usize)?;
        slot.flight.as_ref().filter(|_| slot.generation == key.generation)
    }

    /// Whether all that is lent, and waits to leave, is of operations that have their memory still.
    pub(super) fn lends_what_it_has(&self) -> bool {
        self.io.outbox.iter().all(|(.., frame)| match frame.payload {
            Payload::Lent { run, raw, .. } if raw.len() > 0 => {
                self.look_up(run).is_some() || self.ended.iter().any(|ended| ended.key == Some(run))
            }
            _ => true,
        })
    }

    pub(crate) fn flights(&self) -> impl Iterator<Item = &Flight> {
        self.flights.iter().filter_map(|slot| slot.flight.as_ref())
    }

    pub(crate) fn slots(&self) -> usize {
        self.flights.len()
    }

    pub(crate) fn key_at(&self, slot: usize) -> Option<RunKey> {
        self.flights.get(slot)?.flight.as_ref().map(|flight| flight.head().key)
    }

    /// Whether all that is in flight sends and gets small vectors only.
    pub(crate) fn exchanges_only(&self) -> bool {
        self.live == self.exchanging
    }

    pub(crate) fn touch(&mut self, key: RunKey) {
        if self.touched.last() != Some(&key) {
            self.touched.push(key);
        }
    }

    /// The two parts that work on an operation needs at once.
    pub(crate) fn flight_and_io(&mut self, key: RunKey) -> Option<(&mut Flight, &mut Io)> {
        find(&mut self.flights, key).map(|flight| (flight, &mut self.io))
    }

    /// Begins a call, or lets it wait for room.
    pub(crate) fn start(&mut self, op: Arc<Op>, request: &mut Request) {
        self.recent = request.channel;
        if matches!(request.work, Work::Rebuild) {
            self.start_rebuild(op, request);
            return;
        }
        if request.desc.tag.is_some() || !self.delays(&op, request) {
            self.begin(op, request);
        }
    }

    /// Begins a call for which there is room.
    pub(super) fn begin(&mut self, op: Arc<Op>, request: &mut Request) {
        let Some(channel) = self.channels[request.channel].as_mut() else { return };
        let collective = request.desc.tag.is_none();
        // Others know where this rank stopped, once it has said so: what is refused here since contradicts nobody.
        if collective && !channel.parted {
            channel.called(request);
        }
        let blameless = channel.is_blameless()
            && !op.is_cancelled()
            && !matches!(request.work, Work::Refuse(_) | Work::GivenUp);
        if blameless && self.departed(request).is_none() && self.overdone(request).is_none() {
            self.launch(op, request, Vec::new());
            return;
        }
        self.begin_doubtful(op, request);
    }

    /// What a new operation in flight has, and a place for it.
    pub(super) fn new_head(&mut self, op: Arc<Op>, request: &Request) -> Option<Head> {
        let record = self.record_begun(self.channels[request.channel].as_ref()?.id, request);
        let channel = self.channels[request.channel].as_mut()?;
        channel.live += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Slot { generation: 0, flight: None });
            (self.flights.len() - 1) as u32
        });
        let key = RunKey { index, generation: self.flights[index as usize].generation };
        self.live += 1;
        self.order.begun(request.priority);
        Some(Head {
            key,
            op,
            channel: request.channel,
            channel_id: channel.id,
            seq: request.seq,
            digest: request.digest,
            desc: request.desc,
            members: channel.members.clone(),
            started: self.now,
            deadline: self
                .now
                .checked_add(request.deadline)
                .unwrap_or(self.now + Duration::from_secs(u32::MAX.into())),
            paused: Duration::ZERO,
            remark: self.now + STALL,
            remarks: 0,
            calls: Vec::new(),
            aside: Need::default(),
            verdict: None,
            bereft: false,
            priority: request.priority,
            queued: false,
            record,
        })
    }

    /// The same of a collective that is under way already.
    pub(super) fn fly(&mut self, op: Arc<Op>, request: &Request) -> Option<Head> {
        let head = self.new_head(op, request)?;
        if let Some(channel) = self.channels[request.channel].as_mut() {
            channel.inflight.push_back((request.seq, head.key));
        }
        Some(head)
    }

    pub(super) fn place_flight(&mut self, key: RunKey, flight: Flight) {
        self.flights[key.index as usize].flight = Some(flight);
    }

    pub(super) fn launch(&mut self, op: Arc<Op>, request: &mut Request, calls: Vec<(usize, CallInfo)>) {
        let Some(mut head) = self.new_head(op, request) else { return };
        head.aside = self.set_aside(request);
        let parts = std::mem::replace(&mut request.parts, Parts::NONE);
        let key = head.key;
        let Some(channel) = self.channels[request.channel].as_mut() else { return };
        match std::mem::replace(&mut request.work, Work::Rebuild) {
            Work::Collective(program) => {
                channel.inflight.push_back((request.seq, key));
                self.begin_collective(head, program, parts);
                self.adopt(key, request.channel, request.seq);
                self.contradict(key, calls);
                self.step(key);
            }
            Work::Send { to } => self.launch_send(head, to, parts),
            Work::Recv { wish, take } => self.launch_receive(head, wish, take, parts),
            Work::Claimed { claim, from, take } => {
                self.launch_claimed(head, (claim, take), from as usize, parts);
            }
            Work::Admit => self.launch_admit(head, parts),
            Work::Refuse(_) | Work::GivenUp | Work::Rebuild => {}
        }
        self.part_with_closed(key);
    }

    fn begin_collective(&mut self, head: Head, program: Arc<Program>, parts: Parts) {
        let place = &mut self.flights[head.key.index as usize].flight;
        if Exchange::fits(&program, &head.members, parts.raw().len(), &self.io) {
            let memory = self.exchanged.pop().unwrap_or_default();
            self.exchanging += 1;
            *place = Some(Flight::Exchange(Exchange::start(head, program, parts, memory, &mut self.io)));
            return;
        }
        if self.io.hub.is_some() {
            self.polled.push(head.key);
        }
        if Direct::fits(&program, &head.members, &self.io) {
            let memory = self.directed.pop().unwrap_or_default();
            let Some(channel) = self.channels[head.channel].as_mut() else { return };
            let (place_of, terms) = ((channel.rank, head.members.len()), (head.seq, head.digest, &head.desc));
            let mut part = Part::new(terms, place_of, program, parts, memory);
            part.lend(head.channel_id, &head.members, &mut channel.standing, &mut self.io);
            *place = Some(Flight::Direct(Direct { head, part }));
            return;
        }
        let memory = self.recycled.pop().unwrap_or_default();
        *place = Some(Flight::Collective(Run::start(head, program, parts, memory, 0, &mut self.io)));
    }

    /// Takes what came for this number before it was called.
    fn adopt(&mut self, key: RunKey, channel: usize, seq: u64) {
        while let Some(stashed) = self.channels[channel].as_mut().and_then(|channel| channel.unkeep(seq)) {
            let from = stashed.from;
            let outcome = match stashed.kept {
                Kept::Frame(bytes) => self.deliver(key, from, &stashed.header, bytes),
                Kept::Lease(lease) => {
                    self.accept_lease(key, from, &stashed.header, lease);
                    Ok(())
                }
            };
            if let Err(problem) = outcome {
                self.broke_protocol(key, from, problem);
            }
        }
    }

    /// Hands a lease to the operation that it is for. Says whether it fits that.
    pub(super) fn offer(&mut self, key: RunKey, channel: usize, from: usize, lease: Arc<Lease>) -> bool {
        let Some(of) = self.channels[channel].as_mut() else { return false };
        match find(&mut self.flights, key) {
            Some(Flight::Collective(run)) => run.accept_offer(from, lease),
            Some(Flight::Direct(direct)) => direct.accept_offer(from, lease, &mut of.standing),
            _ => false,
        }
    }

    /// Moves one operation as far as it can, and ends it when it is complete.
    pub(crate) fn step(&mut self, key: RunKey) -> bool {
        let Some(flight) = find(&mut self.flights, key) else { return false };
        let (priority, io) = (flight.head().priority, &mut self.io);
        let mut contradicted = false;
        let (moved, complete) = match flight {
            Flight::Collective(run) => (run.advance(io), run.is_complete()),
            Flight::Exchange(exchange) => (exchange.advance(), exchange.is_complete()),
            Flight::Direct(direct) => {
                let Some(channel) = &self.channels[direct.head.channel] else { return false };
                let moved = direct.advance(&channel.standing, io);
                contradicted = direct.part.contradicted;
                (moved, direct.part.is_complete())
            }
            Flight::Point(point) => {
                let complete = point.advance(io);
                (complete, complete)
            }
            Flight::Rebuild(_) => (false, false),
        };
        if moved || complete {
            self.order.moved(priority);
        }
        if contradicted {
            self.contradicted(key);
        }
        if std::mem::take(&mut self.io.full) && !complete {
            self.crowded.push(key);
        }
        if std::mem::take(&mut self.io.unfinished) && !complete && !self.unfinished.contains(&key) {
            self.unfinished.push(key);
        }
        // A result that came about although ranks disagree is none.
        if complete && self.flight(key).is_some_and(|flight| flight.head().verdict.is_none()) {
            self.finish(key, Ok(()));
        }
        moved
    }

    /// Moves all operations that something happened to, in any order.
    pub(crate) fn advance(&mut self) -> bool {
        self.touched.append(&mut self.unfinished);
        if self.order.has_waiting() {
            self.release_waiting();
        }
        let mut moved = false;
        while let Some(key) = self.touched.pop() {
            moved |= self.step(key);
        }
        let mut index = 0;
        while index < self.polled.len() {
            let key = self.polled[index];
            moved |= !self.unfinished.contains(&key) && self.step(key);
            if self.flight(key).is_none() {
                self.polled.swap_remove(index);
            } else {
                index += 1;
            }
        }
        moved | self.admit_delayed()
    }

    /// Whether operations could go on that only let others have their turn.
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty() || self.order.has_waiting()
    }

    /// Connections have room again.
    pub(crate) fn uncrowd(&mut self) {
        self.touched.append(&mut self.crowded);
    }

    /// Ends an operation.
    pub(crate) fn finish(&mut self, key: RunKey, result: Result<(), Error>) {
        if self.flight(key).is_none() {
            return;
        }
        self.io.forget_waiter(key);
        let forget = result.is_err();
        if let Err(error) = &result {
            self.note_report(key, error);
        }
        let slot = &mut self.flights[key.index as usize];
        let Some(flight) = &mut slot.flight else { return };
        let (mut blocks, mut windows) = (Vec::new(), None);
        let parts = match flight {
            Flight::Collective(run) => {
                let parts = run.end(&mut self.io, &mut blocks);
                recycle(&mut self.recycled, run.recycled());
                parts
            }
            Flight::Exchange(exchange) => {
                let (parts, memory) = exchange.end();
                self.exchanging -= 1;
                if forget {
                    windows = Some(memory);
                } else {
                    recycle(&mut self.exchanged, memory);
                }
                Some(parts)
            }
            Flight::Direct(direct) => {
                let channel = self.channels[direct.head.channel].as_mut();
                let standing = channel.map(|channel| &mut channel.standing);
                let (parts, memory) = direct.part.end(standing, &mut self.io);
                recycle(&mut self.directed, memory);
                parts
            }
            Flight::Point(point) => point.end(!forget, &mut self.io),
            Flight::Rebuild(waiting) => Some(std::mem::replace(&mut waiting.parts, Parts::NONE)),
        };
        let arrival = flight.arrival();
        let head = flight.head();
        self.room.release(head.aside);
        self.order.ended(head.priority);
        if let Some(channel) = self.channels[head.channel].as_mut() {
            channel.live -= 1;
            match &flight {
                Flight::Collective(_) | Flight::Exchange(_) | Flight::Direct(_) => {
                    channel.landed(key);
                    if forget {
                        channel.told(head.seq);
                    }
                }
                Flight::Point(point) => channel.forget_point(key, point),
                Flight::Rebuild(_) => channel.rebuild.end(key),
            }
        }
        let (op, channel, record) = (head.op.clone(), head.channel, head.record);
        slot.generation = slot.generation.wrapping_add(1);
        slot.flight = None;
        self.free.push(key.index);
        self.live -= 1;
        self.record_end(record, &result, arrival);
        let outcome = Outcome { result, parts, arrival };
        if forget {
            self.ended.push(Ended { op, key: Some(key), outcome, blocks, windows });
        } else {
            self.done(op, outcome);
        }
        self.one_less(channel);
    }

    /// A communicator has an operation less in flight.
    fn one_less(&mut self, channel: usize) {
        self.admit_callers(channel);
        if self.channels[channel].as_ref().is_some_and(|of| of.closing || of.winding_up) {
            self.close_idle(channel);
        }
    }

    /// An operation went well: no link knows its memory any more, and its owner may have it at once.
    fn done(&mut self, op: Arc<Op>, outcome: Outcome) {
        self.large |= outcome.parts.as_ref().is_some_and(|parts| parts.raw().len() >= SAMPLE_BYTES);
        op.finish(outcome);
        self.woken.push(op);
    }
}

/// The operation in flight that the key is of, unless it is over; apart from all else that the state has.
fn find(flights: &mut [Slot], key: RunKey) -> Option<&mut Flight> {
    let slot = flights.get_mut(key.index as usize)?;
    slot.flight.as_mut().filter(|_| slot.generation == key.generation)
}

/// Keeps the allocations of an operation that has ended for another one.
pub(super) fn recycle<T>(kept: &mut Vec<T>, memory: T) {
    /// More operations of a kind than this at once allocate.
    const KEPT_MAX: usize = 256;
    if kept.len() < KEPT_MAX {
        kept.push(memory);
    }
}
