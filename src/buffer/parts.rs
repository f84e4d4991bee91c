//! A buffer with its type erased: what an operation owns while it runs.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use super::arena::{Arena, Place};
use super::owned::Memory;
use super::pool::Block;
use super::raw::Raw;
use crate::element::Element;

/// Memory and the duty to free it.
#[derive(Debug)]
pub(crate) struct Parts {
    raw: Raw,
    owner: Owner,
    /// What few operations have.
    more: Option<Box<More>>,
}

#[derive(Debug, Default)]
struct More {
    /// What is only read, where an operation works from one buffer to another.
    input: Option<Parts>,
    /// Where the parts of the vector lie; none where all are equal.
    cuts: Option<Cuts>,
}

/// Where the parts of a vector lie.
#[derive(Clone, Debug)]
pub(crate) struct Cuts {
    pub output: Cut,
    /// In the buffer that is read from, where there is one.
    pub input: Cut,
    pub sizes: Sizes,
}

/// Where the parts in a buffer lie, in elements.
#[derive(Clone, Debug)]
pub(crate) enum Cut {
    /// One after the other, from the first part of the vector on: where each begins, and where the last one ends.
    InTurn(Arc<[usize]>),
    /// Each somewhere in the buffer: where it begins, and how long it is.
    Apart(Arc<[(usize, usize)]>),
}

impl Cut {
    /// The elements of some parts, which follow each other.
    pub(crate) fn elements(&self, parts: Range<u32>) -> Range<usize> {
        match self {
            Cut::InTurn(offsets) => offsets[parts.start as usize]..offsets[parts.end as usize],
            // Of plans in which parts lie apart, a range is one of them.
            Cut::Apart(places) => {
                let (start, len) = places[parts.start as usize];
                start..start + len
            }
        }
    }
}

/// Who knows how long parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// All ranks, who compare them.
    Agreed,
    /// Each rank those of its own buffers: a message says how long it is, and its receiver compares.
    Told,
    /// The same, but what this rank gets may be shorter than what it has room for.
    Learned,
}

#[derive(Debug)]
enum Owner {
    /// A `Vec`'s allocation, freed by `free(ptr, capacity)`.
    Vec { capacity: usize, free: unsafe fn(*mut u8, usize) },
    /// A `Buffer`'s allocation.
    Buffer(Memory),
    /// Shared, read only.
    Bytes(#[expect(dead_code, reason = "keeps the memory alive")] bytes::Bytes),
    /// Staging memory that goes back to its pool.
    Block(#[expect(dead_code, reason = "keeps the memory alive")] Block),
    /// Somebody waits, blocked, until the operation is over, and owns the memory.
    Lent,
    /// No memory.
    None,
}

// SAFETY: the memory belongs to whoever has the Parts; element types are Send + Sync.
unsafe impl Send for Parts {}

impl Parts {
    pub(crate) const NONE: Parts = Parts { raw: Raw::EMPTY, owner: Owner::None, more: None };

    const fn new(raw: Raw, owner: Owner) -> Parts {
        Parts { raw, owner, more: None }
    }

    /// The same with a buffer that is read from.
    pub(crate) fn with_input(mut self, input: Parts) -> Parts {
        self.more.get_or_insert_default().input = Some(input);
        self
    }

    /// The same of a vector that is cut there.
    pub(crate) fn with_cuts(mut self, cuts: Cuts) -> Parts {
        self.more.get_or_insert_default().cuts = Some(cuts);
        self
    }

    pub(crate) fn cuts(&self) -> Option<&Cuts> {
        self.more.as_ref()?.cuts.as_ref()
    }

    /// Who knows how long its parts are, where they are not equal.
    pub(crate) fn sizes(&self) -> Option<Sizes> {
        self.cuts().map(|cuts| cuts.sizes)
    }

    /// The buffer that is read from, if it is another one.
    pub(crate) fn input(&self) -> Option<&Parts> {
        self.more.as_ref()?.input.as_ref()
    }

    pub(crate) fn take_input(&mut self) -> Parts {
        let input = self.more.as_mut().and_then(|more| more.input.take());
        input.unwrap_or(Parts::NONE)
    }

    /// Whether its owner waits for it and will use it as soon as he is told that the operation is over.
    pub(crate) fn is_lent(&self) -> bool {
        matches!(self.owner, Owner::Lent)
    }

    pub(crate) fn raw(&self) -> Raw {
        self.raw
    }

    /// Where it lies for other processes, if it is of this arena.
    pub(crate) fn place(&self, arena: &Arc<Arena>) -> Option<Place> {
        match &self.owner {
            Owner::Buffer(Memory::Shared(lot)) => lot.place(arena),
            _ => None,
        }
    }

    pub(crate) fn from_vec<T: Element>(vec: Vec<T>) -> Self {
        unsafe fn free<T>(ptr: *mut u8, capacity: usize) {
            // SAFETY: `from_vec` took pointer and capacity from a `Vec<T>`; elements need no drop, so length 0 will do.
            drop(unsafe { Vec::<T>::from_raw_parts(ptr.cast(), 0, capacity) });
        }
        let mut vec = ManuallyDrop::new(vec);
        let raw = Raw::new(vec.as_mut_ptr().cast(), size_of_val(vec.as_slice()));
        Parts::new(raw, Owner::Vec { capacity: vec.capacity(), free: free::<T> })
    }

    /// Gives the `Vec` back that [`from_vec`](Self::from_vec) took; same `T`.
    pub(crate) fn into_vec<T: Element>(self) -> Vec<T> {
        let mut this = ManuallyDrop::new(self);
        this.more = None;
        match &this.owner {
            Owner::Vec { capacity, .. } => {
                let len = this.raw.len() / size_of::<T>();
                let ptr = this.raw.bytes_mut().as_mut_ptr();
                // SAFETY: pointer, length and capacity come from a `Vec<T>`: callers use one `T` for both ways.
                unsafe { Vec::from_raw_parts(ptr.cast(), len, *capacity) }
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn from_memory(memory: Memory, bytes: usize) -> Self {
        Parts::new(Raw::new(memory.as_ptr(), bytes), Owner::Buffer(memory))
    }

    pub(crate) fn into_memory(mut self) -> Option<Memory> {
        match std::mem::replace(&mut self.owner, Owner::None) {
            Owner::Buffer(memory) => Some(memory),
            _ => None,
        }
    }

    pub(crate) fn from_bytes(bytes: bytes::Bytes) -> Self {
        // The pointer is `mut` by type only: parts made from `Bytes` are given to sends, which never write.
        let raw = Raw::new(bytes.as_ptr().cast_mut(), bytes.len());
        Parts::new(raw, Owner::Bytes(bytes))
    }

    pub(crate) fn from_block(block: Block, bytes: usize) -> Self {
        Parts::new(block.raw().sub(0..bytes), Owner::Block(block))
    }

    /// Memory of a caller who blocks until the operation has let go of it.
    pub(crate) fn lent(raw: Raw) -> Self {
        Parts::new(raw, Owner::Lent)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if let Owner::Vec { capacity, free } = self.owner {
            // SAFETY: the allocation is ours and freed once; see `from_vec`.
            unsafe { free(self.raw.bytes_mut().as_mut_ptr(), capacity) }
        }
    }
}
