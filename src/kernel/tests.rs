//! Every loop of every instruction set against a reference that shares nothing with it.

#![allow(unsafe_code)]

use half::{bf16, f16};

use super::{Dispatch, Job, Reduction, available, reduce};
use crate::element::{DType, Element, ReduceOp};

/// What the table of [`ReduceOp`] says, an element at a time.
trait Reference: Element {
    fn reference(op: ReduceOp, divisor: u32, inputs: &[Self]) -> Self;
    /// The value with the type's low bits of `bits`.
    fn of_bits(bits: u64) -> Self;
    /// Bits, of which NaN has only one pattern.
    fn bits(self) -> u64;
    fn special() -> Vec<Self>;
}

macro_rules! reference_integers {
    ($($type:ty),+) => {$(
        impl Reference for $type {
            fn reference(op: ReduceOp, divisor: u32, inputs: &[Self]) -> Self {
                let mut inputs = inputs.iter().map(|&input| i128::from(input));
                let first = inputs.next().unwrap();
                let all = inputs.fold(first, |all, input| match op {
                    ReduceOp::Sum | ReduceOp::Avg => i128::from((all + input) as $type),
                    ReduceOp::Prod => i128::from((all.wrapping_mul(input)) as $type),
                    ReduceOp::Min => std::cmp::min(all, input),
                    ReduceOp::Max => std::cmp::max(all, input),
                    ReduceOp::BitAnd => all & input,
                    ReduceOp::BitOr => all | input,
                    ReduceOp::BitXor => all ^ input,
                    ReduceOp::And => i128::from(all != 0 && input != 0),
                    ReduceOp::Or => i128::from(all != 0 || input != 0),
                    ReduceOp::Xor => i128::from((all != 0) != (input != 0)),
                });
                (all / i128::from(divisor)) as $type
            }

            fn of_bits(bits: u64) -> Self {
                bits as $type
            }

            fn bits(self) -> u64 {
                self as u64
            }

            fn special() -> Vec<Self> {
                vec![0, 1, <$type>::MAX, <$type>::MIN, <$type>::MAX - 1, <$type>::MIN + 1, (0 as $type).wrapping_sub(1), 7]
            }
        }
    )+};
}

reference_integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! reference_floats {
    ($($type:ty, $bits:ty, wide $wide:ty, $widen:expr, $narrow:expr, nan $nan:expr, infinity $infinity:expr);+ $(;)?) => {$(
        impl Reference for $type {
            fn reference(op: ReduceOp, divisor: u32, inputs: &[Self]) -> Self {
                let mut inputs = inputs.iter().map(|&input| -> $wide { $widen(input) });
                let first = inputs.next().unwrap();
                let all = inputs.fold(first, |all, input| match op {
                    ReduceOp::Sum | ReduceOp::Avg => all + input,
                    ReduceOp::Prod => all * input,
                    _ if all.is_nan() || input.is_nan() => <$wide>::NAN,
                    ReduceOp::Min => std::cmp::min_by(all, input, <$wide>::total_cmp),
                    ReduceOp::Max => std::cmp::max_by(all, input, <$wide>::total_cmp),
                    other => unreachable!("{other} of {}", Self::DTYPE),
                });
                let all = all / divisor as $wide;
                if all.is_nan() { Self::from_bits($nan) } else { $narrow(all) }
            }

            fn of_bits(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }

            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }

            fn special() -> Vec<Self> {
                let sign: $bits = 1 << (<$bits>::BITS - 1);
                let infinity: $bits = $infinity;
                [0, 1, 2, infinity - 1, infinity, infinity + 1, $nan, $nan + 1, !sign, 1 << (<$bits>::BITS - 3)]
                    .into_iter()
                    .flat_map(|bits| [Self::from_bits(bits), Self::from_bits(bits | sign)])
                    .collect()
            }
        }
    )+};
}

reference_floats! {
    f32, u32, wide f32, |x| x, |x| x, nan 0x7fc0_0000, infinity 0x7f80_0000;
    f64, u64, wide f64, |x| x, |x| x, nan 0x7ff8_0000_0000_0000, infinity 0x7ff0_0000_0000_0000;
    f16, u16, wide f32, f16::to_f32, f16::from_f32, nan 0x7e00, infinity 0x7c00;
    bf16, u16, wide f32, bf16::to_f32, bf16::from_f32, nan 0x7fc0, infinity 0x7f80;
}

/// Runs a generic check for every element type.
macro_rules! every_type {
    ($check:ident) => {{
        let types = [
            $check::<f32>(),
            $check::<f64>(),
            $check::<f16>(),
            $check::<bf16>(),
            $check::<i8>(),
            $check::<i16>(),
            $check::<i32>(),
            $check::<i64>(),
            $check::<u8>(),
            $check::<u16>(),
            $check::<u32>(),
            $check::<u64>(),
        ];
        assert_eq!(types.len(), DType::ALL.len());
    }};
}

/// Deterministic bits (splitmix64).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Any values, a quarter of them special.
    fn elements<T: Reference>(&mut self, count: usize) -> Vec<T> {
        let special = T::special();
        let mut element = || match self.next() % 4 {
            0 => special[self.next() as usize % special.len()],
            _ => T::of_bits(self.next()),
        };
        (0..count).map(|_| element()).collect()
    }
}

fn reductions<T: Element>(sources: usize) -> impl Iterator<Item = Reduction> {
    let divisors = move |op| match op {
        ReduceOp::Avg => vec![1, sources as u32, 1000, u32::MAX],
        _ => vec![1],
    };
    let of_op =
        move |op| divisors(op).into_iter().map(move |divisor| Reduction { dtype: T::DTYPE, op, divisor });
    ReduceOp::ALL.iter().copied().filter(|op| op.supports(T::DTYPE)).flat_map(of_op)
}

/// Each element of the result of every instruction set is the reference's.
///
/// `columns` are the sources; `places` tells which of them the result replaces, one run each.
fn check<T: Reference>(
    reduction: Reduction,
    columns: &[Vec<T>],
    misaligned: usize,
    places: &[Option<usize>],
) {
    let row = |i: usize| columns.iter().map(|column| column[i]).collect::<Vec<T>>();
    let value = |i: usize| T::reference(reduction.op, reduction.divisor, &row(i)).bits();
    let expected: Vec<u64> = (0..columns[0].len()).map(value).collect();
    for dispatch in available() {
        for &dst_is in places {
            let place = format!("{} {reduction:?} dst {dst_is:?} +{misaligned}", dispatch.name);
            let memory = run(dispatch, reduction, columns, misaligned, dst_is);
            let dst = dst_is.unwrap_or(columns.len());
            for (i, (result, &expected)) in memory[dst].iter().zip(&expected).enumerate() {
                assert_eq!(result.bits(), expected, "{place} element {i} of {:?}", row(i));
            }
            for (index, column) in columns.iter().enumerate().filter(|&(index, _)| index != dst) {
                assert!(
                    memory[index].iter().map(|x| x.bits()).eq(column.iter().map(|x| x.bits())),
                    "{place} {index}"
                );
            }
        }
    }
}

/// The sources and, unless it is one of them, the result after a run on copies with a fence around each.
fn run<T: Reference>(
    dispatch: Dispatch,
    reduction: Reduction,
    columns: &[Vec<T>],
    misaligned: usize,
    dst_is: Option<usize>,
) -> Vec<Vec<T>> {
    let (elements, fence) = (columns[0].len(), T::of_bits(0x5a5a_5a5a_5a5a_5a5a));
    let fenced = |column: &Vec<T>| [vec![fence; misaligned], column.clone(), vec![fence; 2]].concat();
    let mut memory: Vec<Vec<T>> = columns.iter().map(fenced).collect();
    if dst_is.is_none() {
        memory.push(fenced(&vec![fence; elements]));
    }
    let starts: Vec<*mut u8> =
        memory.iter_mut().map(|fenced| fenced[misaligned..].as_mut_ptr().cast()).collect();
    let srcs: Vec<*const u8> = starts[..columns.len()].iter().map(|start| start.cast_const()).collect();
    let dst = starts[dst_is.unwrap_or(columns.len())];
    let job = Job { dst, copies: &[], srcs: &srcs, elements, divisor: reduction.divisor };
    // SAFETY: the memory is `elements` long from each start, and this thread's; the CPU has what is available.
    unsafe { (dispatch.select)(reduction)(&job) };
    for fenced in &mut memory {
        let around = fenced[..misaligned].iter().chain(&fenced[misaligned + elements..]);
        assert!(around.into_iter().all(|around| *around == fence), "{reduction:?} outside");
        *fenced = fenced[misaligned..misaligned + elements].to_vec();
    }
    memory
}

fn agrees_with_reference<T: Reference>() {
    let mut noise = Noise(T::DTYPE as u64);
    for sources in [1, 2, 3, 4, 5, 8] {
        for elements in [0, 1, 7, 31, 33, 255, 1000] {
            let columns: Vec<Vec<T>> = (0..sources).map(|_| noise.elements(elements)).collect();
            for reduction in reductions::<T>(sources) {
                let places: Vec<Option<usize>> = (0..sources).map(Some).chain([None]).collect();
                check(reduction, &columns, noise.next() as usize % 4, &places);
            }
        }
    }
}

#[test]
fn all_loops_agree_with_the_reference() {
    every_type!(agrees_with_reference);
}

fn special_values_agree<T: Reference>() {
    let special = T::special();
    let pairs = special.iter().flat_map(|&a| special.iter().map(move |&b| (a, b)));
    let (left, right): (Vec<T>, Vec<T>) = pairs.unzip();
    let third: Vec<T> = special.iter().cycle().skip(3).take(left.len()).copied().collect();
    for reduction in reductions::<T>(2) {
        check(reduction, std::slice::from_ref(&left), 1, &[None]);
        check(reduction, &[left.clone(), right.clone()], 0, &[None]);
        check(reduction, &[left.clone(), right.clone(), third.clone()], 0, &[Some(2)]);
    }
}

#[test]
fn special_values_follow_the_table() {
    every_type!(special_values_agree);
}

/// All values of a 16-bit type, alone and with another each.
fn all_halves<T: Reference>() {
    let all: Vec<T> = (0..=u64::from(u16::MAX)).map(T::of_bits).collect();
    let mut noise = Noise(3);
    let partners = noise.elements(all.len());
    for reduction in reductions::<T>(2) {
        check(reduction, std::slice::from_ref(&all), 0, &[None]);
        check(reduction, &[all.clone(), partners.clone()], 0, &[None]);
    }
}

#[test]
fn all_16_bit_floats_convert_and_compare() {
    all_halves::<f16>();
    all_halves::<bf16>();
}

#[test]
fn conversions_are_those_of_half() {
    // Steps over all binades, ties and their neighbours among them.
    for high in 0..=u32::from(u16::MAX) {
        for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let wide = f32::from_bits(high << 16 | low);
            if wide.is_nan() {
                assert!(f16::from_bits(super::narrow::f32_to_f16(wide)).is_nan(), "{wide:?}");
                assert!(bf16::from_bits(super::narrow::f32_to_bf16(wide)).is_nan(), "{wide:?}");
            } else {
                assert_eq!(super::narrow::f32_to_f16(wide), f16::from_f32(wide).to_bits(), "{wide:?}");
                assert_eq!(super::narrow::f32_to_bf16(wide), bf16::from_f32(wide).to_bits(), "{wide:?}");
            }
        }
        let half = f16::from_bits(high as u16);
        let wide = super::narrow::f16_to_f32(half.to_bits());
        assert!(wide.to_bits() == half.to_f32().to_bits() || wide.is_nan() && half.is_nan(), "{half:?}");
    }
}

fn slicing_is_invisible<T: Reference>() {
    let mut noise = Noise(17);
    let columns: Vec<Vec<T>> = (0..3).map(|_| noise.elements(513)).collect();
    let srcs: Vec<*const u8> = columns.iter().map(|column| column.as_ptr().cast()).collect();
    for reduction in reductions::<T>(3) {
        let mut whole = vec![T::of_bits(0); 513];
        // SAFETY: four vectors of 513 elements, all this thread's.
        unsafe { reduce(reduction, &[whole.as_mut_ptr().cast()], &srcs, 513) };
        for slice in [1, 2, 13, 64, 100, 511] {
            let mut sliced = vec![T::of_bits(0); 513];
            for start in (0..513).step_by(slice) {
                let srcs: Vec<*const u8> =
                    columns.iter().map(|column| column[start..].as_ptr().cast()).collect();
                let length = slice.min(513 - start);
                // SAFETY: `length` elements from `start` on are inside all four vectors.
                unsafe { reduce(reduction, &[sliced[start..].as_mut_ptr().cast()], &srcs, length) };
            }
            let bits = |elements: &[T]| elements.iter().map(|element| element.bits()).collect::<Vec<u64>>();
            assert_eq!(bits(&sliced), bits(&whole), "{reduction:?} in slices of {slice}");
        }
    }
}

#[test]
fn slicing_does_not_change_bits() {
    every_type!(slicing_is_invisible);
}

fn source_twice<T: Reference>() {
    let mut noise = Noise(23);
    let once: Vec<T> = noise.elements(100);
    for reduction in reductions::<T>(2) {
        let mut dst = once.clone();
        let start = dst.as_mut_ptr().cast::<u8>();
        // SAFETY: a vector of 100 elements, which is both sources and the destination.
        unsafe { reduce(reduction, &[start], &[start.cast_const(), start.cast_const()], 100) };
        for (dst, &once) in dst.iter().zip(&once) {
            let right = T::reference(reduction.op, reduction.divisor, &[once, once]);
            assert_eq!(dst.bits(), right.bits(), "{reduction:?} {once:?}");
        }
    }
}

#[test]
fn destination_may_be_every_source() {
    every_type!(source_twice);
}

fn several_destinations<T: Reference>() {
    let mut noise = Noise(29);
    let (mine, theirs): (Vec<T>, Vec<T>) = (noise.elements(517), noise.elements(517));
    for reduction in reductions::<T>(2) {
        let (mut dst, mut copy, mut other) = (mine.clone(), theirs.clone(), vec![T::of_bits(0); 517]);
        let dsts: [*mut u8; 3] =
            [dst.as_mut_ptr().cast(), copy.as_mut_ptr().cast(), other.as_mut_ptr().cast()];
        let srcs = [dsts[0].cast_const(), dsts[1].cast_const()];
        // SAFETY: three vectors of 517 elements, two of which are sources as well.
        unsafe { reduce(reduction, &dsts, &srcs, 517) };
        for (index, result) in dst.iter().enumerate() {
            let right = T::reference(reduction.op, reduction.divisor, &[mine[index], theirs[index]]);
            assert_eq!(result.bits(), right.bits(), "{reduction:?} at {index}");
            assert_eq!(copy[index].bits(), right.bits(), "{reduction:?} at {index} of a source");
            assert_eq!(other[index].bits(), right.bits(), "{reduction:?} at {index} of another");
        }
    }
}

#[test]
fn every_destination_gets_the_result() {
    every_type!(several_destinations);
}

#[test]
fn level_names_the_best_available() {
    assert_eq!(super::level(), available().last().unwrap().name);
}

#[test]
fn copy_copies() {
    let from: Vec<u8> = (0..100).collect();
    let mut to = [0; 100];
    // SAFETY: 99 bytes from 1 on are inside both vectors.
    unsafe { super::copy(to[1..].as_mut_ptr(), from[1..].as_ptr(), 99) };
    assert_eq!((to[0], &to[1..]), (0, &from[1..]));
}
