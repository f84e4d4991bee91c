//! Collectives of which each rank knows how long its own parts are, and no more.
//!
//! Who sends says how long a message is: a small one by the frame that it is in, any other by a `Size` before it. Until its receiver
//! knows, he takes and asks for nothing of it, and what he can't take as it is contradicts his call, as another digest would. In one
//! process he looks at what is lent.

use std::sync::Arc;

use super::super::call::{Arrival, CallDesc};
use super::super::io::Io;
use super::super::program::{Act, Program};
use super::super::spaces::Spaces;
use super::Run;
use crate::buffer::parts::{Parts, Sizes};
use crate::error::Counts;
use crate::link::frame::{EAGER, Header, Kind, Outgoing};
use crate::link::memory::Lease;
use crate::path::{Range, Space};

/// What is known of how long messages are; nothing where the plan says it.
#[derive(Debug, Default)]
pub(super) struct Told {
    sizes: Option<Sizes>,
    /// Per step: its length was told.
    steps: Vec<bool>,
    /// Per input: its length is known, and longer than there is room for.
    inputs: Vec<Length>,
    /// What this rank got, if it did not know how long it is.
    arrival: Option<Arrival>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Length {
    #[default]
    Unknown,
    /// By a frame that is about to be handled.
    Fresh,
    Known,
    TooLong,
}

impl Told {
    /// Of a call whose parts are of such sizes, if they are not those of its plan.
    pub(super) fn new(sizes: Option<Sizes>, program: &Program) -> Told {
        match sizes {
            Some(Sizes::Told | Sizes::Learned) => Told {
                sizes,
                steps: vec![false; program.steps.len()],
                inputs: vec![Length::Unknown; program.inputs.len()],
                arrival: None,
            },
            Some(Sizes::Agreed) | None => Told::default(),
        }
    }

    /// Whether an input is as long as its step is.
    pub(super) fn knows(&self, input: usize) -> bool {
        self.inputs.get(input).is_none_or(|length| matches!(length, Length::Known | Length::Fresh))
    }

    /// The frame is handled by which the length of an input became known.
    fn settle(&mut self, input: usize) {
        if let Some(length @ Length::Fresh) = self.inputs.get_mut(input) {
            *length = Length::Known;
        }
    }

    /// Nothing of a message may come before its length.
    pub(super) fn check(&self, input: usize) -> Result<(), String> {
        if self.knows(input) { Ok(()) } else { Err("a message that has not said how long it is".into()) }
    }
}

impl Run {
    /// Says how long a message is, before anything of it goes but in one frame.
    pub(super) fn tell_size(&mut self, index: usize, (peer, message): (usize, u16), io: &mut Io) {
        let Some(told) = self.told.steps.get_mut(index) else { return };
        if std::mem::replace(told, true) {
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
        if self.told.inputs.is_empty() {
            return true;
        }
        let bytes = match header.kind {
            Kind::Data if header.flags & EAGER != 0 => header.length as usize,
            Kind::Size => usize::try_from(header.offset).unwrap_or(usize::MAX),
            // What else is of a message that was refused was on its way.
            Kind::Data | Kind::Request | Kind::Lend => {
                let input = self.program.incoming(from, header.item);
                return input.is_none_or(|input| self.told.inputs[input] != Length::TooLong);
            }
            _ => return true,
        };
        let Some(input) = self.program.incoming(from, header.item) else { return true };
        let fits = self.measure(input, bytes);
        if header.kind == Kind::Data {
            self.told.settle(input);
        }
        fits
    }

    /// Word of how long a message is, which was [taken](Self::takes) by then.
    pub(crate) fn sized(&mut self, from: usize, header: &Header) -> Result<(), String> {
        let input = self.program.incoming(from, header.item).ok_or(super::NOT_IN_PLAN)?;
        if self.told.inputs.get(input) != Some(&Length::Fresh) {
            return Err("tells a length that is known".into());
        }
        self.told.settle(input);
        if !header.offset.is_multiple_of(self.head.desc.dtype.size() as u64) {
            return Err(format!("has a message of {} bytes, which end within an element", header.offset));
        }
        Ok(())
    }

    /// Whether all messages that a rank of this process lends are as long as they may be.
    pub(super) fn takes_lent(&mut self, from: usize, lease: &Lease) -> bool {
        let program = self.program.clone();
        let mut inputs = (0..self.told.inputs.len()).filter(|input| program.inputs[*input].from == from);
        inputs.all(|input| {
            let bytes = lease.bytes(program.inputs[input].sender_step);
            let fits = bytes.is_some_and(|bytes| self.measure(input, bytes));
            self.told.settle(input);
            fits
        })
    }

    /// Whether an input may be so long; from then on its length is known.
    fn measure(&mut self, input: usize, bytes: usize) -> bool {
        let Some(length) = self.told.inputs.get_mut(input).filter(|length| **length != Length::Known) else {
            return true;
        };
        if *length == Length::TooLong {
            return false;
        }
        let step = &mut self.steps[self.program.inputs[input].step];
        let room = step.raw.len();
        if self.told.sizes == Some(Sizes::Learned) && bytes <= room {
            step.raw = step.raw.sub(0..bytes);
            let from = self.program.inputs[input].from;
            let digest = self.head.digest;
            self.told.arrival = Some(Arrival { from, tag: 0, bytes, digest, claim: 0 });
        } else if bytes != room {
            *length = Length::TooLong;
            return false;
        }
        *length = Length::Fresh;
        true
    }

    /// What this rank got, if it did not know how long it is.
    pub(crate) fn arrival(&self) -> Option<Arrival> {
        self.told.arrival
    }

    /// How long the parts are, as others are told where that is in question.
    pub(crate) fn counts(&self) -> Option<Arc<Counts>> {
        let mut counts = counts(&self.program, &self.head.desc, &self.parts)?;
        if let Counts::Own { taken, .. } = &mut counts {
            for (input, _) in
                self.told.inputs.iter().enumerate().filter(|(_, length)| **length == Length::TooLong)
            {
                let bytes = self.steps[self.program.inputs[input].step].raw.len();
                taken[self.program.inputs[input].from] = Some(self.head.desc.dtype.elements(bytes) as u64);
            }
        }
        Some(Arc::new(counts))
    }
}

/// How long the parts of a call are, where they are not equal.
pub(in crate::engine) fn counts(program: &Program, desc: &CallDesc, parts: &Parts) -> Option<Counts> {
    let sizes = parts.sizes()?;
    let spaces = Spaces::new(program, desc, parts);
    let elements = |range: Range| Some(desc.dtype.elements(spaces.bytes(range)) as u64);
    let ranks = program.plan.ranks.len();
    if sizes == Sizes::Agreed {
        let part = |block| elements(Range::new(Space::Output, block, 1)).unwrap_or_default();
        return Some(Counts::Parts((0..ranks as u32).map(part).collect()));
    }
    let (mut sent, mut taken) = (vec![None; ranks], vec![None; ranks]);
    for step in &program.steps {
        if let Act::Send { to, .. } = step.act {
            sent[to] = elements(step.range);
        }
    }
    for input in program.inputs.iter().filter(|_| sizes == Sizes::Told) {
        taken[input.from] = elements(program.steps[input.step].range);
    }
    Some(Counts::Own { sent, taken })
}
