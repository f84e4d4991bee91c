//! The loop over memory, compiled once per instruction set, element type and reduction.
//!
//! A turn of the loop loads a few registers' worth of lanes from each source in order, keeps the accumulators in
//! registers and stores them. All loads of a turn precede its stores, hence a destination may be any of the sources. No
//! reference to the memory is ever formed: other threads may hold other parts of the same buffers.
//!
//! The tail runs through the same code as the body, on copies padded with zeros.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, transmute_copy};
use std::sync::atomic::{Ordering, compiler_fence};

use super::lane::{Lane, Number, Op};
use super::narrow;

/// The memory of one reduction.
pub(super) struct Job<'a> {
    pub dst: *mut u8,
    /// Further places of the result.
    pub copies: &'a [*mut u8],
    /// At least one.
    pub srcs: &'a [*const u8],
    pub elements: usize,
    /// Not 0.
    pub divisor: u32,
}

/// A compiled loop.
///
/// # Safety
/// The job's memory is as [`super::reduce`] demands it, and the CPU has the instruction set the loop is compiled for.
pub(super) type Sweep = unsafe fn(&Job<'_>);

/// An instruction set.
pub(super) trait Level {
    const NAME: &'static str;

    /// The loop for a type and an operation, `N` lanes a turn, that divides at the end or does not.
    fn sweep<T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>() -> Sweep;

    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn f16_widen<const N: usize>(halves: [u16; N]) -> [f32; N];

    /// Rounds to nearest even; a NaN becomes some NaN.
    ///
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn f16_narrow<const N: usize>(floats: [f32; N]) -> [u16; N];

    /// Lanes may come in another order.
    ///
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn bf16_widen<const N: usize>(brains: [u16; N]) -> [f32; N];

    /// Rounds to nearest even, makes every NaN the canonical one, and undoes the order of `bf16_widen`.
    ///
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn bf16_narrow<const N: usize>(floats: [f32; N]) -> [u16; N];
}

/// What every CPU of the architecture has: SSE2 on x86-64, NEON on AArch64.
pub(super) struct Baseline;

impl Level for Baseline {
    const NAME: &'static str = if cfg!(target_arch = "x86_64") {
        "sse2"
    } else if cfg!(target_arch = "aarch64") {
        "neon"
    } else {
        "baseline"
    };

    fn sweep<T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>() -> Sweep {
        unsafe fn baseline<T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>(job: &Job<'_>) {
            // SAFETY: the caller's promises.
            unsafe { by_sources::<Baseline, T, O, N, DIVIDE>(job) }
        }
        baseline::<T, O, N, DIVIDE>
    }

    #[inline(always)]
    unsafe fn f16_widen<const N: usize>(halves: [u16; N]) -> [f32; N] {
        by_lane(|lane| narrow::f16_to_f32(halves[lane]))
    }

    #[inline(always)]
    unsafe fn f16_narrow<const N: usize>(floats: [f32; N]) -> [u16; N] {
        by_lane(|lane| narrow::f32_to_f16(floats[lane]))
    }

    #[inline(always)]
    unsafe fn bf16_widen<const N: usize>(brains: [u16; N]) -> [f32; N] {
        by_lane(|lane| narrow::bf16_to_f32(brains[lane]))
    }

    #[inline(always)]
    unsafe fn bf16_narrow<const N: usize>(floats: [f32; N]) -> [u16; N] {
        by_lane(|lane| narrow::f32_to_bf16(floats[lane]))
    }
}

/// Gives the compiler the usual numbers of sources and of destinations as constants.
///
/// # Safety
/// As for [`Sweep`].
#[inline(always)]
pub(super) unsafe fn by_sources<L: Level, T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>(
    job: &Job<'_>,
) {
    // SAFETY: the caller's promises; the sources are those of the job.
    unsafe {
        match (job.srcs, job.copies) {
            (&[a, b], &[]) => over_memory::<L, T, O, N, DIVIDE>(job, &[a, b], &[]),
            (&[a, b], &[x]) => over_memory::<L, T, O, N, DIVIDE>(job, &[a, b], &[x]),
            (&[a, b, c, d], &[]) => over_memory::<L, T, O, N, DIVIDE>(job, &[a, b, c, d], &[]),
            (srcs, copies) => over_memory::<L, T, O, N, DIVIDE>(job, srcs, copies),
        }
    }
}

/// # Safety
/// As for [`Sweep`]; `srcs` and `copies` are the job's.
#[inline(always)]
unsafe fn over_memory<L: Level, T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>(
    job: &Job<'_>,
    srcs: &[*const u8],
    copies: &[*mut u8],
) {
    let turns = job.elements / N;
    for turn in 0..turns {
        // The lanes of a turn are to be vectorised; without the fence LLVM prefers to gather equal lanes of several
        // turns, which is many times slower.
        compiler_fence(Ordering::SeqCst);
        let at = turn * size_of::<[T; N]>();
        // SAFETY: this turn's lanes are inside `dst` and every source by the caller's promise.
        unsafe {
            let load = |src: *const u8| src.add(at).cast::<[T; N]>().read_unaligned();
            let lanes = one_turn::<L, T, O, N, DIVIDE>(srcs, job.divisor, load);
            job.dst.add(at).cast::<[T; N]>().write_unaligned(lanes);
            for copy in copies {
                copy.add(at).cast::<[T; N]>().write_unaligned(lanes);
            }
        }
    }
    let at = turns * size_of::<[T; N]>();
    let rest = job.elements * size_of::<T>() - at;
    if rest > 0 {
        // SAFETY: the `rest` bytes from `at` on are inside `dst` and every source, and fewer than `N` lanes have.
        unsafe {
            let load = |src: *const u8| {
                let mut padded = [T::ZERO; N];
                padded.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(src.add(at), rest);
                padded
            };
            let lanes = one_turn::<L, T, O, N, DIVIDE>(srcs, job.divisor, load);
            for dst in std::iter::once(&job.dst).chain(copies) {
                dst.add(at).copy_from_nonoverlapping(lanes.as_ptr().cast::<u8>(), rest);
            }
        }
    }
}

/// Combines one load of each source.
///
/// # Safety
/// The CPU has the instruction set.
#[inline(always)]
unsafe fn one_turn<L: Level, T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>(
    srcs: &[*const u8],
    divisor: u32,
    load: impl Fn(*const u8) -> [T; N],
) -> [T; N] {
    // SAFETY: the caller's promise.
    let lanes = |src| unsafe { T::widen::<L, N>(load(src)) };
    let mut sum = lanes(srcs[0]);
    for &src in &srcs[1..] {
        let next = lanes(src);
        sum = by_lane(|lane| O::combine(sum[lane], next[lane]));
    }
    if DIVIDE {
        sum = by_lane(|lane| sum[lane].divide(divisor));
    }
    // SAFETY: the caller's promise.
    unsafe { T::narrow::<L, N>(sum) }
}

/// `array::from_fn`, but always inlined: out of line it would be compiled for the baseline.
#[inline(always)]
pub(super) fn by_lane<T: Copy, const N: usize>(value: impl Fn(usize) -> T) -> [T; N] {
    let mut lanes = [MaybeUninit::uninit(); N];
    for (index, lane) in lanes.iter_mut().enumerate() {
        lane.write(value(index));
    }
    // SAFETY: the loop has written all `N` lanes, and `MaybeUninit<T>` has the layout of `T`.
    unsafe { transmute_copy::<[MaybeUninit<T>; N], [T; N]>(&lanes) }
}
