//! Broadcast down a binomial tree.
//!
//! Cost: ⌈log₂ n⌉(α + βm) without a pipeline; parts are passed on while the rest still comes, so that for large
//! vectors it is about ⌈log₂ n⌉βm at the root and one latency per hop more at the leaves.
//!
//! Source: Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of Collective Communication Operations
//! in MPICH" (2005).

use crate::path::algorithms::GRANULE;
use crate::path::builder::PlanBuilder;
use crate::path::plan::{After, Collective, Plan, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "binomial-tree";

/// The rank at distance v from the root, with lowest set bit b, has its data from v − b and gives it to v + b/2,
/// v + b/4, …, v + 1: the largest subtree first.
pub fn broadcast(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Broadcast { root }, NAME, n, 1, GRANULE);
    let all = Range::new(Space::Output, 0, 1);
    let rank = |v: u32| Rank((root.0 + v) % n);
    let mut placed: Vec<Option<StepId>> = vec![None; n as usize];
    // A parent is nearer to the root than its children, so it has its data when its turn comes.
    for v in 0..n {
        let after: Vec<After> = placed[v as usize].map(After::Stream).into_iter().collect();
        let reach = if v == 0 { n.next_power_of_two() } else { v & v.wrapping_neg() };
        let mut distance = reach / 2;
        while distance > 0 {
            if v + distance < n {
                let sent = plan.send(rank(v), rank(v + distance), all, &after);
                placed[(v + distance) as usize] = Some(plan.place(sent.message, all, &[]));
            }
            distance /= 2;
        }
    }
    plan.build()
}
