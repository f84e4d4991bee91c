//! What comes from other ranks, and what it means.

use std::sync::Arc;

use super::channel::{Kept, Stashed};
use super::io::EAGER_OVERHEAD;
use super::matching::{Content, Unexpected};
use super::point::OFFERS_MAX;
use super::state::{Flight, State};
use crate::buffer::raw::Raw;
use crate::link::frame::{EAGER, Header, Kind, POINT};
use crate::link::memory::{Lease, Message};
use crate::link::{Handler, RunKey, Sink};

/// Frames of one peer kept for communicators that this rank has not opened yet, and bytes of them. Payload is bounded by
/// the eager budget already; text is rare.
const ORPHANS_MAX: usize = 65_536;
const ORPHAN_BYTES_MAX: usize = 16 << 20;

impl Handler for State {
    fn begin(&mut self, peer: usize, header: &Header) -> Result<Sink, String> {
        self.io.returned(peer, header.consumed)?;
        let length = header.length as usize;
        if header.flags & EAGER != 0 {
            self.io.receive_eager(peer, length)?;
        }
        match header.kind {
            Kind::Data => self.data_sink(peer, header),
            Kind::Body => self.body_sink(peer, header),
            Kind::Eager
            | Kind::Abort
            | Kind::Status
            | Kind::Mismatch
            | Kind::Close
            | Kind::Rebuild
            | Kind::Key
            | Kind::Lend => Ok(Sink::Owned(self.io.spare(length))),
            _ => Ok(Sink::Owned(Vec::new())),
        }
    }

    /// Of a large message that is reduced as it comes.
    fn consume(&mut self, peer: usize, header: &Header, payload: Raw) -> Result<bool, String> {
        if header.kind != Kind::Data || header.flags & EAGER != 0 {
            return Ok(false);
        }
        let Place::Flight(key) = self.place(header) else { return Ok(false) };
        let Some((Flight::Collective(run), _)) = self.flight_and_io(key) else { return Ok(false) };
        if run.head.digest != header.digest {
            return Ok(false);
        }
        let from = run.head.rank_of(peer);
        let used = run.reduce_here(from, header, payload)?;
        if used {
            self.io.returned(peer, header.consumed)?;
            self.touch(key);
        }
        Ok(used)
    }

    fn end(&mut self, peer: usize, header: &Header, sink: Sink) -> Result<(), String> {
        match sink {
            Sink::Direct(_, key) => self.direct(key, peer, header, sink),
            Sink::Owned(bytes) => self.whole(peer, header, bytes),
            Sink::Discard => {
                self.consumed(peer, header);
                if header.kind == Kind::Data
                    && let Some(index) = self.channel_of(header.channel)
                {
                    let from = self.rank_in(index, peer)?;
                    self.contradicted_past(index, from, header);
                }
                Ok(())
            }
        }
    }

    fn released(&mut self, run: RunKey, step: u16, bytes: usize) {
        let Some(flight) = self.flight(run) else { return };
        match flight {
            Flight::Collective(of) => of.released(usize::from(step), bytes),
            Flight::Exchange(of) => of.released(usize::from(step), bytes),
            Flight::Point(point) => point.add_done(bytes),
            Flight::Direct(_) | Flight::Rebuild(_) => {}
        }
        self.touch(run);
        self.uncrowd();
    }
}

/// Where a frame belongs that is not part of anything in flight.
enum Place {
    /// A collective in flight.
    Flight(RunKey),
    /// Its number was not called yet.
    Early,
    /// Its number is over.
    Over,
    /// The communicator is not open here, or not any more.
    Unknown,
}

impl State {
    /// Rank of a peer in a communicator, by the channel's index.
    fn rank_in(&self, channel: usize, peer: usize) -> Result<usize, String> {
        let of = self.channels[channel].as_ref();
        of.and_then(|of| of.rank_of(peer))
            .ok_or_else(|| "a frame for a communicator it is not in".to_string())
    }

    fn place(&self, header: &Header) -> Place {
        let Some(channel) = self.channel_of(header.channel).and_then(|index| self.channels[index].as_ref())
        else {
            return Place::Unknown;
        };
        match channel.flight(header.number) {
            Some(key) => Place::Flight(key),
            None if header.number >= channel.called && !channel.is_buried(header.number) => Place::Early,
            None => Place::Over,
        }
    }

    fn data_sink(&mut self, peer: usize, header: &Header) -> Result<Sink, String> {
        let length = header.length as usize;
        let key = match self.place(header) {
            Place::Flight(key) => key,
            Place::Over => return Ok(Sink::Discard),
            Place::Early | Place::Unknown if header.flags & EAGER != 0 => {
                return Ok(Sink::Owned(self.io.spare(length)));
            }
            // Credit was given for an operation of a communicator that has been closed since.
            Place::Unknown => return Ok(Sink::Discard),
            Place::Early => return Err("payload that nobody asked for".into()),
        };
        let Some((flight, io)) = self.flight_and_io(key) else { return Ok(Sink::Discard) };
        let from = flight.head().rank_of(peer);
        if !flight.agrees(from, header) {
            return Ok(Sink::Owned(io.spare(length)));
        }
        match flight {
            Flight::Collective(run) => run.sink(from, header, io),
            Flight::Exchange(exchange) => exchange.sink(from, header, io),
            Flight::Direct(_) | Flight::Point(_) | Flight::Rebuild(_) => Ok(Sink::Discard),
        }
    }

    fn body_sink(&mut self, peer: usize, header: &Header) -> Result<Sink, String> {
        let Some(index) = self.channel_of(header.channel) else { return Ok(Sink::Discard) };
        let from = self.rank_in(index, peer)?;
        let Some(channel) = &self.channels[index] else { return Ok(Sink::Discard) };
        let receives = &channel.matching[from].receives;
        let Some(key) = receives.get(&header.number).copied() else {
            return Ok(Sink::Discard);
        };
        match self.flight(key) {
            Some(Flight::Point(point)) => point.sink(header),
            _ => Ok(Sink::Discard),
        }
    }

    /// Payload went straight into the memory of an operation.
    fn direct(&mut self, key: RunKey, peer: usize, header: &Header, sink: Sink) -> Result<(), String> {
        self.consumed(peer, header);
        let Some((flight, io)) = self.flight_and_io(key) else { return Ok(()) };
        match flight {
            Flight::Collective(run) => {
                let from = run.head.rank_of(peer);
                run.arrived(from, header, sink, io);
            }
            Flight::Exchange(exchange) => exchange.arrived(exchange.head.rank_of(peer), header),
            Flight::Point(point) => point.arrived(header.length as usize),
            Flight::Direct(_) | Flight::Rebuild(_) => {}
        }
        self.touch(key);
        Ok(())
    }

    fn consumed(&mut self, peer: usize, header: &Header) {
        if header.flags & EAGER != 0 {
            self.io.consume_eager(peer, header.length as usize);
        }
    }

    /// A frame, with all of its payload.
    pub(crate) fn whole(&mut self, peer: usize, header: &Header, bytes: Vec<u8>) -> Result<(), String> {
        match header.kind {
            Kind::Bye => {
                self.said_bye(peer);
                return Ok(());
            }
            Kind::Consumed => return Ok(()),
            _ => {}
        }
        let Some(index) = self.channel_of(header.channel) else {
            return self.unknown(peer, header, bytes);
        };
        let from = self.rank_in(index, peer)?;
        if self.is_past_use(index, header) {
            self.consumed(peer, header);
            self.io.recycle(bytes);
            return Ok(());
        }
        match header.kind {
            Kind::Lend | Kind::Taken | Kind::Declined if header.flags & POINT != 0 => {
                self.lend_message(index, from, header, bytes)
            }
            Kind::Data
            | Kind::Credit
            | Kind::Request
            | Kind::Lend
            | Kind::Taken
            | Kind::Declined
            | Kind::Size => self.collective(index, from, header, bytes),
            Kind::Eager => {
                self.next_message(index, from, header.number)?;
                let content = Content::Whole(bytes);
                self.match_message(index, from, unexpected(header, header.length as usize, content));
                Ok(())
            }
            Kind::Offer => {
                let bytes =
                    usize::try_from(header.offset).map_err(|_| "an offer of more than memory holds")?;
                self.next_message(index, from, header.number)?;
                self.match_message(index, from, unexpected(header, bytes, Content::Offered));
                self.check_offers(index, from)
            }
            Kind::Accept => self.accepted(index, from, header),
            Kind::Abort => self.on_abort(index, from, header, &bytes),
            Kind::Status => self.on_status(index, from, header, &bytes),
            Kind::Mismatch => self.on_mismatch(index, from, header, &bytes),
            Kind::Rebuild => self.on_view(index, from, &bytes),
            Kind::Hold => self.on_hold(index, from, header),
            Kind::Key => self.check_key(index, header, &bytes),
            Kind::Leaving => self.said_leaving(index, from),
            Kind::Close => self.said_close(index, from, header, &bytes),
            Kind::Body | Kind::Bye | Kind::Consumed => Ok(()),
        }
    }

    /// Whether a frame is for an operation that can't be called any more, since its communicator has failed.
    fn is_past_use(&self, index: usize, header: &Header) -> bool {
        let Some(channel) = &self.channels[index] else { return false };
        let late = match header.kind {
            Kind::Lend | Kind::Taken | Kind::Declined if header.flags & POINT != 0 => false,
            Kind::Eager | Kind::Offer => true,
            Kind::Data
            | Kind::Credit
            | Kind::Request
            | Kind::Lend
            | Kind::Taken
            | Kind::Declined
            | Kind::Size => header.number >= channel.called,
            _ => false,
        };
        late && channel.failed.is_some()
    }

    /// A communicator is closed, or has failed: nobody will ask for what was kept for later. Its eager budget goes back,
    /// since all communicators of a pair share it.
    pub(crate) fn discard_kept(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        let members = channel.members.clone();
        for stashed in channel.take_kept() {
            let world = members[stashed.from] as usize;
            stashed.discard(world, &mut self.io);
        }
        for (from, message) in channel.board.take_all() {
            if let Content::Whole(bytes) = message.content {
                self.io.discard_eager(members[from] as usize, bytes);
            }
        }
    }

    /// A frame of a communicator that is not open here: not yet, so it is kept; or not any more, so it is dropped.
    fn unknown(&mut self, peer: usize, header: &Header, bytes: Vec<u8>) -> Result<(), String> {
        if self.is_closed(header.channel) {
            self.consumed(peer, header);
            self.dropped(peer, header);
            return Ok(());
        }
        if header.kind == Kind::Key && !self.is_news(peer, header, &bytes)?
            || header.kind == Kind::Hold && self.takes_hold_back(peer, header)?
            || self.answer_unused(peer, header)
        {
            return Ok(());
        }
        self.orphan(peer, Stashed { from: 0, header: *header, kept: Kept::Frame(bytes) })
    }

    /// Part of a numbered collective.
    fn collective(
        &mut self,
        index: usize,
        from: usize,
        header: &Header,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        match self.place(header) {
            Place::Flight(key) => {
                self.deliver(key, from, header, bytes)?;
                self.touch(key);
                Ok(())
            }
            Place::Early => match self.channels[index].as_mut() {
                Some(channel) => channel.keep(Stashed { from, header: *header, kept: Kept::Frame(bytes) }),
                None => Ok(()),
            },
            Place::Over | Place::Unknown => {
                if let Some(channel) = &self.channels[index] {
                    let world = channel.members[from] as usize;
                    self.consumed(world, header);
                }
                self.contradicted_past(index, from, header);
                Ok(())
            }
        }
    }

    /// A frame for a collective in flight that did not go straight into its memory.
    pub(crate) fn deliver(
        &mut self,
        key: RunKey,
        from: usize,
        header: &Header,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        let Some((flight, io)) = self.flight_and_io(key) else { return Ok(()) };
        let agreed = flight.agrees(from, header);
        let peer = flight.head().members[from] as usize;
        if header.flags & EAGER != 0 {
            io.consume_eager(peer, header.length as usize);
        }
        if !agreed {
            io.recycle(bytes);
            self.contradicted(key);
            return Ok(());
        }
        match (flight, header.kind) {
            (Flight::Collective(run), Kind::Data) => run.deliver(from, header, bytes, io),
            (Flight::Collective(run), Kind::Credit) => run.credit(from, header.item, header.offset),
            (Flight::Collective(run), Kind::Request) => run.requested(from, header.item, io),
            (Flight::Collective(run), Kind::Lend) => {
                let lent = run.borrow(from, header, &bytes, io);
                io.recycle(bytes);
                lent
            }
            (Flight::Collective(run), Kind::Taken) => run.taken(from, header.item, header.offset, io),
            (Flight::Collective(run), Kind::Declined) => run.declined(from, header.item, header.offset, io),
            (Flight::Exchange(exchange), Kind::Data) => exchange.deliver(from, header, bytes, io),
            (Flight::Exchange(_), Kind::Credit) => Err("credit for a message that needs none".into()),
            (Flight::Exchange(exchange), Kind::Request) => exchange.requested(from, header.item, io),
            (Flight::Exchange(_), Kind::Lend | Kind::Taken | Kind::Declined) => {
                Err("lends what is sent".into())
            }
            (Flight::Collective(run), Kind::Size) => run.sized(from, header),
            (Flight::Exchange(_), Kind::Size) => Err("tells a length that is known".into()),
            _ => Ok(()),
        }
    }

    /// A message between two ranks is lent, was read, or can't be.
    fn lend_message(
        &mut self,
        index: usize,
        from: usize,
        header: &Header,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        let Some(channel) = &self.channels[index] else { return Ok(()) };
        let matching = &channel.matching[from];
        let side = if header.kind == Kind::Lend { &matching.receives } else { &matching.sends };
        let key = side.get(&header.number).copied();
        if let Some(key) = key
            && let Some((Flight::Point(point), io)) = self.flight_and_io(key)
        {
            match header.kind {
                Kind::Lend => point.borrow(header, &bytes, io)?,
                Kind::Declined => point.declined(header.offset, io)?,
                _ => point.taken(io)?,
            }
            self.touch(key);
        }
        self.io.recycle(bytes);
        Ok(())
    }

    fn accepted(&mut self, index: usize, from: usize, header: &Header) -> Result<(), String> {
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        let matching = &mut channel.matching[from];
        if !matching.offers.remove(&header.number) {
            return Err(format!("accepts message {}, which is not on offer", header.number));
        }
        let Some(key) = matching.sends.get(&header.number).copied() else {
            self.refuse_accept(index, from, header.number);
            return Ok(());
        };
        if let Some(Flight::Point(point)) = self.flight(key) {
            point.accepted();
        }
        self.touch(key);
        Ok(())
    }

    /// Messages are counted by their sender and come in this order.
    fn next_message(&mut self, index: usize, from: usize, number: u64) -> Result<(), String> {
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        if channel.leaving[from] {
            return Err(format!("message {number} after it has begun to leave"));
        }
        let due = &mut channel.matching[from].due;
        if number != *due {
            return Err(format!("message {number} where {due} was due"));
        }
        *due += 1;
        Ok(())
    }

    /// What a sender offers, and nobody has asked for, is kept here; an honest one knows the limit.
    fn check_offers(&mut self, index: usize, from: usize) -> Result<(), String> {
        let Some(channel) = &self.channels[index] else { return Ok(()) };
        let kept = channel.board.held_of(from);
        // Who closes keeps none, and refuses each: an honest sender waits for that.
        let refused = if channel.leaving[channel.rank] {
            self.io.peers[channel.members[from] as usize].waiting
        } else {
            0
        };
        if kept.max(refused) > OFFERS_MAX + self.io.eager_window as usize / EAGER_OVERHEAD {
            return Err("too many offers that nobody has accepted".into());
        }
        Ok(())
    }

    /// A message between ranks of this process.
    pub(crate) fn message(&mut self, message: Message) -> Result<(), String> {
        let Message { from, header, payload, lease } = message;
        match lease {
            Some(lease) => self.leased(from, &header, lease),
            None => {
                self.io.returned(from, header.consumed)?;
                self.whole(from, &header, payload)
            }
        }
    }

    /// An operation of another rank of this process has begun and lends memory.
    pub(crate) fn leased(&mut self, peer: usize, header: &Header, lease: Arc<Lease>) -> Result<(), String> {
        let stashed = |from, lease| Stashed { from, header: *header, kept: Kept::Lease(lease) };
        let Some(index) = self.channel_of(header.channel) else {
            if self.is_closed(header.channel) {
                self.dropped(peer, header);
                return Ok(());
            }
            return self.orphan(peer, stashed(0, lease));
        };
        let from = self.rank_in(index, peer)?;
        if self.is_past_use(index, header) {
            return Ok(());
        }
        if header.kind == Kind::Offer {
            let bytes = usize::try_from(header.offset).map_err(|_| "an offer of more than memory holds")?;
            self.next_message(index, from, header.number)?;
            self.match_message(index, from, unexpected(header, bytes, Content::Leased(lease)));
            return Ok(());
        }
        match self.place(header) {
            Place::Flight(key) => {
                self.accept_lease(key, from, header, lease);
                Ok(())
            }
            Place::Early => match self.channels[index].as_mut() {
                Some(channel) => channel.keep(stashed(from, lease)),
                None => Ok(()),
            },
            Place::Over | Place::Unknown => {
                self.contradicted_past(index, from, header);
                Ok(())
            }
        }
    }

    pub(crate) fn accept_lease(&mut self, key: RunKey, from: usize, header: &Header, lease: Arc<Lease>) {
        let Some(flight) = self.flight(key) else { return };
        let (agreed, channel) = (flight.head().digest == header.digest, flight.head().channel);
        let agreed = agreed && self.offer(key, channel, from, lease);
        if agreed {
            self.touch(key);
        } else {
            self.contradicted(key);
        }
    }

    pub(crate) fn orphan(&mut self, peer: usize, stashed: Stashed) -> Result<(), String> {
        let of = &mut self.peers[peer];
        of.orphans += 1;
        of.orphan_bytes += stashed.bytes();
        if of.orphans > ORPHANS_MAX || of.orphan_bytes > ORPHAN_BYTES_MAX {
            return Err("too many frames for communicators that were not opened".into());
        }
        self.orphans.push((peer, stashed));
        Ok(())
    }

    /// Payload bytes kept for communicators that were not opened yet.
    pub(super) fn orphan_bytes(&self) -> usize {
        self.peers.iter().map(|peer| peer.orphan_bytes).sum()
    }

    /// A frame of a communicator that is open by now.
    pub(super) fn adopt_orphan(&mut self, peer: usize, stashed: Stashed) {
        let Stashed { header, kept, .. } = stashed;
        let outcome = match kept {
            Kept::Frame(bytes) => self.whole(peer, &header, bytes),
            Kept::Lease(lease) => self.leased(peer, &header, lease),
        };
        if let Err(problem) = outcome {
            self.offends(peer, &problem);
        }
    }

    /// A peer turns out to have broken the protocol, when no connection is at hand to be closed.
    pub(crate) fn offends(&mut self, peer: usize, problem: &str) {
        self.lost(peer, format!("it broke the protocol: {problem}"));
        self.offenders.push(peer);
    }
}

fn unexpected(header: &Header, bytes: usize, content: Content) -> Unexpected {
    Unexpected { number: header.number, tag: header.item, digest: header.digest, bytes, content }
}
