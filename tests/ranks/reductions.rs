//! Reductions that are for integers only: what they give where nothing is combined, and how they are refused elsewhere.

use std::sync::Arc;

use crate::common::{LINKS, assert_usable, class, world};
use half::{bf16, f16};
use hcomm::path::{self, Algorithm, Collective, Operand, PlanBuilder, Post, Range, Space, VerifiedPlan};
use hcomm::{Communicator, DType, Element, Error, OpError, Operation, Rank, ReduceOp, blocking};

const LOGICAL: [ReduceOp; 3] = [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor];

fn for_integers() -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.iter().copied().filter(|op| !op.supports(DType::F64))
}

/// One rank, which reduces what it has: a reduction with one operand.
fn alone() -> Arc<VerifiedPlan> {
    let all = Range::new(Space::Output, 0, 1);
    let mut plan = PlanBuilder::new(Collective::AllReduce, "alone", 1, 1, 1);
    plan.reduce(Rank(0), all, &[Operand::Local(all)], Post::Finish, &[]);
    Arc::new(path::verify(plan.build()).unwrap())
}

#[test]
fn one_rank_gets_what_it_gave() {
    for link in LINKS {
        world(link, 1, |mut comm| {
            let given = || vec![7u16, 0, 0x8000];
            for op in for_integers() {
                assert_eq!(comm.all_reduce(given(), op).wait().unwrap(), given(), "{op}");
                assert_eq!(comm.reduce_scatter(given(), op).wait().unwrap(), given(), "{op}");
                assert_eq!(comm.reduce(given(), op, 0).wait().unwrap(), given(), "{op}");
                assert_eq!(comm.scan(given(), op).wait().unwrap(), given(), "{op}");
                assert_eq!(comm.all_reduce_into(given(), vec![1; 3], op).wait().unwrap().1, given(), "{op}");
                let planned = comm.with_plan(&alone()).all_reduce(given(), op).wait().unwrap();
                assert_eq!(planned, given(), "{op}");
            }
        });
    }
}

/// Small vectors and large ones take different ways; all algorithms agree on what was combined and what was not.
#[test]
fn what_was_combined_is_one_or_zero_and_what_was_not_stays() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let me = comm.rank().index();
            for count in [1, 40_000] {
                let given = || vec![-6i32; count];
                for op in LOGICAL {
                    // All are true: so is what two ranks or three have together, but for the parity of two.
                    let of_ranks = |ranks: usize| match ranks {
                        1 => vec![-6; count],
                        2 if op == ReduceOp::Xor => vec![0; count],
                        _ => vec![1; count],
                    };
                    for algorithm in Algorithm::ALL.iter().copied() {
                        let context = format!("{link:?} {algorithm} {op} rank {me} of {count}");
                        if algorithm.supports(Collective::AllReduce) {
                            let got = comm.using(algorithm).all_reduce(given(), op).wait().unwrap();
                            assert_eq!(got, of_ranks(3), "{context}: all_reduce");
                        }
                        if algorithm.supports(Collective::Scan) {
                            let got = comm.using(algorithm).scan(given(), op).wait().unwrap();
                            assert_eq!(got, of_ranks(me + 1), "{context}: scan");
                        }
                        if algorithm.supports(Collective::ExScan) {
                            let got = comm.using(algorithm).exscan(given(), op).wait().unwrap();
                            assert_eq!(got, of_ranks(me.max(1)), "{context}: exscan");
                        }
                    }
                }
            }
        });
    }
}

fn problem(error: &Error, dtype: DType, op: ReduceOp) -> bool {
    let Error::InvalidArgument { problem, .. } = error else { return false };
    let types = "i8, i16, i32, i64, u8, u16, u32, u64";
    **problem == *format!("{op} is not for elements of {dtype}: give it one of {types}")
}

fn refused<T: Element + Default>(comm: &mut Communicator) {
    type Call<T> = fn(&mut Communicator, Vec<T>, ReduceOp) -> Operation<Vec<T>>;
    let calls: [Call<T>; 7] = [
        |comm, buffer, op| comm.all_reduce(buffer, op),
        |comm, buffer, op| comm.using(Algorithm::MeshOneShot).all_reduce(buffer, op),
        |comm, buffer, op| comm.reduce_scatter(buffer, op),
        |comm, buffer, op| comm.reduce(buffer, op, 1),
        |comm, buffer, op| comm.scan(buffer, op),
        |comm, buffer, op| comm.exscan(buffer, op),
        |comm, buffer, op| comm.keyed("floats").unwrap().all_reduce(buffer, op),
    ];
    let zeros = || vec![T::default(); 4];
    for op in for_integers() {
        for call in calls {
            let OpError { error, buffer, .. } = call(comm, zeros(), op).wait().unwrap_err();
            assert!(problem(&error, T::DTYPE, op), "{error}");
            assert_eq!(buffer, Some(zeros()), "the buffer comes back");
        }
        let error = comm.all_reduce_into(zeros(), zeros(), op).wait().unwrap_err().error;
        assert!(problem(&error, T::DTYPE, op), "{error}");
        let error = blocking::all_reduce(comm, &mut zeros(), op).unwrap_err();
        assert!(problem(&error, T::DTYPE, op), "{error}");
        let error = comm.prepare_all_reduce::<T>(4, op).unwrap_err();
        assert!(problem(&error, T::DTYPE, op), "{error}");
    }
}

#[test]
fn floats_have_neither_bits_nor_truth() {
    for link in LINKS {
        world(link, 2, |mut comm| {
            refused::<f32>(&mut comm);
            refused::<f64>(&mut comm);
            refused::<f16>(&mut comm);
            refused::<bf16>(&mut comm);
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn whoever_called_something_possible_is_told_who_refused() {
    for link in LINKS {
        world(link, 2, |mut comm| {
            let op = if comm.rank() == Rank(0) { ReduceOp::BitOr } else { ReduceOp::Sum };
            let error = comm.all_reduce(vec![1.0f32; 10], op).wait().unwrap_err().error;
            let expected = if comm.rank() == Rank(0) { "invalid argument" } else { "aborted" };
            assert_eq!(class(&error), expected, "{error}");
            assert_usable(&mut comm);
        });
    }
}
