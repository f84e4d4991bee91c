//! Which message is for which receive: by (peer, tag), in the order of sending; and which frame is for which of both, by
//! number. Whatever is in flight, each is found, and forgotten, in constant time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::fifos::{Fifos, Place};
use super::head::Head;
use super::io::Via;
use super::point::{Point, Side};
use super::state::{Flight, State};
use super::trouble::Cause;
use crate::buffer::parts::Parts;
use crate::link::RunKey;
use crate::link::memory::Lease;

/// Messages between this rank and one other on one communicator.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    next: u64,
    /// Number of the next message from there.
    pub due: u64,
    /// What was offered over a byte link and has not been answered, whether its send still waits or not.
    pub offers: HashSet<u64>,
    /// Receives without a message, in the order of posting.
    pub posted: Fifos<u32, RunKey>,
    /// Messages without a receive, in the order of sending.
    pub unexpected: Fifos<u32, Unexpected>,
    /// Sends and receives that wait for the other side, by the message's number.
    pub sends: HashMap<u64, RunKey>,
    pub receives: HashMap<u64, RunKey>,
}

#[derive(Debug)]
pub(crate) struct Unexpected {
    pub number: u64,
    pub tag: u32,
    pub digest: u64,
    pub bytes: usize,
    pub content: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    Whole(Vec<u8>),
    /// At the sender, to be accepted.
    Offered,
    /// In this process.
    Leased(Arc<Lease>),
    /// From this very rank.
    Local(RunKey),
    /// Was in this process, and is not to be had any more.
    GivenUp(Cause),
}

/// Where an operation is known, so that it can be forgotten.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// Its place among the receives without a message, or its message's among those without a receive.
    pub place: Option<Place>,
    /// The number of its message, once it is looked up by that.
    pub number: Option<u64>,
}

impl Matching {
    /// Payload bytes of messages that no receive has asked for.
    pub(crate) fn kept_bytes(&self) -> usize {
        let bytes = |message: &Unexpected| {
            if let Content::Whole(bytes) = &message.content { bytes.len() } else { 0 }
        };
        self.unexpected.iter().map(bytes).sum()
    }

    /// All messages that no receive has asked for.
    pub(crate) fn take_unexpected(&mut self) -> impl Iterator<Item = Unexpected> + use<> {
        self.unexpected.take()
    }

    /// The message that was sent first of those without a receive.
    pub(crate) fn first_unexpected(&self) -> Option<&Unexpected> {
        self.unexpected.iter().min_by_key(|message| message.number)
    }

    /// The sender of a message in this process has given it up: whoever asks for it is told.
    pub(crate) fn given_up(&mut self, number: u64, cause: Cause) {
        let is_it = |of: &&mut Unexpected| of.number == number && matches!(of.content, Content::Leased(_));
        if let Some(message) = self.unexpected.iter_mut().find(is_it) {
            message.content = Content::GivenUp(cause);
        }
    }

    /// Drops every trace of an operation that has ended.
    pub(crate) fn forget(&mut self, key: RunKey, known: Known) {
        if let Some(place) = known.place {
            self.posted.remove_if(place, |of| *of == key);
            self.unexpected
                .remove_if(place, |message| matches!(message.content, Content::Local(of) if of == key));
        }
        if let Some(number) = known.number {
            for side in [&mut self.sends, &mut self.receives] {
                if side.get(&number) == Some(&key) {
                    side.remove(&number);
                }
            }
        }
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

impl State {
    pub(super) fn launch_send(&mut self, head: Head, to: usize, parts: Parts) {
        let key = head.key;
        let tag = head.desc.tag_word();
        let world = head.members[to] as usize;
        let channel = head.channel;
        let Some(of) = self.channels[channel].as_mut() else { return };
        let number = of.matching[to].number();
        let side = Side::Send { number, queued: 0, done: 0, accepted: false, lease: None, lends: None };
        let mut point = Point::new(head, to, tag, parts, side);
        if self.io.via(world) == Via::Myself {
            let (digest, bytes) = (point.head.digest, point.raw().len());
            self.place_flight(key, Flight::Point(point));
            let content = Content::Local(key);
            self.match_message(channel, to, Unexpected { number, tag, digest, bytes, content });
            return;
        }
        of.matching[to].sends.insert(number, key);
        point.known.number = Some(number);
        if point.begin_send(&mut self.io) {
            of.matching[to].offers.insert(number);
        }
        if point.is_polled() {
            self.polled.push(key);
        }
        self.place_flight(key, Flight::Point(point));
        self.step(key);
    }

    pub(super) fn launch_receive(&mut self, head: Head, from: usize, parts: Parts) {
        let key = head.key;
        let tag = head.desc.tag_word();
        let channel = head.channel;
        let side = Side::Receive {
            matched: None,
            arrived: 0,
            reading: false,
            lease: None,
            lent: None,
            declined: false,
        };
        self.place_flight(key, Flight::Point(Point::new(head, from, tag, parts, side)));
        let Some(of) = self.channels[channel].as_mut() else { return };
        match of.matching[from].unexpected.pop(tag) {
            Some(message) => self.give_message(channel, from, key, message),
            None => {
                let place = of.matching[from].posted.push(tag, key);
                self.place_point(key, place);
            }
        }
    }

    /// Whether this is a receive on a communicator that will not be used again, and no message has come for it, or an
    /// attempt to rebuild that one. It ends once nobody awaits it: others that wait for this rank to leave would wait for its deadline.
    pub(super) fn is_left_over(&self, key: RunKey) -> bool {
        let flight = match self.look_up(key) {
            Some(flight @ Flight::Rebuild(_)) => flight,
            Some(flight @ Flight::Point(point)) if point.is_posted() => flight,
            _ => return false,
        };
        self.channels[flight.head().channel].as_ref().is_some_and(|of| of.closing)
    }

    pub(super) fn is_awaited(&self, key: RunKey) -> bool {
        self.look_up(key).is_some_and(|flight| flight.head().op.is_waited_for())
    }

    /// A communicator will not be used again: what nobody awaits ends, of receives that no message has come for
    /// and of rebuilding.
    pub(super) fn end_left_over(&mut self, channel: usize) {
        for key in self.keys_on(channel) {
            if self.is_left_over(key) && !self.is_awaited(key) {
                self.cancel(key);
            }
        }
    }

    /// A message has come: to the receive that waits for it, or to the others that nobody waits for.
    pub(crate) fn match_message(&mut self, channel: usize, from: usize, message: Unexpected) {
        let Some(of) = self.channels[channel].as_mut() else { return };
        match of.matching[from].posted.pop(message.tag) {
            Some(key) => self.give_message(channel, from, key, message),
            None if of.leaving[of.rank] => self.refuse_unreceived(channel, from, message),
            None => {
                let local = if let Content::Local(sender) = message.content { Some(sender) } else { None };
                let place = of.matching[from].unexpected.push(message.tag, message);
                if let Some(sender) = local {
                    self.place_point(sender, place);
                }
            }
        }
    }

    /// An operation is to be found at this place until it is matched.
    fn place_point(&mut self, key: RunKey, place: Place) {
        if let Some(Flight::Point(point)) = self.flight(key) {
            point.known.place = Some(place);
        }
    }

    fn give_message(&mut self, channel: usize, from: usize, key: RunKey, message: Unexpected) {
        let world = self.channels[channel].as_ref().map_or(0, |of| of.members[from] as usize);
        if let Content::Whole(bytes) = &message.content {
            self.io.consume_eager(world, bytes.len());
        }
        let Some((Flight::Point(point), io)) = self.flight_and_io(key) else { return };
        if point.raw().len() != message.bytes || point.head.digest != message.digest {
            self.refuse_message(key, channel, from, &message);
            return;
        }
        if let Content::GivenUp(cause) = &message.content {
            self.finish_aborted(key, from, cause);
            return;
        }
        let local = if let Content::Local(sender) = message.content { Some(sender) } else { None };
        let number = message.number;
        let moves = matches!(message.content, Content::Offered | Content::Leased(_));
        point.take_message(message, io);
        if point.is_polled() {
            self.polled.push(key);
        }
        if moves && let Some(of) = self.channels[channel].as_mut() {
            of.matching[from].receives.insert(number, key);
            if let Some(Flight::Point(point)) = self.flight(key) {
                point.known.number = Some(number);
            }
        }
        if let Some(sender) = local {
            self.give_local(sender, key);
        }
        self.step(key);
    }

    fn give_local(&mut self, sender: RunKey, receiver: RunKey) {
        let Some(Flight::Point(point)) = self.flight(sender) else { return };
        let src = point.raw();
        if let Some(Flight::Point(point)) = self.flight(receiver) {
            point.take_local(src);
        }
        self.finish(sender, Ok(()));
    }
}
