//! A call of two ranks that is over before it returns: over a byte link, each swaps its small vector for the other's.
//!
//! As where ranks of one process [`meet`](super::meet): while nothing else is under way, the vector leaves past the queues,
//! and if the other's comes in a moment, the call needs no record, no deadline and no waker. The frames are those of an
//! [`Exchange`](super::exchange), which the call goes on as if the other is late; he sees no difference. Whatever else
//! comes is left to an ordinary turn.

use std::sync::Arc;

use rustix::io::Errno;

use super::call::{Op, Request, Work};
use super::core::Core;
use super::exchange::header;
use super::io::Via;
use super::shared::Submitted;
use crate::buffer::parts::Parts;
use crate::buffer::raw::Raw;
use crate::link::Class;
use crate::link::frame::{Header, Outgoing, Payload};
use crate::link::tcp::{Broken, Found, SMALL};
use crate::runtime::clock::Clock;

/// Looks for the other's vector before the call goes on in flight: some microseconds, which is what a vector needs that
/// leaves when ours arrives.
const LOOKS: usize = 16;

/// What leaves and what comes.
struct Pair {
    /// Of the world.
    peer: usize,
    sent: Header,
    due: Header,
}

impl Core {
    /// Begins a call that is such a swap, and runs it to its end if the other is there, for whom it waits a moment if it
    /// `may_wait`. `None`: it is to begin in the ordinary way, and nothing of it has left.
    pub(super) fn swap(
        &mut self,
        request: &mut Request,
        may_wait: bool,
        clock: &Clock,
        record: impl FnOnce() -> Arc<Op>,
    ) -> Option<Submitted> {
        let pair = self.pair(request)?;
        let now = clock.now();
        if !self.may_look_past(now) {
            return None;
        }
        let raw = request.parts.raw();
        let io = &mut self.state.io;
        let consumed = io.peers[pair.peer].consumed;
        let link = self.links[pair.peer].as_mut()?;
        let conn = link.fast.tcp().filter(|conn| conn.is_at_rest())?;
        let part = match conn.send_past(pair.sent, raw.bytes_ref(), consumed) {
            Ok(part) => part,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(error) => {
                self.state.now = now;
                self.broken(pair.peer, Class::Fast, error.into());
                return None;
            }
        };
        let looks = if part.is_none() && may_wait && link.swaps.waits() { LOOKS } else { 0 };
        io.take_eager(pair.peer, raw.len());
        io.peers[pair.peer].consumed_told = consumed;
        (self.state.now, self.state.polled_at) = (now, now);
        if let Some(channel) = self.state.channels[request.channel].as_mut() {
            channel.called(request);
        }
        let found = self.await_vector(&pair, raw, looks);
        if matches!(found, Ok(true)) {
            self.reduce(request, raw);
            self.state.order.moved(request.priority);
            return Some(Submitted::Over(std::mem::replace(&mut request.parts, Parts::NONE)));
        }
        let op = record();
        self.fly(op.clone(), request, pair.peer, part);
        if let Err(broken) = found {
            self.broken(pair.peer, Class::Fast, broken);
        }
        Some(Submitted::Flying(op))
    }

    /// Goes on in flight; of a frame that has left in part, the rest follows.
    fn fly(&mut self, op: Arc<Op>, request: &mut Request, peer: usize, part: Option<(Header, usize)>) {
        let raw = request.parts.raw();
        let Some(mut exchange) = self.state.fly_sent(op, request.take()) else { return };
        let key = exchange.head.key;
        if let Some((header, sent)) = part
            && let Some(link) = self.links[peer].as_mut()
            && let Some(conn) = link.fast.tcp()
        {
            conn.queue_rest(Outgoing { header, payload: Payload::Lent { raw, run: key, step: 0 } }, sent);
            let rest = conn.queued_bytes();
            exchange.has_yet_to_send(rest);
            self.state.io.queue_rest(peer, Class::Fast, rest);
            self.state.io.peers[peer].waiting = conn.queued_frames();
            self.writable = true;
        }
        self.state.place_exchange(exchange);
    }

    /// What is to be swapped, if nothing stands in the way.
    fn pair(&self, request: &Request) -> Option<Pair> {
        let Work::Collective(program) = &request.work else { return None };
        let [send] = program.exchange.as_ref()?.sends.as_slice() else { return None };
        let [input] = program.inputs.as_slice() else { return None };
        let (state, bytes) = (&self.state, request.parts.raw().len());
        let channel = state.way(request)?;
        let peer = channel.members[send.to] as usize;
        let is_free = bytes <= SMALL && state.io.via(peer) == Via::Stream && state.io.has_eager(peer, bytes);
        let call = (channel.id, request.seq, request.digest);
        let (sent, mut due) = (header(call, send.message), header(call, input.message));
        due.length = bytes as u32;
        is_free.then_some(Pair { peer, sent, due })
    }

    /// Whether the other's vector has come; what else has is left to the next turn.
    fn await_vector(&mut self, pair: &Pair, raw: Raw, looks: usize) -> Result<bool, Broken> {
        self.window.resize(SMALL / size_of::<u64>(), 0);
        let window = Raw::of_words(&mut self.window).sub(0..raw.len());
        let Some(link) = self.links[pair.peer].as_mut() else { return Ok(false) };
        let Some(conn) = link.fast.tcp() else { return Ok(false) };
        for _ in 0..looks {
            match conn.receive_past(&pair.due, window.bytes_mut())? {
                Found::Frame { consumed } => {
                    let io = &mut self.state.io;
                    io.returned(pair.peer, consumed).map_err(Broken::Protocol)?;
                    io.receive_eager(pair.peer, raw.len()).map_err(Broken::Protocol)?;
                    io.consume_eager(pair.peer, raw.len());
                    link.swaps.met(true);
                    return Ok(true);
                }
                Found::Nothing => std::hint::spin_loop(),
                Found::Other => break,
            }
        }
        link.fast.unblock(true, false, false);
        link.swaps.met(false);
        Ok(false)
    }

    /// Both vectors, in the order of the sum.
    fn reduce(&mut self, request: &Request, raw: Raw) {
        let Work::Collective(program) = &request.work else { return };
        let Some(shape) = program.exchange.as_ref().filter(|_| raw.len() > 0) else { return };
        let window = Raw::of_words(&mut self.window).sub(0..raw.len());
        let source = |index: usize| if shape.srcs[index].is_some() { window } else { raw };
        raw.reduce_from(request.desc.reduction(shape.post, 2), &[source(0), source(1)], &[]);
    }
}
