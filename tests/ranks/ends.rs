//! Ends of programs: communicator, sub-group, futures, runtime and buffers go in any order, inside of a runtime and outside
//! of it, or the process just exits.

use std::time::Duration;

use crate::common::processes::{Processes, Role, say};
use crate::common::{LINKS, assert_usable, class, connect, meeting_place, run, world};
use hcomm::{Communicator, Error, Operation, Rank, ReduceOp, blocking};
use tokio::runtime::Runtime;

const COUNT: usize = 50_000;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// What a program has at its end.
#[derive(Default)]
struct Things {
    communicator: Option<Communicator>,
    group: Option<Communicator>,
    runtime: Option<Runtime>,
    /// Operations in flight: polled once on the runtime, or not at all; by value, and borrowed.
    futures: Vec<Operation<Vec<u32>>>,
    borrowed: Option<Operation<&'static mut [u32]>>,
}

impl Things {
    /// Each operation in flight needs all ranks.
    fn of(mut communicator: Communicator) -> Things {
        let runtime = runtime();
        let mut group = blocking::split(&mut communicator, Some(0), 0).unwrap().unwrap();
        let sum = |comm: &mut Communicator| comm.all_reduce(vec![1u32; COUNT], ReduceOp::Sum);
        let mut futures = vec![sum(&mut communicator), sum(&mut group), sum(&mut communicator)];
        let slept = async { tokio::time::timeout(Duration::from_micros(1), &mut futures[0]).await };
        if let Ok(sum) = runtime.block_on(slept) {
            assert!(sum.unwrap() == vec![3; COUNT]);
            drop(futures.remove(0));
        }
        let borrowed = communicator.all_reduce(vec![2u32; COUNT].leak(), ReduceOp::Sum);
        Things {
            communicator: Some(communicator),
            group: Some(group),
            runtime: Some(runtime),
            futures,
            borrowed: Some(borrowed),
        }
    }

    fn let_go(&mut self, which: usize) {
        match which {
            0 => drop(self.communicator.take()),
            1 => drop(self.group.take()),
            2 => drop(self.runtime.take()),
            3 => self.futures.clear(),
            _ => drop(self.borrowed.take()),
        }
    }
}

/// All orders of so many things.
fn orders(things: usize) -> Vec<Vec<usize>> {
    if things == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(things - 1);
    let longer = |order: &Vec<usize>| {
        (0..things).map(|at| [&order[..at], &[things - 1], &order[at..]].concat()).collect::<Vec<_>>()
    };
    shorter.iter().flat_map(longer).collect()
}

/// One rank lets go of its things in this order; the others await what it has begun.
#[test]
fn things_are_dropped_in_any_order() {
    let orders = orders(5);
    assert_eq!(orders.len(), 120);
    for link in LINKS {
        for order in &orders {
            let order = order.clone();
            run(connect(link, 3), move |comm| {
                let context = format!("{link:?} {order:?}: rank {}", comm.rank());
                let me = comm.rank();
                let mut things = Things::of(comm);
                if me == Rank(0) {
                    order.iter().for_each(|which| things.let_go(*which));
                    return;
                }
                for sum in things.futures.drain(..) {
                    let sum = sum.wait().unwrap_or_else(|error| panic!("{context}: {error}"));
                    assert!(sum == vec![3; COUNT], "{context}");
                }
                things.borrowed.take().unwrap().wait().unwrap_or_else(|error| panic!("{context}: {error}"));
                // It has left, and says so.
                let next = things.communicator.as_mut().unwrap().barrier().wait().unwrap_err().error;
                assert!(matches!(next, Error::Left { .. } | Error::Aborted { .. }), "{context}: {next}");
            });
        }
    }
}

#[test]
fn a_group_outlives_what_it_was_split_from() {
    for link in LINKS {
        world(link, 3, |mut comm| {
            let mut group = blocking::split(&mut comm, Some(0), 0).unwrap().unwrap();
            let mut inner = blocking::split(&mut group, Some(0), 0).unwrap().unwrap();
            let last = comm.all_reduce(vec![1u32; COUNT], ReduceOp::Sum);
            // Some before it ends, some later.
            if inner.rank() == Rank(1) {
                last.wait().unwrap();
                drop(comm);
            } else {
                drop((last, comm));
            }
            assert_usable(&mut group);
            let mut keyed = group.keyed("of the group").unwrap();
            keyed.barrier().wait().unwrap();
            drop((keyed, group));
            for _ in 0..3 {
                assert_usable(&mut inner);
            }
            inner.close().wait().unwrap();
        });
    }
}

/// As a task's own, in a runtime of either flavour; then with the runtime that has the task.
#[test]
fn a_communicator_is_dropped_inside_of_a_runtime() {
    let current_thread = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for link in LINKS {
        for flavour in [runtime, current_thread] {
            world(link, 3, move |mut comm| {
                let me = comm.rank();
                let mut group = blocking::dup(&mut comm).unwrap();
                let runtime = flavour();
                runtime.block_on(async {
                    let task = tokio::spawn(async move {
                        let sum = comm.all_reduce(vec![1u32; COUNT], ReduceOp::Sum).await.unwrap();
                        assert!(sum == vec![3; COUNT]);
                        let begun = comm.all_reduce(vec![2u32; COUNT], ReduceOp::Sum);
                        if me == Rank(2) { Some((begun, comm)) } else { None }
                    });
                    // What one rank has begun, the others have let go of.
                    if let Some((begun, comm)) = task.await.unwrap() {
                        assert!(begun.await.unwrap() == vec![6; COUNT]);
                        drop(comm);
                    }
                });
                let mut owned = blocking::dup(&mut group).unwrap();
                assert_usable(&mut group);
                let (sender, receiver) = std::sync::mpsc::channel();
                runtime.spawn(async move {
                    owned.barrier().await.unwrap();
                    let never = owned.recv(Rank((me.0 + 1) % 3), 1, vec![0u8; 10]);
                    sender.send(()).unwrap();
                    let _ = never.await;
                    drop(owned);
                });
                match runtime.handle().runtime_flavor() {
                    tokio::runtime::RuntimeFlavor::CurrentThread => runtime.block_on(async {
                        while receiver.try_recv().is_err() {
                            tokio::task::yield_now().await;
                        }
                    }),
                    _ => receiver.recv().unwrap(),
                }
                // With the task, its operation and its communicator.
                drop(runtime);
                assert_usable(&mut group);
            });
        }
    }
}

/// A process of a world.
pub fn child(Role { scenario, count, joined, .. }: Role) {
    let mut comm = joined.unwrap();
    let me = comm.rank();
    let mut group = blocking::split(&mut comm, Some(0), 0).unwrap().unwrap();
    let first = comm.all_reduce(vec![1u32; 3], ReduceOp::Sum).wait().map(drop).map_err(Error::from);
    let last = comm.all_reduce(vec![1u32; count], ReduceOp::Sum);
    let runtime = runtime();
    if me == Rank(0) {
        first.unwrap();
        match scenario.as_str() {
            "exit" => last.wait().map(drop).unwrap(),
            "exit in flight" => drop(runtime.spawn(last)),
            "exit inside" => runtime.block_on(async {
                last.await.unwrap();
                say("done");
                std::process::exit(0);
            }),
            other => panic!("no scenario {other}"),
        }
        say("done");
        // Communicators, group and runtime are as they were.
        std::process::exit(0);
    }
    // Nothing was said of an end, so what had not come from it by then may be lost, also of what it had done.
    let result = first.and_then(|()| last.wait().map(drop).map_err(Error::from));
    let error = result.and_then(|()| group.barrier().wait().map_err(Error::from)).unwrap_err();
    assert!(matches!(class(&error), "peer lost" | "aborted"), "{error}");
    assert!(error.to_string().contains("rank 0"), "{error}");
    say("done");
    std::process::exit(0);
}

/// Handles are not dropped then: the others are told of a lost rank, and nobody waits.
#[test]
fn a_process_exits_with_a_live_handle() {
    for scenario in ["exit", "exit in flight", "exit inside"] {
        for count in [10, 500_000] {
            let mut world = Processes::start(&format!("ends: {scenario}"), 3, count, &meeting_place(), 30);
            world.all_say("done", None);
            world.end(None);
        }
    }
}
