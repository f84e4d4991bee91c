//! A small call of ranks that share memory between processes, which is over before it returns.
//!
//! As where ranks of one process [`meet`](super::meet): while nothing else is under way, the vector goes straight into the
//! ring of each of the others, and if theirs come in a moment, they are reduced from where they lie in the rings, and the
//! call needs no record, no deadline and no waker. The frames are those of an [`Exchange`](super::exchange), which the call goes on
//! as if somebody is late: then nothing has been taken from a ring, and what is there is read in the ordinary way.

use std::sync::Arc;

use super::call::{Op, Request, Work};
use super::core::Core;
use super::exchange::{Shape, header};
use super::io::{EAGER_MAX, Via};
use super::program::Program;
use super::shared::Submitted;
use crate::buffer::raw::Raw;
use crate::link::Class;
use crate::link::frame::Header;
use crate::link::tcp::Broken;
use crate::runtime::clock::Clock;
use crate::runtime::spin::{self, SpinPolicy};

/// Where ranks outnumber processors: how often one is handed on before the call goes on in flight. With it, those who share
/// it come in turn.
const YIELDS: usize = 4;

/// What a call has to do with one other rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// Of the world.
    peer: usize,
    sent: Header,
    due: Header,
}

impl Core {
    /// Begins such a call, and runs it to its end if the others are there, for whom it waits a moment. `None`: it
    /// is to begin in the ordinary way, and nothing of it has left.
    pub(super) fn near(
        &mut self,
        request: &mut Request,
        policy: SpinPolicy,
        clock: &Clock,
        record: impl FnOnce() -> Arc<Op>,
    ) -> Option<Submitted> {
        if !self.can_be_near(request) {
            return None;
        }
        let Work::Collective(program) = &request.work else { return None };
        let program = program.clone();
        let shape = program.exchange.as_ref()?;
        let raw = request.parts.raw();
        let mut sides = std::mem::take(&mut self.sides);
        self.find_sides(request, &program, shape, &mut sides);
        // Who comes late is told first what became of the call.
        let conn = |peer: usize| self.links[peer].as_ref().and_then(|pair| pair.fast.shm());
        let more = |side: &Side| conn(side.peer).is_some_and(|conn| conn.holds_more(&side.due));
        let begun = if sides.iter().any(more) { None } else { self.publish_near(&sides, raw) };
        if begun.is_none() {
            self.sides = sides;
            return None;
        }
        self.state.now = clock.now();
        self.state.polled_at = self.state.now;
        if let Some(channel) = self.state.channels[request.channel].as_mut() {
            channel.called(request.seq, request.desc);
        }
        let asleep = sides.iter().any(|side| self.neighbours.sleeps(side.peer));
        let looks = match policy {
            _ if asleep => 0,
            SpinPolicy::Look => self.state.meetings.pauses(raw.len()),
            SpinPolicy::Yield if self.state.meetings.waits() => YIELDS,
            _ => 0,
        };
        let met = self.await_near(&sides, looks, policy);
        self.state.meetings.met(met);
        let problem = if met { self.reduce_near(request, shape, &program, &sides, raw) } else { Ok(()) };
        self.sides = sides;
        if met && problem.is_ok() {
            self.state.order.moved(request.priority);
            let parts = std::mem::replace(&mut request.parts, crate::buffer::parts::Parts::NONE);
            return Some(Submitted::Over(parts));
        }
        let op = record();
        self.fly_near(op.clone(), request);
        // With what is in flight, it ends.
        if let Err((peer, broken)) = problem {
            self.broken(peer, Class::Fast, broken);
        }
        Some(Submitted::Flying(op))
    }

    /// Whether nothing stands in the way of a call of ranks that all share memory.
    fn can_be_near(&self, request: &Request) -> bool {
        let Work::Collective(program) = &request.work else { return false };
        let Some(shape) = &program.exchange else { return false };
        let (state, bytes) = (&self.state, request.parts.raw().len());
        let Some(channel) = state.channels[request.channel].as_ref() else { return false };
        let is_open = |send: &super::exchange::Send| {
            let peer = channel.members[send.to] as usize;
            let conn = self.links[peer].as_ref().and_then(|pair| pair.fast.shm());
            state.io.via(peer) == Via::Stream
                && state.io.has_eager(peer, bytes)
                && conn.is_some_and(|conn| conn.may_send_past(bytes))
        };
        bytes <= EAGER_MAX
            && state.live == 0
            && channel.is_at_rest()
            && state.io.outbox.is_empty()
            && shape.sends.iter().all(is_open)
            && state.departed(request).is_none()
    }

    fn find_sides(&self, request: &Request, program: &Program, shape: &Shape, sides: &mut Vec<Side>) {
        sides.clear();
        let Some(channel) = self.state.channels[request.channel].as_ref() else { return };
        let call = (channel.id, request.seq, request.digest);
        let length = request.parts.raw().len() as u32;
        for input in &program.inputs {
            let message =
                shape.sends.iter().find(|send| send.to == input.from).map_or(0, |send| send.message);
            let (mut sent, mut due) = (header(call, message), header(call, input.message));
            (sent.length, due.length) = (length, length);
            let peer = channel.members[input.from] as usize;
            sides.push(Side { peer, sent, due });
        }
    }

    /// The vector goes to all.
    fn publish_near(&mut self, sides: &[Side], raw: Raw) -> Option<()> {
        for Side { peer, sent, .. } in sides {
            let io = &mut self.state.io;
            let consumed = io.peers[*peer].consumed;
            let conn = self.links[*peer].as_mut()?.fast.shm_mut()?;
            conn.send_past(*sent, raw, consumed);
            io.take_eager(*peer, raw.len());
            io.peers[*peer].consumed_told = consumed;
            io.call(*peer);
        }
        Some(())
    }

    /// Whether the vectors of all have come.
    fn await_near(&self, sides: &[Side], mut looks: usize, policy: SpinPolicy) -> bool {
        let conn = |peer: usize| self.links[peer].as_ref().and_then(|pair| pair.fast.shm());
        let mut first = 0;
        loop {
            while first < sides.len() {
                let Side { peer, due, .. } = &sides[first];
                if !conn(*peer).is_some_and(|conn| conn.holds(due)) {
                    break;
                }
                first += 1;
            }
            if first == sides.len() {
                return true;
            }
            if looks == 0 {
                return false;
            }
            looks -= 1;
            match policy {
                // Those who are missing may want this very processor.
                SpinPolicy::Yield => spin::yield_processor(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Reduces all vectors in the order of the sum, and takes them from the rings.
    fn reduce_near(
        &mut self,
        request: &Request,
        shape: &Shape,
        program: &Program,
        sides: &[Side],
        raw: Raw,
    ) -> Result<(), (usize, Broken)> {
        let mut sources = std::mem::take(&mut self.sources);
        sources.clear();
        let conn = |peer: usize| self.links[peer].as_ref().and_then(|pair| pair.fast.shm());
        let of = |input: &usize| conn(sides[*input].peer).and_then(|conn| conn.payload_past(raw.len()));
        sources.extend(shape.srcs.iter().filter_map(|src| src.as_ref().map_or(Some(raw), of)));
        if sources.len() == shape.srcs.len() && raw.len() > 0 {
            raw.reduce_from(request.desc.reduction(shape.post, program.plan.ranks.len()), &sources, &[]);
        }
        self.sources = sources;
        for side in sides {
            self.take_near(side, raw.len()).map_err(|broken| (side.peer, broken))?;
        }
        Ok(())
    }

    fn take_near(&mut self, side: &Side, bytes: usize) -> Result<(), Broken> {
        let link = self.links[side.peer].as_mut().and_then(|pair| pair.fast.shm_mut());
        let Some(consumed) = link.map(|conn| conn.receive_past(&side.due)).transpose()? else {
            return Ok(());
        };
        let io = &mut self.state.io;
        io.returned(side.peer, consumed).map_err(Broken::Protocol)?;
        io.receive_eager(side.peer, bytes).map_err(Broken::Protocol)?;
        io.consume_eager(side.peer, bytes);
        Ok(())
    }

    /// Goes on in flight.
    fn fly_near(&mut self, op: Arc<Op>, request: &mut Request) {
        if let Some(exchange) = self.state.fly_sent(op, request.take()) {
            self.state.place_exchange(exchange);
        }
    }
}
