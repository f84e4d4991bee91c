//! Each rank with each other, some at a time.
//!
//! | collective | cost |
//! |---|---|
//! | all_to_all | α(n−1) + βm(n−1)/n |
//!
//! As many bytes as everybody to everybody at once, [`mesh_one_shot`](super::mesh_one_shot), but each rank sends to a few ranks at
//! a time, and no two of them to the same one: links and receivers are not swamped.
//!
//! Source: Rajeev Thakur, Rolf Rabenseifner and William Gropp, "Optimization of Collective Communication Operations
//! in MPICH" (2005), which has it for long messages; who meets whom in one buffer is the round-robin tournament that goes back to
//! Richard Schurig (1886).

use crate::path::builder::PlanBuilder;
use crate::path::plan::{After, Collective, Plan, Range, Space, StepId};
use crate::rank::Rank;

/// The name users give it.
pub const NAME: &str = "pairwise";

/// To how many ranks one sends at a time: one message is on its way while another one begins.
const AT_A_TIME: usize = 4;

/// Each rank's part for each other.
pub fn all_to_all(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllToAll, NAME, n, n, 1);
    exchange(&mut plan, AT_A_TIME);
    plan.build()
}

/// The same from one buffer to another.
pub fn all_to_all_out_of_place(n: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllToAll, NAME, n, n, 1).out_of_place();
    rotate(&mut plan, AT_A_TIME);
    plan.build()
}

/// To the next rank, to the one after it, and so on round to the one before; `at_a_time` of a rank's sends are not released.
pub(super) fn rotate(plan: &mut PlanBuilder, at_a_time: usize) {
    let n = plan.ranks();
    for p in 0..n {
        plan.copy(Rank(p), at(Space::Input, p), at(Space::Output, p), &[]);
        let mut sent: Vec<StepId> = Vec::new();
        for q in (1..n).map(|i| (p + i) % n) {
            let after = earlier(&sent, at_a_time);
            let send = plan.send(Rank(p), Rank(q), at(Space::Input, q), &after);
            plan.place(send.message, at(Space::Output, p), &[]);
            sent.push(send.step);
        }
    }
}

/// In one buffer: both of a pair send what is for the other, and one of them has to put what comes aside until his is taken.
/// Who meets whom: in round r, those whose numbers add up to r.
pub(super) fn exchange(plan: &mut PlanBuilder, at_a_time: usize) {
    let n = plan.ranks();
    let mut sent: Vec<Vec<StepId>> = vec![Vec::new(); n as usize];
    // Each rank's places aside, with what was last copied from there.
    let mut aside: Vec<Vec<(Range, StepId)>> = vec![Vec::new(); n as usize];
    let mut taken: Vec<usize> = vec![0; n as usize];
    for round in 0..n {
        for p in 0..n {
            let q = (round + n - p) % n;
            if p >= q {
                continue;
            }
            let [there, back] = [(p, q), (q, p)].map(|(from, to)| {
                let after = earlier(&sent[from as usize], at_a_time);
                let send = plan.send(Rank(from), Rank(to), at(Space::Output, to), &after);
                sent[from as usize].push(send.step);
                send
            });
            plan.place(there.message, at(Space::Output, p), &[After::Stream(back.step)]);
            let (places, turn) = (&mut aside[p as usize], &mut taken[p as usize]);
            let known = if places.len() < at_a_time { None } else { Some(*turn % at_a_time) };
            let (place, after) = match known {
                Some(known) => (places[known].0, vec![After::Stream(places[known].1)]),
                None => (at(plan.scratch(Rank(p), q, 1), q), Vec::new()),
            };
            let placed = plan.place(back.message, place, &after);
            let after = [After::Stream(placed), After::Stream(there.step)];
            let copied = plan.copy(Rank(p), place, at(Space::Output, q), &after);
            match known {
                Some(known) => places[known].1 = copied,
                None => places.push((place, copied)),
            }
            *turn += 1;
        }
    }
}

/// The send that must be released before one more begins.
fn earlier(sent: &[StepId], at_a_time: usize) -> Vec<After> {
    sent.len().checked_sub(at_a_time).map(|at| After::Whole(sent[at])).into_iter().collect()
}

fn at(space: Space, block: u32) -> Range {
    Range::new(space, block, 1)
}
