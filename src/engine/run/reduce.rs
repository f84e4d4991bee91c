//! Reductions, and results that go to peers of this process at once.

use super::super::io::{Io, Via};
use super::super::program::{Act, From, Program, Push};
use super::{Input, Run, SLICE, StepState, WINDOW};
use crate::buffer::raw::Raw;

impl Run {
    /// How far all inputs of a reduction are there; `None` while one has not begun.
    fn available(&mut self, program: &Program, srcs: &[From], io: &mut Io) -> Option<usize> {
        let mut available = usize::MAX;
        for src in srcs {
            let From::Input(input) = *src else { continue };
            let state = &self.inputs[input];
            if state.lent.is_some() {
                available = available.min(self.readable(program, input, io)?);
            } else if state.via_memory {
                let input = &program.inputs[input];
                available = available.min(self.offers[input.from].as_ref()?.readable(input.sender_step)?);
            } else if state.arrived == 0 && !state.complete {
                return None;
            } else {
                available = available.min(state.arrived);
            }
        }
        Some(available)
    }

    /// Reduces one slice as far as all its inputs are there.
    pub(super) fn reduce(
        &mut self,
        program: &Program,
        index: usize,
        limit: usize,
        all: bool,
        io: &mut Io,
    ) -> bool {
        let Act::Reduce { srcs, post, pushes, .. } = &program.steps[index].act else { return false };
        let Some(available) = self.available(program, srcs, io) else { return false };
        let StepState { raw, done, .. } = self.steps[index];
        let slice_end = (done / SLICE + 1) * SLICE;
        let end = available.min(limit).min(slice_end).min(raw.len());
        if end == done && !(all && raw.len() == 0) {
            return false;
        }
        if !self.fetch(srcs, done..end, io) {
            return false;
        }
        let mut inputs = std::mem::take(&mut self.sources);
        self.enter_inputs(program, srcs, done, end, &mut inputs);
        let entered = inputs.len();
        let complete = entered == srcs.len();
        let mut pushed = 0;
        if complete && end > done {
            let mut copies = std::mem::take(&mut self.copies);
            self.enter_pushes(program, pushes, done, end, io, &mut copies);
            pushed = copies.len();
            let reduction = self.head.reduction(*post);
            if self.borrows(srcs) && copies.is_empty() {
                raw.sub(done..end).claim_and_reduce_from(reduction, &inputs);
            } else {
                raw.sub(done..end).reduce_from(reduction, &inputs, &copies);
            }
            copies.clear();
            self.copies = copies;
        }
        inputs.clear();
        self.sources = inputs;
        // What another process has taken back meanwhile was not read.
        let complete = complete && self.stood(program, srcs, io);
        let read = if complete { end } else { done };
        self.leave_inputs(program, &srcs[..entered], read, io);
        // Also if a peer has ended its operation meanwhile: its memory stays while somebody is in it, so the sum is right,
        // and what the others are told of this slice must fit together.
        let moved = complete && self.set_done(index, end, all);
        for &step in &pushes[..pushed] {
            self.leave_push(program, step, end, self.steps[index].complete);
        }
        moved
    }

    /// The part of each source; fewer than there are if one may not be read any more.
    fn enter_inputs(&self, program: &Program, srcs: &[From], done: usize, end: usize, inputs: &mut Vec<Raw>) {
        for src in srcs {
            let found = match *src {
                From::Local(range) => Some(self.raw(range).sub(done..end)),
                From::Input(input) if self.inputs[input].via_memory => {
                    let Input { from, .. } = self.endpoint(input);
                    let lease = self.offers[from].as_ref();
                    lease
                        .and_then(|lease| lease.enter(program.inputs[input].sender_step))
                        .map(|raw| raw.sub(done..end))
                }
                From::Input(input) if self.inputs[input].lent.is_some() => self.borrowed(input, done..end),
                From::Input(input) => self.inputs[input].window.as_ref().map(|window| {
                    let at = done % WINDOW;
                    window.raw().sub(at..at + (end - done))
                }),
            };
            let Some(found) = found.or((end == done).then_some(Raw::EMPTY)) else { break };
            inputs.push(found);
        }
    }

    /// Ends the reading of inputs where they lie.
    fn leave_inputs(&mut self, program: &Program, srcs: &[From], end: usize, io: &mut Io) {
        for src in srcs {
            let From::Input(input) = *src else { continue };
            self.give_back(program, input, end, io);
            if !self.inputs[input].via_memory {
                continue;
            }
            let input = &program.inputs[input];
            if let Some(lease) = &self.offers[input.from] {
                lease.leave(input.sender_step, end);
                io.publish(self.head.members[input.from] as usize);
            }
        }
    }

    /// Where the result goes as well: peers' ranges that this very reduction reads, so that each element is read before
    /// it is overwritten. One that lags, or may not be written any more, ends the list; its own step does the rest.
    fn enter_pushes(
        &self,
        program: &Program,
        pushes: &[usize],
        done: usize,
        end: usize,
        io: &Io,
        copies: &mut Vec<Raw>,
    ) {
        for &step in pushes {
            let Some((to, push)) = pushed(program, step) else { break };
            if io.via(self.head.members[to] as usize) != Via::Memory || self.steps[step].done != done {
                break;
            }
            let entered = self.offers[to].as_ref().and_then(|lease| lease.enter(push.place));
            let Some(raw) = entered else { break };
            copies.push(raw.sub(done..end));
        }
    }

    fn leave_push(&mut self, program: &Program, step: usize, end: usize, all: bool) {
        let Some((to, push)) = pushed(program, step) else { return };
        let Some(lease) = &self.offers[to] else { return };
        if lease.leave(push.place, end) {
            self.set_done(step, end, all);
        }
    }
}

fn pushed(program: &Program, step: usize) -> Option<(usize, Push)> {
    match program.steps[step].act {
        Act::Send { to, push: Some(push), .. } => Some((to, push)),
        _ => None,
    }
}
