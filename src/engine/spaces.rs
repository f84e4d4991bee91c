//! Where the ranges of a plan lie in the caller's memory.

use super::call::CallDesc;
use super::program::Program;
use crate::buffer::parts::Parts;
use crate::buffer::raw::Raw;
use crate::path::{Partition, Range, Space};

/// The buffers of one call, cut as its plan cuts the vector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spaces {
    partition: Partition,
    /// Bytes of an element.
    size: usize,
    output: Buffer,
    input: Buffer,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    raw: Raw,
    /// First element of the vector that is in it.
    first: usize,
}

impl Spaces {
    pub(crate) fn new(program: &Program, desc: &CallDesc, parts: &Parts) -> Spaces {
        let partition = program.partition(desc.count);
        let buffer = |raw: Raw, block: u32| Buffer { raw, first: partition.offset(block) };
        let input = parts.input().map_or(Raw::EMPTY, Parts::raw);
        Spaces {
            partition,
            size: desc.dtype.size(),
            output: buffer(parts.raw(), program.first_block.output),
            input: buffer(input, program.first_block.input),
        }
    }

    /// Bytes of a range, wherever it lies.
    pub(crate) fn bytes(&self, range: Range) -> usize {
        self.partition.elements(range).len() * self.size
    }

    /// A range of the caller's buffers, or of a scratch area that begins with block `first`.
    pub(crate) fn raw(&self, range: Range, scratch: impl FnOnce(usize) -> (Raw, u32)) -> Raw {
        let Buffer { raw, first } = match range.space {
            Space::Output => self.output,
            Space::Input => self.input,
            Space::Scratch(area) => {
                let (raw, block) = scratch(usize::from(area));
                Buffer { raw, first: self.partition.offset(block) }
            }
        };
        let elements = self.partition.elements(range);
        raw.sub((elements.start - first) * self.size..(elements.end - first) * self.size)
    }
}
