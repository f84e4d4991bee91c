//! [`Buffer`]: aligned memory for the fastest paths.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::arena::Lot;
use super::parts::Parts;
use crate::element::Element;

/// Cache lines, and the widest vector registers.
const ALIGN: usize = 64;
/// Above this, memory is laid out for transparent huge pages: first touch is several times cheaper.
const HUGE_PAGE: usize = 2 << 20;

/// A fixed-length vector of elements in aligned memory, in huge pages where it is large.
///
/// Hand it to operations by value; they give it back. From 2 MiB on it is aligned to 2 MiB and takes its pages at once.
///
/// ```
/// let mut buffer = hcomm::Buffer::<f32>::zeroed(1024);
/// buffer[0] = 1.0;
/// assert_eq!(buffer.len(), 1024);
/// let same: hcomm::Buffer<i32> = (1..4).collect();
/// assert_eq!(same, [1, 2, 3]);
/// assert_eq!(format!("{same:?}"), "[1, 2, 3]");
/// assert_eq!(Vec::from(same), [1, 2, 3]);
/// ```
#[must_use = "a new buffer is filled and handed to operations"]
pub struct Buffer<T: Element> {
    memory: Memory,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// `len` elements, all zero.
    ///
    /// # Panics
    ///
    /// If so many bytes can't be addressed. Memory that the system refuses ends the process, as it does for a `Vec`.
    pub fn zeroed(len: usize) -> Self {
        let bytes = len.checked_mul(size_of::<T>()).expect("a buffer's size fits into memory");
        Buffer { memory: Memory::zeroed(bytes), len, element: PhantomData }
    }

    /// A copy of `elements`: what `From` does for slices, vectors and arrays.
    pub fn copy_of(elements: &[T]) -> Self {
        let mut buffer = Self::zeroed(elements.len());
        buffer.copy_from_slice(elements);
        buffer
    }

    /// `len` elements in memory that other processes read where it lies.
    pub(crate) fn in_lot(lot: Lot, len: usize) -> Self {
        assert!(len * size_of::<T>() <= lot.raw().len(), "a lot is as large as its buffer");
        Buffer { memory: Memory::Shared(Box::new(lot)), len, element: PhantomData }
    }

    pub(crate) fn into_parts(self) -> Parts {
        let bytes = self.len * size_of::<T>();
        Parts::from_memory(self.memory, bytes)
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        let len = parts.raw().len() / size_of::<T>();
        match parts.into_memory() {
            Some(memory) => Buffer { memory, len, element: PhantomData },
            None => Self::zeroed(0),
        }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `memory` holds `len` initialised elements, aligned to 64.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().cast(), self.len) }
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Element> From<&[T]> for Buffer<T> {
    fn from(elements: &[T]) -> Self {
        Self::copy_of(elements)
    }
}

impl<T: Element> From<Vec<T>> for Buffer<T> {
    /// Copies: a vector's memory is aligned otherwise.
    fn from(elements: Vec<T>) -> Self {
        Self::copy_of(&elements)
    }
}

impl<T: Element> From<Buffer<T>> for Vec<T> {
    /// Copies, as the other way round.
    fn from(buffer: Buffer<T>) -> Self {
        buffer.to_vec()
    }
}

impl<T: Element, const N: usize> From<[T; N]> for Buffer<T> {
    fn from(elements: [T; N]) -> Self {
        Self::copy_of(&elements)
    }
}

impl<T: Element> FromIterator<T> for Buffer<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Self::from(Vec::from_iter(elements))
    }
}

impl<T: Element> Default for Buffer<T> {
    /// Without elements.
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<T: Element> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        Self::copy_of(self)
    }
}

impl<T: Element> PartialEq for Buffer<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Element + Eq> Eq for Buffer<T> {}

impl<T: Element> PartialEq<[T]> for Buffer<T> {
    fn eq(&self, other: &[T]) -> bool {
        **self == *other
    }
}

impl<T: Element> PartialEq<&[T]> for Buffer<T> {
    fn eq(&self, other: &&[T]) -> bool {
        **self == **other
    }
}

impl<T: Element, const N: usize> PartialEq<[T; N]> for Buffer<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        **self == *other
    }
}

impl<T: Element> PartialEq<Vec<T>> for Buffer<T> {
    fn eq(&self, other: &Vec<T>) -> bool {
        **self == **other
    }
}

impl<T: Element> AsRef<[T]> for Buffer<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Element> AsMut<[T]> for Buffer<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<T: Element> IntoIterator for Buffer<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        Vec::from(self).into_iter()
    }
}

impl<'a, T: Element> IntoIterator for &'a mut Buffer<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<'a, T: Element> IntoIterator for &'a Buffer<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// An aligned allocation, zeroed at birth.
#[derive(Debug)]
pub(crate) enum Memory {
    Heap(Allocation),
    /// Other processes read it where it lies.
    Shared(Box<Lot>),
}

/// An allocation of this process's own.
#[derive(Debug)]
pub(crate) struct Allocation {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory, owned.
unsafe impl Send for Allocation {}
// SAFETY: plain memory; shared access reads only.
unsafe impl Sync for Allocation {}

impl Memory {
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Memory::Heap(Allocation::zeroed(bytes))
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        match self {
            Memory::Heap(allocation) => allocation.ptr,
            Memory::Shared(lot) => lot.raw().as_ptr(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match self {
            Memory::Heap(allocation) => allocation.layout.size(),
            Memory::Shared(lot) => lot.raw().len(),
        }
    }
}

impl Allocation {
    fn zeroed(bytes: usize) -> Self {
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { ALIGN };
        let layout = Layout::from_size_align(bytes.max(1), align).expect("a buffer's size fits into memory");
        if bytes >= HUGE_PAGE {
            return Self::huge(layout);
        }
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        if ptr.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Allocation { ptr, layout }
    }

    fn huge(layout: Layout) -> Self {
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { std::alloc::alloc(layout) };
        if ptr.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        let whole = layout.size() / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: advice about our own pages; where it is refused, ordinary pages do.
        let _ = unsafe { rustix::mm::madvise(ptr.cast(), whole, rustix::mm::Advice::LinuxHugepage) };
        // SAFETY: ours, `size` bytes long. Zeroing after the advice faults the pages in as huge ones.
        unsafe { ptr.write_bytes(0, layout.size()) };
        Allocation { ptr, layout }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { std::alloc::dealloc(self.ptr, self.layout) }
    }
}
