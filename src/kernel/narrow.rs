//! The floating-point types of 16 bits: arithmetic in `f32`, order in `i16`.

#![allow(unsafe_code)]

use super::lane::Lane;
use super::sweep::{Level, by_lane};

const F16_INFINITY: i16 = 0x7c00;
const BF16_INFINITY: i16 = 0x7f80;
/// The canonical NaN of `bf16`, widened.
pub(super) const BF16_NAN_WIDE: u32 = (nan(BF16_INFINITY) as u32) << 16;

/// An `f16` for arithmetic.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Half(u16);

/// A `bf16` for arithmetic.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Brain(u16);

impl Lane for Half {
    type Wide = f32;
    const ZERO: Self = Half(0);

    #[inline(always)]
    unsafe fn widen<L: Level, const N: usize>(lanes: [Self; N]) -> [f32; N] {
        // SAFETY: the caller's promise.
        unsafe { L::f16_widen(by_lane(|lane| lanes[lane].0)) }
    }

    #[inline(always)]
    unsafe fn narrow<L: Level, const N: usize>(wide: [f32; N]) -> [Self; N] {
        // SAFETY: the caller's promise.
        let halves = unsafe { L::f16_narrow(wide) };
        by_lane(|lane| Half(canonical::<F16_INFINITY>(halves[lane])))
    }
}

impl Lane for Brain {
    type Wide = f32;
    const ZERO: Self = Brain(0);

    #[inline(always)]
    unsafe fn widen<L: Level, const N: usize>(lanes: [Self; N]) -> [f32; N] {
        // SAFETY: the caller's promise.
        unsafe { L::bf16_widen(by_lane(|lane| lanes[lane].0)) }
    }

    #[inline(always)]
    unsafe fn narrow<L: Level, const N: usize>(wide: [f32; N]) -> [Self; N] {
        // SAFETY: the caller's promise.
        let brains = unsafe { L::bf16_narrow(wide) };
        by_lane(|lane| Brain(brains[lane]))
    }
}

/// A floating-point number of 16 bits for comparisons, as a key that compares as the number does.
///
/// Reading the sign as a two's complement sign and flipping the other bits of negative numbers sorts numbers; NaNs
/// come at both ends, as they have signs. Turning the circle of keys a little further brings those of one end to the
/// other: above all numbers for the maximum (`HIGHEST`), below all for the minimum, so that NaN wins.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Ordered<const INFINITY: i16, const HIGHEST: bool>(i16);

pub(super) type LowestHalf = Ordered<F16_INFINITY, false>;
pub(super) type HighestHalf = Ordered<F16_INFINITY, true>;
pub(super) type LowestBrain = Ordered<BF16_INFINITY, false>;
pub(super) type HighestBrain = Ordered<BF16_INFINITY, true>;

impl<const INFINITY: i16, const HIGHEST: bool> Ordered<INFINITY, HIGHEST> {
    /// How far keys are turned: the number of NaNs of one sign.
    const TURN: i16 = if HIGHEST { INFINITY - i16::MAX } else { i16::MAX - INFINITY };
    /// Key of the infinity next to the NaNs.
    const LAST: i16 = (if HIGHEST { INFINITY } else { flip(INFINITY | i16::MIN) }).wrapping_add(Self::TURN);
    const NAN: u16 = nan(INFINITY);

    #[inline(always)]
    fn key(self) -> i16 {
        flip(self.0).wrapping_add(Self::TURN)
    }

    #[inline(always)]
    fn from_key(key: i16) -> Self {
        let unordered = if HIGHEST { key > Self::LAST } else { key < Self::LAST };
        Ordered(if unordered { Self::NAN as i16 } else { flip(key.wrapping_sub(Self::TURN)) })
    }
}

impl<const INFINITY: i16, const HIGHEST: bool> Lane for Ordered<INFINITY, HIGHEST> {
    type Wide = i16;
    const ZERO: Self = Ordered(0);

    #[inline(always)]
    unsafe fn widen<L: Level, const N: usize>(lanes: [Self; N]) -> [i16; N] {
        by_lane(|lane| lanes[lane].key())
    }

    #[inline(always)]
    unsafe fn narrow<L: Level, const N: usize>(wide: [i16; N]) -> [Self; N] {
        by_lane(|lane| Self::from_key(wide[lane]))
    }
}

/// Sign and magnitude to two's complement (less one for negatives) and back.
#[inline(always)]
const fn flip(bits: i16) -> i16 {
    bits ^ ((bits >> 15) & i16::MAX)
}

/// The canonical NaN: infinity with the highest bit of the fraction set.
const fn nan(infinity: i16) -> u16 {
    (infinity | infinity >> 1) as u16
}

#[inline(always)]
fn canonical<const INFINITY: i16>(bits: u16) -> u16 {
    let magnitude = (bits & 0x7fff) as i16;
    if magnitude > INFINITY { const { nan(INFINITY) } } else { bits }
}

/// Exact.
#[inline(always)]
pub(super) fn bf16_to_f32(brain: u16) -> f32 {
    f32::from_bits(u32::from(brain) << 16)
}

/// Rounds to nearest even; a NaN becomes the canonical one.
#[inline(always)]
pub(super) fn f32_to_bf16(wide: f32) -> u16 {
    let bits = if wide.is_nan() { BF16_NAN_WIDE } else { wide.to_bits() };
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Exact, subnormal numbers included. Straight-line, so that it vectorises.
#[inline(always)]
pub(super) fn f16_to_f32(half: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    // The exponent is that of an `f32` but for the bias, which a multiplication by a power of two makes good.
    let finite = (f32::from_bits(magnitude << 13) * REBIAS).to_bits();
    let special = 0x7f80_0000 | magnitude << 13;
    f32::from_bits(sign | if magnitude >= F16_INFINITY as u32 { special } else { finite })
}

/// Rounds to nearest even; a NaN becomes some NaN. Straight-line, so that it vectorises.
#[inline(always)]
pub(super) fn f32_to_f16(wide: f32) -> u16 {
    /// 2⁻¹⁴, the least normal `f16`.
    const NORMAL: u32 = (127 - 14) << 23;
    /// 2¹⁶: all from here on is infinite.
    const INFINITE: u32 = (127 + 16) << 23;
    /// One half: its unit in the last place is that of subnormal `f16`, so that adding it rounds to those.
    const SUBNORMAL_UNIT: f32 = 0.5;
    let sign = (wide.to_bits() >> 16 & 0x8000) as u16;
    let bits = wide.to_bits() & 0x7fff_ffff;
    let subnormal = (f32::from_bits(bits) + SUBNORMAL_UNIT).to_bits().wrapping_sub(SUBNORMAL_UNIT.to_bits());
    let normal = bits.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + (bits >> 13 & 1)) >> 13;
    let finite = if bits < NORMAL { subnormal } else { normal };
    let infinite = if wide.is_nan() { u32::from(nan(F16_INFINITY)) } else { F16_INFINITY as u32 };
    sign | (if bits >= INFINITE { infinite } else { finite }) as u16
}
