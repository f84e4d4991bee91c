//! Small calls of ranks that share memory between processes, which are over before they return.
//!
//! As where ranks of one process [`meet`](super::meet): while nothing stands in the way, what a call sends goes straight into
//! the rings of the others, and if what it waits for comes in a moment, it is used from where it lies in the rings, and the
//! call needs no record, no deadline and no waker. The frames are those of any other way, by which the call goes on
//! if somebody is late: then what has been sent and taken stays so, and the rest is read in the ordinary way.
//!
//! - [`looks`]: how they wait for it
//! - [`vector`]: everybody's vector to everybody ([`Exchange`](super::exchange))
//! - [`steps`]: any other small plan, by its steps
//! - [`message`]: a message between two ranks

mod looks;
mod message;
mod steps;
mod vector;

use std::sync::Arc;

use looks::Looks;
pub(super) use vector::Side;

use super::board::Wish;
use super::call::{Op, Request, Take, Work};
use super::core::Core;
use super::io::Via;
use super::shared::Submitted;
use super::state::State;
use crate::buffer::parts::Parts;
use crate::buffer::raw::Raw;
use crate::link::Class;
use crate::link::frame::Header;
use crate::link::shm;
use crate::link::tcp::Broken;
use crate::runtime::clock::Clock;
use crate::runtime::spin::SpinPolicy;

/// What a call needs that may be over before it returns: how it may wait, and what it becomes if it is not.
pub(super) struct Terms<'a, R> {
    pub policy: SpinPolicy,
    pub clock: &'a Clock,
    pub record: R,
}

impl Core {
    /// Begins such a call, and runs it to its end if the others are there, for whom it waits a moment. `None`: it
    /// is to begin in the ordinary way, and nothing of it has left.
    pub(super) fn near<R: FnOnce() -> Arc<Op>>(
        &mut self,
        request: &mut Request,
        terms: Terms<'_, R>,
    ) -> Option<Submitted> {
        match &request.work {
            Work::Collective(program) if program.exchange.is_some() => self.near_vector(request, terms),
            Work::Collective(program) if program.straight.is_some() => self.near_steps(request, terms),
            Work::Send { to } => self.near_send(request, *to),
            Work::Recv { wish: Wish { from: Some(from), tag: Some(_) }, take: Take::Exact } => {
                self.near_receive(request, *from as usize, terms.policy, terms.clock)
            }
            _ => None,
        }
    }

    fn conn(&self, peer: usize) -> Option<&shm::Conn> {
        self.links[peer].as_ref().and_then(|pair| pair.fast.shm())
    }

    /// Whether nothing is to be sent before what is sent now.
    fn is_clear(&self) -> bool {
        self.state.io.outbox.is_empty() && !self.writable
    }

    /// Whether a rank with small vectors is reached through memory, and all that has come from there is payload.
    fn is_near(&self, peer: usize) -> bool {
        self.state.io.via(peer) == Via::Stream && self.conn(peer).is_some_and(shm::Conn::has_only_payload)
    }

    /// Whether so much payload can go there at once.
    fn has_near_room(&self, peer: usize, bytes: usize) -> bool {
        self.state.io.has_eager(peer, bytes) && self.conn(peer).is_some_and(|conn| conn.may_send_past(bytes))
    }

    /// A call begins that may be over before anybody needs to know when.
    fn begin_near(&mut self, request: &Request) {
        self.state.polled_since = true;
        if let (Some(channel), Work::Collective(_)) =
            (self.state.channels[request.channel].as_mut(), &request.work)
        {
            channel.called(request);
        }
    }

    /// Writes a frame for which there is [room](Self::has_near_room).
    fn send_near(&mut self, peer: usize, header: Header, raw: Raw) {
        let io = &mut self.state.io;
        let consumed = io.peers[peer].consumed;
        let Some(conn) = self.links[peer].as_mut().and_then(|pair| pair.fast.shm_mut()) else { return };
        conn.send_past(header, raw, consumed);
        io.take_eager(peer, raw.len());
        io.peers[peer].consumed_told = consumed;
        io.call(peer);
    }

    /// How a call of so many bytes looks for what it waits for; `sleeps`: from a rank that does.
    fn near_looks(&self, bytes: usize, sleeps: bool, policy: SpinPolicy) -> Looks {
        let meetings = &self.state.meetings;
        match policy {
            _ if sleeps => Looks::default(),
            SpinPolicy::Look => Looks::alone(meetings.pauses(bytes)),
            SpinPolicy::Yield if meetings.waits() => Looks::shared(&self.neighbours),
            _ => Looks::default(),
        }
    }

    /// Copies a message that may still be written, from what is `placed` already as far as it is there. Says how far that is, and
    /// whether it is all.
    fn place_near(&self, peer: usize, due: &Header, raw: Raw, placed: usize) -> (usize, bool) {
        let Some(conn) = self.conn(peer) else { return (placed, false) };
        let (end, all) = conn.holds_payload(due);
        let end = end.max(placed);
        if let Some(src) = conn.payload_past(raw.len()) {
            raw.sub(placed..end).claim_and_copy_from(src.sub(placed..end));
        }
        (end, all)
    }

    /// Takes a frame that was used where it lies.
    fn take_near(&mut self, peer: usize, due: &Header) -> Result<(), (usize, Broken)> {
        self.take_frame(peer, due).map_err(|broken| (peer, broken))
    }

    fn take_frame(&mut self, peer: usize, due: &Header) -> Result<(), Broken> {
        let link = self.links[peer].as_mut().and_then(|pair| pair.fast.shm_mut());
        let Some((consumed, tells)) = link.map(|conn| conn.receive_past(due)).transpose()? else {
            return Ok(());
        };
        let (io, bytes) = (&mut self.state.io, due.length as usize);
        if tells {
            io.call(peer);
        }
        io.returned(peer, consumed).map_err(Broken::Protocol)?;
        io.receive_eager(peer, bytes).map_err(Broken::Protocol)?;
        io.consume_eager(peer, bytes);
        Ok(())
    }

    /// A call that is not over goes on in flight, put there by `fly`, and ends there if something is wrong with a peer.
    fn go_on<R: FnOnce() -> Arc<Op>>(
        &mut self,
        clock: &Clock,
        record: R,
        problem: Option<(usize, Broken)>,
        fly: impl FnOnce(&mut State, Arc<Op>),
    ) -> Submitted {
        self.begin_flight(clock);
        let op = record();
        fly(&mut self.state, op.clone());
        if let Some((peer, broken)) = problem {
            self.broken(peer, Class::Fast, broken);
        }
        Submitted::Flying(op)
    }

    /// A call goes on in flight: from now on its time counts.
    fn begin_flight(&mut self, clock: &Clock) {
        self.state.now = clock.now();
        (self.state.polled_at, self.state.polled_since) = (self.state.now, false);
    }

    fn over_near(&mut self, request: &mut Request) -> Submitted {
        self.state.order.moved(request.priority);
        Submitted::Over(std::mem::replace(&mut request.parts, Parts::NONE))
    }
}
