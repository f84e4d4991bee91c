//! Outcomes of numbers that are known before this rank calls them: tombstones, kept until it does.
//!
//! None is ever forgotten, as its call would wait for ranks that have gone on. A rank may give up any number of calls
//! while another is away, so numbers that follow each other share one tombstone: exactly, where the cause is equal, and once
//! there are many, whatever the causes.

use std::collections::BTreeMap;

use super::trouble::Cause;
use crate::error::CallInfo;

/// Tombstones from which on neighbours share one whatever their causes.
const CROWDED: usize = 1024;
/// Beyond this a peer is broken: what lies between numbers that were given up ended without this rank, and peers can't send
/// it that much ahead.
const TOMBS_MAX: usize = 65_536;

/// What a rank calls.
type Call = (usize, CallInfo);
/// Who has given a number up, and why.
type Verdict = (usize, Cause);

#[derive(Debug, Default)]
pub(super) struct Tombs {
    /// By the first of numbers that follow each other.
    given_up: BTreeMap<u64, GivenUp>,
    contradicted: BTreeMap<u64, Vec<Call>>,
    /// When to look again whether neighbours can share one.
    crowded: usize,
}

#[derive(Debug, Clone)]
struct GivenUp {
    last: u64,
    by: usize,
    cause: Cause,
    /// The first of the numbers that the cause is of, if others have joined.
    joined: Option<u64>,
}

impl GivenUp {
    fn verdict(&self) -> Verdict {
        let cause = match self.joined {
            Some(of) => Cause::Failed(format!("as many others; of #{of}, {}", self.cause)),
            None => self.cause.clone(),
        };
        (self.by, cause)
    }
}

impl Tombs {
    pub(super) fn is_empty(&self) -> bool {
        self.given_up.is_empty() && self.contradicted.is_empty()
    }

    pub(super) fn has(&self, seq: u64) -> bool {
        self.contradicted.contains_key(&seq) || self.of(seq).is_some()
    }

    fn of(&self, seq: u64) -> Option<(u64, &GivenUp)> {
        let (first, tomb) = self.given_up.range(..=seq).next_back()?;
        (tomb.last >= seq).then_some((*first, tomb))
    }

    /// Who has given a number up, and why; unless ranks disagree about it, which goes first.
    pub(super) fn given_up_by(&self, seq: u64) -> Option<Verdict> {
        if self.contradicted.contains_key(&seq) {
            return None;
        }
        self.of(seq).map(|(_, tomb)| tomb.verdict())
    }

    /// One rank gives a number up for all.
    pub(super) fn give_up(&mut self, seq: u64, by: usize, cause: Cause) -> Result<(), String> {
        if self.of(seq).is_some() {
            return Ok(());
        }
        let before = self.given_up.range_mut(..seq).next_back();
        if let Some((_, tomb)) = before
            && tomb.last + 1 == seq
            && tomb.by == by
            && tomb.joined.is_none()
            && tomb.cause == cause
        {
            tomb.last = seq;
            return Ok(());
        }
        self.given_up.insert(seq, GivenUp { last: seq, by, cause, joined: None });
        self.make_room()
    }

    /// What others call where ranks disagree is collected.
    pub(super) fn contradict(&mut self, seq: u64, by: usize, call: CallInfo) -> Result<(), String> {
        let calls = self.contradicted.entry(seq).or_default();
        if !calls.iter().any(|(rank, _)| *rank == by) {
            calls.push((by, call));
        }
        self.make_room()
    }

    /// The verdicts on a number that is about to be called: what others call, and who gave it up.
    pub(super) fn take(&mut self, seq: u64) -> (Vec<Call>, Option<Verdict>) {
        let calls = self.contradicted.remove(&seq).unwrap_or_default();
        let Some((first, _)) = self.of(seq) else { return (calls, None) };
        let Some(tomb) = self.given_up.remove(&first) else { return (calls, None) };
        let verdict = tomb.verdict();
        if seq < tomb.last {
            self.given_up.insert(seq + 1, tomb.clone());
        }
        if first < seq {
            self.given_up.insert(first, GivenUp { last: seq - 1, ..tomb });
        }
        (calls, Some(verdict))
    }

    fn make_room(&mut self) -> Result<(), String> {
        let count = self.given_up.len() + self.contradicted.len();
        if count < self.crowded.max(CROWDED) {
            return Ok(());
        }
        // Nobody waits for this rank's say any more: those who disagreed know, and have gone on by so many calls.
        let half = self.contradicted.keys().nth(self.contradicted.len() / 2).copied();
        let late = half.map(|half| self.contradicted.split_off(&half)).unwrap_or_default();
        for (seq, calls) in std::mem::replace(&mut self.contradicted, late) {
            if self.of(seq).is_some() {
                continue;
            }
            let said: Vec<_> =
                calls.iter().map(|(rank, call)| format!("rank {rank} called {call}")).collect();
            let by = calls.first().map_or(0, |(rank, _)| *rank);
            let cause = Cause::Failed(format!("ranks disagreed about it: {}", said.join(", ")));
            self.given_up.insert(seq, GivenUp { last: seq, by, cause, joined: None });
        }
        let mut joined: BTreeMap<u64, GivenUp> = BTreeMap::new();
        for (first, tomb) in std::mem::take(&mut self.given_up) {
            match joined.last_entry() {
                Some(mut before) if before.get().last + 1 == first => {
                    let of = *before.key();
                    let before = before.get_mut();
                    before.last = tomb.last;
                    before.joined.get_or_insert(of);
                }
                _ => _ = joined.insert(first, tomb),
            }
        }
        self.given_up = joined;
        let count = self.given_up.len() + self.contradicted.len();
        self.crowded = 2 * count;
        if count > TOMBS_MAX {
            return Err("too many verdicts on operations that were not called".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::DType;
    use crate::engine::call::mix;

    fn cause(kind: u64) -> Cause {
        if kind == 0 { Cause::Cancelled } else { Cause::Failed(format!("cause {kind}")) }
    }

    #[test]
    fn what_follows_shares_one_and_each_number_keeps_its_verdict() {
        let mut tombs = Tombs::default();
        let mut draws = 0..;
        let mut below = |bound: u64| mix(draws.next().unwrap_or(0)) % bound;
        let mut known = BTreeMap::new();
        for _ in 0..20_000 {
            let seq = below(600);
            if below(3) == 0 {
                let (calls, verdict) = tombs.take(seq);
                assert!(calls.is_empty());
                assert_eq!(verdict, known.remove(&seq), "#{seq}");
            } else {
                let (by, cause) = (below(2) as usize, cause(below(2)));
                tombs.give_up(seq, by, cause.clone()).unwrap();
                known.entry(seq).or_insert((by, cause));
            }
            assert!(tombs.given_up.len() <= known.len());
            assert_eq!(tombs.is_empty(), known.is_empty());
        }
        let verdicts = (0..600).map(|seq| (tombs.has(seq), tombs.given_up_by(seq)));
        for (seq, (has, verdict)) in (0..).zip(verdicts) {
            assert_eq!((has, verdict), (known.contains_key(&seq), known.get(&seq).cloned()), "#{seq}");
        }
    }

    #[test]
    fn a_rank_may_be_away_for_any_number_of_calls() {
        let mut tombs = Tombs::default();
        (0..100_000).for_each(|seq| tombs.give_up(seq, 1, Cause::Cancelled).unwrap());
        assert_eq!(tombs.given_up.len(), 1);
        // Each for a reason of its own.
        (100_000..140_000).for_each(|seq| tombs.give_up(seq, 1, cause(seq)).unwrap());
        assert!(tombs.given_up.len() <= CROWDED, "{}", tombs.given_up.len());
        assert_eq!(tombs.given_up_by(99_999).map(|(by, _)| by), Some(1));
        let (_, verdict) = tombs.take(100_500);
        let Some((1, Cause::Failed(cause))) = verdict else { panic!("{verdict:?}") };
        assert!(cause.starts_with("as many others; of #0, "), "{cause}");
        assert!(!tombs.has(100_500) && tombs.has(100_499) && tombs.has(100_501));
        assert!((0..100_500).all(|seq| tombs.take(seq).1.is_some()));
        assert!((100_501..140_000).all(|seq| tombs.take(seq).1.is_some()));
        assert!(tombs.is_empty());
    }

    #[test]
    fn contradictions_are_collected_and_then_become_verdicts() {
        let mut tombs = Tombs::default();
        let call = |count| CallInfo {
            operation: "all_reduce".into(),
            dtype: DType::F32,
            count,
            op: None,
            root: None,
            tag: None,
            algorithm: String::new(),
            plan: 0,
            counts: None,
        };
        for seq in 0..5_000u64 {
            tombs.contradict(seq, 0, call(seq)).unwrap();
            tombs.contradict(seq, 0, call(7)).unwrap();
            tombs.contradict(seq, 2, call(seq + 1)).unwrap();
        }
        let kept = tombs.contradicted.len() + tombs.given_up.len();
        assert!(kept <= 2 * CROWDED, "{kept}");
        let (calls, given_up) = tombs.take(4_999);
        assert_eq!((calls, given_up), (vec![(0, call(4_999)), (2, call(5_000))], None));
        let (calls, given_up) = tombs.take(0);
        let Some((0, Cause::Failed(cause))) = given_up else { panic!("{given_up:?}") };
        assert!(calls.is_empty() && cause.contains("rank 2 called all_reduce(1 "), "{cause}");
        assert!((1..4_999).all(|seq| tombs.has(seq)));
    }

    #[test]
    fn a_peer_that_leaves_gaps_for_ever_is_broken() {
        let mut tombs = Tombs::default();
        let refused = (0..).find(|seq| tombs.give_up(2 * seq, 0, Cause::Cancelled).is_err());
        assert!(refused.is_some_and(|after| after <= 2 * TOMBS_MAX as u64), "{refused:?}");
    }
}
