//! From each rank to the next.
//!
//! | collective | cost |
//! |---|---|
//! | scan, exscan | (α + βm + γm)(n−1) without a pipeline |
//!
//! Parts are passed on while the rest still comes, so that for large vectors it is about (β + γ)m, and an α more with each rank.
//! Sums are rounded rank by rank: `((0∘1)∘2)∘3`.
//!
//! Source: the "linear" scan of MPI libraries; pipelined as in Peter Sanders and Jesper Larsson Träff, "Parallel Prefix (Scan)
//! Algorithms for MPI" (2006), which compares it with trees.

use crate::path::algorithms::GRANULE;
use crate::path::builder::{Operand, PlanBuilder};
use crate::path::plan::{After, Collective, Plan, Post, Range, Space};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "chain";

const OUTPUT: Range = Range::new(Space::Output, 0, 1);

/// Each rank adds its vector to what comes, and passes it on.
pub fn scan(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Scan, NAME, n, 1, GRANULE);
    let mut after = Vec::new();
    for p in 1..n {
        let sent = plan.send(Rank(p - 1), Rank(p), OUTPUT, &after);
        let operands = [Operand::Message(sent.message), Operand::Local(OUTPUT)];
        after = vec![After::Stream(plan.reduce(Rank(p), OUTPUT, &operands, Post::None, &[]))];
    }
    plan.build()
}

/// The same, but each rank keeps what has come.
pub fn exscan(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::ExScan, NAME, n, 1, GRANULE);
    let (mut sum, mut after) = (OUTPUT, Vec::new());
    for p in (1..n).map(Rank) {
        let sent = plan.send(Rank(p.0 - 1), p, sum, &after);
        if p.0 == n - 1 {
            plan.place(sent.message, OUTPUT, &[]);
            break;
        }
        let before = Range { space: plan.scratch(p, 0, 1), ..OUTPUT };
        sum = Range { space: plan.scratch(p, 0, 1), ..OUTPUT };
        let placed = plan.place(sent.message, before, &[]);
        let operands = [Operand::Local(before), Operand::Local(OUTPUT)];
        let summed = plan.reduce(p, sum, &operands, Post::None, &[After::Stream(placed)]);
        plan.copy(p, before, OUTPUT, &[After::Stream(summed)]);
        after = vec![After::Stream(summed)];
    }
    plan.build()
}
