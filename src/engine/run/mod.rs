//! A collective in flight: how far each step of its program has come.
//!
//! A step's state is a watermark in bytes. [`Run::advance`] moves every step as far as its dependencies and inputs
//! allow; links report arrivals and releases, in-process peers are looked at. No step is ever blocked on: what can't
//! move is left where it is.
//!
//! - [`counted`]: messages of which one rank says how long they are
//! - [`credit`]: how far messages may go
//! - [`intake`]: what links bring
//! - [`lent`]: messages that are read where they lie, in other processes
//! - [`reduce`]: reductions, and results written to peers
//! - [`waiting`]: who is waited for

mod counted;
mod credit;
mod intake;
mod lent;
mod reduce;
mod waiting;

use counted::Length;
pub(super) use counted::counts;
pub(crate) use credit::check_request;
pub(crate) use intake::{Due, NOT_IN_PLAN};
use lent::Message;

use std::sync::Arc;

use super::call::Arrival;
use super::head::Head;
use super::io::{EAGER_MAX, Io, Via};
use super::program::{Act, Program, Push};
use super::spaces::Spaces;
use crate::buffer::arena::Place;
use crate::buffer::parts::{Parts, Sizes};
use crate::buffer::pool::Block;
use crate::buffer::raw::Raw;
use crate::kernel::SOURCES_MAX;
use crate::link::Class;
use crate::link::frame::{EAGER, Header, Kind, Outgoing, PAYLOAD_MAX};
use crate::link::memory::Lease;
use crate::link::shm::Loan;
use crate::path::{After, Range};

/// Bytes moved by one step before others get their turn: fits a second-level cache with its operands.
pub(in crate::engine) const SLICE: usize = 128 << 10;
/// How often all steps are moved by a slice before others get their turn: a fraction of a millisecond.
pub(super) const PASSES: usize = 2;
/// Staging per peer of a reduction whose inputs come over byte links: two slices in work, two on the way.
pub(super) const WINDOW: usize = 4 * PAYLOAD_MAX;
/// Credit is told in portions of this size, except for the last.
const CREDIT_STEP: usize = WINDOW / 2;

#[derive(Debug)]
pub(crate) struct Run {
    pub head: Head,
    program: Arc<Program>,
    parts: Parts,
    spaces: Spaces,
    /// Who knows how long its parts are, where they are not equal.
    sizes: Option<Sizes>,
    /// What this rank got, if it did not know how long it is.
    arrival: Option<Arrival>,
    steps: Vec<StepState>,
    inputs: Vec<InputState>,
    scratch: Vec<Block>,
    lease: Option<Arc<Lease>>,
    /// Where the output and the input lie for other processes.
    places: [Option<Place>; 2],
    /// Per rank: what it lends, once it has said so and its digest was found equal.
    offers: Vec<Option<Arc<Lease>>>,
    /// Steps not finished.
    left: usize,
    /// Ranges of the reduction at work, empty in between.
    sources: Vec<Raw>,
    copies: Vec<Raw>,
}

#[derive(Clone, Copy, Debug)]
struct StepState {
    raw: Raw,
    done: usize,
    complete: bool,
    /// `Send` over a byte link: bytes handed to the link, and how far the receiver takes them.
    queued: usize,
    credit: usize,
    eager: bool,
    asked: bool,
    /// Its receiver was told how long it is.
    told: bool,
    /// An empty message has been handed over.
    begun: bool,
    /// `Send` to another process that reads it here: by what, and until all is read.
    lends: Option<Loan>,
    lent: bool,
}

impl StepState {
    fn new(raw: Raw) -> StepState {
        StepState {
            raw,
            done: 0,
            complete: false,
            queued: 0,
            credit: 0,
            eager: false,
            asked: false,
            told: false,
            begun: false,
            lends: None,
            lent: false,
        }
    }
}

#[derive(Debug, Default)]
struct InputState {
    via_memory: bool,
    arrived: usize,
    complete: bool,
    granted: usize,
    /// Its sender has asked for credit.
    asked: bool,
    length: Length,
    /// A frame of it is on its way into its memory.
    reading: bool,
    window: Option<Block>,
    /// It is read in its sender's memory; or it was lent, and that can't be mapped here.
    lent: Option<Message>,
    declined: bool,
    /// A whole small message that came before its destination was free.
    early: Option<Vec<u8>>,
}

impl Run {
    /// Its allocations, once it has ended.
    pub(crate) fn recycled(&mut self) -> Recycled {
        use std::mem::take;
        Recycled {
            steps: take(&mut self.steps),
            inputs: take(&mut self.inputs),
            scratch: take(&mut self.scratch),
            offers: take(&mut self.offers),
            sources: take(&mut self.sources),
            copies: take(&mut self.copies),
        }
    }
}

/// Allocations of an ended run, for the next one.
#[derive(Debug, Default)]
pub(crate) struct Recycled {
    steps: Vec<StepState>,
    inputs: Vec<InputState>,
    scratch: Vec<Block>,
    offers: Vec<Option<Arc<Lease>>>,
    sources: Vec<Raw>,
    copies: Vec<Raw>,
}

impl Run {
    /// Begins it, of whose steps those in `done` are done already, by bit.
    pub(crate) fn start(
        head: Head,
        program: Arc<Program>,
        parts: Parts,
        mut memory: Recycled,
        done: u64,
        io: &mut Io,
    ) -> Run {
        memory.steps.clear();
        memory.inputs.clear();
        memory.scratch.clear();
        memory.offers.clear();
        memory.offers.resize(head.members.len(), None);
        let places = [Some(&parts), parts.input()].map(|parts| io.place_of(parts?));
        let spaces = Spaces::new(&program, &head.desc, &parts);
        let sizes = parts.sizes();
        let mut run = Run {
            head,
            program,
            parts,
            spaces,
            sizes,
            arrival: None,
            steps: memory.steps,
            inputs: memory.inputs,
            scratch: memory.scratch,
            lease: None,
            places,
            offers: memory.offers,
            left: 0,
            sources: memory.sources,
            copies: memory.copies,
        };
        let program = run.program.clone();
        for span in &program.scratch {
            let bytes = run.spaces.bytes(*span);
            run.scratch.push(io.pool.block(bytes));
        }
        let mut memory_peers = false;
        for (index, step) in program.steps.iter().enumerate() {
            let raw = run.raw(step.range);
            let mut state = StepState::new(raw);
            if done.checked_shr(index as u32).is_some_and(|bits| bits & 1 == 1) {
                (state.done, state.complete) = (raw.len(), true);
            } else if let Act::Send { to, .. } = step.act {
                match io.via(run.head.members[to] as usize) {
                    Via::Stream => {
                        state.lends = run.lend(raw, run.head.members[to] as usize, io);
                        state.lent = state.lends.is_some();
                        state.eager = raw.len() <= EAGER_MAX && !state.lent;
                    }
                    _ => memory_peers = true,
                }
            }
            run.steps.push(state);
        }
        for input in &program.inputs {
            let via_memory = io.via(run.head.members[input.from] as usize) != Via::Stream;
            let StepState { raw, complete, .. } = run.steps[input.step];
            let arrived = if complete { raw.len() } else { 0 };
            run.inputs.push(InputState { via_memory, arrived, complete, ..InputState::default() });
        }
        run.left = run.steps.iter().filter(|step| !step.complete).count();
        if memory_peers {
            run.offer(io);
        }
        run
    }

    fn raw(&self, range: Range) -> Raw {
        self.spaces.raw(range, |area| (self.scratch[area].raw(), self.program.scratch[area].first))
    }

    /// Tells the ranks of this process what this operation lends.
    fn offer(&mut self, io: &mut Io) {
        let lease = io.lease(self.head.digest, self.steps.iter().map(|step| step.raw), false);
        let mut told = [false; SOURCES_MAX];
        for step in &self.program.steps {
            let Act::Send { to, .. } = step.act else { continue };
            let peer = self.head.members[to] as usize;
            if io.via(peer) == Via::Memory && !std::mem::replace(&mut told[to % SOURCES_MAX], true) {
                let mut header = Header::new(Kind::Data, self.head.channel_id, self.head.seq);
                header.digest = self.head.digest;
                io.message(peer, header, Vec::new(), Some(lease.clone()));
            }
        }
        self.lease = Some(lease);
    }

    /// A rank of this process has begun, with an equal digest. Says whether it lends as it has to.
    pub(crate) fn accept_offer(&mut self, from: usize, lease: Arc<Lease>) -> bool {
        let agreed = lease.digest == self.head.digest && self.takes_lent(from, &lease);
        if agreed {
            self.offers[from] = Some(lease);
        }
        agreed
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// Moves every step as far as it can for now. Says whether anything moved; [`Io::unfinished`], whether more could.
    pub(crate) fn advance(&mut self, io: &mut Io) -> bool {
        let program = self.program.clone();
        let mut any = false;
        for _ in 0..PASSES {
            let mut moved = false;
            for index in 0..self.steps.len() {
                if !self.steps[index].complete {
                    moved |= self.advance_step(&program, index, io);
                }
            }
            any |= moved;
            if !moved || self.left == 0 {
                return any;
            }
        }
        io.unfinished = true;
        any
    }

    fn advance_step(&mut self, program: &Program, index: usize, io: &mut Io) -> bool {
        let (limit, all) = self.limit(program, index);
        match &program.steps[index].act {
            Act::Send { to, message, push } => {
                let peer = self.head.members[*to] as usize;
                match push {
                    _ if self.steps[index].lent => self.send_lent(index, (peer, *message), (limit, all), io),
                    _ if io.via(peer) != Via::Memory => {
                        self.send_stream(index, peer, *message, limit, all, io)
                    }
                    Some(push) => self.push_memory(index, *to, *push, limit, all, io),
                    None => self.send_memory(index, peer, limit, all, io),
                }
            }
            Act::Place { input, pushed } => {
                if self.inputs[*input].via_memory && *pushed {
                    // Its sender writes it.
                    let written = self.lease.as_ref().and_then(|lease| lease.taken(index));
                    written.is_some_and(|written| self.set_done(index, written, all))
                } else if self.inputs[*input].via_memory {
                    self.place_memory(program, index, *input, limit, all, io)
                } else if self.inputs[*input].lent.is_some() {
                    self.place_lent(program, index, *input, (limit, all), io)
                } else {
                    self.place_stream(index, *input, limit, all, io)
                }
            }
            Act::Copy { src } => {
                let src = self.raw(*src);
                self.copy(index, src, limit, all)
            }
            Act::Reduce { srcs, streams, .. } => {
                self.grant_reduce(program, srcs, *streams, index, limit, io);
                self.reduce(program, index, limit, all, io)
            }
        }
    }

    /// How far a step may go, and whether everything before it is done. Always between elements, although links move
    /// bytes: nobody may begin in the middle of one.
    fn limit(&self, program: &Program, index: usize) -> (usize, bool) {
        let size = self.head.desc.dtype.size();
        let mut limit = self.steps[index].raw.len();
        let mut all = true;
        for after in &program.steps[index].after {
            let before = &self.steps[usize::from(after.step())];
            if before.complete {
                continue;
            }
            all = false;
            match after {
                After::Whole(_) => limit = 0,
                After::Stream(_) => limit = limit.min(before.done & !(size - 1)),
            }
        }
        (limit, all)
    }

    fn set_done(&mut self, index: usize, done: usize, all: bool) -> bool {
        let step = &mut self.steps[index];
        let moved = done > step.done;
        step.done = done;
        if done == step.raw.len() && all && !step.complete {
            step.complete = true;
            self.left -= 1;
            return true;
        }
        moved
    }

    fn send_memory(&mut self, index: usize, peer: usize, limit: usize, all: bool, io: &mut Io) -> bool {
        let Some(lease) = &self.lease else { return false };
        if (limit > 0 || all) && lease.lend(index, limit) {
            io.publish(peer);
        }
        match lease.taken(index) {
            Some(taken) => self.set_done(index, taken, all),
            None => false,
        }
    }

    /// Writes a result to where the peer wants it, as far as what was there has been read.
    fn push_memory(
        &mut self,
        index: usize,
        to: usize,
        push: Push,
        limit: usize,
        all: bool,
        io: &mut Io,
    ) -> bool {
        let StepState { raw, done, .. } = self.steps[index];
        let Some(lease) = &self.offers[to] else { return false };
        let Some(read) = lease.taken(push.lent) else { return false };
        let end = limit.min(read).min(done + SLICE);
        if end == done && !(all && raw.len() == 0) {
            return false;
        }
        let Some(dst) = lease.enter(push.place) else { return false };
        dst.sub(done..end).copy_from(raw.sub(done..end));
        if !lease.leave(push.place, end) {
            return false;
        }
        io.publish(self.head.members[to] as usize);
        self.set_done(index, end, all)
    }

    fn send_stream(
        &mut self,
        index: usize,
        peer: usize,
        message: u16,
        limit: usize,
        all: bool,
        io: &mut Io,
    ) -> bool {
        let step = &mut self.steps[index];
        let len = step.raw.len();
        let mut header = Header::new(Kind::Data, self.head.channel_id, self.head.seq);
        header.item = u32::from(message);
        header.digest = self.head.digest;
        if step.eager {
            // Small messages go in one piece.
            if step.begun || limit < len || !all && len == 0 {
                return false;
            }
            if step.credit == 0 && !step.asked && io.take_eager(peer, len) {
                header.flags = EAGER;
            } else if step.credit == 0 {
                if !std::mem::replace(&mut step.asked, true) {
                    header.kind = Kind::Request;
                    self.tell_size(index, (peer, message), io);
                    io.control(peer, Outgoing::control(header));
                }
                return false;
            }
            step.begun = true;
            step.queued = len;
            io.lend(peer, Class::Fast, header, step.raw, self.head.key, index as u16);
            // Handing it over lets no other step move.
            return false;
        }
        self.tell_size(index, (peer, message), io);
        let step = &mut self.steps[index];
        let mut moved = false;
        while step.queued < limit.min(step.credit)
            && let Some(class) = io.class_with_room(peer, self.head.priority, len)
        {
            let boundary = (step.queued / PAYLOAD_MAX + 1) * PAYLOAD_MAX;
            let end = boundary.min(limit).min(step.credit);
            header.offset = step.queued as u64;
            let raw = step.raw.sub(step.queued..end);
            io.lend(peer, class, header, raw, self.head.key, index as u16);
            step.queued = end;
            moved = true;
        }
        moved
    }

    /// `bytes` of what step `index` lent have been copied out.
    pub(crate) fn released(&mut self, index: usize, bytes: usize) {
        let program = self.program.clone();
        let (_, all) = self.limit(&program, index);
        let done = self.steps[index].done + bytes;
        self.set_done(index, done, all);
    }

    fn endpoint(&self, input: usize) -> Input {
        let input = &self.program.inputs[input];
        Input { from: input.from, message: input.message }
    }

    fn place_stream(&mut self, index: usize, input: usize, limit: usize, all: bool, io: &mut Io) -> bool {
        let raw = self.steps[index].raw;
        if raw.len() > EAGER_MAX && limit > 0 && self.knows(input) {
            self.grant_portion(input, limit, raw.len(), io);
        }
        let state = &mut self.inputs[input];
        if let Some(bytes) = state.early.take() {
            if limit < raw.len() {
                state.early = Some(bytes);
                return false;
            }
            raw.copy_from_slice(&bytes);
            io.recycle(bytes);
        }
        let (arrived, complete) = (state.arrived, state.complete);
        self.set_done(index, arrived, all && complete)
    }

    fn place_memory(
        &mut self,
        program: &Program,
        index: usize,
        input: usize,
        limit: usize,
        all: bool,
        io: &mut Io,
    ) -> bool {
        let from = program.inputs[input].from;
        let slot = program.inputs[input].sender_step;
        let StepState { raw, done, .. } = self.steps[index];
        let Some(lease) = &self.offers[from] else { return false };
        let Some(readable) = lease.readable(slot) else { return false };
        let end = readable.min(limit).min(done + SLICE);
        if end == done && !(all && raw.len() == 0) {
            return false;
        }
        let Some(src) = lease.enter(slot) else { return false };
        raw.sub(done..end).copy_from(src.sub(done..end));
        if !lease.leave(slot, end) {
            return false;
        }
        io.publish(self.head.members[from] as usize);
        self.set_done(index, end, all)
    }

    fn copy(&mut self, index: usize, src: Raw, limit: usize, all: bool) -> bool {
        let StepState { raw, done, .. } = self.steps[index];
        let end = limit.min(done + SLICE);
        raw.sub(done..end).copy_from(src.sub(done..end));
        self.set_done(index, end, all)
    }

    /// Ends the run: gives back its buffer unless somebody still reads it, and lets go of all others'. Of an unfinished
    /// one, links may still know the staging memory; it is `kept` until they have forgotten it.
    pub(crate) fn end(&mut self, io: &mut Io, kept: &mut Vec<Block>) -> Option<Parts> {
        self.take_back_lent(io);
        self.places = [None, None];
        self.offers.clear();
        for input in &mut self.inputs {
            if let Some(early) = input.early.take() {
                io.recycle(early);
            }
            if self.left > 0 {
                kept.extend(input.window.take());
            }
        }
        self.inputs.clear();
        let parts = std::mem::replace(&mut self.parts, Parts::NONE);
        let Some(lease) = self.lease.take() else {
            self.let_go_of_scratch(kept);
            return Some(parts);
        };
        let parts = take_back(&lease, self.left == 0, parts);
        if parts.is_some() {
            self.let_go_of_scratch(kept);
            io.recycle_lease(lease);
            return parts;
        }
        for block in self.scratch.drain(..) {
            let bytes = block.raw().len();
            lease.quarantine(Parts::from_block(block, bytes));
        }
        None
    }

    fn let_go_of_scratch(&mut self, kept: &mut Vec<Block>) {
        if self.left > 0 {
            kept.append(&mut self.scratch);
        }
        self.scratch.clear();
    }
}

/// An operation is over: its memory, unless a peer of this process is still at it, which then has it with the lease.
pub(super) fn take_back(lease: &Lease, finished: bool, parts: Parts) -> Option<Parts> {
    // A finished one has no readers; an aborted one revokes.
    let mut free = finished || lease.revoke();
    while !free && parts.is_lent() {
        // Its owner waits, and a reader is at it for one slice at most.
        std::hint::spin_loop();
        free = lease.revoke();
    }
    if !free {
        lease.quarantine(parts);
        return None;
    }
    Some(parts)
}

/// The far end of an input.
struct Input {
    from: usize,
    message: u16,
}
