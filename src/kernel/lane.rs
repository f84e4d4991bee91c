//! One element: how it is read for arithmetic, combined, and written.

#![allow(unsafe_code)]

use std::ops;

use super::sweep::{Level, by_lane};

/// An element as it lies in memory.
pub(super) trait Lane: Copy {
    /// What arithmetic is done in.
    type Wide: Number;

    /// Any value; it pads.
    const ZERO: Self;

    /// Whatever order the lanes come in, `narrow` puts them back.
    ///
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn widen<L: Level, const N: usize>(lanes: [Self; N]) -> [Self::Wide; N];

    /// Rounds to nearest even where it rounds, and makes every NaN the canonical one.
    ///
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn narrow<L: Level, const N: usize>(wide: [Self::Wide; N]) -> [Self; N];
}

/// Arithmetic as [`ReduceOp`](crate::element::ReduceOp) defines it. Of a NaN only that it is one is defined.
pub(super) trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn lesser(self, other: Self) -> Self;
    fn greater(self, other: Self) -> Self;
    fn divide(self, divisor: u32) -> Self;
}

/// What has bits and is true if one of them is set. Signs don't matter here.
pub(super) trait Bits:
    Number
    + PartialEq
    + From<bool>
    + ops::BitAnd<Output = Self>
    + ops::BitOr<Output = Self>
    + ops::BitXor<Output = Self>
{
    #[inline(always)]
    fn is_true(self) -> bool {
        self != Self::from(false)
    }
}

impl Bits for u8 {}
impl Bits for u16 {}
impl Bits for u32 {}
impl Bits for u64 {}

/// A reduction of two elements.
pub(super) trait Op<W> {
    fn combine(left: W, right: W) -> W;
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct BitAnd;
pub(super) struct BitOr;
pub(super) struct BitXor;
pub(super) struct And;
pub(super) struct Or;
pub(super) struct Xor;

impl<W: Number> Op<W> for Sum {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        left.sum(right)
    }
}

impl<W: Number> Op<W> for Prod {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        left.product(right)
    }
}

impl<W: Number> Op<W> for Min {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        left.lesser(right)
    }
}

impl<W: Number> Op<W> for Max {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        left.greater(right)
    }
}

impl<W: Bits> Op<W> for BitAnd {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        left & right
    }
}

impl<W: Bits> Op<W> for BitOr {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        left | right
    }
}

impl<W: Bits> Op<W> for BitXor {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        left ^ right
    }
}

impl<W: Bits> Op<W> for And {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        W::from(left.is_true() & right.is_true())
    }
}

impl<W: Bits> Op<W> for Or {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        W::from((left | right).is_true())
    }
}

impl<W: Bits> Op<W> for Xor {
    #[inline(always)]
    fn combine(left: W, right: W) -> W {
        W::from(left.is_true() ^ right.is_true())
    }
}

macro_rules! integers {
    ($($type:ty, $divide:expr);+ $(;)?) => {$(
        impl Lane for $type {
            type Wide = $type;
            const ZERO: Self = 0;

            #[inline(always)]
            unsafe fn widen<L: Level, const N: usize>(lanes: [Self; N]) -> [Self; N] {
                lanes
            }

            #[inline(always)]
            unsafe fn narrow<L: Level, const N: usize>(wide: [Self; N]) -> [Self; N] {
                wide
            }
        }

        impl Number for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                $divide(self, divisor)
            }
        }
    )+};
}

integers! {
    i8, |all, ranks| quotient_16(i32::from(all), ranks) as i8;
    i16, |all, ranks| quotient_16(i32::from(all), ranks) as i16;
    i32, quotient_32;
    i64, |all, ranks| all / i64::from(ranks);
    u8, |all, ranks| quotient_16(i32::from(all), ranks) as u8;
    u16, |all, ranks| quotient_16(i32::from(all), ranks) as u16;
    u32, |all, ranks| (f64::from(all) / f64::from(ranks)) as u32;
    u64, |all, ranks| all / u64::from(ranks);
}

// Vectors have no division of integers, but a floating-point quotient is exact once truncated, if dividend and fraction
// are short enough. Say the exact quotient lies below an integer q, so by 1/divisor at least: for it to be rounded up
// to q, that gap must be less than q · 2⁻²⁴ in `f32`, q · 2⁻⁵³ in `f64`, hence q · divisor must be more than 2²⁴ or
// 2⁵³. It is at most dividend + divisor, and a divisor beyond the dividend gives a quotient too small to reach 1.

/// `all / ranks` for an `all` of 16 bits and a sign.
#[inline(always)]
fn quotient_16(all: i32, ranks: u32) -> i32 {
    // SAFETY: a quotient by one or more is as small as `all`, which is an `i32`.
    unsafe { (all as f32 / ranks as f32).to_int_unchecked() }
}

#[inline(always)]
fn quotient_32(all: i32, ranks: u32) -> i32 {
    // SAFETY: a quotient by one or more is as small as `all`, which is an `i32`.
    unsafe { (f64::from(all) / f64::from(ranks)).to_int_unchecked() }
}

macro_rules! floats {
    ($($type:ty, NaN $nan:literal);+ $(;)?) => {$(
        impl Lane for $type {
            type Wide = $type;
            const ZERO: Self = 0.0;

            #[inline(always)]
            unsafe fn widen<L: Level, const N: usize>(lanes: [Self; N]) -> [Self; N] {
                lanes
            }

            #[inline(always)]
            unsafe fn narrow<L: Level, const N: usize>(wide: [Self; N]) -> [Self; N] {
                let canonical = |wide: Self| if wide.is_nan() { $nan } else { wide.to_bits() };
                by_lane(|lane| Self::from_bits(canonical(wide[lane])))
            }
        }

        impl Number for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            // The two comparisons differ only if the numbers are zeros, whose signs are to be joined, or if one is
            // NaN. The joined bits of a NaN and anything are those of a NaN.
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                Self::from_bits(one.to_bits() | two.to_bits())
            }

            // As above, but the zeros' signs are to be cut, which would cut a NaN as well.
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                let one = if self > other { self } else { other };
                let two = if other > self { other } else { self };
                let unordered = self.is_nan() | other.is_nan();
                Self::from_bits(if unordered { $nan } else { one.to_bits() & two.to_bits() })
            }

            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                self / divisor as Self
            }
        }
    )+};
}

floats! {
    f32, NaN 0x7fc0_0000;
    f64, NaN 0x7ff8_0000_0000_0000;
}
