//! Messages between two ranks as they are sent and received: which frame is for which of both, by number; [`board`](super::board) says
//! which message is for which receive. Whatever is in flight, each is found, and forgotten, in constant time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::board::{Held, Watcher, Wish};
use super::call::{Arrival, Op, Take};
use super::fifos::Place;
use super::head::Head;
use super::io::Via;
use super::point::{Point, Side};
use super::shared::Engine;
use super::state::{Flight, State};
use super::trouble::Cause;
use crate::buffer::parts::Parts;
use crate::link::RunKey;
use crate::link::frame::{POINT, TO_SENDER};
use crate::link::memory::Lease;

/// Messages between this rank and one other on one communicator.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    next: u64,
    /// Number of the next message from there.
    pub due: u64,
    /// What was offered over a byte link and has not been answered, whether its send still waits or not.
    pub offers: HashSet<u64>,
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

impl Unexpected {
    fn arrival(&self, from: usize, claim: u64) -> Arrival {
        let Unexpected { tag, bytes, digest, .. } = *self;
        Arrival { from, tag, bytes, digest, claim }
    }
}

impl Matching {
    /// Drops every trace of an operation that has ended.
    pub(crate) fn forget(&mut self, key: RunKey, number: u64) {
        for side in [&mut self.sends, &mut self.receives] {
            if side.get(&number) == Some(&key) {
                side.remove(&number);
            }
        }
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

impl Engine {
    /// What the first message is that answers, if one has come. `None` in a child of the process.
    pub(crate) fn glance(&self, channel: usize, wish: Wish) -> Option<Option<Arrival>> {
        if self.shared.home.is_away() {
            return None;
        }
        self.shared.drive();
        let found = self.shared.with_core(|core| {
            // What this rank has sent to itself counts, also if somebody else drove just then.
            self.shared.begin_submitted(core);
            let channel = core.state.channels[channel].as_ref()?;
            channel.board.first_held(wish).map(|(from, message)| message.arrival(from, 0))
        });
        self.shared.drive();
        Some(found)
    }

    /// The same, claimed.
    pub(crate) fn claim(&self, channel: usize, wish: Wish) -> Option<Option<Arrival>> {
        if self.shared.home.is_away() {
            return None;
        }
        let mut found = None;
        self.shared.drive();
        self.after_calls(|core| {
            let Some(of) = core.state.channels[channel].as_mut() else { return };
            found = of.board.claim_held(wish).and_then(|claim| {
                of.board.claimed(claim).map(|(from, message)| message.arrival(from, claim))
            });
        });
        Some(found)
    }

    /// A look at messages is given up, before anybody has seen what it has found, or claimed.
    pub(crate) fn give_up_look(&self, channel: usize, op: &Arc<Op>) {
        self.after_calls(|core| {
            let state = &mut core.state;
            let watchers = state.channels[channel].iter().flat_map(|of| &of.board.watchers);
            let is_it =
                |key: RunKey| state.look_up(key).is_some_and(|flight| Arc::ptr_eq(&flight.head().op, op));
            if let Some(key) = watchers.map(|watcher| watcher.key).find(|key| is_it(*key)) {
                state.cancel(key);
            } else if let Some(arrival) = op.take_outcome().and_then(|outcome| outcome.arrival) {
                state.unclaim(channel, arrival.claim);
            }
        });
    }

    /// A message that was claimed will not be received.
    pub(crate) fn drop_claimed(&self, channel: usize, claim: u64) {
        self.after_calls(|core| core.state.drop_claimed(channel, claim));
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
        let mut point = Point::new(head, Some(to), tag, parts, side);
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

    pub(super) fn launch_receive(&mut self, head: Head, wish: Wish, take: Take, parts: Parts) {
        let (key, channel) = (head.key, head.channel);
        let Some(of) = self.channels[channel].as_mut() else { return };
        let mut point = Point::new(head, wish.from(), wish.tag.unwrap_or_default(), parts, Side::receive());
        (point.take, point.me) = (take, of.rank);
        let found = match take {
            Take::Look => of.board.first_held(wish).map(|(from, message)| message.arrival(from, 0)),
            Take::Claim => of.board.claim_held(wish).and_then(|claim| {
                of.board.claimed(claim).map(|(from, message)| message.arrival(from, claim))
            }),
            Take::Exact | Take::UpTo => None,
        };
        point.arrival = found;
        self.place_flight(key, Flight::Point(point));
        let Some(of) = self.channels[channel].as_mut() else { return };
        match take {
            Take::Look | Take::Claim if found.is_some() => self.finish(key, Ok(())),
            Take::Look | Take::Claim => {
                of.board.watchers.push(Watcher { key, wish, claims: take == Take::Claim });
            }
            Take::Exact | Take::UpTo => match of.board.take_held(wish) {
                Some((from, message)) => self.give_message(channel, from, key, message),
                None => {
                    let place = of.board.post(wish, key);
                    self.place_point(key, place);
                }
            },
        }
    }

    pub(super) fn launch_claimed(
        &mut self,
        head: Head,
        (claim, take): (u64, Take),
        from: usize,
        parts: Parts,
    ) {
        let (key, channel, tag) = (head.key, head.channel, head.desc.tag_word());
        let Some(of) = self.channels[channel].as_mut() else { return };
        let mut point = Point::new(head, Some(from), tag, parts, Side::receive());
        (point.take, point.me) = (take, of.rank);
        let claimed = of.board.take_claimed(claim);
        self.place_flight(key, Flight::Point(point));
        match claimed {
            Some(Held { from, message, .. }) => self.give_message(channel, from, key, message),
            None => self.finish_aborted(key, from, &given_up_by_sender()),
        }
    }

    /// A message was claimed for somebody who does not know it and will not: it is as if it came now, and had come when it did.
    fn unclaim(&mut self, channel: usize, claim: u64) {
        let Some(of) = self.channels[channel].as_mut() else { return };
        if let Some(held) = of.board.take_claimed(claim) {
            self.match_held(channel, held);
        }
    }

    /// A message was claimed and will not be received.
    pub(super) fn drop_claimed(&mut self, channel: usize, claim: u64) {
        let Some(of) = self.channels[channel].as_mut() else { return };
        let Some(Held { from, message, .. }) = of.board.take_claimed(claim) else { return };
        let world = of.members[from] as usize;
        match message.content {
            Content::Whole(bytes) => self.io.discard_eager(world, bytes),
            Content::Offered | Content::Leased(_) => {
                let cause = Cause::Failed("its receiver has given it up".into());
                self.abort_message(channel, from, message.number, POINT | TO_SENDER, cause);
            }
            Content::Local(sender) => {
                self.finish_aborted(sender, from, &Cause::Failed("its receiver has given it up".into()));
            }
            Content::GivenUp(_) => {}
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
        let held = of.board.arrive(from, message);
        self.match_held(channel, held);
    }

    fn match_held(&mut self, channel: usize, held: Held) {
        let Some(of) = self.channels[channel].as_mut() else { return };
        let (from, tag) = (held.from, held.message.tag);
        if let Some(key) = of.board.take_posted(from, tag) {
            self.give_message(channel, from, key, held.message);
            return;
        }
        if of.leaving[of.rank] {
            self.refuse_unreceived(channel, from, held.message);
            return;
        }
        let arrival = held.message.arrival(from, 0);
        let sees = |watcher: &Watcher| watcher.wish.is_answered(from, tag);
        let claimer = of.board.watchers.iter().position(|watcher| watcher.claims && sees(watcher));
        // Who looked before it was claimed has seen it.
        let before = claimer.unwrap_or(of.board.watchers.len());
        let seen = of.board.watchers[..before].iter().filter(|watcher| !watcher.claims && sees(watcher));
        let mut keys: Vec<(RunKey, Arrival)> = seen.map(|watcher| (watcher.key, arrival)).collect();
        match claimer.map(|at| of.board.watchers[at].key) {
            Some(key) => {
                let claim = of.board.claim(held);
                keys.push((key, Arrival { claim, ..arrival }));
            }
            None => {
                let local =
                    if let Content::Local(sender) = held.message.content { Some(sender) } else { None };
                let place = of.board.hold(held);
                if let Some(sender) = local {
                    self.place_point(sender, place);
                }
            }
        }
        for (key, arrival) in keys {
            if let Some(Flight::Point(point)) = self.flight(key) {
                point.arrival = Some(arrival);
            }
            self.finish(key, Ok(()));
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
        if !point.takes(&message) {
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
        point.take_message(from, message, io);
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
            self.give_local(sender, from, key);
        }
        self.step(key);
    }

    fn give_local(&mut self, sender: RunKey, from: usize, receiver: RunKey) {
        let Some(Flight::Point(point)) = self.flight(sender) else {
            self.finish_aborted(receiver, from, &given_up_by_sender());
            return;
        };
        let src = point.raw();
        if let Some(Flight::Point(point)) = self.flight(receiver) {
            point.take_local(src);
        }
        self.finish(sender, Ok(()));
    }
}

fn given_up_by_sender() -> Cause {
    Cause::Failed("its sender has given it up".into())
}
