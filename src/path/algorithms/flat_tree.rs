//! All to one rank, and from it to all.
//!
//! | collective | cost |
//! |---|---|
//! | all_reduce | 2α(n−1) + 2β(n−1)m + γ(n−1)m at rank 0, and 2α + 2βm at the others |
//! | reduce | α + βm at the others, (α + βm + γm)(n−1) at the root |
//! | gather, scatter | α + βm/n at the others, (α + βm/n)(n−1) at the root |
//!
//! all_reduce takes 2(n − 1) messages in all, where everybody to everybody takes n(n − 1): that counts where ranks share processors, and what
//! a message costs is not waited for but worked. Every sum is in rank order and rounded once, as in
//! [`mesh_one_shot`](super::mesh_one_shot): both give the same bits.
//!
//! Source: "linear" reduce and broadcast, as MPI libraries have them for few ranks; Jelena Pješivac-Grbović and others,
//! "Performance Analysis of MPI Collective Operations" (2007), calls it the flat tree.

use crate::path::algorithms::GRANULE;
use crate::path::algorithms::mesh_one_shot::peers;
use crate::path::builder::{Operand, PlanBuilder};
use crate::path::plan::{After, Collective, Plan, Post, Range, Space};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "flat-tree";

/// All ranks' vectors to rank 0, which sums them in rank order, and the sum to all.
pub fn all_reduce(n: u32) -> Plan {
    let all = Range::new(Space::Output, 0, 1);
    let mut plan = PlanBuilder::new(Collective::AllReduce, NAME, n, 1, GRANULE);
    if n == 1 {
        return plan.build();
    }
    let root = Rank(0);
    let sent: Vec<_> = (1..n).map(|rank| plan.send(Rank(rank), root, all, &[])).collect();
    let messages = sent.iter().map(|sent| Operand::Message(sent.message));
    let operands: Vec<_> = std::iter::once(Operand::Local(all)).chain(messages).collect();
    let sum = plan.reduce(root, all, &operands, Post::Finish, &[]);
    for (rank, sent) in (1..n).zip(sent) {
        let back = plan.send(root, Rank(rank), all, &[After::Stream(sum)]);
        plan.place(back.message, all, &[After::Stream(sent.step)]);
    }
    plan.build()
}

/// All ranks' vectors to the root, which sums them in rank order.
pub fn reduce(root: Rank, n: u32) -> Plan {
    let all = Range::new(Space::Output, 0, 1);
    let mut plan = PlanBuilder::new(Collective::Reduce { root }, NAME, n, 1, GRANULE);
    if n == 1 {
        return plan.build();
    }
    let operand = |rank: u32| match Rank(rank) {
        rank if rank == root => Operand::Local(all),
        rank => Operand::Message(plan.send(rank, root, all, &[]).message),
    };
    let operands: Vec<_> = (0..n).map(operand).collect();
    plan.reduce(root, all, &operands, Post::Finish, &[]);
    plan.build()
}

/// Each rank's part to the root.
pub fn gather(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Gather { root }, NAME, n, n, 1);
    for rank in peers(root.0, n) {
        let part = Range::new(Space::Output, rank, 1);
        let sent = plan.send(Rank(rank), root, part, &[]);
        plan.place(sent.message, part, &[]);
    }
    plan.build()
}

/// To each rank its part from the root.
pub fn scatter(root: Rank, n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Scatter { root }, NAME, n, n, 1);
    for rank in peers(root.0, n) {
        let part = Range::new(Space::Output, rank, 1);
        let sent = plan.send(root, Rank(rank), part, &[]);
        plan.place(sent.message, part, &[]);
    }
    plan.build()
}
