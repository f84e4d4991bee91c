//! Where the ranges of a plan lie in the caller's memory.

use std::sync::Arc;

use super::call::CallDesc;
use super::program::Program;
use crate::buffer::parts::Parts;
use crate::buffer::raw::Raw;
use crate::path::{Partition, Range, Space};

/// The buffers of one call, cut as its plan cuts the vector, or where the caller does.
#[derive(Clone, Debug)]
pub(crate) struct Spaces {
    cut: Cut,
    /// Bytes of an element.
    size: usize,
    output: Buffer,
    input: Buffer,
}

#[derive(Clone, Debug)]
enum Cut {
    Even(Partition),
    /// Where each block begins, and the last one ends.
    At(Arc<[usize]>),
}

impl Cut {
    /// First element of a block.
    fn offset(&self, block: u32) -> usize {
        match self {
            Cut::Even(partition) => partition.offset(block),
            Cut::At(offsets) => offsets[block as usize],
        }
    }

    fn elements(&self, range: Range) -> std::ops::Range<usize> {
        self.offset(range.first)..self.offset(range.blocks().end)
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
        let cut = match parts.cuts() {
            Some(offsets) => Cut::At(offsets.clone()),
            None => Cut::Even(program.partition(desc.count)),
        };
        let buffer = |raw: Raw, block: u32| Buffer { raw, first: cut.offset(block) };
        let input = parts.input().map_or(Raw::EMPTY, Parts::raw);
        let output = buffer(parts.raw(), program.first_block.output);
        let input = buffer(input, program.first_block.input);
        Spaces { cut, size: desc.dtype.size(), output, input }
    }

    /// Bytes of a range, wherever it lies.
    pub(crate) fn bytes(&self, range: Range) -> usize {
        self.cut.elements(range).len() * self.size
    }

    /// A range of the caller's buffers, or of a scratch area that begins with block `first`.
    pub(crate) fn raw(&self, range: Range, scratch: impl FnOnce(usize) -> (Raw, u32)) -> Raw {
        let Buffer { raw, first } = match range.space {
            Space::Output => self.output,
            Space::Input => self.input,
            Space::Scratch(area) => {
                let (raw, block) = scratch(usize::from(area));
                Buffer { raw, first: self.cut.offset(block) }
            }
        };
        let elements = self.cut.elements(range);
        raw.sub((elements.start - first) * self.size..(elements.end - first) * self.size)
    }
}
