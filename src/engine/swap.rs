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
use super::meet::Meetings;
use super::program::Program;
use super::shared::Submitted;
use crate::buffer::parts::Parts;
use crate::buffer::raw::Raw;
use crate::link::Class;
use crate::link::frame::Header;
use crate::link::tcp::{Broken, Found, SMALL};
use crate::runtime::clock::Clock;

/// Looks for the other's vector before the call goes on in flight: some microseconds, which is what a vector needs that
/// leaves when ours arrives.
const LOOKS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Swaps {
    meetings: Meetings,
    /// Where the other's vector comes, aligned for any element.
    memory: Vec<u64>,
}

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
        let raw = request.parts.raw();
        let io = &mut self.state.io;
        let consumed = io.peers[pair.peer].consumed;
        let conn = self.links[pair.peer].as_mut()?.fast.tcp().filter(|conn| conn.is_at_rest())?;
        match conn.send_past(pair.sent, raw.bytes_ref(), consumed) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(error) => {
                self.state.now = clock.now();
                let cause = std::io::Error::from(error).to_string();
                self.broken(pair.peer, Class::Fast, Broken::Lost(cause));
                return None;
            }
        }
        self.writable |= conn.queued_frames() > 0;
        io.take_eager(pair.peer, raw.len());
        (io.peers[pair.peer].waiting, io.peers[pair.peer].consumed_told) = (conn.queued_frames(), consumed);
        let now = clock.now();
        (self.state.now, self.state.polled_at) = (now, now);
        if let Some(channel) = self.state.channels[request.channel].as_mut() {
            channel.called(request.seq, request.desc);
        }
        let Work::Collective(program) = std::mem::replace(&mut request.work, Work::GivenUp) else {
            return None;
        };
        let parts = std::mem::replace(&mut request.parts, Parts::NONE);
        let looks = if may_wait && self.swaps.meetings.waits() { LOOKS } else { 0 };
        let found = self.await_vector(&pair, raw, looks);
        let met = matches!(found, Ok(true));
        self.swaps.meetings.met(met);
        if met {
            self.reduce(request, &program, raw);
            self.state.order.moved(request.priority);
            return Some(Submitted::Over(parts));
        }
        let op = record();
        self.state.launch_sent(op.clone(), request, program, parts);
        if let Err(broken) = found {
            self.broken(pair.peer, Class::Fast, broken);
        }
        Some(Submitted::Flying(op))
    }

    /// What is to be swapped, if nothing stands in the way.
    fn pair(&mut self, request: &Request) -> Option<Pair> {
        let Work::Collective(program) = &request.work else { return None };
        let [send] = program.exchange.as_ref()?.sends.as_slice() else { return None };
        let [input] = program.inputs.as_slice() else { return None };
        let (state, bytes) = (&self.state, request.parts.raw().len());
        let channel = state.channels[request.channel].as_ref()?;
        let peer = channel.members[send.to] as usize;
        let is_free = bytes <= SMALL
            && state.live == 0
            && channel.is_at_rest()
            && state.io.outbox.is_empty()
            && state.io.via(peer) == Via::Stream
            && state.io.has_eager(peer, bytes)
            && state.departed(request).is_none();
        let call = (channel.id, request.seq, request.digest);
        let (sent, mut due) = (header(call, send.message), header(call, input.message));
        due.length = bytes as u32;
        (is_free && self.may_look_past()).then_some(Pair { peer, sent, due })
    }

    /// Whether the other's vector has come; what else has is left to the next turn.
    fn await_vector(&mut self, pair: &Pair, raw: Raw, looks: usize) -> Result<bool, Broken> {
        self.swaps.memory.resize(SMALL / size_of::<u64>(), 0);
        let memory = Raw::of_words(&mut self.swaps.memory).sub(0..raw.len());
        let Some(conn) = self.links[pair.peer].as_mut().and_then(|links| links.fast.tcp()) else {
            return Ok(false);
        };
        for _ in 0..looks {
            match conn.receive_past(&pair.due, memory.bytes_mut())? {
                Found::Frame { consumed } => {
                    let io = &mut self.state.io;
                    io.returned(pair.peer, consumed).map_err(Broken::Protocol)?;
                    io.receive_eager(pair.peer, raw.len()).map_err(Broken::Protocol)?;
                    io.consume_eager(pair.peer, raw.len());
                    return Ok(true);
                }
                Found::Nothing => std::hint::spin_loop(),
                Found::Other => break,
            }
        }
        conn.read_again();
        Ok(false)
    }

    /// Both vectors, in the order of the sum.
    fn reduce(&mut self, request: &Request, program: &Program, raw: Raw) {
        let Some(shape) = &program.exchange else { return };
        if raw.len() > 0 {
            let memory = Raw::of_words(&mut self.swaps.memory).sub(0..raw.len());
            let source = |index: usize| if shape.srcs[index].is_some() { memory } else { raw };
            let reduction = request.desc.reduction(shape.post, 2);
            raw.reduce_from(reduction, &[source(0), source(1)], &[]);
        }
    }
}
