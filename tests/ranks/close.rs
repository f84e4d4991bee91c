//! Leaving in order: what was sent has arrived, and what nobody receives holds nobody up.

use std::future::Future;
use std::sync::{Arc, Barrier};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::common::{GENEROUS, LINKS, Link, connect, run};
use hcomm::path::Algorithm;
use hcomm::{Communicator, Error, Operation, Rank, ReduceOp};

/// More than goes along with a header: it is offered, and moves once it is accepted.
const LARGE: usize = 200_000;

#[test]
fn what_nobody_receives_or_sends_holds_no_close_up() {
    for link in LINKS {
        run(connect(link, 3), move |comm| {
            let me = comm.rank().0;
            let to = Rank((me + 1) % 3);
            let from = Rank((me + 2) % 3);
            // Whether these end is not what the close waits for.
            drop(comm.send(to, 1, vec![me; LARGE]));
            drop(comm.send(to, 2, vec![me; 10]));
            drop(comm.recv(from, 3, vec![0u32; 10]));
            comm.close().wait().unwrap();
        });
    }
}

/// One closes while the others go on: they disagree about one call, and then he has left.
#[test]
fn a_close_that_fails_leaves_as_well() {
    for link in LINKS {
        for n in [2, 3, 4, 5] {
            let ends = run(connect(link, n), move |mut comm| {
                comm.set_deadline(GENEROUS * 2);
                comm.barrier().wait().unwrap();
                if comm.rank() == Rank(1) {
                    let error = comm.close().wait().unwrap_err();
                    assert!(matches!(error, Error::Mismatch { .. }), "{link:?} n {n}: {error}");
                    return 0;
                }
                let began = Instant::now();
                for call in 1.. {
                    let error = comm.all_reduce(vec![1u32], ReduceOp::Sum).wait().unwrap_err().error;
                    match &error {
                        Error::Left { rank: Rank(1), .. } => break,
                        Error::Mismatch { calls, .. } => {
                            assert!(
                                calls
                                    .iter()
                                    .any(|(rank, call)| *rank == Rank(1) && call.operation == "close"),
                                "{link:?} n {n}, call {call}: {error}"
                            );
                        }
                        Error::Aborted { .. } => {}
                        _ => panic!("{link:?} n {n}, call {call}: {error}"),
                    }
                    assert!(call < 4, "{link:?} n {n}: {error}");
                }
                began.elapsed().as_millis()
            });
            // Nobody has waited for his deadline.
            assert!(ends.iter().all(|took| *took < GENEROUS.as_millis()), "{link:?} n {n}: {ends:?}");
        }
    }
}

/// A call under a key that the other one does not make.
#[test]
fn a_close_has_its_limit_while_it_waits_for_what_was_called_before() {
    for link in LINKS {
        let step = Arc::new(Barrier::new(2));
        run(connect(link, 2), move |mut comm| {
            comm.set_deadline(GENEROUS * 2);
            if comm.rank() == Rank(0) {
                let mut keyed = comm.keyed("not called by the other").unwrap();
                let pending = keyed.all_reduce(vec![1u32], ReduceOp::Sum);
                let error = comm.close().timeout(Duration::from_millis(400)).wait().unwrap_err();
                let Error::Deadline(report) = &error else { panic!("{link:?}: {error}") };
                assert_eq!(
                    (&report.operation[..], &report.late[..]),
                    ("close", &[Rank(1)][..]),
                    "{link:?}: {error}"
                );
                assert!(report.cause.contains("not over before it: all_reduce(1 × u32"), "{link:?}: {error}");
                step.wait();
                drop(pending);
            } else {
                let error = comm.close().wait().unwrap_err();
                let given_up =
                    matches!(error, Error::Deadline(_) | Error::Aborted { .. } | Error::Left { .. });
                assert!(given_up, "{link:?}: {error}");
                step.wait();
            }
        });
    }
}

/// Algorithms in which most ranks depend on another one only through others, and the one that is chosen.
const ALGORITHMS: [Option<Algorithm>; 4] =
    [Some(Algorithm::Ring), Some(Algorithm::HalvingDoubling), Some(Algorithm::RecursiveDoubling), None];

fn sum(comm: &mut Communicator, algorithm: Option<Algorithm>, count: usize) -> Operation<Vec<f32>> {
    match algorithm {
        Some(algorithm) => comm.using(algorithm).all_reduce(vec![1.0; count], ReduceOp::Sum),
        None => comm.all_reduce(vec![1.0; count], ReduceOp::Sum),
    }
}

/// All others have called, or call later; and keep their communicators.
fn leave_without_calling(
    link: Link,
    n: usize,
    algorithms: &'static [Option<Algorithm>],
    counts: &'static [usize],
) {
    let (begun, left) = (Arc::new(Barrier::new(n)), Arc::new(Barrier::new(n)));
    run(connect(link, n), move |mut comm| {
        for algorithm in algorithms {
            for count in counts {
                for leaver in [0, 1, n - 1].map(|rank| Rank(rank as u32)) {
                    let context = format!("{link:?} {n} {algorithm:?} {count}: {}", comm.rank());
                    let mut copy = comm.dup().wait().unwrap();
                    let late = (leaver.index() + 2) % n;
                    if comm.rank() == leaver {
                        begun.wait();
                        drop(copy);
                        left.wait();
                        continue;
                    }
                    let pending = (comm.rank().index() != late).then(|| sum(&mut copy, *algorithm, *count));
                    begun.wait();
                    let pending = pending.unwrap_or_else(|| sum(&mut copy, *algorithm, *count));
                    let error = pending.wait().unwrap_err().error;
                    let is_it = matches!(&error, Error::Left { rank, .. } if *rank == leaver);
                    assert!(is_it, "{context}: not rank {leaver}: {error}");
                    left.wait();
                    // The same goes for the next call.
                    let error = copy.barrier().wait().unwrap_err().error;
                    assert!(matches!(error, Error::Left { .. }), "{context}: {error}");
                }
            }
        }
    });
}

#[test]
fn a_rank_that_leaves_without_calling_is_named_to_all() {
    for link in LINKS {
        for n in [3, 4, 5, 8] {
            leave_without_calling(link, n, &ALGORITHMS, &[10, 40_000]);
        }
        leave_without_calling(link, 9, &[None], &[10, 40_000]);
    }
}

/// Nobody waits for a receive whose future is gone and for which nothing has come: it holds nobody up.
#[test]
fn a_detached_receive_without_a_message_keeps_no_communicator_open() {
    for link in LINKS {
        for receive_first in [true, false] {
            run(connect(link, 3), move |mut comm| {
                if comm.rank() == Rank(2) {
                    let slept = comm.recv(Rank(0), 1, vec![0u8; 10]);
                    let detached = comm.recv(Rank(1), 2, vec![0u8; LARGE]);
                    if receive_first {
                        drop((slept, detached));
                        drop(comm);
                    } else {
                        drop(comm);
                        std::thread::sleep(Duration::from_millis(5));
                        drop((slept, detached));
                    }
                    return;
                }
                let error = comm.barrier().wait().unwrap_err().error;
                assert!(matches!(error, Error::Left { rank: Rank(2), .. }), "{link:?}: {error}");
            });
        }
    }
}

/// One that is awaited goes on, and so does one whose message is on its way.
#[test]
fn a_receive_outlives_its_communicator() {
    for link in LINKS {
        for count in [10, LARGE] {
            let step = Arc::new(Barrier::new(2));
            run(connect(link, 2), move |comm| {
                if comm.rank() == Rank(0) {
                    let awaited = comm.recv(Rank(1), 1, vec![0u32; count]);
                    drop(comm);
                    step.wait();
                    assert_eq!(awaited.wait().unwrap(), vec![7; count]);
                } else {
                    step.wait();
                    comm.send(Rank(0), 1, vec![7u32; count]).wait().unwrap();
                }
            });
        }
    }
}

#[test]
fn a_close_can_be_given_up_while_it_waits_for_what_was_called_before() {
    for link in LINKS {
        let step = std::sync::Arc::new(std::sync::Barrier::new(2));
        run(connect(link, 2), move |comm| {
            if comm.rank() == Rank(0) {
                let mut keyed = comm.keyed("not called by the other").unwrap();
                let pending = keyed.all_reduce(vec![1u32], ReduceOp::Sum);
                let mut close = comm.close();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                // The first round ends, the second does not begin.
                let waited = runtime
                    .block_on(async { tokio::time::timeout(Duration::from_millis(300), &mut close).await });
                assert!(waited.is_err(), "{link:?}");
                close.cancel();
                let error = close.wait().unwrap_err();
                assert!(matches!(error, Error::Cancelled { .. }), "{link:?}: {error}");
                step.wait();
                drop(pending);
            } else {
                let error = comm.close().wait().unwrap_err();
                assert!(matches!(error, Error::Aborted { .. }), "{link:?}: {error}");
                step.wait();
            }
        });
    }
}

/// An end is told once, and a failure is not followed by anything that looks like success.
#[test]
fn a_close_that_has_ended_is_not_polled_again() {
    let panics = |close: &mut hcomm::Close| {
        let polled = std::panic::AssertUnwindSafe(|| {
            let _ = std::pin::Pin::new(close).poll(&mut Context::from_waker(Waker::noop()));
        });
        std::panic::catch_unwind(polled).is_err()
    };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for is_cancelled in [false, true] {
        let step = std::sync::Arc::new(std::sync::Barrier::new(2));
        run(connect(crate::common::Link::Memory, 2), move |comm| {
            let is_first = comm.rank() == Rank(0);
            if is_cancelled && !is_first {
                step.wait();
            }
            let mut close = comm.close();
            if is_cancelled && is_first {
                close.cancel();
                step.wait();
            }
            let ended = runtime().block_on(&mut close);
            assert_eq!(ended.is_err(), is_cancelled, "{ended:?}");
            assert!(panics(&mut close) && panics(&mut close));
        });
    }
}

#[cfg(feature = "testing")]
mod simulated {
    use hcomm::testing::World;

    use super::*;
    use crate::common::Random;

    /// Messages in all directions and collectives, all detached but what is received; whoever has closed is killed, or not.
    fn close_with_all_under_way(seed: u64, is_killed: bool) {
        let n = [3, 4, 5, 8][seed as usize % 4];
        let mut world = World::new(n).seed(seed).delay(Duration::from_millis(1)..Duration::from_millis(20));
        if !is_killed {
            world = world.loss(0.03).duplicate(0.03).reorder(0.1);
        }
        let results = world.run(|mut comm, net| async move {
            let me = comm.rank();
            let mut random = Random(seed << 8 | u64::from(me.0));
            let others = (0..n as u32).filter(|rank| *rank != me.0);
            let count = |from: u32, to: u32| if (from + to).is_multiple_of(2) { LARGE } else { 100 };
            tokio::time::sleep(random.millis(30)).await;
            let mut received = Vec::new();
            for other in others {
                drop(comm.send(Rank(other), 1, vec![me.0; count(me.0, other)]));
                received.push((other, comm.recv(Rank(other), 1, vec![0u32; count(other, me.0)])));
            }
            let sum = comm.all_reduce(vec![1u32; 50_000], ReduceOp::Sum);
            let keyed = comm.keyed("a").unwrap().broadcast(vec![me.0 + 7; 50_000], Rank(1));
            let closed = comm.close().await;
            // All of it is there: what others do from here on changes nothing.
            for (other, received) in received {
                let got = received.await.unwrap_or_else(|error| panic!("seed {seed}: {me}: {error}"));
                assert!(got.iter().all(|of| *of == other), "seed {seed}");
            }
            assert!(sum.await.unwrap() == vec![n as u32; 50_000], "seed {seed}");
            assert!(keyed.await.unwrap() == vec![8; 50_000], "seed {seed}");
            closed.unwrap_or_else(|error| panic!("seed {seed}: {me}: {error}"));
            if is_killed {
                net.kill(me);
                std::future::pending::<()>().await;
            }
        });
        assert_eq!(results.into_iter().flatten().count(), if is_killed { 0 } else { n });
    }

    /// Each calls when it likes, one of them not at all.
    fn leave_at_some_time(seed: u64) {
        let mut random = Random(seed);
        let n = [3, 4, 5, 8, 9][seed as usize % 5];
        let algorithm = random.one_of(&ALGORITHMS);
        let (count, leaver) = (random.one_of(&[10, 30_000]), random.below(n));
        let world = World::new(n).seed(seed).delay(Duration::from_millis(1)..Duration::from_millis(20));
        let results = world.run(|mut comm, _| async move {
            let me = comm.rank();
            tokio::time::sleep(Random(seed << 8 | u64::from(me.0)).millis(40)).await;
            if me.index() == leaver {
                return None;
            }
            let began = tokio::time::Instant::now();
            let error = sum(&mut comm, algorithm, count).await.unwrap_err().error;
            let waited = began.elapsed();
            tokio::time::sleep(Duration::from_secs(30)).await;
            Some((error, waited))
        });
        for (rank, result) in results.into_iter().enumerate() {
            let result = result.unwrap();
            assert_eq!(result.is_none(), rank == leaver);
            let Some((error, waited)) = result else { continue };
            let context = format!("seed {seed}: {n} {algorithm:?} {count}: {rank}");
            let is_it = matches!(&error, Error::Left { rank, .. } if rank.index() == leaver);
            assert!(is_it && waited < Duration::from_secs(1), "{context}: {error} after {waited:?}");
        }
    }

    /// One closes while the others go on, and its process ends when that fails.
    fn close_and_end(seed: u64) {
        let n = [2, 3, 4, 5, 8][seed as usize % 5];
        let world = World::new(n).seed(seed).delay(Duration::from_millis(1)..Duration::from_millis(20));
        let results = world.run(|mut comm, net| async move {
            let me = comm.rank();
            comm.barrier().await.unwrap();
            tokio::time::sleep(Random(seed << 8 | u64::from(me.0)).millis(40)).await;
            if me == Rank(1) {
                comm.close().await.unwrap_err();
                net.kill(me);
                return std::future::pending().await;
            }
            let began = tokio::time::Instant::now();
            loop {
                let error = comm.all_reduce(vec![1u32], ReduceOp::Sum).await.unwrap_err().error;
                let waited = began.elapsed();
                let context = format!("seed {seed}: {n} ranks, {me} after {waited:?}: {error}");
                assert!(waited < Duration::from_secs(25), "{context}");
                match &error {
                    Error::PeerLost { rank: Rank(1), .. } | Error::Left { rank: Rank(1), .. } => break,
                    Error::Mismatch { calls, .. } => {
                        assert!(calls.iter().any(|(_, call)| call.operation == "close"), "{context}");
                    }
                    Error::Aborted { .. } => {}
                    _ => panic!("{context}"),
                }
            }
        });
        assert_eq!(results.into_iter().flatten().count(), n - 1);
    }

    #[test]
    fn a_close_that_fails_is_told_as_it_is_when_its_process_ends() {
        (0..60).for_each(close_and_end);
    }

    #[test]
    fn all_are_told_at_once_who_has_left_without_calling() {
        (0..40).for_each(leave_at_some_time);
    }

    #[test]
    fn all_that_was_sent_has_arrived_when_a_close_ends() {
        (0..12).for_each(|seed| close_with_all_under_way(seed, false));
    }

    #[test]
    fn processes_may_end_once_they_have_closed() {
        (0..12).for_each(|seed| close_with_all_under_way(seed, true));
    }
}

#[test]
fn a_close_that_goes_well_reports_nothing() {
    for link in LINKS {
        let path = std::env::temp_dir().join(format!("hcomm-close-{link:?}-{}", std::process::id()));
        let (report, begun) = (path.clone(), Arc::new(Barrier::new(3)));
        run(connect(link, 3), move |comm| {
            comm.report_to(&report).unwrap();
            for peer in 0..3 {
                // Nobody sends it, and nobody awaits it.
                drop(comm.recv(peer, 1, vec![0u8; 1]));
            }
            begun.wait();
            comm.close().wait().unwrap();
        });
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "", "{link:?}");
        std::fs::remove_file(&path).unwrap();
    }
}

/// Whoever has begun to close sends nothing more, and takes nothing more; what it sent before is there.
#[test]
fn who_closes_has_left_for_those_who_wait_for_its_messages() {
    for link in LINKS {
        for n in [2, 3, 5] {
            let begun = Arc::new(Barrier::new(n));
            run(connect(link, n), move |mut comm| {
                // Nobody's deadline ends anything here.
                comm.set_deadline(GENEROUS * 2);
                let (leaver, last) = (Rank(1), Rank(n as u32 - 1));
                if comm.rank() == leaver {
                    drop(comm.send(last, 1, vec![7u8; 10]));
                    drop(comm.send(last, 1, vec![8u8; LARGE]));
                    if last == leaver {
                        // To itself, and never received.
                        let to_itself = comm.recv(leaver, 2, vec![0u8; 1]);
                        let unreceived = comm.send(leaver, 3, vec![0u8; 1]);
                        begun.wait();
                        let closing = comm.close();
                        is_left(to_itself, leaver);
                        is_left(unreceived, leaver);
                        return closing.wait().unwrap();
                    }
                    begun.wait();
                    return comm.close().wait().unwrap();
                }
                let waiting = comm.recv(leaver, 9, vec![0u8; 4]);
                let offered = comm.send(leaver, 9, vec![0u8; LARGE]);
                begun.wait();
                is_left(waiting, leaver);
                is_left(offered, leaver);
                // The same for those that begin now, whatever else has come.
                is_left(comm.recv(leaver, 2, vec![0u8; 4]), leaver);
                is_left(comm.send(leaver, 2, vec![0u8; LARGE]), leaver);
                // A small one has been sent, as before, and is lost.
                drop(comm.send(leaver, 2, vec![0u8; 1]).wait());
                if comm.rank() == last {
                    assert_eq!(comm.recv(leaver, 1, vec![0u8; 10]).wait().unwrap(), [7; 10], "{link:?} {n}");
                    let large = comm.recv(leaver, 1, vec![0u8; LARGE]).wait().unwrap();
                    assert!(large.iter().all(|of| *of == 8), "{link:?} {n}");
                    is_left(comm.recv(leaver, 1, vec![0u8; 10]), leaver);
                }
                comm.close().wait().unwrap();
            });
        }
    }
}

fn is_left<B: hcomm::Lend>(operation: Operation<B>, leaver: Rank) {
    match operation.wait() {
        Err(failed) => {
            assert!(matches!(&failed.error, Error::Left { rank, .. } if *rank == leaver), "{}", failed.error);
        }
        Ok(_) => panic!("nobody is there to send or take it"),
    }
}
