//! A small collective in one exchange: everybody's vector to everybody over byte links, reduced when all are there.
//!
//! It does what the steps of a one-shot plan say, recognised by their shape ([`Shape`]), without a state for each of them.
//! The plan sends a copy, so that the result need not wait until peers have read; a byte link has taken what it sends
//! long before the peers' vectors are there, so the vector itself is sent.

use std::sync::Arc;

use super::call::{Op, Request, Work};
use super::head::Head;
use super::io::{EAGER_MAX, Io, Via};
use super::program::Program;
use super::run::{Due, NOT_IN_PLAN, check_request};
use super::state::{Flight, State};
use crate::buffer::parts::Parts;
use crate::buffer::pool::Block;
use crate::buffer::raw::Raw;
use crate::link::frame::{EAGER, Header, Kind};
use crate::link::{Class, Sink};
use crate::path::Post;

/// Messages up to this size come into memory that is kept for the next exchange, larger ones into blocks of the pool.
const SMALL: usize = 512;

/// A rank's part of a plan in which every rank sends its whole vector to every other one, and reduces all of them.
#[derive(Debug)]
pub(crate) struct Shape {
    /// To whom, and as which message.
    pub sends: Vec<Send>,
    /// The inputs in the order of the sum; `None`: one's own vector.
    pub srcs: Vec<Option<usize>>,
    pub post: Post,
}

#[derive(Debug)]
pub(crate) struct Send {
    pub to: usize,
    pub message: u16,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub head: Head,
    program: Arc<Program>,
    parts: Parts,
    memory: Kept,
    /// Messages that have not come.
    missing: usize,
    complete: bool,
}

/// Memory of an ended exchange, for the next one.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Per send: bytes that have not left.
    unsent: Vec<usize>,
    /// Per input of the program.
    arrivals: Vec<Arrival>,
    /// Where small messages come, aligned for any element.
    small: Vec<u64>,
    sources: Vec<Raw>,
}

#[derive(Debug, Default)]
struct Arrival {
    /// Where a large message comes.
    large: Option<Block>,
    complete: bool,
    /// It is on its way into its memory.
    reading: bool,
    /// Its sender has asked for credit.
    asked: bool,
}

impl Exchange {
    /// Whether a call is one, and may send at once.
    pub(crate) fn fits(program: &Program, members: &[u32], bytes: usize, io: &Io) -> bool {
        let Some(shape) = &program.exchange else { return false };
        bytes <= EAGER_MAX
            && shape.sends.iter().all(|send| {
                let peer = members[send.to] as usize;
                io.via(peer) == Via::Stream && io.has_eager(peer, bytes)
            })
    }

    /// Begins one that [`fits`](Self::fits).
    pub(crate) fn start(
        head: Head,
        program: Arc<Program>,
        parts: Parts,
        memory: Kept,
        io: &mut Io,
    ) -> Exchange {
        let raw = parts.raw();
        let mut exchange = Self::sent(head, program, parts, memory);
        let Exchange { head, program, memory, .. } = &mut exchange;
        let sends = program.exchange.iter().flat_map(|shape| &shape.sends);
        for (index, send) in sends.enumerate() {
            let peer = head.members[send.to] as usize;
            // There is enough: it was asked.
            io.take_eager(peer, raw.len());
            let header = header((head.channel_id, head.seq, head.digest), send.message);
            io.lend(peer, Class::Fast, header, raw, head.key, index as u16);
            memory.unsent.push(raw.len());
        }
        exchange
    }

    /// `bytes` of the vector, as send 0, are still to leave.
    pub(super) fn has_yet_to_send(&mut self, bytes: usize) {
        self.memory.unsent.push(bytes);
    }

    /// One whose vector has left already.
    pub(super) fn sent(head: Head, program: Arc<Program>, parts: Parts, mut memory: Kept) -> Exchange {
        let raw = parts.raw();
        memory.unsent.clear();
        memory.arrivals.clear();
        memory.arrivals.resize_with(program.inputs.len(), Arrival::default);
        if raw.len() <= SMALL {
            memory.small.resize(program.inputs.len() * words(raw.len()), 0);
        }
        Exchange { missing: program.inputs.len(), head, program, parts, memory, complete: false }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// `bytes` of what was sent as send `index` have left.
    pub(crate) fn released(&mut self, index: usize, bytes: usize) {
        self.memory.unsent[index] -= bytes;
    }

    fn input(&self, from: usize, message: u32) -> Result<usize, String> {
        Ok(self.program.incoming(from, message).ok_or(NOT_IN_PLAN)?)
    }

    /// Where the message goes, if it is in the plan and due.
    pub(crate) fn sink(&mut self, from: usize, header: &Header, io: &mut Io) -> Result<Sink, String> {
        let input = self.input(from, header.item)?;
        let bytes = self.parts.raw().len();
        let arrival = &mut self.memory.arrivals[input];
        let arrived = if arrival.complete { bytes } else { 0 };
        let due = Due { arrived, over: arrival.complete, reading: arrival.reading };
        due.end(bytes, header, self.head.desc.dtype.size())?;
        arrival.reading = true;
        if bytes > SMALL {
            arrival.large.get_or_insert_with(|| io.pool.block(bytes));
        }
        Ok(Sink::Direct(self.window(input), self.head.key))
    }

    /// Where an input comes.
    fn window(&mut self, input: usize) -> Raw {
        let bytes = self.parts.raw().len();
        match &self.memory.arrivals[input].large {
            Some(block) => block.raw().sub(0..bytes),
            None => {
                let at = input * words(bytes) * size_of::<u64>();
                Raw::of_words(&mut self.memory.small).sub(at..at + bytes)
            }
        }
    }

    /// The message is in its memory.
    pub(crate) fn arrived(&mut self, from: usize, header: &Header) {
        let Ok(input) = self.input(from, header.item) else { return };
        let arrival = &mut self.memory.arrivals[input];
        arrival.reading = false;
        if !std::mem::replace(&mut arrival.complete, true) {
            self.missing -= 1;
        }
    }

    /// A message that came before this was called.
    pub(crate) fn deliver(
        &mut self,
        from: usize,
        header: &Header,
        bytes: Vec<u8>,
        io: &mut Io,
    ) -> Result<(), String> {
        if let Sink::Direct(raw, _) = self.sink(from, header, io)? {
            raw.copy_from_slice(&bytes);
        }
        io.recycle(bytes);
        self.arrived(from, header);
        Ok(())
    }

    /// The sender of a message has no budget and asks for it.
    pub(crate) fn requested(&mut self, from: usize, message: u32, io: &mut Io) -> Result<(), String> {
        let input = self.input(from, message)?;
        let bytes = self.parts.raw().len();
        let arrival = &mut self.memory.arrivals[input];
        check_request(arrival.complete, &mut arrival.asked)?;
        self.head.grant(from, message, bytes, io);
        Ok(())
    }

    /// Reduces when everything is there. Says whether it did.
    pub(crate) fn advance(&mut self) -> bool {
        if self.complete || self.missing > 0 || self.memory.unsent.iter().any(|bytes| *bytes > 0) {
            return false;
        }
        let program = self.program.clone();
        let Some(shape) = &program.exchange else { return false };
        let mut sources = std::mem::take(&mut self.memory.sources);
        let raw = self.parts.raw();
        sources.extend(shape.srcs.iter().map(|src| src.map_or(raw, |input| self.window(input))));
        if raw.len() > 0 {
            raw.reduce_from(self.head.reduction(shape.post), &sources, &[]);
        }
        sources.clear();
        self.memory.sources = sources;
        self.complete = true;
        true
    }

    /// The ranks whose vectors have not come, or that don't take ours.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        let inputs = self.program.inputs.iter().zip(&self.memory.arrivals);
        let missing = inputs.filter(|(_, arrival)| !arrival.complete).map(|(input, _)| input.from);
        let sends = self.program.exchange.iter().flat_map(|shape| &shape.sends).zip(&self.memory.unsent);
        let unsent = sends.filter(|(_, bytes)| **bytes > 0).map(|(send, _)| send.to);
        let mut ranks: Vec<usize> = missing.chain(unsent).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Ends it: gives back its vector, and its memory. Of an unfinished one, links may still know both.
    pub(crate) fn end(&mut self) -> (Parts, Kept) {
        let mut memory = std::mem::take(&mut self.memory);
        if self.complete {
            memory.arrivals.clear();
        }
        (std::mem::replace(&mut self.parts, Parts::NONE), memory)
    }
}

impl State {
    /// Puts a call in flight whose vector has left already, past the queues; it is to be [placed](Self::place_exchange).
    pub(super) fn fly_sent(&mut self, op: Arc<Op>, request: Request) -> Option<Exchange> {
        let Work::Collective(program) = &request.work else { return None };
        let head = self.fly(op, &request)?;
        self.recent = request.channel;
        self.exchanging += 1;
        let memory = self.exchanged.pop().unwrap_or_default();
        Some(Exchange::sent(head, program.clone(), request.parts, memory))
    }

    pub(super) fn place_exchange(&mut self, exchange: Exchange) {
        let key = exchange.head.key;
        self.place_flight(key, Flight::Exchange(exchange));
        self.part_with_closed(key);
    }
}

/// Of a message of the call with this identifier, number and digest.
pub(super) fn header(call: (u64, u64, u64), message: u16) -> Header {
    let (channel, number, digest) = call;
    let mut header = Header::new(Kind::Data, channel, number);
    (header.digest, header.flags, header.item) = (digest, EAGER, u32::from(message));
    header
}

/// Words that hold so many bytes.
fn words(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<u64>())
}
