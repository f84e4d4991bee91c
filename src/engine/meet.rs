//! A call that is over before it returns.
//!
//! Ranks of one process that call at about the same time meet: each lends its vector, looks for the others for a moment,
//! reduces its block and looks until they have reduced theirs. Where nothing else is in flight, this needs no record, no
//! deadline and no waker. Who does not meet the others goes on in flight from where he is ([`Direct`]), and his peers see no
//! difference.

use std::sync::Arc;

use super::call::{Op, Request, Work};
use super::channel::Channel;
use super::direct::{Direct, Part};
use super::run::SLICE;
use super::state::{Flight, State, recycle};
use crate::buffer::parts::Parts;
use crate::runtime::clock::Clock;

/// Pauses in which the others may come, before the call goes on in flight: one or two microseconds, which is what going
/// on in flight takes.
const PAUSES: usize = 64;
/// Bytes of a block that one more is waited for, since the others reduce as much: several times what that takes.
const BYTES_PER_PAUSE: usize = 256;
/// After so many calls in a row that met nobody, only one in so many waits for that.
const MISSES: u32 = 4;
const RETRY: u32 = 32;

/// Whether it pays to wait for the others: whose ranks call at different times never meet.
#[derive(Debug, Default)]
pub(crate) struct Meetings {
    /// Calls since the last that met the others.
    missed: u32,
}

impl Meetings {
    pub(super) fn waits(&self) -> bool {
        self.missed < MISSES || self.missed.is_multiple_of(RETRY)
    }

    pub(super) fn met(&mut self, met: bool) {
        self.missed = if met { 0 } else { self.missed.wrapping_add(1) };
    }

    /// For blocks of so many bytes.
    pub(super) fn pauses(&self, bytes: usize) -> usize {
        if self.waits() { PAUSES + bytes / BYTES_PER_PAUSE } else { 0 }
    }
}

impl State {
    /// Begins a call that can meet its peers, and runs it to its end if it does: `Ok` has its memory; `Err`, its part as
    /// far as it came, which goes on by [`launch_part`](Self::launch_part). `None`: it is to begin in the ordinary way.
    pub(super) fn meet(&mut self, request: &mut Request, clock: &Clock) -> Option<Result<Parts, Part>> {
        if !self.can_meet(request) {
            return None;
        }
        let channel = self.channels[request.channel].as_mut()?;
        let Work::Collective(program) = std::mem::replace(&mut request.work, Work::GivenUp) else {
            return None;
        };
        let memory = self.directed.pop().unwrap_or_default();
        let parts = std::mem::replace(&mut request.parts, Parts::NONE);
        let terms = (request.seq, request.digest, &request.desc);
        let mut part = Part::new(terms, (channel.rank, channel.members.len()), program, parts, memory);
        part.lend(channel.id, &channel.members, &mut channel.standing, &mut self.io);
        // The others begin meanwhile.
        channel.called(request);
        self.now = clock.now();
        self.polled_at = self.now;
        let me = self.io.me;
        // Who sleeps must be woken first, which is not done under the lock.
        let asleep = |world: &u32| *world as usize != me && self.io.sleeps(*world as usize);
        let mut pauses =
            if channel.members.iter().any(asleep) { 0 } else { self.meetings.pauses(part.bytes()) };
        loop {
            // Straight at what the peers write: a hint that they have would have to come first.
            part.advance(&channel.members, &channel.standing, &mut self.io);
            if part.is_complete() {
                break;
            }
            if pauses == 0 {
                self.meetings.met(false);
                return Some(Err(part));
            }
            pauses -= 1;
            std::hint::spin_loop();
        }
        self.meetings.met(true);
        self.order.moved(request.priority);
        let (parts, memory) = part.end(Some(&mut channel.standing), &mut self.io);
        recycle(&mut self.directed, memory);
        parts.map(Ok)
    }

    /// Whether nothing stands in the way of a call that its peers could be at, too.
    fn can_meet(&self, request: &Request) -> bool {
        let Work::Collective(program) = &request.work else { return false };
        let Some(channel) = self.way(request).filter(|_| program.direct.is_some()) else { return false };
        let ranks = channel.members.len();
        request.parts.raw().len() <= SLICE * ranks
            && channel.standing.is_ready(ranks)
            && !self.io.has_mail()
            && self.io.hub.as_ref().is_some_and(|hub| hub.inbox_is_empty(self.io.me))
    }

    /// The communicator of a collective that may be over before it returns: nothing else is in flight or waits to leave, and
    /// nothing is known that it would have to be told, or that it lacks somebody.
    pub(super) fn way(&self, request: &Request) -> Option<&Channel> {
        let channel = self.channels[request.channel].as_ref()?;
        let is_free = self.live == 0 && channel.is_at_rest() && self.io.outbox.is_empty();
        (is_free && self.departed(request).is_none()).then_some(channel)
    }

    /// Goes on with a call that has met nobody.
    pub(super) fn launch_part(&mut self, op: Arc<Op>, request: &Request, part: Part) {
        let Some(head) = self.fly(op, request) else { return };
        let key = head.key;
        self.polled.push(key);
        self.place_flight(key, Flight::Direct(Direct { head, part }));
        self.step(key);
    }
}
