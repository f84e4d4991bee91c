//! Where the ranges of a plan lie in the caller's memory.

use super::call::CallDesc;
use super::program::Program;
use crate::buffer::parts::{self, Parts};
use crate::buffer::raw::Raw;
use crate::path::{Partition, Range, Space};

/// The buffers of one call, cut as its plan cuts the vector, or where the caller does.
#[derive(Clone, Debug)]
pub(crate) struct Spaces {
    /// Of the output, and of whatever is put aside.
    cut: Cut,
    /// Of the input, where it is cut otherwise.
    input_cut: Option<Cut>,
    /// Bytes of an element.
    size: usize,
    output: Buffer,
    input: Buffer,
}

#[derive(Clone, Debug)]
enum Cut {
    Even(Partition),
    At(parts::Cut),
}

impl Cut {
    /// First element of a block, from where a buffer begins that begins with it.
    fn first(&self, block: u32) -> usize {
        match self {
            Cut::Even(partition) => partition.offset(block),
            Cut::At(parts::Cut::InTurn(offsets)) => offsets[block as usize],
            Cut::At(parts::Cut::Apart(_)) => 0,
        }
    }

    fn elements(&self, range: Range) -> std::ops::Range<usize> {
        match self {
            Cut::Even(partition) => partition.elements(range),
            Cut::At(cut) => cut.elements(range.blocks()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    raw: Raw,
    /// First element of the vector that is in it.
    first: usize,
}

impl Spaces {
    pub(crate) fn new(program: &Program, desc: &CallDesc, parts: &Parts) -> Spaces {
        let (cut, input_cut) = match parts.cuts() {
            Some(cuts) => (Cut::At(cuts.output.clone()), Some(Cut::At(cuts.input.clone()))),
            None => (Cut::Even(program.partition(desc.count)), None),
        };
        let output = Buffer { raw: parts.raw(), first: cut.first(program.first_block.output) };
        let raw = parts.input().map_or(Raw::EMPTY, Parts::raw);
        let first = input_cut.as_ref().unwrap_or(&cut).first(program.first_block.input);
        let input = Buffer { raw, first };
        Spaces { cut, input_cut, size: desc.dtype.size(), output, input }
    }

    fn cut(&self, space: Space) -> &Cut {
        match &self.input_cut {
            Some(cut) if space == Space::Input => cut,
            _ => &self.cut,
        }
    }

    /// Bytes of a range.
    pub(crate) fn bytes(&self, range: Range) -> usize {
        self.cut(range.space).elements(range).len() * self.size
    }

    /// A range of the caller's buffers, or of a scratch area that begins with block `first`.
    pub(crate) fn raw(&self, range: Range, scratch: impl FnOnce(usize) -> (Raw, u32)) -> Raw {
        let Buffer { raw, first } = match range.space {
            Space::Output => self.output,
            Space::Input => self.input,
            Space::Scratch(area) => {
                let (raw, block) = scratch(usize::from(area));
                Buffer { raw, first: self.cut.first(block) }
            }
        };
        let elements = self.cut(range.space).elements(range);
        raw.sub((elements.start - first) * self.size..(elements.end - first) * self.size)
    }
}
