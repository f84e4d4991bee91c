//! Reductions and conversions over raw memory, as fast as the memory is.
//!
//! The only entry is [`reduce`]; run-time dispatch picks the instruction set once per process.
//!
//! - `sweep`: the one loop over memory; what an instruction set provides; the baseline.
//! - `avx2`, `avx512`: the other instruction sets.
//! - `lane`: how elements are widened for arithmetic and narrowed again, and the reductions of one element.
//! - `narrow`: `f16` and `bf16`, widened to `f32`, combined over all sources, divided, and rounded once.
//!
//! **Same bits everywhere.** A result depends on the inputs of its element alone: not on the instruction set, the
//! alignment, the position in a vector or in the tail, nor on how a caller slices a range. IEEE 754 arithmetic grants
//! that for everything but NaN, whose sign and payload depend on the order of the operands, which compilers may swap.
//! Therefore a floating-point result that is NaN is always the type's canonical one: positive, quiet, no payload.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod lane;
mod narrow;
mod sweep;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use crate::element::{DType, ReduceOp};
use lane::{And, BitAnd, BitOr, BitXor, Bits, Lane, Max, Min, Or, Prod, Sum, Xor};
use narrow::{Brain, Half, HighestBrain, HighestHalf, LowestBrain, LowestHalf};
use sweep::{Baseline, Job, Level, Sweep};

/// Most sources of one call.
pub(crate) const SOURCES_MAX: usize = 64;

/// What one call of [`reduce`] does to each element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub dtype: DType,
    pub op: ReduceOp,
    /// Divide by this at the end (`Avg` in its last step); 1 otherwise. Never 0.
    pub divisor: u32,
}

/// `dsts[k][i] = srcs[0][i] ∘ srcs[1][i] ∘ …` for `elements` elements, in that order; the same in each of `dsts`, of which
/// there is at least one.
///
/// # Safety
/// All `dsts` and `srcs` are valid for `elements` elements of the type and aligned to it. A destination is one of the
/// sources or does not overlap any, and overlaps no other destination. Nobody writes a source, nor touches a destination,
/// during the call.
pub(crate) unsafe fn reduce(reduction: Reduction, dsts: &[*mut u8], srcs: &[*const u8], elements: usize) {
    debug_assert!((1..=SOURCES_MAX).contains(&srcs.len()), "{} sources", srcs.len());
    debug_assert!(reduction.divisor == 1 || reduction.op == ReduceOp::Avg, "{reduction:?}");
    debug_assert!(reduction.op.supports(reduction.dtype), "{reduction:?}");
    assert_ne!(reduction.divisor, 0, "{reduction:?}");
    let sweep = (dispatch().select)(reduction);
    let (dst, copies) = (dsts[0], &dsts[1..]);
    // SAFETY: the caller's promises about memory are those of `Job`; `dispatch` checked the instruction set.
    unsafe { sweep(&Job { dst, copies, srcs, elements, divisor: reduction.divisor }) }
}

/// Copies `bytes` bytes.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `bytes` bytes, and they do not overlap.
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { dst.copy_from_nonoverlapping(src, bytes) }
}

/// Begins to fetch `bytes` bytes for writing: worth it some time before they are written, where another core has read them, so
/// that its copies must go first.
///
/// # Safety
/// The addresses are within one allocation. Nothing is read or written.
pub(crate) unsafe fn claim(start: *mut u8, bytes: usize) {
    const LINE: usize = 64;
    for at in (0..bytes).step_by(LINE) {
        // SAFETY: within the allocation, by the caller's promise.
        let line = unsafe { start.add(at) };
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which does nothing on processors that don't know it.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        let _ = line;
    }
}

/// Name of the instruction set in use.
pub(crate) fn level() -> &'static str {
    dispatch().name
}

/// An instruction set this CPU has, and where to find the loops compiled for it.
#[derive(Clone, Copy)]
struct Dispatch {
    name: &'static str,
    select: fn(Reduction) -> Sweep,
}

impl Dispatch {
    fn of<L: Level>() -> Self {
        Dispatch { name: L::NAME, select: select::<L> }
    }
}

fn dispatch() -> Dispatch {
    static BEST: OnceLock<Dispatch> = OnceLock::new();
    *BEST.get_or_init(|| available().pop().expect("the baseline is always there"))
}

/// All instruction sets of this CPU that loops are compiled for, the best one last.
fn available() -> Vec<Dispatch> {
    #[allow(unused_mut, reason = "there is only one on some architectures")]
    let mut levels = vec![Dispatch::of::<Baseline>()];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        levels.push(Dispatch::of::<avx2::Avx2>());
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            levels.push(Dispatch::of::<avx512::Avx512>());
        }
    }
    levels
}

// The lanes per turn of the loop are chosen so that their accumulators fill four registers of 32 bytes.
fn select<L: Level>(reduction: Reduction) -> Sweep {
    match reduction.dtype {
        DType::F32 => arithmetic::<L, f32, 32>(reduction),
        DType::F64 => arithmetic::<L, f64, 16>(reduction),
        DType::F16 => floating16::<L, Half, LowestHalf, HighestHalf>(reduction),
        DType::BF16 => floating16::<L, Brain, LowestBrain, HighestBrain>(reduction),
        DType::I8 => integer::<L, i8, u8, 128>(reduction),
        DType::I16 => integer::<L, i16, u16, 64>(reduction),
        DType::I32 => integer::<L, i32, u32, 32>(reduction),
        DType::I64 => integer::<L, i64, u64, 16>(reduction),
        DType::U8 => integer::<L, u8, u8, 128>(reduction),
        DType::U16 => integer::<L, u16, u16, 64>(reduction),
        DType::U32 => integer::<L, u32, u32, 32>(reduction),
        DType::U64 => integer::<L, u64, u64, 16>(reduction),
    }
}

// Bits are the same with a sign and without, so that one loop does for both.
fn integer<L: Level, T: Lane, B: Lane<Wide = B> + Bits, const N: usize>(reduction: Reduction) -> Sweep {
    match reduction.op {
        ReduceOp::BitAnd => L::sweep::<B, BitAnd, N, false>(),
        ReduceOp::BitOr => L::sweep::<B, BitOr, N, false>(),
        ReduceOp::BitXor => L::sweep::<B, BitXor, N, false>(),
        ReduceOp::And => L::sweep::<B, And, N, false>(),
        ReduceOp::Or => L::sweep::<B, Or, N, false>(),
        ReduceOp::Xor => L::sweep::<B, Xor, N, false>(),
        _ => arithmetic::<L, T, N>(reduction),
    }
}

fn arithmetic<L: Level, T: Lane, const N: usize>(reduction: Reduction) -> Sweep {
    match reduction.op {
        ReduceOp::Min => L::sweep::<T, Min, N, false>(),
        ReduceOp::Max => L::sweep::<T, Max, N, false>(),
        _ => summation::<L, T, N>(reduction),
    }
}

// Minimum and maximum never leave 16 bits.
fn floating16<L: Level, T: Lane, Lowest: Lane, Highest: Lane>(reduction: Reduction) -> Sweep {
    match reduction.op {
        ReduceOp::Min => L::sweep::<Lowest, Min, 64, false>(),
        ReduceOp::Max => L::sweep::<Highest, Max, 64, false>(),
        _ => summation::<L, T, 32>(reduction),
    }
}

fn summation<L: Level, T: Lane, const N: usize>(reduction: Reduction) -> Sweep {
    match (reduction.op, reduction.divisor) {
        (ReduceOp::Prod, _) => L::sweep::<T, Prod, N, false>(),
        (_, 1) => L::sweep::<T, Sum, N, false>(),
        _ => L::sweep::<T, Sum, N, true>(),
    }
}
