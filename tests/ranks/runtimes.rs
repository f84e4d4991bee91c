//! Whoever drives: every flavour of runtime, several in turn, none, and one that is busy.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use crate::common::processes::passes_alone;
use crate::common::{LINKS, Link, Random, WATCHDOG, assert_usable, connect, run, world};
use crate::idle::{QUIET, assert_nothing_goes_on};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use hcomm::path::Algorithm;
use hcomm::{Communicator, Operation, Rank, ReduceOp};
use tokio::runtime::{Builder, Runtime};

const SIZES: [usize; 4] = [1, 1000, 40_000, 300_000];
/// Set in a process in which nothing else goes on.
const CHILD: &str = "HCOMM_TEST_CHILD";

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Some operations, checked, one after another.
async fn work(comm: &mut Communicator, rounds: usize) {
    let (me, n) = (comm.rank().0, comm.size() as u32);
    for round in 0..rounds {
        let count = SIZES[round % SIZES.len()];
        let sum = comm.all_reduce(vec![me; count], ReduceOp::Sum).await.unwrap();
        assert_eq!(sum, vec![n * (n - 1) / 2; count]);
        let root = round as u32 % n;
        let got = comm.broadcast(vec![me + 5; count], Rank(root)).await.unwrap();
        assert_eq!(got, vec![root + 5; count]);
    }
}

fn within<F: Future>(runtime: &Runtime, future: F) -> F::Output {
    runtime.block_on(async { tokio::time::timeout(WATCHDOG, future).await.expect("it hangs") })
}

#[test]
fn a_runtime_per_rank_of_either_flavour() {
    for link in LINKS {
        for flavour in [current_thread, multi_thread] {
            world(link, 3, move |mut comm| within(&flavour(), work(&mut comm, 12)));
        }
    }
}

#[test]
fn ranks_of_different_flavours_and_none() {
    for link in LINKS {
        world(link, 4, move |mut comm| match comm.rank().0 {
            0 => within(&current_thread(), work(&mut comm, 12)),
            1 => within(&multi_thread(), work(&mut comm, 12)),
            _ => futures_blocking(&mut comm, 12),
        });
    }
}

fn futures_blocking(comm: &mut Communicator, rounds: usize) {
    let (me, n) = (comm.rank().0, comm.size() as u32);
    for round in 0..rounds {
        let count = SIZES[round % SIZES.len()];
        let sum = comm.all_reduce(vec![me; count], ReduceOp::Sum).wait().unwrap();
        assert_eq!(sum, vec![n * (n - 1) / 2; count]);
        let root = round as u32 % n;
        let got = comm.broadcast(vec![me + 5; count], Rank(root)).wait().unwrap();
        assert_eq!(got, vec![root + 5; count]);
    }
}

#[test]
fn all_ranks_as_tasks_of_one_current_thread_runtime() {
    for link in LINKS {
        for n in [2, 4] {
            let mut ranks = connect(link, n);
            within(&current_thread(), join_all(ranks.iter_mut().map(|comm| work(comm, 12))));
        }
    }
}

#[test]
fn all_ranks_as_tasks_of_one_multi_thread_runtime() {
    for link in LINKS {
        for n in [2, 4] {
            let tasks = connect(link, n).into_iter().map(|mut comm| async move { work(&mut comm, 12).await });
            let runtime = multi_thread();
            let tasks: Vec<_> = tasks.map(|task| runtime.spawn(task)).collect();
            for ended in within(&runtime, join_all(tasks)) {
                ended.unwrap();
            }
        }
    }
}

#[test]
fn one_communicator_on_runtimes_in_turn_and_then_on_none() {
    for link in LINKS {
        world(link, 2, move |mut comm| {
            let me = comm.rank().0;
            for flavour in [current_thread, multi_thread, current_thread] {
                within(&flavour(), work(&mut comm, 4));
            }
            // Begun, and even slept on, under a runtime that goes; ended without one.
            let runtime = current_thread();
            let mut kept = runtime.block_on(async {
                let mut reduced = comm.all_reduce(vec![me; 200_000], ReduceOp::Sum);
                match tokio::time::timeout(Duration::from_millis(2), &mut reduced).await {
                    Ok(sum) => Err(sum.unwrap()),
                    Err(_) => Ok(reduced),
                }
            });
            drop(runtime);
            if me == 0 {
                std::thread::sleep(Duration::from_millis(50));
            }
            if let Ok(mut reduced) = kept {
                let ended = within(&multi_thread(), async {
                    tokio::time::timeout(Duration::from_millis(1), &mut reduced).await
                });
                kept = Err(ended.unwrap_or_else(|_| reduced.wait()).unwrap());
            }
            assert_eq!(kept.err().unwrap(), vec![1; 200_000]);
            futures_blocking(&mut comm, 4);
        });
    }
}

/// A receive sleeps under a runtime that is dropped before the message comes.
#[test]
fn a_runtime_is_dropped_while_an_operation_sleeps_on_it() {
    for link in LINKS {
        let step = Arc::new(Barrier::new(2));
        world(link, 2, move |mut comm| {
            for count in [10usize, 100_000] {
                if comm.rank() == Rank(0) {
                    let runtime = current_thread();
                    let mut received = comm.recv(Rank(1), 1, vec![0u32; count]);
                    runtime.block_on(async {
                        let early = tokio::time::timeout(Duration::from_millis(20), &mut received).await;
                        assert!(early.is_err());
                    });
                    drop(runtime);
                    step.wait();
                    assert_eq!(received.wait().unwrap(), vec![3; count]);
                } else {
                    step.wait();
                    comm.send(Rank(0), 1, vec![3u32; count]).wait().unwrap();
                }
            }
            assert_usable(&mut comm);
        });
    }
}

/// One rank has begun its part and then keeps its only executor thread busy; the others need what passes through it.
#[test]
fn a_rank_that_blocks_its_executor_forwards_all_the_same() {
    type Begin = fn(&mut Communicator) -> Operation<Vec<u32>>;
    const BEGIN: [Begin; 4] = [
        |comm| comm.using(Algorithm::BinomialTree).broadcast(vec![1; 500_000], Rank(0)),
        |comm| comm.using(Algorithm::BinomialTree).broadcast(vec![1; 100], Rank(0)),
        |comm| comm.using(Algorithm::MeshTwoShot).all_reduce(vec![1; 400_000], ReduceOp::Sum),
        |comm| comm.using(Algorithm::HalvingDoubling).all_reduce(vec![1; 1000], ReduceOp::Sum),
    ];
    for link in LINKS {
        for (case, begin) in BEGIN.into_iter().enumerate() {
            for busy in [1u32, 2] {
                let (ended, all_ended) = mpsc::channel();
                let all_ended = Arc::new(std::sync::Mutex::new(all_ended));
                world(link, 4, move |mut comm| {
                    let runtime = current_thread();
                    let me = comm.rank().0;
                    within(&runtime, async {
                        assert_eq!(comm.all_reduce(vec![1u8], ReduceOp::Sum).await.unwrap(), [4]);
                        // After a pause nobody watches this rank closely.
                        std::thread::sleep(Duration::from_millis(if case % 2 == 0 { 0 } else { 250 }));
                        let operation = begin(&mut comm);
                        if me == busy {
                            // Blocks its thread until the others have ended, however long they take: they must not need it.
                            let others = all_ended.lock().unwrap();
                            for _ in 0..3 {
                                let other = others.recv_timeout(Duration::from_secs(10));
                                other.unwrap_or_else(|_| {
                                    panic!("{link:?} case {case}: others wait for busy rank {busy}")
                                });
                            }
                        }
                        let result = operation.await.unwrap();
                        assert!(result.iter().all(|value| *value == result[0]));
                        if me != busy {
                            ended.send(me).unwrap();
                        }
                    });
                    runtime.block_on(async { comm.barrier().await.unwrap() });
                });
            }
        }
    }
}

/// Several communicators of the same ranks.
async fn duplicates(comm: &mut Communicator, n: usize) -> Vec<Communicator> {
    let mut all = Vec::new();
    for _ in 0..n {
        all.push(comm.dup().await.unwrap());
    }
    all
}

#[test]
fn two_communicators_in_opposite_order() {
    for link in LINKS {
        world(link, 2, move |mut comm| {
            let me = comm.rank().0;
            let runtime = current_thread();
            within(&runtime, async {
                let mut two = duplicates(&mut comm, 2).await;
                for round in 0..100u32 {
                    let count = SIZES[round as usize % SIZES.len()];
                    let (first, second) = if me == 0 { (0, 1) } else { (1, 0) };
                    let one = two[first].all_reduce(vec![first as u32; count], ReduceOp::Sum);
                    let other = two[second].all_reduce(vec![second as u32; count], ReduceOp::Sum);
                    if round % 2 == 0 {
                        assert_eq!(one.await.unwrap(), vec![2 * first as u32; count]);
                        assert_eq!(other.await.unwrap(), vec![2 * second as u32; count]);
                    } else {
                        assert_eq!(one.wait().unwrap(), vec![2 * first as u32; count]);
                        assert_eq!(other.wait().unwrap(), vec![2 * second as u32; count]);
                    }
                }
            });
        });
    }
}

#[test]
fn operations_of_several_communicators_end_in_any_order_of_polling() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let me = comm.rank().0;
            within(&current_thread(), async {
                let mut all = duplicates(&mut comm, 4).await;
                for round in 0..40u64 {
                    let mut random = Random(round * 3 + u64::from(me));
                    let mut order: Vec<usize> = (0..4).collect();
                    random.shuffle(&mut order);
                    let mut begun = Vec::new();
                    for index in order {
                        let count = SIZES[(index + round as usize) % SIZES.len()];
                        begun.push((
                            index,
                            count,
                            all[index].all_reduce(vec![index as u32 + me; count], ReduceOp::Sum),
                        ));
                    }
                    random.shuffle(&mut begun);
                    let check = |index: usize, count: usize, sum: Vec<u32>| {
                        assert_eq!(sum, vec![3 * index as u32 + 3; count], "{link:?} round {round}");
                    };
                    match round % 3 {
                        0 => {
                            let futures = begun
                                .into_iter()
                                .map(|(index, count, of)| async move { (index, count, of.await) });
                            let mut unordered: FuturesUnordered<_> = futures.collect();
                            while let Some((index, count, sum)) = unordered.next().await {
                                check(index, count, sum.unwrap());
                            }
                        }
                        1 => {
                            let (last, third) = (begun.pop().unwrap(), begun.pop().unwrap());
                            let (second, first) = (begun.pop().unwrap(), begun.pop().unwrap());
                            let results = tokio::join!(last.2, first.2, third.2, second.2);
                            check(last.0, last.1, results.0.unwrap());
                            check(first.0, first.1, results.1.unwrap());
                            check(third.0, third.1, results.2.unwrap());
                            check(second.0, second.1, results.3.unwrap());
                        }
                        _ => {
                            let (mut one, mut other) = (begun.pop().unwrap(), begun.pop().unwrap());
                            tokio::select! {
                                sum = &mut one.2 => {
                                    check(one.0, one.1, sum.unwrap());
                                    check(other.0, other.1, other.2.await.unwrap());
                                }
                                sum = &mut other.2 => {
                                    check(other.0, other.1, sum.unwrap());
                                    check(one.0, one.1, one.2.await.unwrap());
                                }
                            }
                            for (index, count, of) in begun {
                                check(index, count, of.await.unwrap());
                            }
                        }
                    }
                }
            });
        });
    }
}

/// Every task of a rank has a communicator of its own and its own pace.
#[test]
fn eight_tasks_with_a_communicator_each() {
    for n in [2, 3] {
        eight_tasks(n, 60);
    }
}

#[test]
#[ignore = "takes a minute"]
fn eight_tasks_with_a_communicator_each_for_many_rounds() {
    // More than ten thousand, with all tasks, links and flavours.
    eight_tasks(3, 400);
}

fn eight_tasks(n: usize, rounds: u32) {
    for link in LINKS {
        for flavour in [current_thread, multi_thread] {
            world(link, n, move |mut comm| {
                let me = comm.rank().0;
                let runtime = flavour();
                within(&runtime, async {
                    let mut tasks = Vec::new();
                    let mut all: Vec<_> = duplicates(&mut comm, 8).await.into_iter().enumerate().collect();
                    Random(u64::from(me)).shuffle(&mut all);
                    for (index, mut own) in all {
                        tasks.push(tokio::spawn(async move {
                            let mut pace = Random(u64::from(me) * 100 + index as u64);
                            for round in 0..rounds {
                                if pace.below(4) == 0 {
                                    tokio::task::yield_now().await;
                                }
                                // Few are large where rounds are many.
                                let size = (index + round as usize) % if rounds > 100 { 40 } else { 3 };
                                let count = SIZES[if size < 3 { size } else { 0 }];
                                let sum =
                                    own.all_reduce(vec![round + me; count], ReduceOp::Sum).await.unwrap();
                                let ranks = n as u32;
                                assert_eq!(sum, vec![ranks * round + ranks * (ranks - 1) / 2; count]);
                            }
                        }));
                    }
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            });
        }
    }
}

/// In a process of its own: its threads are counted, the service thread too.
#[test]
fn waiting_costs_no_processor_time() {
    passes_alone(&[], "runtimes::child_waits", CHILD);
}

/// Ranks that wait, in each way that there is, do nothing at all, and are woken when it goes on; so do those that are
/// gone but for an operation that was dropped.
#[test]
fn child_waits() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    const RANKS: usize = 4;
    for link in LINKS {
        world(link, RANKS + 1, move |mut comm| {
            comm.set_deadline(WATCHDOG);
            if comm.rank().index() == RANKS {
                // The first looks, and what ranks tell each other after a second, are over by then.
                std::thread::sleep(Duration::from_millis(1500));
                assert_nothing_goes_on(&format!("{link:?}"), RANKS, QUIET);
                return comm.barrier().wait().unwrap();
            }
            match comm.rank().0 % 2 {
                0 => within(&current_thread(), async { comm.barrier().await.unwrap() }),
                _ => comm.barrier().wait().unwrap(),
            }
        });
        // Nobody sends what was to be received: each holds what it was lent until the deadline.
        let mut ranks = connect(link, RANKS);
        for comm in &mut ranks {
            comm.set_deadline(WATCHDOG);
            drop(comm.recv((comm.rank().0 + 1) % RANKS as u32, 0, vec![0u8]));
        }
        drop(ranks);
        std::thread::sleep(Duration::from_millis(1500));
        assert_nothing_goes_on(&format!("{link:?}, dropped"), RANKS, QUIET);
    }
}

#[test]
fn dropped_futures_and_communicators_while_others_go_on() {
    for link in [Link::Memory, Link::Tcp] {
        let ranks = connect(link, 3);
        run(ranks, move |mut comm| {
            within(&current_thread(), async {
                for round in 0..30u32 {
                    let mut child = comm.dup().await.unwrap();
                    let one = child.all_reduce(vec![round; 20_000], ReduceOp::Sum);
                    let other = child.all_reduce(vec![1u8; 10], ReduceOp::Max);
                    if round % 3 == comm.rank().0 {
                        // Both handle and futures are gone; what has begun goes on.
                        drop((one, other, child));
                    } else {
                        drop(child);
                        assert_eq!(one.await.unwrap(), vec![3 * round; 20_000], "{link:?} round {round}");
                        assert_eq!(other.await.unwrap(), [1; 10]);
                    }
                }
            });
        });
    }
}

#[test]
fn calls_that_are_over_at_once_let_other_tasks_have_their_turn() {
    // A rank alone waits for nobody.
    let [mut alone] = <[Communicator; 1]>::try_from(Communicator::local(1)).unwrap();
    within(&current_thread(), async move {
        let turns = Rc::new(Cell::new(0));
        let other = {
            let turns = turns.clone();
            async move {
                loop {
                    turns.set(turns.get() + 1);
                    tokio::task::yield_now().await;
                }
            }
        };
        let calls = async {
            for _ in 0..1000 {
                alone.barrier().await.unwrap();
            }
        };
        let local = tokio::task::LocalSet::new();
        local.spawn_local(other);
        local.run_until(calls).await;
        assert!(turns.get() > 3, "another task had {} turns beside 1000 calls", turns.get());
    });
}
