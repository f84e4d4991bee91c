//! Messages that another process reads in this one's memory, and the other way round.
//!
//! A sender whose range lies in a segment lends it instead of sending it, as far as it may be read; the receiver copies or
//! reduces straight from there, and says when he has read as much. Only then he is told of more: so one frame per message, at
//! most, can be on its way to a receiver that has not called.

use super::super::borrowed::{Borrowed, Here};
use super::super::io::{EAGER_MAX, Io, UNMAPPED_MIN};
use super::super::program::{From, Program};
use super::{Run, SLICE, StepState, WINDOW};
use crate::buffer::arena::Place;
use crate::buffer::raw::Raw;
use crate::link::frame::{Header, Kind, Lent, Outgoing};
use crate::link::shm::Loan;

/// Less than this is copied: that takes one frame, and lending three.
const LEND_MIN: usize = 32 << 10;

/// A message that another process lends.
#[derive(Debug)]
pub(super) struct Message {
    borrowed: Borrowed,
    pub readable: usize,
    /// As far as its lender was told that it is read.
    told: usize,
}

impl Run {
    /// What a message to another process is lent by, if it can be.
    pub(super) fn lend(&self, raw: Raw, peer: usize, io: &mut Io) -> Option<Loan> {
        match self.place_of(raw) {
            Some((place, _)) => {
                if raw.len() < LEND_MIN {
                    None
                } else {
                    io.lend_to(peer, &place.segment)
                }
            }
            _ if raw.len() < UNMAPPED_MIN => None,
            _ => io.lend_unmapped(peer),
        }
    }

    /// Where a range of the caller's buffers lies for other processes: in which memory, and how far from its start there.
    fn place_of(&self, raw: Raw) -> Option<(&Place, usize)> {
        let parts = [Some(&self.parts), self.parts.input()];
        let places = parts.into_iter().zip(&self.places);
        let mut found = places.filter_map(|(parts, place)| place.as_ref().zip(parts?.raw().offset_of(raw)));
        found.next()
    }

    /// Lets the receiver read further.
    pub(super) fn send_lent(
        &mut self,
        index: usize,
        (peer, message): (usize, u16),
        (limit, all): (usize, bool),
        io: &mut Io,
    ) -> bool {
        let StepState { raw, done, queued, lends: Some(loan), .. } = self.steps[index] else {
            return self.set_done(index, self.steps[index].done, all);
        };
        let place = self.place_of(raw);
        // The first time, or all of what was lent is read.
        if limit <= queued || queued != done {
            return self.set_done(index, done, all);
        }
        let mut header = Header::new(Kind::Lend, self.head.channel_id, self.head.seq);
        header.item = u32::from(message);
        header.digest = self.head.digest;
        header.offset = limit as u64;
        let frame = if queued == 0 {
            let lent = match place.zip(loan.segment) {
                Some(((place, start), segment)) => Lent::new(segment, place.offset + start, loan.grant),
                None => Lent::unmapped(raw.as_ptr() as u64, loan.grant),
            };
            Outgoing::placed(header, lent)
        } else {
            Outgoing::control(header)
        };
        self.steps[index].queued = limit;
        self.tell_size(index, (peer, message), io);
        io.control(peer, frame);
        // Telling it lets no other step move.
        false
    }

    /// The receiver has read message `message` up to `upto`.
    pub(crate) fn taken(&mut self, from: usize, message: u32, upto: u64, io: &mut Io) -> Result<(), String> {
        let index =
            self.program.outgoing(from, message).ok_or("word of a message that is not in the plan")?;
        let StepState { raw, done, queued, lends, .. } = self.steps[index];
        let loan = lends.ok_or("has read a message that is not lent")?;
        let upto = usize::try_from(upto).unwrap_or(usize::MAX);
        if upto != queued || upto <= done {
            return Err(format!("has read up to {upto} after {done}, of a message lent up to {queued}"));
        }
        if upto == raw.len() {
            self.steps[index].lends = None;
            io.take_back(self.head.members[from] as usize, loan.grant);
        }
        let program = self.program.clone();
        let (_, all) = self.limit(&program, index);
        self.set_done(index, upto, all);
        Ok(())
    }

    /// The receiver can't read further than `upto` in what message `message` is lent in: the rest is sent as others are.
    pub(crate) fn declined(
        &mut self,
        from: usize,
        message: u32,
        upto: u64,
        io: &mut Io,
    ) -> Result<(), String> {
        let index = self.program.outgoing(from, message).ok_or(super::NOT_IN_PLAN)?;
        let step = &mut self.steps[index];
        let upto = usize::try_from(upto).unwrap_or(usize::MAX);
        let size = self.head.desc.dtype.size();
        let is_eager = step.raw.len() <= EAGER_MAX;
        let is_left = (step.done..=step.queued).contains(&upto) && upto < step.raw.len();
        let fits = step.queued > 0 && is_left && upto.is_multiple_of(size) && (upto == 0 || !is_eager);
        let loan = step.lends.take_if(|_| fits).ok_or("declines a message that is not lent, or is read")?;
        (step.lent, step.queued, step.done, step.eager) = (false, upto, upto, is_eager);
        io.decline(self.head.members[from] as usize, loan)
    }

    /// An operation ends: nobody reads in its memory from here on.
    pub(super) fn take_back_lent(&mut self, io: &mut Io) {
        let program = self.program.clone();
        for (state, step) in self.steps.iter_mut().zip(&program.steps) {
            if let Some(loan) = state.lends.take()
                && let super::Act::Send { to, .. } = step.act
            {
                io.take_back(self.head.members[to] as usize, loan.grant);
            }
        }
    }

    /// The sender lets this rank read a message in its memory.
    pub(crate) fn borrow(
        &mut self,
        from: usize,
        header: &Header,
        bytes: &[u8],
        io: &mut Io,
    ) -> Result<(), String> {
        let program = self.program.clone();
        let input = program.incoming(from, header.item).ok_or(super::NOT_IN_PLAN)?;
        self.check_known(input)?;
        let len = self.steps[program.inputs[input].step].raw.len();
        let size = self.head.desc.dtype.size();
        let upto =
            usize::try_from(header.offset).ok().filter(|upto| *upto <= len && upto.is_multiple_of(size));
        let upto = upto.ok_or_else(|| format!("lends {} of {len} bytes", header.offset))?;
        let state = &mut self.inputs[input];
        match &mut state.lent {
            Some(lent) if bytes.is_empty() && upto > lent.readable && lent.told == lent.readable => {
                lent.readable = upto;
            }
            None if upto > 0
                && !state.declined
                && state.arrived == 0
                && !state.complete
                && !state.reading
                && !state.via_memory =>
            {
                let borrowed = Borrowed::new(bytes, self.head.members[from] as usize, len, io)?;
                state.lent = Some(Message { borrowed, readable: upto, told: 0 });
            }
            _ => return Err("lends what is sent, lent further, or not read yet".into()),
        }
        Ok(())
    }

    /// How far an input can be read, if it is lent and its segment is here.
    pub(super) fn readable(&mut self, program: &Program, input: usize, io: &mut Io) -> Option<usize> {
        let peer = self.head.members[program.inputs[input].from] as usize;
        let len = self.steps[program.inputs[input].step].raw.len();
        let lent = self.inputs[input].lent.as_mut()?;
        match lent.borrowed.is_here((peer, self.head.key), len, io) {
            Here::Yes => Some(lent.readable),
            Here::NotYet => None,
            Here::Never => {
                // Else word of more may be on its way.
                if lent.readable > self.steps[program.inputs[input].step].done {
                    self.decline(program, input, peer, io);
                }
                None
            }
        }
    }

    /// An input can't be read where it lies: its sender is to send it.
    fn decline(&mut self, program: &Program, input: usize, peer: usize, io: &mut Io) {
        let done = self.steps[program.inputs[input].step].done;
        let state = &mut self.inputs[input];
        (state.lent, state.declined, state.arrived, state.granted) = (None, true, done, done);
        let mut header = Header::new(Kind::Declined, self.head.channel_id, self.head.seq);
        header.offset = done as u64;
        header.item = u32::from(program.inputs[input].message);
        header.digest = self.head.digest;
        io.control(peer, Outgoing::control(header));
        // From here on it is given credit.
        io.unfinished = true;
    }

    /// A part of an input that is readable: where it lies, or where it was fetched to.
    pub(super) fn borrowed(&self, input: usize, part: std::ops::Range<usize>) -> Option<Raw> {
        let state = &self.inputs[input];
        let borrowed = &state.lent.as_ref()?.borrowed;
        if borrowed.is_unmapped() {
            return Some(state.window.as_ref()?.raw().sub(0..part.len()));
        }
        borrowed.mapped(part)
    }

    /// Fetches a part of those inputs that are not mapped. Says whether that went well.
    pub(super) fn fetch(&mut self, srcs: &[From], part: std::ops::Range<usize>, io: &mut Io) -> bool {
        srcs.iter().all(|src| {
            let From::Input(input) = *src else { return true };
            let state = &mut self.inputs[input];
            let Some(lent) = state.lent.as_ref().filter(|lent| lent.borrowed.is_unmapped()) else {
                return true;
            };
            let window = state.window.get_or_insert_with(|| io.pool.block(WINDOW));
            let peer = self.head.members[self.program.inputs[input].from] as usize;
            lent.borrowed.copy(part.clone(), window.raw().sub(0..part.len()), peer, io)
        })
    }

    /// Whether any of these inputs is lent: then others have read where the result goes, too.
    pub(super) fn borrows(&self, srcs: &[From]) -> bool {
        srcs.iter().any(|src| matches!(src, From::Input(input) if self.inputs[*input].lent.is_some()))
    }

    /// Whether what was read of these inputs, until now, was lent.
    pub(super) fn stood(&self, program: &Program, srcs: &[From], io: &mut Io) -> bool {
        srcs.iter().all(|src| match *src {
            From::Input(input) => match &self.inputs[input].lent {
                Some(lent) => {
                    let peer = self.head.members[program.inputs[input].from] as usize;
                    io.stands(peer, lent.borrowed.grant())
                }
                None => true,
            },
            From::Local(_) => true,
        })
    }

    /// An input is read up to `end`: its lender is told if that is all that he has lent.
    pub(super) fn give_back(&mut self, program: &Program, input: usize, end: usize, io: &mut Io) {
        let Some(lent) = &mut self.inputs[input].lent else { return };
        if end < lent.readable || lent.told == lent.readable {
            return;
        }
        let news = end - std::mem::replace(&mut lent.told, end);
        let (from, message) = (program.inputs[input].from, program.inputs[input].message);
        let mut header = Header::new(Kind::Taken, self.head.channel_id, self.head.seq);
        header.item = u32::from(message);
        header.digest = self.head.digest;
        header.offset = end as u64;
        let peer = self.head.members[from] as usize;
        io.pulled(peer, news);
        io.control(peer, Outgoing::control(header));
    }

    /// Copies a message from where it is lent.
    pub(super) fn place_lent(
        &mut self,
        program: &Program,
        index: usize,
        input: usize,
        (limit, all): (usize, bool),
        io: &mut Io,
    ) -> bool {
        let Some(readable) = self.readable(program, input, io) else { return false };
        let StepState { raw, done, .. } = self.steps[index];
        let end = readable.min(limit).min(done + SLICE);
        if end > done {
            let Some(lent) = &self.inputs[input].lent else { return false };
            let peer = self.head.members[program.inputs[input].from] as usize;
            if !lent.borrowed.copy(done..end, raw.sub(done..end), peer, io) {
                return false;
            }
            if !self.stood(program, &[From::Input(input)], io) {
                return false;
            }
            self.give_back(program, input, end, io);
        }
        self.set_done(index, end, all)
    }
}
