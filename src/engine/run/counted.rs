//! Collectives of which each rank knows how long its own parts are, and no more.
//!
//! Who sends says how long a message is: a small one by the frame that it is in, any other by a `Size` before it. Until its receiver
//! knows, he takes and asks for nothing of it, and what he can't take as it is contradicts his call, as another digest would. In one
//! process he looks at what is lent.

use super::super::call::Arrival;
use super::super::io::Io;
use super::super::program::{Act, Program};
use super::Run;
use crate::buffer::parts::{Cuts, Sizes};
use crate::error::Counts;
use crate::link::frame::{EAGER, Header, Kind, Outgoing};
use crate::link::memory::Lease;
use crate::path::{Range, Space};

/// What is known of how long a message is that comes, where the plan does not say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Length {
    #[default]
    Unknown,
    /// By a frame that is about to be handled.
    Fresh,
    Known,
    /// Longer than there is room for.
    TooLong,
}

impl Run {
    /// Whether messages say how long they are.
    fn tells_sizes(&self) -> bool {
        matches!(self.sizes, Some(Sizes::Told | Sizes::Learned))
    }

    /// Whether an input is as long as its step is.
    pub(super) fn knows(&self, input: usize) -> bool {
        !self.tells_sizes() || matches!(self.inputs[input].length, Length::Known | Length::Fresh)
    }

    /// Nothing of a message may come before its length.
    pub(super) fn check_known(&self, input: usize) -> Result<(), String> {
        if self.knows(input) { Ok(()) } else { Err("a message that has not said how long it is".into()) }
    }

    /// The frame is handled by which the length of an input became known.
    fn settle(&mut self, input: usize) {
        if let length @ Length::Fresh = &mut self.inputs[input].length {
            *length = Length::Known;
        }
    }

    /// Says how long a message is, before anything of it goes but in one frame.
    pub(super) fn tell_size(&mut self, index: usize, (peer, message): (usize, u16), io: &mut Io) {
        if !self.tells_sizes() || std::mem::replace(&mut self.steps[index].told, true) {
            return;
        }
        let mut header = Header::new(Kind::Size, self.head.channel_id, self.head.seq);
        header.item = u32::from(message);
        header.digest = self.head.digest;
        header.offset = self.steps[index].raw.len() as u64;
        io.control(peer, Outgoing::control(header));
    }

    /// Whether a frame is of a message that is as long as it may be, as far as the frame says so.
    pub(crate) fn takes(&mut self, from: usize, header: &Header) -> bool {
        if !self.tells_sizes() {
            return true;
        }
        let bytes = match header.kind {
            Kind::Data if header.flags & EAGER != 0 => header.length as usize,
            Kind::Size => usize::try_from(header.offset).unwrap_or(usize::MAX),
            // What else is of a message that was refused was on its way.
            Kind::Data | Kind::Request | Kind::Lend => {
                let input = self.program.incoming(from, header.item);
                return input.is_none_or(|input| self.inputs[input].length != Length::TooLong);
            }
            _ => return true,
        };
        let Some(input) = self.program.incoming(from, header.item) else { return true };
        let fits = self.measure(input, bytes);
        if header.kind == Kind::Data {
            self.settle(input);
        }
        fits
    }

    /// Word of how long a message is, which was [taken](Self::takes) by then.
    pub(crate) fn sized(&mut self, from: usize, header: &Header) -> Result<(), String> {
        let input = self.program.incoming(from, header.item).ok_or(super::NOT_IN_PLAN)?;
        if self.inputs[input].length != Length::Fresh {
            return Err("tells a length that is known".into());
        }
        self.settle(input);
        if !header.offset.is_multiple_of(self.head.desc.dtype.size() as u64) {
            return Err(format!("has a message of {} bytes, which end within an element", header.offset));
        }
        Ok(())
    }

    /// Whether all messages that a rank of this process lends are as long as they may be.
    pub(super) fn takes_lent(&mut self, from: usize, lease: &Lease) -> bool {
        if !self.tells_sizes() {
            return true;
        }
        let program = self.program.clone();
        let mut inputs = (0..program.inputs.len()).filter(|input| program.inputs[*input].from == from);
        inputs.all(|input| {
            let bytes = lease.bytes(program.inputs[input].sender_step);
            let fits = bytes.is_some_and(|bytes| self.measure(input, bytes));
            self.settle(input);
            fits
        })
    }

    /// Whether an input may be so long; from then on its length is known.
    fn measure(&mut self, input: usize, bytes: usize) -> bool {
        match self.inputs[input].length {
            Length::Known => return true,
            Length::TooLong => return false,
            Length::Unknown | Length::Fresh => {}
        }
        let step = &mut self.steps[self.program.inputs[input].step];
        let room = step.raw.len();
        let fits = bytes == room || self.sizes == Some(Sizes::Learned) && bytes <= room;
        if fits && self.sizes == Some(Sizes::Learned) {
            step.raw = step.raw.sub(0..bytes);
            let (from, digest) = (self.program.inputs[input].from, self.head.digest);
            self.arrival = Some(Arrival { from, tag: 0, bytes, digest, claim: 0 });
        }
        self.inputs[input].length = if fits { Length::Fresh } else { Length::TooLong };
        fits
    }

    /// What this rank got, if it did not know how long it is.
    pub(crate) fn arrival(&self) -> Option<Arrival> {
        self.arrival
    }

    /// How long the parts are, as others are told where that is in question.
    pub(crate) fn counts(&self) -> Option<Counts> {
        let mut counts = counts(&self.program, self.parts.cuts()?);
        if let Counts::Own { taken, .. } = &mut counts {
            for (input, state) in self.program.inputs.iter().zip(&self.inputs) {
                if state.length == Length::TooLong {
                    let bytes = self.steps[input.step].raw.len();
                    taken[input.from] = Some(self.head.desc.dtype.elements(bytes) as u64);
                }
            }
        }
        Some(counts)
    }
}

/// How long the parts of a call are, which are not equal.
pub(in crate::engine) fn counts(program: &Program, cuts: &Cuts) -> Counts {
    let elements = |range: Range| {
        let cut = if range.space == Space::Input { &cuts.input } else { &cuts.output };
        cut.elements(range.blocks()).len() as u64
    };
    let ranks = program.plan.ranks.len();
    if cuts.sizes == Sizes::Agreed {
        let part = |block| elements(Range::new(Space::Output, block, 1));
        return Counts::Parts((0..ranks as u32).map(part).collect());
    }
    let (mut sent, mut taken) = (vec![None; ranks], vec![None; ranks]);
    for step in &program.steps {
        if let Act::Send { to, .. } = step.act {
            sent[to] = Some(elements(step.range));
        }
    }
    for input in program.inputs.iter().filter(|_| cuts.sizes == Sizes::Told) {
        taken[input.from] = Some(elements(program.steps[input.step].range));
    }
    Counts::Own { sent, taken }
}
