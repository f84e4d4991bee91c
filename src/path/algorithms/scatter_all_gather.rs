//! The root's vector in parts down a binomial tree, and then each part to all.
//!
//! | collective | cost |
//! |---|---|
//! | broadcast | 2α⌈log₂ n⌉ (twice the second half where a run of blocks wraps round) + 2βm(n−1)/n at most |
//!
//! A rank of the tree keeps what it has passed on, and is not given it again.
//!
//! Source: Mike Barnett and others, "Building a High-Performance Collective Communication Library" (1994), with Robert van de
//! Geijn; the tree and the all-gather are those of Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of Collective
//! Communication Operations in MPICH" (2005).

use crate::path::algorithms::GRANULE;
use crate::path::algorithms::recursive_doubling::{after_writes, gather};
use crate::path::builder::PlanBuilder;
use crate::path::plan::{Collective, Plan, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "scatter-all-gather";

/// Blocks are numbered from the root on, as ranks are: the rank at distance v from the root is given block v and those of its subtree.
pub fn broadcast(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Broadcast { root }, NAME, n, n, GRANULE);
    let rank = |v: u32| Rank((root.0 + v) % n);
    // As many blocks as are in its subtree, its own first.
    let subtree = |v: u32| if v == 0 { n } else { (v & v.wrapping_neg()).min(n - v) };
    let mut placed: Vec<Vec<(Range, StepId)>> = vec![Vec::new(); n as usize];
    for v in 0..n {
        let reach = if v == 0 { n.next_power_of_two() } else { v & v.wrapping_neg() };
        let halves = std::iter::successors(Some(reach / 2), |distance| Some(distance / 2));
        for child in
            halves.take_while(|distance| *distance > 0).map(|distance| v + distance).filter(|v| *v < n)
        {
            let run = Range::new(Space::Output, child, subtree(child));
            let after = after_writes(&placed[v as usize], run);
            let sent = plan.send(rank(v), rank(child), run, &after);
            placed[child as usize].push((run, plan.place(sent.message, run, &[])));
        }
    }
    let has = |v: u32, run: &Range| Range::new(Space::Output, v, subtree(v)).has(run);
    gather(&mut plan, placed, &rank, &has);
    plan.build()
}
