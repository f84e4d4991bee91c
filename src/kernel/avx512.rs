//! AVX-512: loops and conversions over registers twice as wide.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512, __m512i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm256_loadu_si256, _mm256_storeu_si256,
    _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
    _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_blend_epi16,
    _mm512_mask_blend_epi32, _mm512_set1_epi32, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_ps,
    _mm512_storeu_si512,
};

use super::lane::{Lane, Op};
use super::narrow::BF16_NAN_WIDE;
use super::sweep::{Job, Level, Sweep, by_sources};

/// AVX-512 with byte, word, doubleword and quadword operations.
pub(super) struct Avx512;

impl Level for Avx512 {
    const NAME: &'static str = "avx512";

    fn sweep<T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>() -> Sweep {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        unsafe fn avx512<T: Lane, O: Op<T::Wide>, const N: usize, const DIVIDE: bool>(job: &Job<'_>) {
            // SAFETY: the caller's promises.
            unsafe { by_sources::<Avx512, T, O, N, DIVIDE>(job) }
        }
        avx512::<T, O, N, DIVIDE>
    }

    #[inline(always)]
    unsafe fn f16_widen<const N: usize>(halves: [u16; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(16)) };
        let mut floats = [0.0; N];
        for lane in (0..N).step_by(16) {
            // SAFETY: sixteen lanes from `lane` on are inside both arrays; the CPU has AVX-512 by the caller's promise.
            unsafe {
                let sixteen = _mm256_loadu_si256(halves.as_ptr().add(lane).cast());
                _mm512_storeu_ps(floats.as_mut_ptr().add(lane), _mm512_cvtph_ps(sixteen));
            }
        }
        floats
    }

    #[inline(always)]
    unsafe fn f16_narrow<const N: usize>(floats: [f32; N]) -> [u16; N] {
        const { assert!(N.is_multiple_of(16)) };
        let mut halves = [0; N];
        for lane in (0..N).step_by(16) {
            // SAFETY: as above.
            unsafe {
                let sixteen = _mm512_loadu_ps(floats.as_ptr().add(lane));
                let sixteen = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(sixteen);
                _mm256_storeu_si256(halves.as_mut_ptr().add(lane).cast(), sixteen);
            }
        }
        halves
    }

    /// Of each 32 lanes, first the even ones and then the odd ones: that way none has to move.
    #[inline(always)]
    unsafe fn bf16_widen<const N: usize>(brains: [u16; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(32)) };
        let mut floats = [0.0; N];
        for lane in (0..N).step_by(32) {
            // SAFETY: 32 lanes from `lane` on are inside both arrays; the CPU has AVX-512 by the caller's promise.
            unsafe {
                let all = _mm512_loadu_si512(brains.as_ptr().add(lane).cast());
                let even = _mm512_slli_epi32::<16>(all);
                let odd = _mm512_and_si512(all, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
                _mm512_storeu_ps(floats.as_mut_ptr().add(lane), _mm512_castsi512_ps(even));
                _mm512_storeu_ps(floats.as_mut_ptr().add(lane + 16), _mm512_castsi512_ps(odd));
            }
        }
        floats
    }

    #[inline(always)]
    unsafe fn bf16_narrow<const N: usize>(floats: [f32; N]) -> [u16; N] {
        const { assert!(N.is_multiple_of(32)) };
        /// The upper half of each pair of lanes.
        const UPPER: u32 = 0xaaaa_aaaa;
        let mut brains = [0; N];
        for lane in (0..N).step_by(32) {
            // SAFETY: as above.
            unsafe {
                let even = bf16_round(_mm512_loadu_ps(floats.as_ptr().add(lane)));
                let odd = bf16_round(_mm512_loadu_ps(floats.as_ptr().add(lane + 16)));
                let all = _mm512_mask_blend_epi16(UPPER, _mm512_srli_epi32::<16>(even), odd);
                _mm512_storeu_si512(brains.as_mut_ptr().add(lane).cast(), all);
            }
        }
        brains
    }
}

/// Sixteen `bf16` in the upper halves, and rubbish below; the arithmetic is that of `narrow::f32_to_bf16`.
///
/// # Safety
/// The CPU has AVX-512.
#[inline(always)]
unsafe fn bf16_round(wide: __m512) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let nan = _mm512_set1_epi32(BF16_NAN_WIDE.cast_signed());
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(wide, wide);
        let bits = _mm512_mask_blend_epi32(is_nan, _mm512_castps_si512(wide), nan);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd)
    }
}
