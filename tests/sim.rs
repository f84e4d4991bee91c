//! The engine on a simulated network: thousands of schedules, each from one seed.
//!
//! `HCOMM_SIM_SEED=n` runs that schedule of every test and no other, `HCOMM_SIM_SEED=n..m` those from n on to before m.

mod common;
#[path = "sim/deadlines.rs"]
mod deadlines;
#[path = "sim/faults.rs"]
mod faults;
#[path = "sim/program.rs"]
mod program;

use std::ops::Range;
use std::time::Duration;

use faults::{errors_name_who_is_at_fault, others_survive_cancelling};
use hcomm::path::Algorithm;
use hcomm::testing::World;
use hcomm::{Communicator, Error, Rank, ReduceOp, State, blocking};
use program::{Call, Random, What, call, calls, world};

const SIZES: [usize; 4] = [3, 4, 5, 8];

/// Runs a test's schedules; whether it is all of them.
fn schedules(seeds: Range<u64>, schedule: impl Fn(u64)) -> bool {
    let asked = std::env::var("HCOMM_SIM_SEED").unwrap_or_default();
    let number = |text: &str| text.parse().expect("HCOMM_SIM_SEED is a number, or two with .. between");
    let seeds = match asked.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None if asked.is_empty() => seeds,
        None => number(&asked)..number(&asked) + 1,
    };
    seeds.for_each(schedule);
    asked.is_empty()
}

// --- what holds in a world

/// As their labels in errors say.
#[test]
fn each_rank_has_a_host_of_its_own() {
    let parts = World::new(3).run(|mut comm, _net| async move {
        let host = comm.split_by_host().await.unwrap();
        assert_eq!(host.group(), comm.host_group());
        (host.name().to_string(), host.size())
    });
    let named: Vec<_> = parts.into_iter().map(Option::unwrap).collect();
    assert_eq!(named, ["world/0:0", "world/0:1", "world/0:2"].map(|name| (name.to_string(), 1)));
}

/// Each of these would stop the world. It panics before anything is lent, so that the test fails, and alone.
#[test]
fn a_rank_that_waits_blocked_panics() {
    type Blocks = fn(&mut Communicator);
    let ways: [(&str, Blocks); 19] = [
        ("wait", |comm| drop(comm.all_reduce(vec![1u8], ReduceOp::Sum).wait())),
        ("split's wait", |comm| drop(comm.split(None, 0).wait())),
        ("rebuild's wait", |comm| drop(comm.rebuild().wait())),
        ("ready's wait", |comm| drop(comm.ready().wait())),
        ("contributions", |comm| {
            drop(comm.contributions::<u8>([1], 1, 2).reduce_first(1, 0, ReduceOp::Sum).wait());
        }),
        ("served parameters", |comm| drop(comm.serve_parameters([1], 1, vec![0u8; 2]).next_wait())),
        ("parameters", |comm| drop(comm.parameters::<u8>(1, 1, 2, 0).pull_wait().map(|got| got.version))),
        ("barrier", |comm| drop(blocking::barrier(comm))),
        ("all_reduce", |comm| drop(blocking::all_reduce(comm, &mut [1u8; 2], ReduceOp::Sum))),
        ("broadcast", |comm| drop(blocking::broadcast(comm, &mut [1u8; 2], 0))),
        ("all_gather", |comm| drop(blocking::all_gather(comm, &mut [1u8; 2]))),
        ("reduce_scatter", |comm| drop(blocking::reduce_scatter(comm, &mut [1u8; 2], ReduceOp::Sum))),
        ("options", |comm| drop(comm.urgent().blocking().all_reduce(&mut [1u8; 2], ReduceOp::Sum))),
        ("key", |comm| drop(comm.keyed("key").unwrap().blocking().barrier())),
        ("prepared", |comm| {
            let prepared = comm.prepare_all_reduce(2, ReduceOp::Sum).unwrap();
            drop(blocking::run(comm, &prepared, &mut [1u8; 2]));
        }),
        ("send", |comm| drop(blocking::send(comm, 0, 1, &[1u8; 2]))),
        ("recv", |comm| drop(blocking::recv(comm, 0, 1, &mut [1u8; 2]))),
        ("split", |comm| drop(blocking::split(comm, None, 0))),
        ("dup", |comm| drop(blocking::dup(comm))),
    ];
    for (name, way) in ways {
        for n in [1, 2] {
            let world = World::new(n).seed(77);
            let ran = || world.run(|mut comm, _| async move { way(&mut comm) });
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ran)).expect_err(name);
            let said = panicked.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(said.contains("must await its operations") && said.contains("77"), "{name}: {said}");
        }
    }
}

#[test]
fn a_world_that_cannot_be_is_refused() {
    let refused = |make: fn() -> World| {
        let panicked = std::panic::catch_unwind(make).expect_err("it was made");
        panicked.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    assert_eq!(refused(|| World::new(0)), "a world has 1 to 64 ranks, not 0");
    assert_eq!(refused(|| World::new(65)), "a world has 1 to 64 ranks, not 65");
    assert_eq!(refused(|| World::new(2).loss(1.5)), "a probability is from 0 to 1, not 1.5");
    assert_eq!(refused(|| World::new(2).duplicate(-0.1)), "a probability is from 0 to 1, not -0.1");
    assert_eq!(refused(|| World::new(2).reorder(f64::NAN)), "a probability is from 0 to 1, not NaN");
    let refused = std::panic::catch_unwind(|| World::new(2).edge(0, 2, Duration::ZERO..Duration::ZERO));
    assert!(refused.is_err());
}

// --- faults of the network only

/// Calls, some at once, ended in any order.
async fn perform(mut comm: Communicator, calls: Vec<Call>, mut random: Random) -> Vec<Vec<u32>> {
    let mut results = vec![Vec::new(); calls.len()];
    let mut flying = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        flying.push((index, call.begin(&mut comm)));
        while flying.len() > random.below(4) {
            let (index, call) = flying.swap_remove(random.below(flying.len()));
            results[index] = call.end().await.unwrap();
        }
    }
    for (index, call) in flying {
        results[index] = call.end().await.unwrap();
    }
    results
}

/// A link takes a message in parts that end anywhere, also within an element.
#[test]
fn elements_are_whole_however_a_message_leaves() {
    schedules(0..100, |seed| {
        let sums = World::new(4).seed(seed).run(|mut comm, _| async move {
            let mine = (0..4000).map(|index| (index * (comm.rank().0 + 1)) as f32).collect::<Vec<_>>();
            comm.using(Algorithm::RecursiveDoubling).all_reduce(mine, ReduceOp::Sum).await.unwrap()
        });
        for sum in sums.into_iter().flatten() {
            assert!(
                sum.iter().enumerate().all(|(index, value)| *value == 10.0 * index as f32),
                "seed {seed}"
            );
        }
    });
}

fn values_are_right(seed: u64) {
    let mut random = Random(seed);
    let n = random.one_of(&SIZES);
    let calls = calls(&mut random, n, 6);
    let orders = random.clone();
    let run = |world: World| {
        world.run(|comm, _| {
            let order = Random(orders.0 ^ u64::from(comm.rank().0));
            perform(comm, calls.clone(), order)
        })
    };
    let got = run(world(seed, n, &mut random));
    let undisturbed = run(World::new(n));
    assert!(got == undisturbed, "seed {seed}: not the bits of an undisturbed world");
    for (index, call) in calls.iter().enumerate() {
        if matches!(call.what, What::AllReduce(_) | What::Broadcast(_)) {
            let of = |rank: usize| &got[rank].as_ref().unwrap()[index];
            assert!((1..n).all(|rank| of(rank) == of(0)), "seed {seed}: ranks differ in {call:?}");
        }
    }
}

// --- faults of ranks and hosts

/// A rank that has ended and sees one of its connections ended by another must not give up the other one, on which
/// what it had sent may still be under way.
#[test]
fn what_was_sent_last_arrives_after_its_sender_has_left() {
    schedules(0..150, |seed| {
        let mut random = Random(seed);
        let world = world(seed, 3, &mut random).loss(0.1);
        let results = world.run(|mut comm, _| async move {
            // Large, so that it goes over the one connection while goodbye is said on both.
            let vector = vec![comm.rank().0 + 1; 30_000];
            comm.broadcast(vector, Rank(0)).await.map_err(|error| error.error)
        });
        for (rank, result) in results.into_iter().enumerate() {
            let got = result.unwrap().unwrap_or_else(|error| panic!("seed {seed}: rank {rank}: {error}"));
            assert!(got == vec![1; 30_000], "seed {seed}");
        }
    });
}

/// A rank that has left stays while what it has sent gets on, however slowly: closed before, its connection would be reset
/// by what comes next, and the rest be lost.
#[test]
fn what_was_sent_last_arrives_however_slowly() {
    const MESSAGES: u32 = 60;
    schedules(0..20, |seed| {
        let results = World::new(2).seed(seed).run(|mut comm, net| async move {
            comm.set_deadline(Duration::from_secs(90));
            if comm.rank() == Rank(0) {
                net.partition(&[Rank(0)]);
                for tag in 0..MESSAGES {
                    comm.send(Rank(1), tag, vec![tag]).await.map_err(|error| error.error)?;
                }
                return Ok(());
            }
            let received: Vec<_> = (0..MESSAGES).map(|tag| comm.recv(Rank(0), tag, vec![0u32])).collect();
            tokio::time::sleep(Duration::from_secs(15)).await;
            // Long enough for some of them.
            net.heal();
            tokio::time::sleep(Duration::from_millis(600)).await;
            net.partition(&[Rank(0)]);
            tokio::time::sleep(Duration::from_secs(10)).await;
            let _refused = comm.send(Rank(0), 0, vec![0]);
            tokio::time::sleep(Duration::from_secs(5)).await;
            net.heal();
            for (tag, received) in (0..).zip(received) {
                assert_eq!(received.await.map_err(|error| error.error)?, [tag]);
            }
            Ok::<(), Error>(())
        });
        for (rank, result) in results.into_iter().enumerate() {
            result.unwrap().unwrap_or_else(|error| panic!("seed {seed}: rank {rank}: {error}"));
        }
    });
}

/// A connection that nobody uses is kept up by probes; the first use of one, however late, finds it as it was.
#[test]
fn connections_last_while_nobody_uses_them() {
    schedules(0..100, |seed| {
        let mut random = Random(seed);
        let results = world(seed, 3, &mut random).run(|mut comm, _| async move {
            // Small and large go over one connection each.
            for count in [3, 30_000] {
                tokio::time::sleep(Duration::from_secs(45)).await;
                comm.all_reduce(vec![1.0f32; count], ReduceOp::Sum).await.map_err(|error| error.error)?;
            }
            Ok::<(), Error>(())
        });
        for (rank, result) in results.into_iter().enumerate() {
            result.unwrap().unwrap_or_else(|error| panic!("seed {seed}: rank {rank}: {error}"));
        }
    });
}

/// A host that vanishes while nobody says anything is noticed all the same.
#[test]
fn silence_does_not_hide_that_a_host_has_vanished() {
    schedules(0..20, |seed| {
        let results = World::new(3).seed(seed).run(|comm, net| async move {
            if comm.rank() == Rank(2) {
                net.vanish(Rank(2));
            }
            tokio::time::sleep(Duration::from_secs(25)).await;
            comm.state()
        });
        for (rank, state) in results.iter().enumerate().take(2) {
            let Some(State::Failed { cause: Error::PeerLost { rank: Rank(2), .. } }) = state else {
                panic!("seed {seed}: rank {rank}: {state:?}");
            };
        }
    });
}

// --- faults of programs

/// One rank calls something else than the others.
fn contradictions_are_told(seed: u64) {
    let mut random = Random(seed);
    let n = random.one_of(&SIZES);
    let calls: Vec<Call> = (0..4).map(|_| collective(&mut random, n)).collect();
    let (odd, at) = (random.below(n), random.below(calls.len()));
    let mut other = collective(&mut random, n);
    while (other.what, other.count) == (calls[at].what, calls[at].count) {
        other = collective(&mut random, n);
    }
    let results = world(seed, n, &mut random).run(|mut comm, _| {
        let mut calls = calls.clone();
        if comm.rank().index() == odd {
            calls[at] = other.clone();
        }
        async move {
            comm.set_deadline(Duration::from_secs(60));
            for (index, call) in calls.iter().enumerate() {
                call.begin(&mut comm).end().await.map_err(|error| (index, error.error))?;
            }
            Ok(())
        }
    });
    let alone = calls[at + 1..].iter().all(|call| call.what == What::Broadcast(odd));
    for (rank, result) in results.iter().enumerate() {
        let says = format!("seed {seed}: rank {odd} of {n} calls {other:?} for {:?}", calls[at]);
        match result.as_ref().unwrap() {
            // A root needs nothing of the others: it leaves, and what it has called may not be known to all.
            Ok(()) => assert!(rank != odd || alone, "{says}, and is not told"),
            Err((index, Error::Mismatch { calls, .. })) => {
                assert!(*index >= at, "{says}: {index}");
                let left = matches!(results[odd], Some(Ok(())));
                assert!(left || calls.iter().any(|(rank, _)| rank.index() == odd), "{says}: {calls:?}");
            }
            // Who had its result calls the next while others, who were told, leave.
            Err((index, error)) => assert!(*index > at, "{says}: rank {rank} #{index}: {error}"),
        }
    }
}

/// A rank that has its result, is told of the contradiction with its next call and leaves: the others learn what it
/// had called all the same.
#[test]
fn who_leaves_after_a_contradiction_has_told_all() {
    schedules(0..60, |seed| {
        let mut random = Random(seed);
        let results = world(seed, 5, &mut random).run(|mut comm, _| async move {
            if comm.rank() == Rank(4) {
                comm.broadcast(vec![1.0f32; 100], Rank(4)).await?;
                comm.barrier().await?;
                return Ok(());
            }
            let call = comm.using(Algorithm::MeshOneShot).all_reduce(vec![1.0f32; 100], ReduceOp::Max);
            call.await.map(drop).map_err(|error| error.error)
        });
        for (rank, result) in results.into_iter().enumerate() {
            let Some(Err(Error::Mismatch { calls, .. })) = result else {
                panic!("seed {seed}: rank {rank}: {result:?}");
            };
            assert!(calls.iter().any(|(rank, _)| *rank == Rank(4)), "seed {seed}: rank {rank}: {calls:?}");
        }
    });
}

/// Ranks give groups that differ: none gets a communicator, all are told, in whatever order they come; and all go on.
#[test]
fn groups_that_differ_are_told() {
    schedules(0..60, |seed| {
        let mut random = Random(seed);
        let n = random.one_of(&SIZES);
        let odd = random.below(n);
        let results = world(seed, n, &mut random).run(|mut comm, _| async move {
            comm.set_deadline(Duration::from_secs(60));
            let (all, me) = (comm.group(), comm.rank().index());
            let other = all.include((0..n as u32).rev()).unwrap();
            let error = comm.create(if me == odd { &other } else { &all }).await.err();
            let mut made = comm.create(&other).await.unwrap().unwrap();
            let mine = vec![u32::from(me == 0) * made.rank().0];
            (error, made.all_reduce(mine, ReduceOp::Sum).await.unwrap()[0], all)
        });
        let results: Vec<_> = results.into_iter().map(Option::unwrap).collect();
        for (rank, (error, first, all)) in results.iter().enumerate() {
            let says = format!("seed {seed}: rank {rank} of {n}, odd {odd}: {error:?}");
            assert!(matches!(error, Some(Error::Mismatch { .. })), "{says}");
            assert_eq!(*first as usize, n - 1, "{says}");
            assert_eq!(*all, results[0].2, "{says}");
        }
        // Worlds are told apart, simulated ones as well.
        let elsewhere = World::new(n).run(|comm, _| async move { comm.group() });
        assert!(elsewhere.into_iter().all(|group| group.unwrap() != results[0].2), "seed {seed}");
    });
}

fn collective(random: &mut Random, n: usize) -> Call {
    loop {
        let call = call(random, n);
        if !matches!(call.what, What::Shift(_)) {
            return call;
        }
    }
}

/// One rank comes after the others have given up: the error names it, and what is called next goes well.
fn late_ranks_are_named(seed: u64) {
    let mut random = Random(seed);
    let n = random.one_of(&SIZES);
    let (missed, next) = (collective(&mut random, n), call(&mut random, n));
    let late = Rank(random.below(n) as u32);
    // Long enough for everybody to be heard, however much is lost.
    let limit = Duration::from_secs(3) + random.millis(3000);
    let single = random.below(2) == 0;
    let results = world(seed, n, &mut random).run(|mut comm, _| {
        let (missed, next) = (missed.clone(), next.clone());
        async move {
            if comm.rank() == late {
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            if !single {
                comm.set_deadline(limit);
            }
            let mut first = missed.begin(&mut comm);
            if single {
                first.operation = first.operation.timeout(limit);
            }
            let first = first.end().await.map_err(|error| error.error);
            comm.set_deadline(Duration::from_secs(60));
            (first, next.begin(&mut comm).end().await.map_err(|error| error.error))
        }
    });
    for (rank, result) in results.iter().enumerate() {
        let (first, next) = result.as_ref().unwrap();
        let says = format!("seed {seed}: rank {late} of {n} is late in {missed:?}; rank {rank}");
        match first {
            Err(Error::Deadline(report)) => assert!(report.late == [late], "{says}: {report}"),
            Err(Error::Aborted { cause, .. }) => {
                assert!(cause.contains(&format!("rank {late}")) || rank == late.index(), "{says}: {cause}");
            }
            Err(error) => panic!("{says}: {error}"),
            // Who needs nothing of the late one can end.
            Ok(_) => {}
        }
        assert!(next.is_ok(), "{says}, and then {next:?}");
    }
}

/// Two communicators at once, one of them of part of the ranks.
fn communicators_do_not_meet(seed: u64) {
    let mut random = Random(seed);
    let n = random.one_of(&SIZES);
    let (ours, orders) = (calls(&mut random, n, 5), random.next());
    let whole = random.below(2) == 0;
    let results = world(seed, n, &mut random).run(|mut comm, _| {
        let ours = ours.clone();
        async move {
            comm.set_deadline(Duration::from_secs(60));
            let color = if whole { 0 } else { comm.rank().0 % 2 };
            let part = comm.split(Some(color), -i64::from(comm.rank().0)).await.unwrap().unwrap();
            let order = Random(orders ^ u64::from(comm.rank().0));
            let theirs = calls(&mut Random(orders ^ u64::from(color)), part.size(), 5);
            let parts = perform(part, theirs, Random(!order.0));
            futures_util::join!(perform(comm, ours, order), parts).0.len()
        }
    });
    assert!(results.iter().all(|result| *result == Some(5)), "seed {seed}");
}

#[test]
fn a_seed_stands_for_a_schedule() {
    let run = |seed: u64, noise: usize| {
        let mut random = Random(seed);
        let n = random.one_of(&SIZES);
        let calls = calls(&mut random, n, 4);
        // What lies in memory must not matter.
        let _elsewhere = vec![0u8; noise];
        let traces = world(seed, n, &mut random).run(|comm, net| {
            let (calls, random) = (calls.clone(), Random(u64::from(comm.rank().0)));
            async move { (perform(comm, calls, random).await, net.now(), net.trace()) }
        });
        traces.into_iter().map(Option::unwrap).collect::<Vec<_>>()
    };
    schedules(0..20, |seed| {
        assert!(run(seed, 0) == run(seed, 4096), "seed {seed} does not repeat");
        assert!(run(seed, 0)[0].2 != run(seed + 1, 0)[0].2, "seeds {seed} and the next are the same");
    });
}

// --- how many

#[test]
fn values_are_right_quick() {
    schedules(0..80, values_are_right);
}

#[test]
fn errors_name_who_is_at_fault_quick() {
    errors_name_who_is_at_fault(0..100);
}

#[test]
fn contradictions_are_told_quick() {
    schedules(0..40, contradictions_are_told);
}

#[test]
fn late_ranks_are_named_quick() {
    schedules(0..20, late_ranks_are_named);
}

#[test]
fn others_survive_cancelling_quick() {
    others_survive_cancelling(0..40);
}

#[test]
fn communicators_do_not_meet_quick() {
    schedules(0..20, communicators_do_not_meet);
}

/// 100 000 schedules in all, of seeds that the quick tests do not have.
mod many {
    use super::*;

    #[test]
    #[ignore = "takes minutes"]
    fn values_are_right_often() {
        schedules(1000..31_000, values_are_right);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn errors_name_who_is_at_fault_often() {
        errors_name_who_is_at_fault(1000..36_000);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn contradictions_are_told_often() {
        schedules(1000..11_000, contradictions_are_told);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn late_ranks_are_named_often() {
        schedules(1000..6000, late_ranks_are_named);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn others_survive_cancelling_often() {
        others_survive_cancelling(1000..11_000);
    }

    #[test]
    #[ignore = "takes minutes"]
    fn communicators_do_not_meet_often() {
        schedules(1000..11_000, communicators_do_not_meet);
    }
}
