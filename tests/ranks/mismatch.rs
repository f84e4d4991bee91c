//! Ranks that call different things: all are told, nobody gets a result, and all go on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::{LINKS, Link, assert_usable, class, world};
use half::{bf16, f16};
use hcomm::path::Algorithm;
use hcomm::{Communicator, Error, Rank, ReduceOp};

/// One rank's call.
type Call = fn(&mut Communicator) -> Result<(), Error>;

fn sum<T: hcomm::Element + Default>(
    comm: &mut Communicator,
    count: usize,
    op: ReduceOp,
) -> Result<(), Error> {
    comm.all_reduce(vec![T::default(); count], op).wait().map(drop).map_err(Error::from)
}

fn broadcast(comm: &mut Communicator, count: usize, root: u32) -> Result<(), Error> {
    comm.broadcast(vec![1f32; count], Rank(root)).wait().map(drop).map_err(Error::from)
}

/// `odd` is called by one rank, in turn, and `even` by the others; nobody may get a result.
fn all_are_told(link: Link, n: usize, cases: &'static [(Call, Call)]) {
    world(link, n, move |mut comm| {
        let me = comm.rank().0 as usize;
        let mut seq = 0;
        for (case, (odd, even)) in cases.iter().enumerate() {
            let culprit = case % n;
            let call = if me == culprit { odd } else { even };
            let error = call(&mut comm).expect_err("a result although ranks disagree");
            check(&error, n, me, culprit, seq, &format!("{link:?} n {n} case {case} rank {me}"));
            assert_usable(&mut comm);
            seq += 2;
        }
    });
}

/// The error shows this rank's call, another one, and nothing that was not called.
fn check(error: &Error, n: usize, me: usize, culprit: usize, number: u64, context: &str) {
    let Error::Mismatch { seq, calls, .. } = error else { panic!("{context}: {} {error}", class(error)) };
    assert_eq!(seq.0, number, "{context}: {error}");
    let of = |rank: usize| calls.iter().find(|(of, _)| of.index() == rank).map(|(_, call)| call);
    let mine = of(me).unwrap_or_else(|| panic!("{context}: own call is missing: {error}"));
    assert!(calls.iter().any(|(_, call)| call != mine), "{context}: shows no contradiction: {error}");
    assert!(calls.windows(2).all(|pair| pair[0].0 < pair[1].0), "{context}: {error}");
    for (rank, call) in calls {
        assert!(rank.index() < n);
        let like_mine = (rank.index() == culprit) == (me == culprit);
        assert_eq!(call == mine, like_mine, "{context}: {error}");
    }
}

#[test]
fn counts_that_differ() {
    const CASES: &[(Call, Call)] = &[
        (|comm| sum::<f32>(comm, 409_598, ReduceOp::Sum), |comm| sum::<f32>(comm, 409_600, ReduceOp::Sum)),
        (|comm| sum::<f32>(comm, 409_600, ReduceOp::Sum), |comm| sum::<f32>(comm, 409_598, ReduceOp::Sum)),
        (|comm| sum::<f32>(comm, 1024, ReduceOp::Sum), |comm| sum::<f32>(comm, 1025, ReduceOp::Sum)),
        (|comm| sum::<f32>(comm, 1, ReduceOp::Sum), |comm| sum::<f32>(comm, 0, ReduceOp::Sum)),
        (|comm| sum::<f32>(comm, 0, ReduceOp::Sum), |comm| sum::<f32>(comm, 1, ReduceOp::Sum)),
        (
            |comm| sum::<f32>(comm, 1 << 20, ReduceOp::Sum),
            |comm| sum::<f32>(comm, (1 << 20) + 1, ReduceOp::Sum),
        ),
        // One is small enough to be sent at once, the other is not.
        (|comm| sum::<f32>(comm, 8, ReduceOp::Sum), |comm| sum::<f32>(comm, 1 << 20, ReduceOp::Sum)),
        (|comm| sum::<f32>(comm, 1 << 20, ReduceOp::Sum), |comm| sum::<f32>(comm, 0, ReduceOp::Sum)),
    ];
    for link in LINKS {
        for n in [2, 3, 4] {
            all_are_told(link, n, CASES);
        }
    }
}

#[test]
fn types_and_reductions_that_differ() {
    const CASES: &[(Call, Call)] = &[
        (|comm| sum::<f32>(comm, 1024, ReduceOp::Sum), |comm| sum::<i32>(comm, 1024, ReduceOp::Sum)),
        (|comm| sum::<f16>(comm, 1024, ReduceOp::Sum), |comm| sum::<bf16>(comm, 1024, ReduceOp::Sum)),
        (|comm| sum::<f32>(comm, 1024, ReduceOp::Sum), |comm| sum::<f32>(comm, 1024, ReduceOp::Max)),
        (|comm| sum::<u8>(comm, 4096, ReduceOp::Sum), |comm| sum::<u32>(comm, 1024, ReduceOp::Sum)),
        (|comm| sum::<f64>(comm, 100_000, ReduceOp::Min), |comm| sum::<i64>(comm, 100_000, ReduceOp::Max)),
    ];
    for link in LINKS {
        for n in [2, 3, 4] {
            all_are_told(link, n, CASES);
        }
    }
}

#[test]
fn operations_and_algorithms_that_differ() {
    const CASES: &[(Call, Call)] = &[
        (
            |comm| comm.all_gather(vec![0f32; 1200]).wait().map(drop).map_err(Error::from),
            |comm| sum::<f32>(comm, 1200, ReduceOp::Sum),
        ),
        (
            |comm| {
                comm.reduce_scatter(vec![0f32; 120_000], ReduceOp::Sum).wait().map(drop).map_err(Error::from)
            },
            |comm| sum::<f32>(comm, 120_000, ReduceOp::Sum),
        ),
        (
            |comm| comm.split(Some(1), 0).wait().map(drop),
            |comm| comm.all_gather(vec![1i64; 3 * comm.size()]).wait().map(drop).map_err(Error::from),
        ),
        (|comm| comm.dup().wait().map(drop), |comm| comm.split(Some(0), 0).wait().map(drop)),
        (
            |comm| comm.barrier().wait().map_err(Error::from),
            |comm| comm.all_reduce(vec![0u8], ReduceOp::Max).wait().map(drop).map_err(Error::from),
        ),
        (
            |comm| {
                comm.using(Algorithm::MeshOneShot)
                    .all_reduce(vec![0u32; 999], ReduceOp::Sum)
                    .wait()
                    .map(drop)
                    .map_err(Error::from)
            },
            |comm| {
                comm.using(Algorithm::MeshTwoShot)
                    .all_reduce(vec![0u32; 999], ReduceOp::Sum)
                    .wait()
                    .map(drop)
                    .map_err(Error::from)
            },
        ),
        (
            |comm| {
                comm.using(Algorithm::Ring)
                    .all_reduce(vec![0u32; 99_999], ReduceOp::Sum)
                    .wait()
                    .map(drop)
                    .map_err(Error::from)
            },
            |comm| {
                comm.using(Algorithm::HalvingDoubling)
                    .all_reduce(vec![0u32; 99_999], ReduceOp::Sum)
                    .wait()
                    .map(drop)
                    .map_err(Error::from)
            },
        ),
    ];
    for link in LINKS {
        for n in [2, 3, 4] {
            all_are_told(link, n, CASES);
        }
    }
}

/// A root needs nothing from others and may have ended; then its next operation tells it, once.
#[test]
fn broadcast_roots_are_told_at_the_next_operation_at_the_latest() {
    const CASES: &[(Call, Call)] = &[
        (|comm| broadcast(comm, 1000, 0), |comm| sum::<f32>(comm, 1000, ReduceOp::Sum)),
        (|comm| broadcast(comm, 1000, 0), |comm| broadcast(comm, 1001, 0)),
        (|comm| broadcast(comm, 1000, 0), |comm| broadcast(comm, 1000, 1)),
        (|comm| broadcast(comm, 1, 0), |comm| broadcast(comm, 300_000, 1)),
    ];
    for link in LINKS {
        for n in [2, 3, 4] {
            for (case, (first, others)) in CASES.iter().enumerate() {
                let (first, others) = (*first, *others);
                let step = Arc::new(Barrier::new(n));
                let all_told = Arc::new(AtomicUsize::new(0));
                let worlds = world(link, n, move |mut comm| {
                    let me = comm.rank().0 as usize;
                    let context = format!("{link:?} n {n} case {case} rank {me}");
                    let call = if me == 0 { first } else { others };
                    let mut told = 0;
                    match call(&mut comm) {
                        // Whoever agrees with its root may have a result.
                        Ok(()) => {
                            assert!(me == 0 || case >= 2, "{context}: a result although ranks disagree")
                        }
                        Err(error) => {
                            check(&error, n, me, 0, 0, &context);
                            told += 1;
                        }
                    }
                    // What a root that has ended must learn, it learns soon, and at some next operation.
                    let mut round = 0;
                    let mut right = 0;
                    while right < 2 && round < 500 {
                        round += 1;
                        all_told.fetch_add(usize::from(told > 0), Ordering::SeqCst);
                        step.wait();
                        let complete = all_told.load(Ordering::SeqCst) == n;
                        step.wait();
                        all_told.store(0, Ordering::SeqCst);
                        match comm.all_reduce(vec![1u32; 10], ReduceOp::Sum).wait() {
                            Ok(sum) => {
                                assert_eq!(sum, [n as u32; 10], "{context}");
                                right += usize::from(complete);
                            }
                            Err(failed) if matches!(failed.error, Error::Aborted { .. }) => right = 0,
                            Err(failed) => {
                                check(&failed.error, n, me, 0, 0, &context);
                                told += 1;
                            }
                        }
                        if !complete {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        step.wait();
                    }
                    assert_eq!(told, 1, "{context}: each rank is told once");
                    assert_usable(&mut comm);
                });
                assert_eq!(worlds.len(), n);
            }
        }
    }
}

/// A root may be far ahead of whoever calls something else, and is told nevertheless.
#[test]
fn broadcast_roots_that_are_far_ahead_are_told() {
    const AHEAD: usize = 200;
    for link in LINKS {
        let ahead = Arc::new(Barrier::new(2));
        world(link, 2, move |mut comm| {
            let mut errors = Vec::new();
            if comm.rank() == Rank(0) {
                let sent: Vec<_> = (0..AHEAD).map(|_| comm.broadcast(vec![1u32; 2], Rank(0))).collect();
                ahead.wait();
                errors.extend(sent.into_iter().filter_map(|sent| sent.wait().err()).map(Error::from));
            } else {
                ahead.wait();
                errors.extend(comm.barrier().wait().err().map(Error::from));
                for _ in 1..AHEAD {
                    assert_eq!(comm.broadcast(vec![0u32; 2], Rank(0)).wait().unwrap(), [1; 2]);
                }
            }
            // What rank 1 says of it comes before its part of the first of these.
            for _ in 0..3 {
                let sum = comm.all_reduce(vec![1u32; 10], ReduceOp::Sum).wait();
                errors.extend(sum.err().map(Error::from));
            }
            errors.retain(|error| !matches!(error, Error::Aborted { by: Rank(0), .. }));
            assert_eq!(errors.len(), 1, "{link:?} rank {}: {errors:?}", comm.rank());
            check(&errors[0], 2, comm.rank().index(), 0, 0, &format!("{link:?}"));
            assert_usable(&mut comm);
        });
    }
}

/// Whoever calls after the others have given up is told what they called, all of them.
#[test]
fn a_late_caller_sees_the_contradiction_of_the_others() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let me = comm.rank().0;
            for round in 0..3 {
                assert_usable(&mut comm);
                // The late one calls what one of the others calls; only the third differs.
                let count = if me == 2 { 501 } else { 500 };
                if me == round {
                    std::thread::sleep(Duration::from_millis(400));
                }
                let error = sum::<i16>(&mut comm, count, ReduceOp::Sum).expect_err("a result");
                check(
                    &error,
                    3,
                    me as usize,
                    2,
                    u64::from(2 * round + 1),
                    &format!("{link:?} rank {me} round {round}"),
                );
            }
        });
    }
}

/// A communicator made by split disagrees, and its parent does not notice.
#[test]
fn a_contradiction_stays_in_its_communicator() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let mut child = comm.dup().wait().unwrap();
            let me = comm.rank().0 as usize;
            for round in 0..5u64 {
                let parent = comm.all_reduce(vec![1u64; 70_000], ReduceOp::Sum);
                let error =
                    sum::<u16>(&mut child, 10 + usize::from(me == 1), ReduceOp::Sum).expect_err("a result");
                check(&error, 3, me, 1, round, "child");
                assert_eq!(parent.wait().unwrap(), vec![3u64; 70_000]);
            }
            assert_usable(&mut comm);
            assert_usable(&mut child);
        });
    }
}
