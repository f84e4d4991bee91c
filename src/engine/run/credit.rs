//! How far a message may go: said by its receiver, before large payload leaves.

use super::super::io::{EAGER_MAX, Io};
use super::super::program::{From, Program};
use super::{CREDIT_STEP, Input, Run, StepState, WINDOW};

impl Run {
    /// The receiver takes message `message` up to `upto`.
    pub(crate) fn credit(&mut self, from: usize, message: u32, upto: u64) -> Result<(), String> {
        let index =
            self.program.outgoing(from, message).ok_or("credit for a message that is not in the plan")?;
        let step = &mut self.steps[index];
        if upto > step.raw.len() as u64 {
            return Err(format!("credit up to {upto} of {} bytes", step.raw.len()));
        }
        if !upto.is_multiple_of(self.head.desc.dtype.size() as u64) {
            return Err(format!("credit up to {upto}, which is within an element"));
        }
        // An empty message was asked for: any credit will do.
        step.credit = step.credit.max((upto as usize).max(1));
        if step.raw.len() > 0 {
            step.credit = step.credit.min(step.raw.len());
        }
        Ok(())
    }

    /// The sender of a small message has no budget and asks for it.
    pub(crate) fn requested(&mut self, from: usize, message: u32, io: &mut Io) -> Result<(), String> {
        let input =
            self.program.incoming(from, message).ok_or("request for a message that is not in the plan")?;
        self.check_known(input)?;
        let len = self.steps[self.program.inputs[input].step].raw.len();
        let state = &mut self.inputs[input];
        let needs_none = len > EAGER_MAX || state.arrived > 0 || state.complete || state.via_memory;
        check_request(needs_none, &mut state.asked)?;
        self.grant(input, len, io);
        Ok(())
    }

    fn grant(&mut self, input: usize, upto: usize, io: &mut Io) {
        let Input { from, message } = self.endpoint(input);
        self.inputs[input].granted = upto;
        self.head.grant(from, u32::from(message), upto, io);
    }

    /// Grants a large message up to `upto`, in portions worth a frame.
    pub(super) fn grant_portion(&mut self, input: usize, upto: usize, len: usize, io: &mut Io) {
        let granted = self.inputs[input].granted;
        if len > EAGER_MAX && upto > granted && (upto == len || upto - granted >= CREDIT_STEP) {
            self.grant(input, upto, io);
        }
    }

    pub(super) fn grant_reduce(
        &mut self,
        program: &Program,
        srcs: &[From],
        streams: usize,
        index: usize,
        limit: usize,
        io: &mut Io,
    ) {
        let StepState { raw, done, .. } = self.steps[index];
        let len = raw.len();
        if len <= EAGER_MAX {
            return;
        }
        // Alone and free to move, an input is consumed as it arrives and needs no window.
        let upto = if streams == 1 && limit == len { len } else { (done + WINDOW).min(len) };
        for src in srcs {
            if let From::Input(input) = *src
                && !self.inputs[input].via_memory
                && self.inputs[input].lent.is_none()
            {
                debug_assert_eq!(program.inputs[input].step, index);
                self.grant_portion(input, upto, len, io);
            }
        }
    }
}

/// A sender asks for credit for a small message.
pub(crate) fn check_request(needs_none: bool, asked: &mut bool) -> Result<(), String> {
    if needs_none {
        return Err("asks for credit for a message that needs none".into());
    }
    if std::mem::replace(asked, true) {
        return Err("asks for credit twice".into());
    }
    Ok(())
}
