//! One element: how it is read for arithmetic, combined, and written.

#![allow(unsafe_code)]

use super::sweep::Level;

/// An element as it lies in memory.
pub(super) trait Lane: Copy {
    /// What arithmetic is done in.
    type Wide: Number;

    /// Any value; it pads.
    const ZERO: Self;

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

/// A reduction of two numbers.
pub(super) trait Op {
    fn combine<W: Number>(left: W, right: W) -> W;
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Min;
pub(super) struct Max;

impl Op for Sum {
    #[inline(always)]
    fn combine<W: Number>(left: W, right: W) -> W {
        left.sum(right)
    }
}

impl Op for Prod {
    #[inline(always)]
    fn combine<W: Number>(left: W, right: W) -> W {
        left.product(right)
    }
}

impl Op for Min {
    #[inline(always)]
    fn combine<W: Number>(left: W, right: W) -> W {
        left.lesser(right)
    }
}

impl Op for Max {
    #[inline(always)]
    fn combine<W: Number>(left: W, right: W) -> W {
        left.greater(right)
    }
}

macro_rules! integers {
    ($($type:ty, divided in $quotient:ty);+ $(;)?) => {$(
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
                // Up to 32 bits the floating-point quotient is exact once truncated: were it rounded up to an integer
                // q, the exact one would be q − 1/divisor at most, and q · divisor < 2³³ keeps those two apart in 53
                // bits. Vectors have no division of integers.
                (self as $quotient / divisor as $quotient) as Self
            }
        }
    )+};
}

integers! {
    i8, divided in f64; i16, divided in f64; i32, divided in f64; i64, divided in i64;
    u8, divided in f64; u16, divided in f64; u32, divided in f64; u64, divided in u64;
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
                wide.map(|wide| Self::from_bits(if wide.is_nan() { $nan } else { wide.to_bits() }))
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
