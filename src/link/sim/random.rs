//! Numbers that depend on a seed and nothing else.

use std::ops::Range;
use std::time::Duration;

/// A generator of 64-bit numbers (splitmix64; Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.0)
    }

    /// Below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // No draw for what is certain, so that a fabric without faults is cheap.
        probability > 0.0 && ((self.next() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }

    pub(crate) fn within(&mut self, range: &Range<Duration>) -> Duration {
        let width = range.end.saturating_sub(range.start).as_nanos() as usize;
        if width == 0 {
            return range.start;
        }
        range.start + Duration::from_nanos(self.below(width) as u64)
    }
}

/// A bijective scramble.
pub(crate) fn scramble(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
