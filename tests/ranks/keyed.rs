//! Streams of calls under keys: in any order among each other, each with its own numbers, and with their communicator's
//! fate.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::{LINKS, Random, assert_usable, class, world};
use hcomm::{Communicator, Error, Operation, Rank, ReduceOp, blocking};

/// Calls under keys in an order of this rank's own; what each key adds up to, in the order of keys.
fn calls(comm: &Communicator, keys: usize, random: &mut Random) -> Vec<(usize, u32, Operation<Vec<u32>>)> {
    let mut order: Vec<usize> = (0..keys).collect();
    random.shuffle(&mut order);
    let mut begun = Vec::new();
    for key in order {
        let mut stream = comm.keyed(&format!("layer{key}.weight")).unwrap();
        for round in 0..3u32 {
            // Eager, by credit, and empty ones.
            let count = [10, 70_000, 0][(key + round as usize) % 3];
            let value = (key as u32 + 1) * 100 + round;
            begun.push((count, value, stream.all_reduce(vec![value; count], ReduceOp::Sum)));
        }
    }
    random.shuffle(&mut begun);
    begun
}

#[test]
fn each_rank_has_its_own_order_of_keys() {
    for link in LINKS {
        world(link, 4, move |mut comm| {
            let n = comm.size() as u32;
            let mut random = Random(u64::from(comm.rank().0) + 7);
            for _ in 0..3 {
                for (count, value, sum) in calls(&comm, 8, &mut random) {
                    assert!(sum.wait().unwrap() == vec![n * value; count]);
                }
            }
            assert_usable(&mut comm);
            comm.close().wait().unwrap();
        });
    }
}

/// Each rank calls the same names in an order of its own; then one leaves one of them out.
#[test]
fn a_name_that_one_rank_leaves_out_is_told_with_that_rank_and_the_others_go_on() {
    /// Long enough to be asked, and to answer.
    const LIMIT: Duration = Duration::from_secs(2);
    const NAMES: [&str; 3] = ["embedding", "attention", "head"];
    fn begin(comm: &Communicator, name: &str) -> Operation<Vec<u32>> {
        comm.keyed(name).unwrap().all_reduce(vec![name.len() as u32; 1000], ReduceOp::Sum)
    }
    for link in LINKS {
        let given_up = Arc::new(Barrier::new(3));
        world(link, 3, move |mut comm| {
            let me = comm.rank();
            let mut names = NAMES;
            names.rotate_left(me.index());
            let begun = names.map(|name| (name, begin(&comm, name)));
            for (name, sum) in begun {
                assert!(
                    sum.wait().unwrap() == vec![3 * name.len() as u32; 1000],
                    "{link:?} rank {me}: {name}"
                );
            }
            let called = names.into_iter().filter(|name| me != Rank(2) || *name != "attention");
            let begun: Vec<_> = called.map(|name| (name, begin(&comm, name))).collect();
            for (name, sum) in begun {
                if name != "attention" {
                    assert!(sum.wait().unwrap() == vec![3 * name.len() as u32; 1000], "{link:?} rank {me}");
                    continue;
                }
                let error = sum.timeout(LIMIT).wait().unwrap_err().error;
                let Error::Deadline(report) = &error else { panic!("{link:?} rank {me}: {error}") };
                assert_eq!(report.late, [Rank(2)], "{link:?} rank {me}: {error}");
                assert_eq!(report.communicator, "world[\"attention\"]", "{link:?} rank {me}: {error}");
                let cause = "waits on key \"attention\", rank 2 has not called it for #1";
                assert!(report.cause.contains(cause), "{link:?} rank {me}: {error}");
            }
            given_up.wait();
            if me == Rank(2) {
                let error = begin(&comm, "attention").wait().unwrap_err().error;
                assert_eq!(class(&error), "aborted", "{link:?}: {error}");
            }
            assert!(begin(&comm, "attention").wait().unwrap() == vec![27; 1000], "{link:?} rank {me}");
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_key_has_its_communicators_deadline_until_it_is_given_another() {
    let mut comm = Communicator::local(1).remove(0);
    let (long, short) = (Duration::from_secs(77), Duration::from_secs(7));
    comm.set_deadline(long);
    let mut stream = comm.keyed("a").unwrap();
    assert_eq!((stream.name(), stream.deadline()), ("world[\"a\"]", long));
    stream.set_deadline(short);
    assert_eq!((stream.deadline(), comm.deadline()), (short, long));
    drop(stream);
    assert_eq!(comm.keyed("a").unwrap().deadline(), long);
}

/// Several threads of a rank, each with keys of its own, beside the communicator's own stream.
#[test]
fn tasks_call_at_the_same_time() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let streams: Vec<_> = (0..4).map(|key| comm.keyed(&format!("task {key}")).unwrap()).collect();
            let tasks: Vec<_> = streams
                .into_iter()
                .enumerate()
                .map(|(task, mut stream)| {
                    std::thread::spawn(move || {
                        for round in 0..50u32 {
                            let value = task as u64 * 1000 + u64::from(round);
                            let sum = match round % 3 {
                                0 => stream.urgent().all_reduce(vec![value; 9], ReduceOp::Sum),
                                1 => stream.bulk().all_reduce(vec![value; 9], ReduceOp::Sum),
                                _ => stream.all_reduce(vec![value; 9], ReduceOp::Sum),
                            };
                            assert_eq!(sum.wait().unwrap(), [3 * value; 9]);
                        }
                        stream.barrier().wait().unwrap();
                    })
                })
                .collect();
            for _ in 0..50 {
                assert_usable(&mut comm);
            }
            tasks.into_iter().for_each(|task| task.join().unwrap());
        });
    }
}

#[test]
fn a_key_is_had_by_one_at_a_time() {
    let mut ranks = Communicator::local(1);
    let comm = ranks.remove(0);
    let mut held = comm.keyed("a").unwrap();
    assert_eq!(held.key(), "a");
    let refused = comm.keyed("a").unwrap_err();
    assert_eq!(class(&refused), "key in use");
    assert!(refused.to_string().contains("\"a\""), "{refused}");
    let mut other = comm.keyed("b").unwrap();
    assert_eq!(other.all_reduce(vec![1u8], ReduceOp::Sum).wait().unwrap(), [1]);
    // An operation does not keep the key.
    let sum = held.all_reduce(vec![1u8], ReduceOp::Sum);
    drop(held);
    let mut again = comm.keyed("a").unwrap();
    sum.wait().unwrap();
    again.barrier().wait().unwrap();
    for wrong in ["", "x".repeat(257).as_str()] {
        assert_eq!(class(&comm.keyed(wrong).unwrap_err()), "invalid argument");
    }
    let _ = comm.keyed(&"x".repeat(256)).unwrap();
    for key in 3..1024 {
        let _ = comm.keyed(&key.to_string()).unwrap();
    }
    let full = comm.keyed("one more").unwrap_err();
    assert!(matches!(full, Error::Limit { limit: 1024, .. }), "{full}");
    assert!(
        full.to_string().starts_with("keyed: there are 1024 keys of \"world\", which is the limit"),
        "{full}"
    );
    assert!(!full.is_fatal() && full.blamed().is_empty());
    let in_use = comm.keyed("b").unwrap_err();
    let Error::KeyInUse { communicator, key, .. } = &in_use else { panic!("{in_use}") };
    assert_eq!((&**communicator, &**key), ("world", "b"));
    assert!(in_use.to_string().starts_with("key \"b\" of \"world\" is in use"), "{in_use}");
    drop(other);
    let _ = comm.keyed("b").unwrap();
}

/// Under a key, calls have numbers, whoever makes them, and whether somebody waits for them or not.
#[test]
fn what_is_prepared_under_a_key_fits_that_key_alone() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let mut first = comm.keyed("first").unwrap();
            let sum = first.prepare_all_reduce::<u32>(5, ReduceOp::Sum).unwrap();
            for round in 1..4 {
                assert_eq!(first.run(&sum, vec![round; 5]).wait().unwrap(), [3 * round; 5]);
            }
            drop(first);
            let mut again = comm.keyed("first").unwrap();
            assert_eq!(again.run(&sum, vec![7; 5]).wait().unwrap(), [21; 5]);
            let refused = sum.run(&mut comm, vec![7; 5]).wait().unwrap_err().error;
            assert!(matches!(refused, Error::InvalidArgument { .. }), "{refused}");
            let refused = comm.keyed("second").unwrap().run(&sum, vec![7; 5]).wait().unwrap_err().error;
            assert!(matches!(refused, Error::InvalidArgument { .. }), "{refused}");
            assert_eq!(again.run(&sum, vec![1; 5]).wait().unwrap(), [3; 5]);
        });
    }
}

#[test]
fn dropped_futures_and_handles_leave_a_key_as_it_is() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            for round in 0..20u32 {
                let mut stream = comm.keyed("a").unwrap();
                drop(stream.all_reduce(vec![round; 50_000], ReduceOp::Sum));
                drop(stream);
                let sum = comm.keyed("a").unwrap().all_reduce(vec![round; 3], ReduceOp::Sum);
                assert_eq!(sum.wait().unwrap(), [3 * round; 3]);
            }
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_contradiction_under_a_key_is_told_and_is_its_own() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let count = if comm.rank().0 == 1 { 5 } else { 4 };
            let wrong = comm.keyed("a").unwrap().all_reduce(vec![0f32; count], ReduceOp::Sum);
            let right = comm.keyed("b").unwrap().all_reduce(vec![1u32], ReduceOp::Sum);
            assert_eq!(right.wait().unwrap(), [3]);
            let error = wrong.wait().unwrap_err().error;
            let Error::Mismatch { communicator, calls, .. } = &error else { panic!("{error}") };
            assert_eq!(&**communicator, "world[\"a\"]", "{error}");
            // Who is slow to tell is not waited for.
            assert!(calls.iter().any(|(rank, call)| (rank.0 == 1) == (call.count == 5)), "{error}");
            assert!(calls.len() >= 2, "{error}");
            let sum = comm.keyed("a").unwrap().all_reduce(vec![1u32], ReduceOp::Sum);
            assert_eq!(sum.wait().unwrap(), [3]);
            assert_usable(&mut comm);
        });
    }
}

/// A rank that closes a communicator will not call its keys, also those that it never asked for.
#[test]
fn closing_a_communicator_closes_its_keys() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let twin = comm.dup().wait().unwrap();
            let mut stream = twin.keyed("both").unwrap();
            assert_eq!(stream.all_reduce(vec![1u8], ReduceOp::Sum).wait().unwrap(), [3]);
            if comm.rank() == Rank(1) {
                // What it has called comes to its end; what others wait for does not begin.
                let last = stream.all_reduce(vec![2u8], ReduceOp::Sum);
                drop(twin);
                assert_eq!(last.wait().unwrap(), [6]);
                let refused = stream.all_reduce(vec![1u8], ReduceOp::Sum).wait().unwrap_err().error;
                assert_eq!(class(&refused), "closed", "{refused}");
                drop(stream);
            } else {
                // Rank 1 can't have closed anything before the second of these has ended.
                let only_here = twin.keyed("only here").unwrap().all_reduce(vec![1u8; 8], ReduceOp::Sum);
                assert_eq!(stream.all_reduce(vec![2u8], ReduceOp::Sum).wait().unwrap(), [6]);
                let next = stream.all_reduce(vec![1u8; 8], ReduceOp::Sum);
                let errors = [only_here, next].map(|sum| sum.wait().unwrap_err().error);
                let later = twin.keyed("later").unwrap().all_reduce(vec![1u8; 8], ReduceOp::Sum);
                for error in errors.into_iter().chain([later.wait().unwrap_err().error]) {
                    assert!(matches!(error, Error::Left { rank: Rank(1), .. }), "{link:?}: {error}");
                }
            }
            assert_usable(&mut comm);
        });
    }
}

/// What came for keys that a rank never asks for goes when their communicator does.
#[test]
fn what_nobody_asks_for_is_let_go_of() {
    for link in LINKS {
        world(link, 2, move |mut comm| {
            for round in 0..12u32 {
                let twin = comm.dup().wait().unwrap();
                if comm.rank() == Rank(0) {
                    for key in ["a", "b", "c"] {
                        let sent = twin.keyed(key).unwrap().broadcast(vec![round; 10_000], Rank(0));
                        drop(sent);
                    }
                }
                blocking::barrier(&mut comm).unwrap();
                drop(twin);
            }
            assert_usable(&mut comm);
            // The last of what was closed has come by then.
            blocking::barrier(&mut comm).unwrap();
            let used = comm.resources();
            assert_eq!(used.kept, 0, "{link:?}: {used:?}");
        });
    }
}

#[cfg(feature = "testing")]
mod simulated {
    use std::time::Duration;

    use hcomm::testing::World;

    use super::*;

    /// Two ranks wait under keys that the other one has not called: each is told so, with both keys.
    #[test]
    fn a_report_names_the_keys() {
        /// Long enough to be asked, and to answer.
        const LIMIT: Duration = Duration::from_millis(500);
        for seed in 0..10 {
            World::new(2).seed(seed).run(|mut comm, _| async move {
                let first = comm.rank() == Rank(0);
                let (mine, other) = if first { ("left", "right") } else { ("right", "left") };
                let sum = comm.keyed(mine).unwrap().all_reduce(vec![1u8; 3], ReduceOp::Sum);
                // The second still waits when the first gives up.
                let error = sum.timeout(if first { LIMIT } else { 4 * LIMIT }).await.unwrap_err().error;
                let Error::Deadline(report) = &error else { panic!("seed {seed}: {error}") };
                let text = error.to_string();
                let late = 1 - comm.rank().0;
                assert_eq!(report.late, [Rank(late)], "{text}");
                assert_eq!(report.communicator, format!("world[\"{mine}\"]"), "{text}");
                let said =
                    format!("rank {} waits on key \"{mine}\", rank {late} has not called it", 1 - late);
                assert_eq!(report.cause, said, "{text}");
                if first {
                    let state = &report.states[0].1;
                    assert!(state.contains("is in all_reduce(3 × u8") && state.contains(other), "{text}");
                }
                comm.barrier().await.unwrap();
            });
        }
    }

    #[test]
    fn any_order_of_keys_on_any_network() {
        for seed in 0..30 {
            let world = World::new(3).seed(seed).loss(0.05).duplicate(0.05).reorder(0.2);
            let done = world.run(|mut comm, _| async move {
                let mut random = Random(seed ^ u64::from(comm.rank().0) << 32);
                for (count, value, sum) in calls(&comm, 6, &mut random) {
                    assert!(sum.await.unwrap() == vec![3 * value; count], "seed {seed}");
                }
                comm.barrier().await.unwrap();
                comm.close().await.unwrap();
            });
            assert_eq!(done.len(), 3);
        }
    }

    /// A rank dies with calls under keys in flight, some of which it has called and some not: all fail, and name it. The
    /// communicator is made anew, with keys of its own.
    #[test]
    fn a_lost_rank_fails_all_keys() {
        for seed in 0..30 {
            let results = World::new(4).seed(seed).run(|mut comm, net| async move {
                let mut random = Random(seed ^ u64::from(comm.rank().0) << 32);
                comm.barrier().await.unwrap();
                if comm.rank() == Rank(2) {
                    let begun = calls(&comm, 2, &mut random);
                    tokio::time::sleep(random.millis(4)).await;
                    net.kill(Rank(2));
                    drop(begun);
                    std::future::pending::<()>().await;
                }
                let mut failed = 0;
                for (count, value, sum) in calls(&comm, 5, &mut random) {
                    match sum.await {
                        Ok(sum) => assert!(sum == vec![4 * value; count]),
                        Err(error) => {
                            let named = matches!(error.error, Error::PeerLost { rank: Rank(2), .. });
                            assert!(named || class(&error.error) == "failed", "seed {seed}: {}", error.error);
                            failed += 1;
                        }
                    }
                }
                assert!(failed >= 9, "seed {seed}: rank 2 has not called three keys");
                let stale = comm.keyed("new").unwrap().barrier().await.unwrap_err().error;
                assert!(matches!(class(&stale), "peer lost" | "failed"), "seed {seed}: {stale}");
                let mut old = comm.keyed("layer0.weight").unwrap();
                let mut anew = comm.rebuild().await.unwrap();
                assert_eq!(class(&old.barrier().await.unwrap_err().error), "closed", "seed {seed}");
                let sum = anew.keyed("layer0.weight").unwrap().all_reduce(vec![1u32], ReduceOp::Sum);
                assert_eq!(sum.await.unwrap(), [3]);
                anew.barrier().await.unwrap();
            });
            assert_eq!(results.iter().flatten().count(), 3, "seed {seed}");
        }
    }

    /// A call under a key that one rank gives up is given up on all, whether they have asked for the key or not.
    #[test]
    fn given_up_on_one_rank_is_given_up_on_all() {
        for seed in 0..30 {
            World::new(3).seed(seed).run(|mut comm, _| async move {
                let me = comm.rank();
                if me == Rank(1) {
                    tokio::time::sleep(Duration::from_millis(seed % 7)).await;
                }
                let sum = comm.keyed("a").unwrap().all_reduce(vec![1u32; 40_000], ReduceOp::Sum);
                if me == Rank(0) {
                    sum.cancel();
                }
                match sum.await {
                    // Those that had finished keep their result.
                    Ok(sum) => assert!(sum == vec![3; 40_000]),
                    Err(error) => {
                        let expected = if me == Rank(0) { "cancelled" } else { "aborted" };
                        assert_eq!(class(&error.error), expected, "seed {seed}: {}", error.error);
                    }
                }
                let next = comm.keyed("a").unwrap().all_reduce(vec![1u32], ReduceOp::Sum).await.unwrap();
                assert_eq!(next, [3], "seed {seed}");
                comm.barrier().await.unwrap();
            });
        }
    }
}
