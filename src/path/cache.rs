//! Plans that were proved before, in a bounded table.

use std::sync::Arc;

use crate::path::algorithm::Algorithm;
use crate::path::plan::{Collective, Placement, Plan};
use crate::path::select::{PlanError, prove};
use crate::path::verify::VerifiedPlan;

/// The most plans kept. A training job uses a handful; a broadcast has one plan per root.
const PLANS_MAX: usize = 128;

/// The most steps kept, of all plans and ranks together: about 20 MB. One plan is kept whatever its size.
const STEPS_KEPT_MAX: usize = 160_000;

/// Keeps proved plans; the one that was not used for longest goes first.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    entries: Vec<Entry>,
    uses: u64,
    steps: usize,
}

type Key = (Algorithm, Collective, Placement, u32);

#[derive(Debug)]
struct Entry {
    key: Key,
    plan: Arc<VerifiedPlan>,
    last_use: u64,
}

impl PlanCache {
    /// An empty cache.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The plan for `n` ranks: from the cache, without allocation, or built and proved.
    ///
    /// # Errors
    ///
    /// If the algorithm does not support the collective on that many ranks. [`PlanError::Wrong`] would be a bug here.
    pub(crate) fn get(
        &mut self,
        algorithm: Algorithm,
        collective: Collective,
        placement: Placement,
        n: u32,
    ) -> Result<Arc<VerifiedPlan>, PlanError> {
        let key = (algorithm, collective, placement, n);
        self.uses += 1;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) {
            entry.last_use = self.uses;
            return Ok(Arc::clone(&entry.plan));
        }
        let plan = Arc::new(prove(algorithm, collective, placement, n)?);
        self.keep(key, Arc::clone(&plan));
        Ok(plan)
    }

    fn keep(&mut self, key: Key, plan: Arc<VerifiedPlan>) {
        let steps = size(&plan);
        while !self.entries.is_empty()
            && (self.entries.len() >= PLANS_MAX || self.steps + steps > STEPS_KEPT_MAX)
        {
            self.evict();
        }
        self.steps += steps;
        self.entries.push(Entry { key, plan, last_use: self.uses });
    }

    fn evict(&mut self) {
        let oldest = (0..self.entries.len()).min_by_key(|&at| self.entries[at].last_use);
        if let Some(oldest) = oldest {
            let gone = self.entries.swap_remove(oldest);
            self.steps -= size(&gone.plan);
        }
    }
}

fn size(plan: &Plan) -> usize {
    plan.ranks.iter().map(|part| part.steps.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;

    #[test]
    fn the_same_plan_is_given_again() {
        let mut cache = PlanCache::new();
        let first = cache.get(Algorithm::Ring, Collective::AllReduce, Placement::InPlace, 4).unwrap();
        let again = cache.get(Algorithm::Ring, Collective::AllReduce, Placement::InPlace, 4).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(cache.entries.len(), 1);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = PlanCache::new();
        let broadcast = |root| Collective::Broadcast { root: Rank(root) };
        let mut get =
            |root, n| cache.get(Algorithm::BinomialTree, broadcast(root), Placement::InPlace, n).unwrap();
        let kept = get(0, 3);
        let lost = get(1, 3);
        for n in [16, 32, 48, 64] {
            for root in 0..n {
                get(root, n);
                get(0, 3);
            }
        }
        assert!(Arc::ptr_eq(&kept, &get(0, 3)));
        assert!(!Arc::ptr_eq(&lost, &get(1, 3)));
        assert!(cache.entries.len() <= PLANS_MAX);
    }

    #[test]
    fn large_plans_leave_room_for_few() {
        let mut cache = PlanCache::new();
        for n in 56..=64 {
            cache.get(Algorithm::Ring, Collective::AllReduce, Placement::InPlace, n).unwrap();
            let steps: usize = cache.entries.iter().map(|entry| size(&entry.plan)).sum();
            assert_eq!(steps, cache.steps);
            assert!(cache.steps <= STEPS_KEPT_MAX);
        }
    }

    #[test]
    fn what_an_algorithm_can_not_do_is_said() {
        let unsupported =
            PlanCache::new().get(Algorithm::BinomialTree, Collective::AllReduce, Placement::InPlace, 4);
        assert!(matches!(unsupported, Err(PlanError::Unsupported(_))));
    }
}
