//! What links bring for a collective in flight.

use super::super::io::{EAGER_MAX, Io};
use super::super::program::{Act, From};
use super::{InputState, Run, StepState, WINDOW};
use crate::buffer::raw::Raw;
use crate::link::Sink;
use crate::link::frame::Header;

impl Run {
    /// Where payload of a message goes that is in the plan and in order.
    pub(crate) fn sink(&mut self, from: usize, header: &Header, io: &mut Io) -> Result<Sink, String> {
        let program = self.program.clone();
        let input = program.incoming(from, header.item).ok_or(NOT_IN_PLAN)?;
        self.check_known(input)?;
        let index = program.inputs[input].step;
        let StepState { raw, done, .. } = self.steps[index];
        let (limit, _) = self.limit(&program, index);
        let InputState { arrived, complete, via_memory, reading, ref lent, .. } = self.inputs[input];
        let due = Due { arrived, over: complete || via_memory || lent.is_some(), reading };
        let end = due.end(raw.len(), header, self.head.desc.dtype.size())?;
        let (start, length) = (header.offset as usize, header.length as usize);
        let whole = start == 0 && end == raw.len();
        let state = &mut self.inputs[input];
        // What goes straight into memory is the only frame of its message: else it could still be on its way when the
        // message is complete and the memory somebody else's.
        let sink = match program.steps[index].act {
            Act::Place { .. } if limit >= end => Ok(Sink::Direct(raw.sub(start..end), self.head.key)),
            Act::Place { .. } if whole && length <= EAGER_MAX => Ok(Sink::Owned(io.spare(length))),
            Act::Place { .. } => Err("payload beyond its credit".into()),
            _ if end > done + WINDOW => Err("payload beyond its credit".into()),
            _ => {
                let window = state.window.get_or_insert_with(|| io.pool.block(raw.len().min(WINDOW)));
                let at = start % WINDOW;
                if at + length > window.raw().len() {
                    return Err("payload across the end of its window".into());
                }
                Ok(Sink::Direct(window.raw().sub(at..at + length), self.head.key))
            }
        };
        state.reading = matches!(sink, Ok(Sink::Direct(..)));
        sink
    }

    /// Reduces payload from where it lies, if it is the only input that comes to its step, and that can go so far now. Says
    /// whether it did.
    pub(crate) fn reduce_here(&mut self, from: usize, header: &Header, payload: Raw) -> Result<bool, String> {
        let program = self.program.clone();
        let input = program.incoming(from, header.item).ok_or(NOT_IN_PLAN)?;
        let index = program.inputs[input].step;
        let Act::Reduce { srcs, post, streams: 1, .. } = &program.steps[index].act else { return Ok(false) };
        let StepState { raw, done, .. } = self.steps[index];
        let (limit, all) = self.limit(&program, index);
        let InputState { arrived, complete, via_memory, reading, ref lent, .. } = self.inputs[input];
        let due = Due { arrived, over: complete || via_memory || lent.is_some(), reading };
        let end = due.end(raw.len(), header, self.head.desc.dtype.size())?;
        if arrived != done || end > limit {
            return Ok(false);
        }
        let mut sources = std::mem::take(&mut self.sources);
        sources.extend(srcs.iter().map(|src| match src {
            From::Local(range) => self.raw(*range).sub(done..end),
            From::Input(_) => payload,
        }));
        raw.sub(done..end).reduce_from(self.head.reduction(*post), &sources, &[]);
        sources.clear();
        self.sources = sources;
        let state = &mut self.inputs[input];
        state.arrived = end;
        state.complete = end == raw.len();
        self.set_done(index, end, all);
        Ok(true)
    }

    /// Payload is in its sink.
    pub(crate) fn arrived(&mut self, from: usize, header: &Header, sink: Sink, io: &mut Io) -> bool {
        let program = self.program.clone();
        let Some(input) = program.incoming(from, header.item) else { return false };
        let index = program.inputs[input].step;
        let len = self.steps[index].raw.len();
        let state = &mut self.inputs[input];
        state.reading = false;
        state.arrived += header.length as usize;
        state.complete = state.arrived == len;
        if let Sink::Owned(bytes) = sink {
            state.early = Some(bytes);
        }
        let mut moved = false;
        while !self.steps[index].complete && self.advance_step(&program, index, io) {
            moved = true;
        }
        moved
    }

    /// A frame that was kept until this operation was called.
    pub(crate) fn deliver(
        &mut self,
        from: usize,
        header: &Header,
        bytes: Vec<u8>,
        io: &mut Io,
    ) -> Result<(), String> {
        let sink = match self.sink(from, header, io)? {
            Sink::Direct(raw, key) => {
                raw.copy_from_slice(&bytes);
                io.recycle(bytes);
                Sink::Direct(raw, key)
            }
            _ => Sink::Owned(bytes),
        };
        self.arrived(from, header, sink, io);
        Ok(())
    }
}

pub(crate) const NOT_IN_PLAN: &str = "a message that is not in the plan";

/// A message, as far as it has come.
pub(crate) struct Due {
    pub arrived: usize,
    /// No more of it may come.
    pub over: bool,
    /// A frame of it is on its way into its memory.
    pub reading: bool,
}

impl Due {
    /// Where the frame ends in a message of `bytes`, if it may come now.
    pub(crate) fn end(&self, bytes: usize, header: &Header, element: usize) -> Result<usize, String> {
        let length = header.length as usize;
        let start = usize::try_from(header.offset).unwrap_or(usize::MAX);
        let end = start.checked_add(length).filter(|end| *end <= bytes);
        let end = end.ok_or_else(|| format!("payload up to {start} + {length} of {bytes} bytes"))?;
        if self.reading {
            return Err("a message on both connections at once".into());
        }
        if self.over || start != self.arrived {
            return Err(format!("payload at {start} where {} was due", self.arrived));
        }
        if bytes <= EAGER_MAX && end - start < bytes {
            return Err("a small message in pieces".into());
        }
        if bytes > 0 && length == 0 {
            return Err("an empty frame of a message that is not".into());
        }
        if !end.is_multiple_of(element) {
            return Err(format!("payload up to {end}, which is within an element"));
        }
        Ok(end)
    }
}
