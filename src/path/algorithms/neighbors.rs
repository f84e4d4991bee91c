//! Each rank with those that it has named, all at once.
//!
//! | collective | cost |
//! |---|---|
//! | a part for each neighbor | αk + βm for k neighbors, and m bytes for all of them |
//!
//! Nobody waits for anybody but its neighbors: the messages depend on nothing.
//!
//! Source: Torsten Hoefler and Jesper Larsson Träff, "Sparse Collective Operations for MPI" (2009).

use crate::path::builder::PlanBuilder;
use crate::path::plan::{Collective, Plan, Range, Space};
use crate::rank::Rank;

/// The name that is shown.
pub const NAME: &str = "neighbors";

/// A part from each rank to each that it sends to: of rank `r`, bit `s` of `edges[r]` says that it sends to rank `s`.
pub fn exchange(edges: &[u64]) -> Plan {
    let n = edges.len() as u32;
    let at = |space, block| Range::new(space, block, 1);
    let mut plan = PlanBuilder::new(Collective::AllToAll, NAME, n, n, 1).out_of_place().between(edges);
    for p in 0..n {
        // Not all to the same one first.
        for q in (0..n).map(|i| (p + i) % n).filter(|q| edges[p as usize] >> q & 1 == 1) {
            if p == q {
                plan.copy(Rank(p), at(Space::Input, p), at(Space::Output, p), &[]);
                continue;
            }
            let sent = plan.send(Rank(p), Rank(q), at(Space::Input, q), &[]);
            plan.place(sent.message, at(Space::Output, p), &[]);
        }
    }
    plan.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{VerifyError, verify};

    #[test]
    fn any_graph_is_proved_and_an_edge_too_few_is_not() {
        let mut word = 1u64;
        for n in 1..=64usize {
            let mask = u64::MAX >> (64 - n);
            let edges: Vec<u64> = (0..n)
                .map(|_| {
                    word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (word >> 7) & (word >> 23) & mask
                })
                .collect();
            let plan = verify(exchange(&edges)).unwrap();
            assert!(plan.is_direct());
            let messages: u32 = plan.ranks.iter().map(|part| part.steps.len() as u32).sum();
            let (all, own) = edges.iter().enumerate().fold((0, 0), |(all, own), (rank, edges)| {
                (all + edges.count_ones(), own + (edges >> rank & 1) as u32)
            });
            assert_eq!(messages, 2 * (all - own) + own);
            for (rank, of) in edges.iter().enumerate().filter(|(_, of)| **of != 0) {
                let mut more = edges.clone();
                more[rank] = of & (of - 1);
                let plan = Plan { edges: Some(more), ..exchange(&edges) };
                assert!(matches!(verify(plan), Err(VerifyError::Wrong { .. })), "{n} {rank}");
            }
        }
        let ring: Vec<u64> = (0..4).map(|rank| 1 << ((rank + 1) % 4)).collect();
        let other = |plan: Plan| verify(plan).unwrap_err();
        let plan = exchange(&ring);
        assert_eq!(other(Plan { collective: Collective::AllGather, ..plan.clone() }), VerifyError::Edges);
        assert_eq!(other(Plan { edges: Some(vec![0; 3]), ..plan.clone() }), VerifyError::Edges);
        assert_eq!(other(Plan { edges: Some(vec![1 << 4; 4]), ..plan }), VerifyError::Edges);
    }
}
