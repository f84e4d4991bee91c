//! Ranks that come late or never: the others are told who, where he is, and why; afterwards all go on.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::{LINKS, WATCHDOG, assert_usable, class, connect, run, run_within, world};
use hcomm::{Communicator, Error, OpError, Rank, ReduceOp, Report, Token};

const DEADLINE: Duration = Duration::from_millis(700);
/// How much later than that an error may come on a machine that is busy with other work: a rank that had not heard of the
/// deadline, and was left with its former one, would take twice as long. Simulated worlds have the exact bounds.
const SLOW: Duration = Duration::from_secs(10);

fn report<B>(result: Result<B, OpError<B>>, context: &str) -> Report {
    let error = result.map(drop).map_err(|error| error.error).expect_err(context);
    let Error::Deadline(report) = error else { panic!("{context}: {} {error}", class(&error)) };
    *report
}

#[test]
fn one_rank_that_never_calls_is_named_by_all_others() {
    for link in LINKS {
        for n in [2, 3, 5] {
            let end = Arc::new(Barrier::new(n));
            world(link, n, move |mut comm| {
                let me = comm.rank();
                let late = Rank(n as u32 - 1);
                assert_usable(&mut comm);
                if me != late {
                    comm.set_deadline(DEADLINE);
                    let context = format!("{link:?} n {n} rank {me}");
                    let begun = Instant::now();
                    let report = report(comm.all_reduce(vec![1f32; 5000], ReduceOp::Sum).wait(), &context);
                    let took = begun.elapsed();
                    // Who began last may be told by who began first, whose time was over before.
                    let early = report.rank == me && took < DEADLINE;
                    assert!(!early && took < DEADLINE + SLOW, "{context}: after {took:?}: {report}");
                    assert_eq!(report.late, [late], "{context}: {report}");
                    assert_eq!(
                        (report.operation.as_str(), report.seq.0),
                        ("all_reduce", 1),
                        "{context}: {report}"
                    );
                    assert_eq!(report.states.len(), 1, "{context}: {report}");
                    assert!(report.states[0].1.contains("has not called #1"), "{context}: {report}");
                }
                end.wait();
            });
        }
    }
}

#[test]
fn a_late_rank_meets_what_the_others_decided_and_all_go_on() {
    for link in LINKS {
        let n = 8;
        let given_up = Arc::new(Barrier::new(n));
        world(link, n, move |mut comm| {
            let me = comm.rank();
            let context = format!("{link:?} rank {me}");
            for _ in 0..17 {
                assert_usable(&mut comm);
            }
            if me == Rank(5) {
                given_up.wait();
                let error = comm.all_reduce(vec![1u8; 300], ReduceOp::Max).wait().unwrap_err();
                assert_eq!(class(&error.error), "aborted", "{context}: {error}");
                assert_eq!(error.buffer, Some(vec![1u8; 300]), "{context}");
                assert!(error.to_string().contains("#17"), "{context}: {error}");
            } else {
                comm.set_deadline(DEADLINE);
                let report = report(comm.all_reduce(vec![1u8; 300], ReduceOp::Max).wait(), &context);
                comm.set_deadline(crate::common::GENEROUS);
                assert_eq!(report.late, [Rank(5)], "{context}: {report}");
                assert_eq!(report.seq.0, 17, "{context}: {report}");
                assert_eq!(report.states[0].0, Rank(5), "{context}: {report}");
                assert!(report.states[0].1.contains("has not called #17"), "{context}: {report}");
                given_up.wait();
            }
            assert_usable(&mut comm);
            assert_usable(&mut comm);
        });
    }
}

/// The same for every collective, and for vectors of which parts have been exchanged.
#[test]
fn no_collective_waits_for_ever() {
    type Call = fn(&mut Communicator) -> Result<(), Error>;
    const CALLS: [(&str, Call); 6] = [
        ("barrier", |comm| comm.barrier().wait().map_err(Error::from)),
        ("all_gather", |comm| comm.all_gather(vec![0u64; 3000]).wait().map(drop).map_err(Error::from)),
        ("reduce_scatter", |comm| {
            comm.reduce_scatter(vec![0f64; 90_000], ReduceOp::Sum).wait().map(drop).map_err(Error::from)
        }),
        ("all_reduce", |comm| {
            comm.all_reduce(vec![0f32; 1 << 20], ReduceOp::Sum).wait().map(drop).map_err(Error::from)
        }),
        ("broadcast", |comm| {
            comm.broadcast(vec![0u8; 1 << 20], Rank(2)).wait().map(drop).map_err(Error::from)
        }),
        ("broadcast", |comm| comm.broadcast(vec![0u8; 10], Rank(2)).wait().map(drop).map_err(Error::from)),
    ];
    for link in LINKS {
        let step = Arc::new(Barrier::new(3));
        world(link, 3, move |mut comm| {
            for (operation, call) in CALLS {
                let context = format!("{link:?} {operation} rank {}", comm.rank());
                if comm.rank() == Rank(2) {
                    step.wait();
                    // A root has all it needs; for the others the number is over.
                    match call(&mut comm) {
                        Ok(()) => assert_eq!(operation, "broadcast", "{context}"),
                        Err(error) => assert_eq!(class(&error), "aborted", "{context}: {error}"),
                    }
                } else {
                    comm.set_deadline(Duration::from_millis(300));
                    let error = call(&mut comm).expect_err(&context);
                    comm.set_deadline(crate::common::GENEROUS);
                    let Error::Deadline(report) = &error else {
                        panic!("{context}: {} {error}", class(&error))
                    };
                    assert_eq!(
                        (report.operation.as_str(), &report.late[..]),
                        (operation, &[Rank(2)][..]),
                        "{context}: {error}"
                    );
                    step.wait();
                }
                assert_usable(&mut comm);
                step.wait();
            }
        });
    }
}

#[test]
fn a_timeout_gives_the_buffer_back_and_names_the_late_rank() {
    for link in LINKS {
        let step = Arc::new(Barrier::new(2));
        world(link, 2, move |mut comm| {
            for count in [3usize, 500_000] {
                if comm.rank() == Rank(0) {
                    let reduced =
                        comm.all_reduce(vec![7u16; count], ReduceOp::Sum).timeout(Duration::from_millis(250));
                    let error = reduced.wait().unwrap_err();
                    let Error::Deadline(report) = &error.error else { panic!("{link:?}: {error}") };
                    assert_eq!(report.late, [Rank(1)], "{link:?}: {error}");
                    assert_eq!(error.buffer.expect("nobody reads it").len(), count);
                    step.wait();
                } else {
                    step.wait();
                    let error = comm.all_reduce(vec![7u16; count], ReduceOp::Sum).wait().unwrap_err();
                    assert_eq!(class(&error.error), "aborted", "{link:?}: {error}");
                }
                assert_usable(&mut comm);
            }
        });
    }
}

#[test]
fn who_cancels_is_told_so_and_the_others_who_cancelled() {
    for link in LINKS {
        for count in [3usize, 500_000] {
            let step = Arc::new(Barrier::new(3));
            world(link, 3, move |mut comm| {
                let context = format!("{link:?} {count} rank {}", comm.rank());
                if comm.rank() == Rank(0) {
                    // The third never calls: the operation can't end before it is cancelled.
                    let reduced = comm.all_reduce(vec![7u16; count], ReduceOp::Sum);
                    reduced.cancel();
                    let error = reduced.wait().unwrap_err();
                    assert_eq!(class(&error.error), "cancelled", "{context}: {error}");
                    assert_eq!(error.buffer.map(|buffer| buffer.len()), Some(count), "{context}");
                    step.wait();
                } else {
                    if comm.rank() == Rank(2) {
                        step.wait();
                    }
                    let error = comm.all_reduce(vec![7u16; count], ReduceOp::Sum).wait().unwrap_err();
                    let Error::Aborted { by, .. } = &error.error else { panic!("{context}: {error}") };
                    assert_eq!(*by, Rank(0), "{context}: {error}");
                    if comm.rank() == Rank(1) {
                        step.wait();
                    }
                }
                assert_usable(&mut comm);
            });
        }
    }
}

#[test]
fn a_receive_with_another_tag_is_told_which_tag_comes() {
    for link in LINKS {
        for count in [3usize, 100_000] {
            world(link, 2, move |mut comm| {
                if comm.rank() == Rank(0) {
                    let sent = comm.send(Rank(1), 6, vec![1u32; count]);
                    assert_usable(&mut comm);
                    sent.wait().unwrap();
                } else {
                    let received = comm.recv(Rank(0), 9, vec![0u32; count]).timeout(DEADLINE);
                    let report = report(received.wait(), "another tag");
                    assert_eq!(report.late, [Rank(0)], "{link:?}: {report}");
                    assert!(
                        report.cause.contains("tag 6") && report.cause.contains("tag 9"),
                        "{link:?}: {report}"
                    );
                    assert_usable(&mut comm);
                    assert_eq!(comm.recv(Rank(0), 6, vec![0u32; count]).wait().unwrap(), vec![1; count]);
                }
            });
        }
    }
}

#[test]
fn receives_that_wait_for_each_other_are_named_as_a_cycle() {
    for link in LINKS {
        for n in [2, 3] {
            let end = Arc::new(Barrier::new(n));
            world(link, n, move |mut comm| {
                let from = Rank((comm.rank().0 + 1) % n as u32);
                // All report before any of them gives up and leaves the cycle.
                let limit = DEADLINE + Duration::from_millis(300);
                let report = report(comm.recv(from, 1, vec![0u8]).timeout(limit).wait(), "nobody sends");
                assert_eq!(report.late, [from], "{link:?} n {n}: {report}");
                assert!(report.operation.starts_with("recv("), "{report}");
                let cycle = report.cause.contains("wait for each other");
                let told = comm.all_reduce(vec![u32::from(cycle)], ReduceOp::Max).wait().unwrap();
                assert_eq!(told, [1], "{link:?} n {n}: {report}");
                assert_usable(&mut comm);
                end.wait();
            });
        }
    }
}

/// Large messages wait for their receivers; whoever awaits his own first is told that the other one does the same.
#[test]
fn sends_that_wait_for_each_other_are_named_as_a_cycle() {
    for link in LINKS {
        let end = Arc::new(Barrier::new(2));
        world(link, 2, move |mut comm| {
            let to = Rank(1 - comm.rank().0);
            let limit = DEADLINE + Duration::from_millis(300);
            let sent = comm.send(to, 1, vec![0u8; 1 << 20]).timeout(limit).wait();
            let report = report(sent, "nobody receives");
            assert_eq!(report.late, [to], "{link:?}: {report}");
            let cycle = report.cause.contains("wait for each other");
            let told = comm.all_reduce(vec![u32::from(cycle)], ReduceOp::Max).wait().unwrap();
            assert_eq!(told, [1], "{link:?}: {report}");
            assert_usable(&mut comm);
            end.wait();
        });
    }
}

/// A deadline is for an operation, not for the time between two.
#[test]
fn a_pause_longer_than_the_deadline_is_nobody_s_fault() {
    for link in LINKS {
        world(link, 2, move |mut comm| {
            comm.set_deadline(Duration::from_secs(2));
            assert_usable(&mut comm);
            std::thread::sleep(Duration::from_secs(3));
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_dropped_future_lets_the_others_finish() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let me = comm.rank().0;
            for round in 0..50u32 {
                let count = if round % 2 == 0 { 10 } else { 200_000 };
                let reduced = comm.all_reduce(vec![me + round; count], ReduceOp::Sum);
                if round % 3 == me {
                    drop(reduced);
                } else {
                    assert_eq!(reduced.wait().unwrap(), vec![3 + 3 * round; count], "{link:?} round {round}");
                }
            }
            let mut borrowed = vec![me; 20_000];
            drop(comm.all_reduce(&mut borrowed, ReduceOp::Sum));
            assert_eq!(borrowed, vec![me; 20_000], "a dropped borrow is left as it was");
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_world_of_one() {
    for link in LINKS {
        world(link, 1, |mut comm| {
            for count in [0usize, 1, 1000, 1 << 20] {
                let own: Vec<f32> = (0..count).map(|index| index as f32).collect();
                for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg] {
                    assert_eq!(comm.all_reduce(own.clone(), op).wait().unwrap(), own);
                    assert_eq!(comm.reduce_scatter(own.clone(), op).wait().unwrap(), own);
                }
                assert_eq!(comm.broadcast(own.clone(), Rank(0)).wait().unwrap(), own);
                assert_eq!(comm.all_gather(own.clone()).wait().unwrap(), own);
            }
            comm.barrier().wait().unwrap();
            let never =
                comm.recv(Rank(0), 1, vec![0u8]).timeout(Duration::from_millis(100)).wait().unwrap_err();
            assert_eq!(class(&never.error), "deadline");
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn ten_thousand_operations_one_after_another() {
    for link in LINKS {
        run_within(10 * WATCHDOG, connect(link, 2), move |mut comm| {
            let me = comm.rank().0;
            let mut buffer = vec![0u32; 2];
            for round in 0..10_000u32 {
                buffer.fill(me + round);
                buffer = comm.all_reduce(buffer, ReduceOp::Sum).wait().unwrap();
                assert_eq!(buffer, [1 + 2 * round; 2], "{link:?}");
            }
        });
    }
}

/// More than numbers or tables of one kind could hold.
#[test]
#[ignore = "takes a minute"]
fn ten_thousand_operations_of_each_kind() {
    let kinds: [fn(&mut Communicator, u32); 5] = [
        |comm, round| {
            let mine = comm.rank().0 + round;
            let got = comm.broadcast(vec![mine; 3], Rank(round % 3)).wait().unwrap();
            assert_eq!(got, [round % 3 + round; 3]);
        },
        |comm, round| {
            let got = comm.all_gather(vec![comm.rank().0 + round; 3]).wait().unwrap();
            assert_eq!(got, [round, round + 1, round + 2]);
        },
        |comm, round| {
            let me = comm.rank().0;
            let got = comm.reduce_scatter(vec![me + round; 3], ReduceOp::Sum).wait().unwrap();
            assert_eq!(got[me as usize], 3 * round + 3);
        },
        |comm, _| comm.barrier().wait().unwrap(),
        |comm, round| {
            let me = comm.rank().0;
            let sent = comm.send(Rank((me + 1) % 3), 1, vec![round + me]);
            let got = comm.recv(Rank((me + 2) % 3), 1, vec![0u32]).wait().unwrap();
            assert_eq!(got, [round + (me + 2) % 3]);
            sent.wait().unwrap();
        },
    ];
    for link in LINKS {
        for kind in kinds {
            run_within(10 * WATCHDOG, connect(link, 3), move |mut comm| {
                (0..10_000).for_each(|round| kind(&mut comm, round));
                assert_usable(&mut comm);
            });
        }
    }
}

#[test]
fn alternating_kinds_and_sizes() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let me = comm.rank().0;
            for round in 0..600u32 {
                let count = [1usize, 30, 3000, 60_000][round as usize % 4];
                match round % 5 {
                    0 => assert_eq!(
                        comm.all_reduce(vec![me; count], ReduceOp::Sum).wait().unwrap(),
                        vec![3; count]
                    ),
                    1 => {
                        let root = round % 3;
                        let got = comm.broadcast(vec![me * 100 + round; count], Rank(root)).wait().unwrap();
                        assert_eq!(got, vec![root * 100 + round; count]);
                    }
                    2 => {
                        let got = comm.all_gather(vec![me + round; 3 * count]).wait().unwrap();
                        assert!(
                            got.iter()
                                .enumerate()
                                .all(|(index, value)| *value == (index / count) as u32 + round)
                        );
                    }
                    3 => {
                        let got =
                            comm.reduce_scatter(vec![me + round; 3 * count], ReduceOp::Max).wait().unwrap();
                        assert!(got[me as usize * count..][..count].iter().all(|value| *value == 2 + round));
                    }
                    _ => comm.barrier().wait().unwrap(),
                }
            }
        });
    }
}

/// Nobody drives, and nothing is due, when the operation begins.
#[test]
fn a_deadline_set_after_a_pause_is_kept() {
    for link in LINKS {
        let end = Arc::new(Barrier::new(2));
        world(link, 2, move |mut comm| {
            assert_usable(&mut comm);
            if comm.rank() == Rank(0) {
                for _ in 0..3 {
                    std::thread::sleep(Duration::from_millis(300));
                    comm.set_deadline(Duration::from_millis(200));
                    let context = format!("{link:?}");
                    let report = report(comm.recv(Rank(1), 2, vec![0u8]).wait(), &context);
                    assert!(report.waited < Duration::from_secs(3), "{context}: {report}");
                }
            }
            end.wait();
        });
    }
}

/// How long set-up may take, and how long an operation may, are two things: each is told with its own number.
#[test]
fn deadlines_of_set_up_and_of_operations_are_not_mixed_up() {
    let [short, long] = [Duration::from_millis(1200), Duration::from_secs(600)];
    let builder = |place: &std::path::Path, token: &Token, rank: u32, set_up, operation| {
        let builder = Communicator::builder().rank(rank).world(2).file(place).token(token.clone());
        builder.rendezvous_deadline(set_up).operation_deadline(operation)
    };
    // Nobody else comes.
    let (place, token) = (crate::common::meeting_place(), Token::random().unwrap());
    let error = builder(&place, &token, 0, short, long).connect_blocking().unwrap_err().to_string();
    assert!(error.contains("after 1.2s") && error.contains("rank 1") && !error.contains("600"), "{error}");
    // All come, and one does not call.
    let (place, token) = (crate::common::meeting_place(), Token::random().unwrap());
    let (other_place, other_token, end) = (place.clone(), token.clone(), Arc::new(Barrier::new(2)));
    let other_end = end.clone();
    let other = std::thread::spawn(move || {
        let comm = builder(&other_place, &other_token, 1, long, short).connect_blocking().unwrap();
        other_end.wait();
        drop(comm);
    });
    let mut comm = builder(&place, &token, 0, long, short).connect_blocking().unwrap();
    let report = report(comm.barrier().wait(), "nobody calls");
    assert_eq!(report.late, [Rank(1)], "{report}");
    assert!(report.waited >= short && report.waited < long, "{report}");
    end.wait();
    other.join().unwrap();
}

/// As long as can be said is no longer than can be added to the time.
#[test]
fn set_up_may_take_any_time() {
    let (default, ever) = (Duration::from_secs(30), Duration::MAX);
    for (rendezvous, link) in
        [([ever; 2], [default; 2]), ([default; 2], [ever; 2]), ([ever, default], [default, ever])]
    {
        for swapped in [false, true] {
            let (place, token) = (crate::common::meeting_place(), Token::random().unwrap());
            let ranks = [0usize, 1].map(|rank| {
                let of = if swapped { 1 - rank } else { rank };
                let builder =
                    Communicator::builder().rank(rank as u32).world(2).file(&place).token(token.clone());
                let builder = builder.rendezvous_deadline(rendezvous[of]).link_deadline(link[of]);
                let builder = builder.operation_deadline(Duration::MAX);
                std::thread::spawn(move || builder.connect_blocking())
            });
            let ranks = ranks.map(|rank| rank.join().unwrap());
            run(ranks.into_iter().collect::<Result<_, _>>().unwrap(), |mut comm| assert_usable(&mut comm));
        }
    }
}

/// What each rank adds is the number of its step, so that a sum of different steps shows.
#[test]
fn ranks_that_agree_after_an_error_go_on_in_one_step() {
    const STEPS: u64 = 40;
    fn agree(comm: &mut Communicator, done: u64) -> u64 {
        loop {
            match comm.all_reduce(vec![done], ReduceOp::Min).wait() {
                Ok(least) => return least[0],
                Err(failed) => assert!(!failed.error.is_fatal(), "{failed:?}"),
            }
        }
    }
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let (mut done, mut late) = (0, 0);
            while done < STEPS {
                // Late by about the limit, so that now the one comes first and now the other.
                if comm.rank().0 == 1 && done >= late {
                    late = done + 4;
                    std::thread::sleep(Duration::from_micros(4_900 + 20 * done));
                }
                let step = comm.all_reduce(vec![done as u32; 3], ReduceOp::Sum);
                match step.timeout(Duration::from_millis(5)).wait() {
                    Ok(sum) => {
                        assert_eq!(sum, [3 * done as u32; 3], "{link:?}");
                        done += 1;
                    }
                    Err(failed) => {
                        assert!(!failed.error.is_fatal(), "{failed:?}");
                        done = agree(&mut comm, done);
                    }
                }
                if done == STEPS {
                    done = agree(&mut comm, done);
                }
            }
        });
    }
}
