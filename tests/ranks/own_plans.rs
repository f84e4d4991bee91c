//! Plans of the caller's own: run like the built-in ones, and compared like them.

use std::sync::Arc;

use crate::common::{LINKS, assert_usable, class, world};
use hcomm::path::{
    self, After, Algorithm, Collective, Operand, Plan, PlanBuilder, Post, Range, Space, VerifiedPlan,
};
use hcomm::{Error, Rank, ReduceOp};

const ALL: Range = Range::new(Space::Output, 0, 1);

/// All send to `hub`, which sums in rank order and sends the result to all.
fn star(ranks: u32, hub: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::AllReduce, "star", ranks, 1, 1);
    let others: Vec<u32> = (0..ranks).filter(|rank| *rank != hub).collect();
    let sent: Vec<_> = others.iter().map(|rank| plan.send(Rank(*rank), Rank(hub), ALL, &[])).collect();
    let mut operands: Vec<_> = sent.iter().map(|sent| Operand::Message(sent.message)).collect();
    operands.insert(hub as usize, Operand::Local(ALL));
    let sum = plan.reduce(Rank(hub), ALL, &operands, Post::Finish, &[]);
    for (rank, sent) in others.iter().zip(sent) {
        let back = plan.send(Rank(hub), Rank(*rank), ALL, &[After::Stream(sum)]);
        plan.place(back.message, ALL, &[After::Stream(sent.step)]);
    }
    plan.build()
}

/// Each rank hands the vector of rank 0 to the next.
fn chain(ranks: u32) -> Plan {
    let mut plan = PlanBuilder::new(Collective::Broadcast { root: Rank(0) }, "chain", ranks, 1, 1);
    let mut had: Vec<After> = Vec::new();
    for rank in 1..ranks {
        let sent = plan.send(Rank(rank - 1), Rank(rank), ALL, &had);
        had = vec![After::Stream(plan.place(sent.message, ALL, &[]))];
    }
    plan.build()
}

fn proved(plan: Plan) -> Arc<VerifiedPlan> {
    Arc::new(path::verify(plan).unwrap())
}

#[test]
fn results_are_right_for_small_and_large_vectors() {
    for link in LINKS {
        for n in [1, 2, 3, 5] {
            let (star, chain) = (proved(star(n, n - 1)), proved(chain(n)));
            world(link, n as usize, move |mut comm| {
                let rank = comm.rank().0;
                for count in [0, 1, 1000, 200_000] {
                    let mine: Vec<u32> = (0..count).map(|index| rank + index).collect();
                    let sum = comm.with_plan(&star).all_reduce(mine.clone(), ReduceOp::Sum).wait().unwrap();
                    for (index, value) in (0..).zip(sum) {
                        assert_eq!(value, n * (n - 1) / 2 + n * index, "{link:?} n {n} index {index}");
                    }
                    let copy = comm.with_plan(&chain).broadcast(mine, Rank(0)).wait().unwrap();
                    assert!((0..).zip(copy).all(|(index, value)| value == index), "{link:?} n {n}");
                }
                let prepared = comm.with_plan(&star).prepare_all_reduce(3, ReduceOp::Max).unwrap();
                for _ in 0..3 {
                    assert_eq!(prepared.run(&mut comm, vec![rank; 3]).wait().unwrap(), [n - 1; 3]);
                }
                assert_usable(&mut comm);
            });
        }
    }
}

/// The plan that rank 0 gives, and the one that the others give: none is that which the library chooses.
type Ways = (Option<Arc<VerifiedPlan>>, Option<Arc<VerifiedPlan>>);

#[test]
fn ranks_that_give_different_plans_are_told() {
    let (zero, one) = (proved(star(3, 0)), proved(star(3, 1)));
    let cases: [Ways; 3] =
        [(Some(zero.clone()), Some(one.clone())), (Some(zero.clone()), None), (None, Some(one))];
    for link in LINKS {
        for case in cases.clone() {
            world(link, 3, move |mut comm| {
                let mine = if comm.rank().0 == 0 { &case.0 } else { &case.1 };
                for count in [10, 100_000] {
                    let buffer = vec![1f32; count];
                    let error = match mine {
                        Some(plan) => comm.with_plan(plan).all_reduce(buffer, ReduceOp::Sum),
                        None => comm.all_reduce(buffer, ReduceOp::Sum),
                    };
                    let error = error.wait().unwrap_err();
                    assert_eq!(class(&error.error), "mismatch", "{error}");
                    assert_usable(&mut comm);
                }
            });
        }
    }
}

#[test]
fn a_plan_made_twice_is_the_same_plan() {
    for link in LINKS {
        world(link, 2, |mut comm| {
            for _ in 0..50 {
                let own = proved(star(2, 0));
                let sum = comm.with_plan(&own).all_reduce(vec![1u8; 5], ReduceOp::Sum).wait().unwrap();
                assert_eq!(sum, [2; 5]);
            }
            let one_shot = comm.using(Algorithm::MeshOneShot).all_reduce(vec![1u8; 5], ReduceOp::Sum);
            assert_eq!(one_shot.wait().unwrap(), [2; 5]);
        });
    }
}

#[test]
fn a_plan_for_something_else_is_refused() {
    for link in LINKS {
        let (other_size, other_root, right) = (proved(star(3, 0)), proved(chain(2)), proved(star(2, 0)));
        world(link, 2, move |mut comm| {
            let mut refusals = vec![
                comm.with_plan(&other_size).all_reduce(vec![1u8], ReduceOp::Sum).wait().unwrap_err(),
                comm.with_plan(&other_root).broadcast(vec![1u8], Rank(1)).wait().unwrap_err(),
                comm.with_plan(&right).all_gather(vec![1u8; 2]).wait().unwrap_err(),
            ];
            for refusal in &refusals {
                assert_eq!(class(&refusal.error), "invalid argument", "{refusal}");
                assert_eq!(refusal.buffer.as_ref().map(|buffer| buffer[0]), Some(1));
            }
            let Error::InvalidArgument { problem, .. } = refusals.remove(0).error else { unreachable!() };
            assert_eq!(
                &*problem,
                "the plan \"star\" is for all_reduce on 3 ranks, the call is all_reduce on \"world\" of 2: give it a plan for \
                 that, or call without .with_plan()"
            );
            comm.with_plan(&other_size).prepare_all_reduce::<u8>(1, ReduceOp::Sum).unwrap_err();
            assert_usable(&mut comm);
        });
    }
}

/// Each rank hands the vector of rank 0 to the next; `granule` elements are never cut apart.
fn chain_of(ranks: u32, granule: u32) -> Plan {
    let mut plan = chain(ranks);
    plan.granule = granule;
    plan
}

#[test]
fn plans_of_one_name_are_told_apart_whoever_has_ended() {
    for link in LINKS {
        let plans = [proved(chain_of(2, 1)), proved(chain_of(2, 4))];
        world(link, 2, move |mut comm| {
            let plan = &plans[comm.rank().index()];
            let mut errors = Vec::new();
            // The root may have ended before it can know.
            match comm.with_plan(plan).broadcast(vec![1u64; 2], Rank(0)).wait() {
                Ok(_) => assert_eq!(comm.rank(), Rank(0), "{link:?}: a result although plans differ"),
                Err(failed) => errors.push(failed.error),
            }
            // What rank 1 says of it comes before its part of the first of these.
            for _ in 0..3 {
                let sum = comm.all_reduce(vec![1u32; 10], ReduceOp::Sum).wait();
                errors.extend(sum.err().map(|failed| failed.error));
            }
            errors.retain(|error| !matches!(error, Error::Aborted { by: Rank(0), .. }));
            let [error] = &errors[..] else { panic!("{link:?} rank {}: {errors:?}", comm.rank()) };
            let text = error.to_string();
            let Error::Mismatch { seq, calls, .. } = error else { panic!("{link:?}: {text}") };
            assert_eq!((seq.0, calls.len()), (0, 2), "{link:?}: {text}");
            assert!(calls[0].1.plan != calls[1].1.plan && text.matches(" by plan ").count() == 2, "{text}");
            assert_usable(&mut comm);
        });
    }
}

/// What a rank has called is told when it leaves, with the longest names that there are.
#[test]
fn names_are_as_long_as_can_be_told() {
    const NAME: &str = "sixty-four bytes, which is as long as a name of an algorithm is.";
    let mut long = chain(2);
    long.algorithm = NAME;
    assert!(path::verify(long.clone()).is_ok());
    long.algorithm = "sixty-five bytes, which is longer than a name of an algorithm is.";
    let refused = path::verify(long.clone()).unwrap_err();
    assert_eq!(refused.to_string(), "the algorithm's name has 65 bytes, the most is 64");
    long.algorithm = NAME;
    let plan = proved(long);
    for link in LINKS {
        let plan = plan.clone();
        world(link, 2, move |mut comm| {
            let mut twin = comm.dup().wait().unwrap();
            for _ in 0..20 {
                assert_eq!(twin.with_plan(&plan).broadcast(vec![1u8], Rank(0)).wait().unwrap(), [1]);
            }
            if comm.rank() == Rank(1) {
                let error = twin.all_reduce(vec![1u8], ReduceOp::Sum).wait().unwrap_err().error;
                assert_eq!(class(&error), "left", "{link:?}: {error}");
            }
            drop(twin);
            assert_usable(&mut comm);
        });
    }
}
