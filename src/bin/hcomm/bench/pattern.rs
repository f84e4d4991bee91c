//! Inputs, and what must come out.
//!
//! Every rank's element is a small integer that depends on the rank and, through a hash, on the index. There are few
//! different hashes, so that inputs and results are looked up in tables; and integers so small that no sum is rounded
//! in any type, in any order: for up to 64 ranks at most 2048 in `f16` and 256 in `bf16`.

use hcomm::{DType, Element, ReduceOp};

/// Tables of what elements are, by hash.
pub struct Pattern<T> {
    hash_bits: u32,
    inputs: Vec<Vec<T>>,
    spoiled: Vec<Vec<T>>,
    /// By how many of the first ranks.
    reduced: Vec<Vec<T>>,
}

impl<T: Element> Pattern<T> {
    /// For this reduction over so many ranks.
    pub fn new(op: ReduceOp, ranks: usize) -> Self {
        let hash_bits = match T::DTYPE {
            DType::BF16 => 3,
            DType::F16 => 6,
            _ => 8,
        };
        let hashes = 1i128 << hash_bits;
        let value = |rank: usize, hash| wrap(T::DTYPE, input(op, hash, rank as i128, ranks as i128, hashes));
        let table = |each: &dyn Fn(i128) -> i128| (0..hashes).map(|hash| encode(each(hash))).collect();
        let reduced =
            |hash, of: usize| reduce(T::DTYPE, op, (0..of).map(|rank| value(rank, hash)), of as i128);
        Pattern {
            hash_bits,
            inputs: (0..ranks).map(|rank| table(&|hash| value(rank, hash))).collect(),
            spoiled: (0..ranks).map(|rank| table(&|hash| value(rank, hash) + 1)).collect(),
            reduced: (0..=ranks).map(|of| table(&|hash| reduced(hash, of.max(1)))).collect(),
        }
    }

    /// What `rank` puts in.
    pub fn input(&self, rank: usize) -> &[T] {
        &self.inputs[rank]
    }

    /// What is at no place what `rank` puts in: fills memory that its input must come to.
    pub fn spoiled(&self, rank: usize) -> &[T] {
        &self.spoiled[rank]
    }

    /// The reduction over the first `ranks` ranks.
    pub fn reduced(&self, ranks: usize) -> &[T] {
        &self.reduced[ranks]
    }

    /// Fills elements, the first of which is number `first` of its vector.
    pub fn fill(&self, elements: &mut [T], first: usize, table: &[T]) {
        for (index, element) in elements.iter_mut().enumerate() {
            *element = table[self.hash(first + index)];
        }
    }

    /// How many elements are wrong.
    pub fn wrong(&self, elements: &[T], first: usize, table: &[T]) -> u64 {
        let differs = |(index, element): (usize, &T)| u64::from(*element != table[self.hash(first + index)]);
        elements.iter().enumerate().map(differs).sum()
    }

    /// Fibonacci hashing (Donald Knuth, The Art of Computer Programming, volume 3, 1973, section 6.4).
    fn hash(&self, index: usize) -> usize {
        ((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.hash_bits)) as usize
    }
}

fn input(op: ReduceOp, hash: i128, rank: i128, ranks: i128, hashes: i128) -> i128 {
    let varied = (hash + 5 * rank) % hashes;
    match op {
        // One factor depends on the hash, the others are −1: no product leaves −4 to 4.
        ReduceOp::Prod if (hash + rank) % ranks == 0 => 1 + hash % 4,
        ReduceOp::Prod => -1,
        // Differs between neighbouring ranks, and the sum is a multiple of their number.
        ReduceOp::Avg if rank + 1 == ranks && ranks % 2 == 1 => hash - hashes / 2,
        ReduceOp::Avg => hash - hashes / 2 + [1, -1][(rank % 2) as usize],
        // Some have one bit, and some have it beyond the type: many ranks don't come to the same everywhere.
        ReduceOp::BitAnd => !(1 << (varied % 120)),
        ReduceOp::BitOr => 1 << (varied % 120),
        ReduceOp::Or if varied != 0 => 0,
        ReduceOp::Or => -hashes / 2,
        ReduceOp::Xor if varied % 3 == 0 => 0,
        _ => varied - hashes / 2,
    }
}

/// The documented result: integers wrap, an average is rounded towards zero, and one value alone stays as it is.
fn reduce(dtype: DType, op: ReduceOp, values: impl Iterator<Item = i128>, ranks: i128) -> i128 {
    let combine = |one: i128, other: i128| match op {
        ReduceOp::Prod => wrap(dtype, one.wrapping_mul(other)),
        ReduceOp::Min => one.min(other),
        ReduceOp::Max => one.max(other),
        ReduceOp::BitAnd => one & other,
        ReduceOp::BitOr => one | other,
        ReduceOp::BitXor => one ^ other,
        ReduceOp::And => (one != 0 && other != 0).into(),
        ReduceOp::Or => (one != 0 || other != 0).into(),
        ReduceOp::Xor => ((one != 0) != (other != 0)).into(),
        _ => wrap(dtype, one + other),
    };
    let combined = values.reduce(combine).unwrap_or(0);
    if op == ReduceOp::Avg { combined / ranks } else { combined }
}

const fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
}

/// Into the range of an integer type, as its arithmetic does.
const fn wrap(dtype: DType, value: i128) -> i128 {
    let above = 128 - 8 * dtype.size() as u32;
    match dtype {
        _ if is_float(dtype) => value,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => ((value as u128) << above >> above) as i128,
        _ => value << above >> above,
    }
}

/// The element that has this value.
fn encode<T: Element>(value: i128) -> T {
    let mut bytes = value.to_le_bytes();
    match T::DTYPE {
        DType::F32 => bytes[..4].copy_from_slice(&(value as f32).to_le_bytes()),
        DType::F64 => bytes[..8].copy_from_slice(&(value as f64).to_le_bytes()),
        DType::F16 => bytes[..2].copy_from_slice(&half::f16::from_f32(value as f32).to_le_bytes()),
        DType::BF16 => bytes[..2].copy_from_slice(&half::bf16::from_f32(value as f32).to_le_bytes()),
        _ => {}
    }
    bytemuck::pod_read_unaligned(&bytes[..size_of::<T>()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_average_and_wrap_as_documented() {
        assert_eq!(reduce(DType::I8, ReduceOp::Sum, [100, 100].into_iter(), 2), -56);
        assert_eq!(reduce(DType::I8, ReduceOp::Avg, [-2, -1].into_iter(), 2), -1);
        assert_eq!(reduce(DType::U8, ReduceOp::Avg, [wrap(DType::U8, -2), 3].into_iter(), 2), 0);
        assert_eq!(reduce(DType::F16, ReduceOp::Max, [-3, 2].into_iter(), 2), 2);
    }

    #[test]
    fn bits_and_truth_are_combined_as_documented() {
        for (op, right) in [
            (ReduceOp::BitAnd, 0b1000),
            (ReduceOp::BitOr, 0b1110),
            (ReduceOp::BitXor, 0b0110),
            (ReduceOp::And, 1),
            (ReduceOp::Or, 1),
            (ReduceOp::Xor, 0),
        ] {
            assert_eq!(reduce(DType::U8, op, [0b1100, 0b1010].into_iter(), 2), right, "{op}");
            assert_eq!(reduce(DType::U8, op, [0b1100].into_iter(), 1), 0b1100, "{op}");
        }
        assert_eq!(reduce(DType::I8, ReduceOp::Xor, [0, -128].into_iter(), 2), 1);
        assert_eq!(reduce(DType::I8, ReduceOp::BitXor, [1, -128].into_iter(), 2), -127);
    }

    /// Else a result that is the same everywhere would pass.
    #[test]
    fn results_of_bits_and_truth_differ_by_element() {
        for op in ReduceOp::ALL.iter().copied().filter(|op| !op.supports(DType::F32)) {
            for ranks in [2, 3, 16, 64] {
                let pattern = Pattern::<u8>::new(op, ranks);
                let first = pattern.reduced(ranks)[0];
                assert!(pattern.reduced(ranks).iter().any(|other| *other != first), "{op} of {ranks}");
            }
        }
    }

    #[test]
    fn values_become_elements() {
        assert_eq!(encode::<f32>(-3), -3.0);
        assert_eq!(encode::<half::bf16>(-3).to_f32(), -3.0);
        assert_eq!(encode::<u16>(wrap(DType::U16, -3)), u16::MAX - 2);
        assert_eq!(encode::<i64>(-3), -3);
    }

    #[test]
    fn nothing_is_rounded_with_64_ranks() {
        for op in ReduceOp::ALL.iter().copied() {
            let pattern = Pattern::<half::bf16>::new(op, 64);
            let sum = |hash: usize| -> f32 { pattern.inputs.iter().map(|table| table[hash].to_f32()).sum() };
            if op == ReduceOp::Sum {
                assert!((0..8).all(|hash| sum(hash) == pattern.reduced(64)[hash].to_f32()));
            }
            if op == ReduceOp::Avg {
                assert!((0..8).all(|hash| sum(hash) == 64.0 * pattern.reduced(64)[hash].to_f32()));
            }
        }
    }

    #[test]
    fn a_wrong_element_is_counted() {
        let pattern = Pattern::<f32>::new(ReduceOp::Sum, 2);
        let mut elements = [0.0; 1000];
        pattern.fill(&mut elements, 7, pattern.input(1));
        assert_eq!(pattern.wrong(&elements, 7, pattern.input(1)), 0);
        elements.swap(3, 4);
        assert_eq!(pattern.wrong(&elements, 7, pattern.input(1)), 2);
        pattern.fill(&mut elements, 7, pattern.spoiled(1));
        assert_eq!(pattern.wrong(&elements, 7, pattern.input(1)), 1000);
    }
}
