//! Calls that were made here, to answer a rank that calls something else under their numbers.
//!
//! All of the last ones are remembered. A call that has ended has mostly heard from all other ranks, and so that they agree;
//! one with a root may end long before others call it. So those are remembered for as far ahead as a rank can be.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::call::CallDesc;
use super::flight::with_counts;
use super::program::Program;
use super::run::counts;
use crate::buffer::parts::Cuts;
use crate::error::CallInfo;

/// Calls remembered whatever they were.
const RECENT_MAX: usize = 64;
/// Calls with a root remembered: twice as many as leave an eager frame each with a peer that calls nothing, and more than
/// are in flight besides.
const FAR_MAX: usize = 8192;

/// A call that was made here.
#[derive(Debug)]
pub(crate) struct Past {
    seq: u64,
    pub desc: CallDesc,
    /// Where its parts are, if they are not equal, and the program that has them: of recent ones.
    cut: Option<(Arc<Program>, Cuts)>,
    /// Its caller knows, or will be told, that it did not go well.
    pub told: bool,
    /// Ranks that contradict it and have been told what was called.
    answered: Vec<usize>,
}

impl Past {
    fn new(seq: u64, desc: CallDesc) -> Past {
        Past { seq, desc, cut: None, told: false, answered: Vec::new() }
    }

    /// What was called, as others are told where ranks disagree.
    pub(crate) fn info(&self) -> CallInfo {
        with_counts(self.desc.info(), self.cut.as_ref().map(|(program, cuts)| counts(program, cuts)))
    }

    /// Whether this rank is to be told what was called: once.
    pub(crate) fn answers(&mut self, rank: usize) -> bool {
        let news = !self.answered.contains(&rank);
        if news {
            self.answered.push(rank);
        }
        news
    }
}

#[derive(Debug, Default)]
pub(super) struct History {
    recent: VecDeque<Past>,
    /// Those with a root that are not recent any more, by number: their digests.
    far: VecDeque<(u64, u64)>,
    /// What was called by each digest there, and how often: programs call few different things.
    kinds: HashMap<u64, (CallDesc, usize)>,
    /// Of these, those that somebody has asked about.
    recalled: VecDeque<Past>,
}

impl History {
    pub(super) fn push(&mut self, seq: u64, desc: CallDesc, cut: Option<(Arc<Program>, Cuts)>) {
        if self.recent.len() == RECENT_MAX
            && let Some(past) = self.recent.pop_front()
            && past.desc.root.is_some()
        {
            self.keep(past);
        }
        self.recent.push_back(Past { cut, ..Past::new(seq, desc) });
    }

    fn keep(&mut self, past: Past) {
        let digest = past.desc.digest();
        if self.far.len() == FAR_MAX
            && let Some((_, oldest)) = self.far.pop_front()
            && let Some((_, count)) = self.kinds.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.kinds.remove(&oldest);
            }
        }
        self.far.push_back((past.seq, digest));
        self.kinds.entry(digest).or_insert((past.desc, 0)).1 += 1;
        if past.told || !past.answered.is_empty() {
            self.recall(past);
        }
    }

    fn recall(&mut self, past: Past) {
        if self.recalled.len() == RECENT_MAX {
            self.recalled.pop_front();
        }
        self.recalled.push_back(past);
    }

    pub(super) fn find(&mut self, seq: u64) -> Option<&mut Past> {
        if self.recent.front().is_some_and(|first| seq >= first.seq) {
            return self.recent.iter_mut().rev().find(|past| past.seq == seq);
        }
        if let Some(at) = self.recalled.iter().position(|past| past.seq == seq) {
            return self.recalled.get_mut(at);
        }
        let at = self.far.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        let (desc, _) = *self.kinds.get(&self.far.get(at)?.1)?;
        self.recall(Past::new(seq, desc));
        self.recalled.back_mut()
    }

    /// Bytes of what is remembered.
    pub(super) fn bytes(&self) -> usize {
        let calls = (self.recent.capacity() + self.recalled.capacity()) * size_of::<Past>();
        let kinds = self.kinds.capacity() * size_of::<(u64, (CallDesc, usize))>();
        calls + self.far.capacity() * size_of::<(u64, u64)>() + kinds
    }

    /// The last calls, the newest first.
    pub(super) fn last(&self, count: usize) -> impl Iterator<Item = (u64, CallInfo)> {
        self.recent.iter().rev().take(count).map(|past| (past.seq, past.desc.info()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::DType;
    use crate::rank::Rank;

    fn call(count: usize, root: Option<Rank>) -> CallDesc {
        CallDesc { root, fingerprint: 1, ..CallDesc::new("broadcast", DType::U8, count) }
    }

    #[test]
    fn calls_with_a_root_are_remembered_for_longer() {
        let mut history = History::default();
        let all = (RECENT_MAX + 2 * FAR_MAX) as u64;
        for seq in 0..all {
            let root = (!seq.is_multiple_of(2)).then_some(Rank(0));
            history.push(seq, call(seq as usize % 10, root), None);
        }
        let recent = all - RECENT_MAX as u64;
        assert_eq!((history.far.len(), history.kinds.len()), (FAR_MAX, 5));
        for seq in [recent, all - 1, recent - 1, 1] {
            let past = history.find(seq).unwrap_or_else(|| panic!("{seq}"));
            assert_eq!((past.seq, past.desc.count), (seq, seq as usize % 10));
            assert!(past.answers(3), "{seq}: it was not asked before");
            past.told = true;
        }
        for seq in [recent, all - 1, recent - 1, 1] {
            let past = history.find(seq).unwrap();
            assert!(past.told && !past.answers(3) && past.answers(2), "{seq}");
        }
        assert!(history.find(recent - 2).is_none() && history.find(all).is_none());
        (all..all + 4).for_each(|seq| history.push(seq, call(99, Some(Rank(0))), None));
        assert!(history.find(1).is_some() && history.find(3).is_none(), "the oldest go");
        let past = history.find(recent + 1).unwrap();
        assert!(!past.told && past.answers(7));
        let told = history.find(recent + 3).unwrap();
        told.told = true;
        (all..all + 9).for_each(|seq| history.push(seq + 4, call(99, None), None));
        assert!(history.find(recent + 3).unwrap().told, "what was said of it goes along");
        assert_eq!(history.last(2).map(|(seq, _)| seq).collect::<Vec<_>>(), [all + 12, all + 11]);
    }
}
