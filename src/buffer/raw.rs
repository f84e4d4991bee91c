//! A range of memory, as the engine and the links see it.
//!
//! A [`Raw`] is a pointer and a length; it keeps nothing alive. What makes its use sound is kept elsewhere:
//! - *Lifetime*: the operation's [`Parts`](super::parts::Parts) (or a pool block) lives in the same record as the
//!   `Raw`s made from it, and in the lease handed to in-process peers.
//! - *No data race*: the engine runs verified plans only, and the verifier proves that no range is written while
//!   anyone may read it. Bytes are therefore moved by raw copies and kernels; a slice over a range exists only for
//!   the length of one system call, on memory that the verified plan gives to this rank at that time.

#![allow(unsafe_code)]

use std::ops::Range;

use crate::element::Element;
use crate::kernel::{self, Reduction};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: a Raw is an address; what may be done with it is the module's contract, whichever thread does it.
unsafe impl Send for Raw {}
// SAFETY: as above; shared access to a Raw only copies it.
unsafe impl Sync for Raw {}

impl Raw {
    pub(crate) const EMPTY: Raw = Raw { ptr: std::ptr::NonNull::dangling().as_ptr(), bytes: 0 };

    pub(crate) const fn new(ptr: *mut u8, bytes: usize) -> Self {
        Raw { ptr, bytes }
    }

    /// All of a vector, which stays where it is until it grows or goes.
    pub(crate) fn of_words(words: &mut Vec<u64>) -> Raw {
        Raw { ptr: words.as_mut_ptr().cast(), bytes: size_of_val(words.as_slice()) }
    }

    pub(crate) const fn as_ptr(self) -> *mut u8 {
        self.ptr
    }

    pub(crate) const fn len(self) -> usize {
        self.bytes
    }

    pub(crate) fn sub(self, range: Range<usize>) -> Raw {
        assert!(range.start <= range.end && range.end <= self.bytes, "range outside of its buffer");
        // SAFETY: inside the allocation, checked above.
        Raw { ptr: unsafe { self.ptr.add(range.start) }, bytes: range.end - range.start }
    }

    /// Where another range lies within this one.
    pub(crate) fn offset_of(self, inner: Raw) -> Option<usize> {
        let at = (inner.ptr as usize).checked_sub(self.ptr as usize)?;
        (at + inner.bytes <= self.bytes).then_some(at)
    }

    pub(crate) fn copy_from(self, src: Raw) {
        assert_eq!(self.bytes, src.bytes, "copy between ranges of different lengths");
        if self.ptr != src.ptr {
            // SAFETY: both valid for `bytes`; ranges of a plan are equal or disjoint, and equality was excluded.
            unsafe { kernel::copy(self.ptr, src.ptr, self.bytes) }
        }
    }

    /// As [`copy_from`](Self::copy_from), into memory that another core has read.
    pub(crate) fn claim_and_copy_from(self, src: Raw) {
        assert_eq!(self.bytes, src.bytes, "copy between ranges of different lengths");
        self.claim_in_pieces(|piece| self.sub(piece.clone()).copy_from(src.sub(piece)));
    }

    /// As [`reduce_from`](Self::reduce_from), into memory that another core has read.
    pub(crate) fn claim_and_reduce_from(self, reduction: Reduction, srcs: &[Raw]) {
        const FEW: usize = 4;
        let mut few = [Raw::EMPTY; FEW];
        self.claim_in_pieces(|piece| match few.get_mut(..srcs.len()) {
            Some(parts) => {
                parts.iter_mut().zip(srcs).for_each(|(part, src)| *part = src.sub(piece.clone()));
                self.sub(piece).reduce_from(reduction, parts, &[]);
            }
            None => {
                let parts: Vec<Raw> = srcs.iter().map(|src| src.sub(piece.clone())).collect();
                self.sub(piece).reduce_from(reduction, &parts, &[]);
            }
        });
    }

    /// Works on pieces in turn, while the next one is fetched for writing.
    fn claim_in_pieces(self, mut work: impl FnMut(Range<usize>)) {
        /// A few hundred nanoseconds' work, which is what fetching takes; a multiple of every element.
        const PIECE: usize = 2 << 10;
        let claim = |start: usize| {
            let next = self.sub(start.min(self.bytes)..(start + PIECE).min(self.bytes));
            // SAFETY: a range of one allocation.
            unsafe { kernel::claim(next.ptr, next.bytes) }
        };
        if self.bytes > PIECE / 2 {
            claim(0);
        }
        let mut start = 0;
        while start < self.bytes {
            let end = (start + PIECE).min(self.bytes);
            if end < self.bytes {
                claim(end);
            }
            work(start..end);
            start = end;
        }
    }

    pub(crate) fn copy_from_slice(self, src: &[u8]) {
        assert_eq!(self.bytes, src.len(), "copy between ranges of different lengths");
        // SAFETY: valid for `bytes`; a Rust slice can't overlap memory that the engine may write.
        unsafe { kernel::copy(self.ptr, src.as_ptr(), self.bytes) }
    }

    pub(crate) fn copy_to_slice(self, dst: &mut [u8]) {
        assert_eq!(self.bytes, dst.len(), "copy between ranges of different lengths");
        // SAFETY: valid for `bytes`; a mutable Rust slice overlaps nothing.
        unsafe { kernel::copy(dst.as_mut_ptr(), self.ptr, self.bytes) }
    }

    /// On memory that this rank alone may touch.
    pub(crate) fn fill_zero(self) {
        self.bytes_mut().fill(0);
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        self.bytes_ref().to_vec()
    }

    /// For one system call or copy on memory that this rank may read.
    pub(crate) fn bytes_ref<'a>(self) -> &'a [u8] {
        // SAFETY: valid for `bytes` (module contract); nobody writes it while this rank may read it.
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }

    /// For one system call on memory that this rank alone may touch.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: valid for `bytes` (module contract); nobody else touches it while this rank may write it.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.bytes) }
    }

    /// `dst = srcs[0] ∘ srcs[1] ∘ …`, and the same in each of `copies`.
    pub(crate) fn reduce_from(self, reduction: Reduction, srcs: &[Raw], copies: &[Raw]) {
        /// Most operations have no more, and need not clear memory for many.
        const FEW: usize = 4;
        if srcs.len() <= FEW && copies.len() < FEW {
            self.reduce_up_to::<FEW>(reduction, srcs, copies);
        } else {
            self.reduce_up_to::<{ kernel::SOURCES_MAX }>(reduction, srcs, copies);
        }
    }

    fn reduce_up_to<const N: usize>(self, reduction: Reduction, srcs: &[Raw], copies: &[Raw]) {
        let mut pointers = [std::ptr::null::<u8>(); N];
        for (pointer, src) in pointers.iter_mut().zip(srcs) {
            assert_eq!(src.bytes, self.bytes, "reduction over ranges of different lengths");
            *pointer = src.ptr;
        }
        let mut dsts = [self.ptr; N];
        for (pointer, copy) in dsts[1..].iter_mut().zip(copies) {
            assert_eq!(copy.bytes, self.bytes, "reduction into ranges of different lengths");
            *pointer = copy.ptr;
        }
        let elements = reduction.dtype.elements(self.bytes);
        // SAFETY: all valid for `bytes`, aligned since buffers are and cuts are between elements; the verified plan
        // excludes other writers and readers.
        unsafe { kernel::reduce(reduction, &dsts[..=copies.len()], &pointers[..srcs.len()], elements) }
    }
}

/// `into = into ∘ others[0] ∘ others[1] ∘ …`, in that order, all of one length.
pub(crate) fn reduce_slices<T: Element>(reduction: Reduction, into: &mut [T], others: &[&[T]]) {
    assert_eq!(reduction.dtype, T::DTYPE, "reduction of another type");
    let (dst, elements) = (into.as_mut_ptr().cast::<u8>(), into.len());
    let steps = others.chunks(kernel::SOURCES_MAX - 1);
    let last = steps.len();
    for (step, others) in (1..).zip(steps) {
        let mut srcs = vec![dst.cast_const()];
        for other in others {
            assert_eq!(other.len(), elements, "reduction over slices of different lengths");
            srcs.push(other.as_ptr().cast());
        }
        // What divides does so in the end.
        let divisor = if step == last { reduction.divisor } else { 1 };
        // SAFETY: slices are valid and aligned; the exclusive one overlaps none of the others, and is the first source itself.
        unsafe { kernel::reduce(Reduction { divisor, ..reduction }, &[dst], &srcs, elements) }
    }
}
