//! Everybody's vector to everybody, reduced from the rings.

use std::sync::Arc;

use super::super::call::{Op, Request, Work};
use super::super::core::Core;
use super::super::exchange::{Send, Shape, header};
use super::super::io::EAGER_MAX;
use super::super::program::Program;
use super::super::shared::Submitted;
use super::{Looks, Terms};
use crate::buffer::raw::Raw;
use crate::link::frame::Header;
use crate::link::tcp::Broken;

/// What a call has to do with one other rank.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Side {
    /// Of the world.
    peer: usize,
    sent: Header,
    due: Header,
}

impl Core {
    pub(super) fn near_vector<R: FnOnce() -> Arc<Op>>(
        &mut self,
        request: &mut Request,
        terms: Terms<'_, R>,
    ) -> Option<Submitted> {
        let Terms { policy, clock, record } = terms;
        let Work::Collective(program) = &request.work else { return None };
        let program = program.clone();
        let shape = program.exchange.as_ref()?;
        if !self.can_be_near(request, shape) {
            return None;
        }
        let raw = request.parts.raw();
        let mut sides = std::mem::take(&mut self.sides);
        self.find_sides(request, &program, shape, &mut sides);
        for Side { peer, sent, .. } in &sides {
            self.send_near(*peer, *sent, raw);
        }
        self.begin_near(request);
        let asleep = sides.iter().any(|side| self.neighbours.sleeps(side.peer));
        let met = self.await_near(&sides, self.near_looks(raw.len(), asleep, policy));
        if met || !asleep {
            self.state.meetings.met(met);
        }
        let problem = if met { self.reduce_near(request, shape, &program, &sides, raw).err() } else { None };
        self.sides = sides;
        if met && problem.is_none() {
            return Some(self.over_near(request));
        }
        Some(self.go_on(clock, record, problem, |state, op| {
            if let Some(exchange) = state.fly_sent(op, request.take()) {
                state.place_exchange(exchange);
            }
        }))
    }

    /// Whether nothing stands in the way of a call of ranks that all share memory.
    fn can_be_near(&self, request: &Request, shape: &Shape) -> bool {
        let bytes = request.parts.raw().len();
        let Some(channel) = self.state.way(request) else { return false };
        let is_open = |send: &Send| {
            let peer = channel.members[send.to] as usize;
            self.is_near(peer) && self.has_near_room(peer, bytes)
        };
        bytes <= EAGER_MAX && self.is_clear() && shape.sends.iter().all(is_open)
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

    /// Whether the vectors of all have come.
    fn await_near(&self, sides: &[Side], mut looks: Looks) -> bool {
        let mut first = 0;
        loop {
            while first < sides.len() {
                let Side { peer, due, .. } = &sides[first];
                if !self.conn(*peer).is_some_and(|conn| conn.holds(due)) {
                    break;
                }
                first += 1;
            }
            if first == sides.len() {
                return true;
            }
            if !looks.pause(&self.neighbours, sides[first..].iter().map(|side| side.peer)) {
                return false;
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
        let of = |input: &usize| self.conn(sides[*input].peer).and_then(|conn| conn.payload_past(raw.len()));
        sources.extend(shape.srcs.iter().filter_map(|src| src.as_ref().map_or(Some(raw), of)));
        if sources.len() == shape.srcs.len() && raw.len() > 0 {
            raw.reduce_from(request.desc.reduction(shape.post, program.plan.ranks.len()), &sources, &[]);
        }
        self.sources = sources;
        for side in sides {
            self.take_near(side.peer, &side.due)?;
        }
        Ok(())
    }
}
