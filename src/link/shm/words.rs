//! Words that two processes share: atomic, in a mapping. In models they are loom's, in one process.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::buffer::raw::Raw;
use crate::buffer::segment::Mapping;
use crate::runtime::sync::AtomicU64;

/// Bytes of a word.
pub(super) const WORD: usize = size_of::<u64>();

/// A row of words, and what they are in.
#[cfg(not(hcomm_loom))]
#[derive(Clone, Debug)]
pub(crate) struct Words {
    #[expect(dead_code, reason = "keeps the pages mapped")]
    mapping: Arc<Mapping>,
    start: *const AtomicU64,
    count: usize,
}

#[cfg(not(hcomm_loom))]
// SAFETY: atomics, which the mapping keeps alive.
unsafe impl Send for Words {}
#[cfg(not(hcomm_loom))]
// SAFETY: as above.
unsafe impl Sync for Words {}

#[cfg(not(hcomm_loom))]
impl Words {
    /// `bytes` of a mapping from `at` on, both of whole words.
    pub(super) fn new(mapping: &Arc<Mapping>, at: usize, bytes: usize) -> Words {
        let raw = mapping.raw(at, bytes);
        assert!(at.is_multiple_of(WORD) && bytes.is_multiple_of(WORD), "words begin and end at words");
        Words { mapping: mapping.clone(), start: raw.as_ptr().cast(), count: bytes / WORD }
    }

    #[inline]
    pub(super) fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "a word outside of its row");
        // SAFETY: in the mapping, aligned, and shared words are only ever used as atomics. Who may only read it has pages that
        // can't be written, and loads only.
        unsafe { &*self.start.add(index) }
    }

    /// Bytes among the words, for payload.
    #[inline]
    pub(super) fn raw(&self, byte: usize, bytes: usize) -> Raw {
        Raw::new(self.start.cast_mut().cast(), self.count * WORD).sub(byte..byte + bytes)
    }
}

#[cfg(hcomm_loom)]
#[derive(Clone, Debug)]
pub(crate) struct Words(Arc<Vec<AtomicU64>>);

#[cfg(hcomm_loom)]
impl Words {
    pub(super) fn new(_: &Arc<Mapping>, _: usize, bytes: usize) -> Words {
        Words::modelled(bytes / WORD)
    }

    pub(super) fn modelled(count: usize) -> Words {
        Words(Arc::new((0..count).map(|_| AtomicU64::default()).collect()))
    }

    pub(super) fn at(&self, index: usize) -> &AtomicU64 {
        // A ring is mapped twice.
        &self.0[index % self.0.len()]
    }

    /// Payload is no part of models.
    pub(super) fn raw(&self, _: usize, _: usize) -> Raw {
        Raw::EMPTY
    }
}
