//! AVX2 with F16C: the conversions that compilers do not find by themselves.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256, __m256i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128,
    _mm256_add_epi32, _mm256_and_si256, _mm256_blend_epi16, _mm256_blendv_ps, _mm256_castps_si256,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_set1_epi32, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_ps,
    _mm256_storeu_si256,
};

use super::lane::{Lane, Op};
use super::narrow::BF16_NAN_WIDE;
use super::sweep::{Job, Level, Sweep, by_sources};

/// AVX2 with F16C.
pub(super) struct Avx2;

impl Level for Avx2 {
    const NAME: &'static str = "avx2";

    fn sweep<T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>() -> Sweep {
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn avx2<T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>(job: &Job<'_>) {
            // SAFETY: the caller's promises.
            unsafe { by_sources::<Avx2, T, O, N, DIVIDE>(job) }
        }
        avx2::<T, O, N, DIVIDE>
    }

    #[inline(always)]
    unsafe fn f16_widen<const N: usize>(halves: [u16; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(8)) };
        let mut floats = [0.0; N];
        for lane in (0..N).step_by(8) {
            // SAFETY: eight lanes from `lane` on are inside both arrays; the CPU has F16C by the caller's promise.
            unsafe {
                let eight = _mm_loadu_si128(halves.as_ptr().add(lane).cast());
                _mm256_storeu_ps(floats.as_mut_ptr().add(lane), _mm256_cvtph_ps(eight));
            }
        }
        floats
    }

    #[inline(always)]
    unsafe fn f16_narrow<const N: usize>(floats: [f32; N]) -> [u16; N] {
        const { assert!(N.is_multiple_of(8)) };
        let mut halves = [0; N];
        for lane in (0..N).step_by(8) {
            // SAFETY: eight lanes from `lane` on are inside both arrays; the CPU has F16C by the caller's promise.
            unsafe {
                let eight = _mm256_loadu_ps(floats.as_ptr().add(lane));
                let eight = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight);
                _mm_storeu_si128(halves.as_mut_ptr().add(lane).cast(), eight);
            }
        }
        halves
    }

    /// Of each sixteen lanes, first the even ones and then the odd ones: that way none has to move.
    #[inline(always)]
    unsafe fn bf16_widen<const N: usize>(brains: [u16; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(16)) };
        let mut floats = [0.0; N];
        for lane in (0..N).step_by(16) {
            // SAFETY: sixteen lanes from `lane` on are inside both arrays; the CPU has AVX2 by the caller's promise.
            unsafe {
                let sixteen = _mm256_loadu_si256(brains.as_ptr().add(lane).cast());
                let even = _mm256_slli_epi32::<16>(sixteen);
                let odd = _mm256_and_si256(sixteen, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
                _mm256_storeu_ps(floats.as_mut_ptr().add(lane), _mm256_castsi256_ps(even));
                _mm256_storeu_ps(floats.as_mut_ptr().add(lane + 8), _mm256_castsi256_ps(odd));
            }
        }
        floats
    }

    #[inline(always)]
    unsafe fn bf16_narrow<const N: usize>(floats: [f32; N]) -> [u16; N] {
        const { assert!(N.is_multiple_of(16)) };
        let mut brains = [0; N];
        for lane in (0..N).step_by(16) {
            // SAFETY: sixteen lanes from `lane` on are inside both arrays; the CPU has AVX2 by the caller's promise.
            unsafe {
                let even = bf16_round(_mm256_loadu_ps(floats.as_ptr().add(lane)));
                let odd = bf16_round(_mm256_loadu_ps(floats.as_ptr().add(lane + 8)));
                let sixteen = _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(even), odd);
                _mm256_storeu_si256(brains.as_mut_ptr().add(lane).cast(), sixteen);
            }
        }
        brains
    }
}

/// Eight `bf16` in the upper halves, and rubbish below; the arithmetic is that of `narrow::f32_to_bf16`.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn bf16_round(wide: __m256) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let nan = _mm256_castsi256_ps(_mm256_set1_epi32(BF16_NAN_WIDE.cast_signed()));
        let bits =
            _mm256_castps_si256(_mm256_blendv_ps(wide, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide)));
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd)
    }
}
