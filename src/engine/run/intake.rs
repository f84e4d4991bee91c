//! What links bring for a collective in flight.

use super::super::io::{EAGER_MAX, Io};
use super::super::program::Act;
use super::{Run, StepState, WINDOW};
use crate::link::Sink;
use crate::link::frame::Header;

impl Run {
    /// Where payload of a message goes that is in the plan and in order.
    pub(crate) fn sink(&mut self, from: usize, header: &Header, io: &mut Io) -> Result<Sink, String> {
        let program = self.program.clone();
        let input = program.incoming(from, header.item).ok_or("a message that is not in the plan")?;
        let index = program.inputs[input].step;
        let StepState { raw, done, .. } = self.steps[index];
        let (limit, _) = self.limit(&program, index);
        let state = &mut self.inputs[input];
        let (start, length) = (header.offset as usize, header.length as usize);
        let end = start.checked_add(length).filter(|end| *end <= raw.len());
        let end = end.ok_or_else(|| format!("payload up to {start} + {length} of {} bytes", raw.len()))?;
        let whole = start == 0 && end == raw.len();
        if state.complete || start != state.arrived || state.via_memory {
            return Err(format!("payload at {start} where {} was due", state.arrived));
        }
        if raw.len() <= EAGER_MAX && !whole {
            return Err("a small message in pieces".into());
        }
        match program.steps[index].act {
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
        }
    }

    /// Payload is in its sink.
    pub(crate) fn arrived(&mut self, from: usize, header: &Header, sink: Sink, io: &mut Io) -> bool {
        let program = self.program.clone();
        let Some(input) = program.incoming(from, header.item) else { return false };
        let index = program.inputs[input].step;
        let len = self.steps[index].raw.len();
        let state = &mut self.inputs[input];
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
