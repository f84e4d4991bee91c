//! Which processors ranks have, and whether they have to share them.

use rustix::thread::{CpuSet, sched_getaffinity};

/// Words of a mask at most: as many processors as the system's own set of a fixed size holds.
pub(super) const MASK_WORDS_MAX: usize = CpuSet::MAX_CPU.div_ceil(u64::BITS as usize);

/// The processors of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Processors {
    /// Those it may run on, a bit each; empty if that is not known.
    pub(super) mask: Vec<u64>,
    /// How many it can keep busy: a control group may allow fewer.
    limit: u32,
}

impl Processors {
    pub(super) fn of_this_process() -> Self {
        let limit = std::thread::available_parallelism().map_or(1, |all| all.get() as u32);
        let mut mask = Vec::new();
        if let Ok(set) = sched_getaffinity(None) {
            for processor in (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)) {
                let (word, bit) = (processor / u64::BITS as usize, processor % u64::BITS as usize);
                mask.resize(word + 1, 0);
                mask[word] |= 1 << bit;
            }
        }
        Processors { mask, limit }
    }

    /// How many processes of one host have together. Those that may run on the same ones are taken to be under one
    /// limit; launchers that bind ranks give each its own.
    pub(crate) fn together<'a>(all: impl Iterator<Item = &'a Processors>) -> usize {
        let mut kinds: Vec<(&[u64], u32)> = Vec::new();
        let mut union = [0u64; MASK_WORDS_MAX];
        for Processors { mask, limit } in all {
            for (word, of) in union.iter_mut().zip(mask) {
                *word |= of;
            }
            match kinds.iter_mut().find(|(known, _)| known == mask) {
                Some((_, least)) => *least = (*least).min(*limit),
                None => kinds.push((mask, *limit)),
            }
        }
        let limits: usize = kinds.iter().map(|(_, limit)| *limit as usize).sum();
        let allowed: usize = union.iter().map(|word| word.count_ones() as usize).sum();
        // Where no mask is known, nothing is allowed.
        if allowed == 0 { limits } else { allowed.min(limits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together<const N: usize>(all: &[([u64; N], u32)]) -> usize {
        let all: Vec<_> =
            all.iter().map(|(mask, limit)| Processors { mask: mask.to_vec(), limit: *limit }).collect();
        Processors::together(all.iter())
    }

    #[test]
    fn processors_are_shared_or_each_rank_s_own() {
        assert_eq!(together(&[([0b11], 2); 4]), 2, "all on the same two");
        assert_eq!(together(&[([1], 1), ([2], 1), ([4], 1), ([8], 1)]), 4, "each bound to its own");
        assert_eq!(together(&[([0xff], 2); 3]), 2, "a control group allows two of eight");
        assert_eq!(together(&[([0b111], 3), ([0b1], 1)]), 3, "one that is bound to what others have as well");
        assert_eq!(together(&[([0, 1], 1), ([1, 0], 1)]), 2, "words far apart");
        assert_eq!(together(&[([], 4); 2]), 4, "not known where");
    }

    #[test]
    fn a_process_knows_its_own() {
        let mine = Processors::of_this_process();
        assert!(
            mine.limit > 0 && Processors::together([&mine].into_iter()) == mine.limit as usize,
            "{mine:?}"
        );
        assert!(mine.mask.len() <= MASK_WORDS_MAX && mine.mask.last().is_none_or(|word| *word != 0));
    }
}
