//! Processes of one host share memory by themselves; where they can't, they say why and use TCP.

#[path = "shared/big.rs"]
mod big;
mod common;
#[path = "common/events.rs"]
mod events;
#[path = "shared/hosts.rs"]
mod hosts;
#[path = "shared/jobs.rs"]
mod jobs;
#[path = "shared/lender.rs"]
mod lender;
#[path = "shared/limits.rs"]
mod limits;
#[path = "shared/lost.rs"]
mod lost;
#[path = "shared/refused.rs"]
mod refused;
#[path = "shared/segments.rs"]
mod segments;
#[path = "shared/strangers.rs"]
mod strangers;
#[path = "shared/taken.rs"]
mod taken;
#[path = "shared/world.rs"]
mod world;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use common::GENEROUS;
use common::processes::{SCENARIO, own, say};
use hcomm::{Builder, Communicator, InitError, LinkKind, Operation, Rank, ReduceOp};
use world::World;

/// What a process of a world does, told by the environment; nothing in the test run itself.
#[test]
fn child() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    match scenario.as_str() {
        "work" => work(),
        "by host" => hosts::work_by_host(),
        "join and leave" => taken::join_and_leave(),
        "jobs" => jobs::split_and_split(),
        "limited" => limits::work_within_limits(),
        "drop" => segments::drop_what_was_lent(),
        "few descriptors" => segments::work_without_descriptors(),
        "refused" => refused::work_and_read(),
        "reduce" => lost::reduce_until_told(),
        "one kind" => lost::one_kind_until_told(),
        other => panic!("no scenario {other}"),
    }
    // As a program that ends: nothing is waited for.
    std::process::exit(0);
}

/// What a process waits by.
const HOW: &str = "HCOMM_TEST_HOW";
const HOWS: [&str; 3] = ["current thread", "multi thread", "wait"];

fn join() -> Result<Communicator, InitError> {
    Builder::from_env()?.operation_deadline(GENEROUS).connect_blocking()
}

/// Says how it reaches the others, and computes with them.
fn work() {
    let mut comm = match join() {
        Ok(comm) => comm,
        Err(error) => {
            let class = match &error {
                InitError::Environment { .. } => "environment",
                InitError::SharedMemory { .. } => "shared memory",
                _ => "other",
            };
            return say(&format!("not joined, {class}: {error}"));
        }
    };
    say_links(&comm);
    match std::env::var(HOW).as_deref() {
        Ok("current thread") => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(all_kinds(&mut comm, false));
        }
        Ok("multi thread") => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(2).enable_all().build().unwrap().block_on(all_kinds(&mut comm, false));
        }
        _ => all_kinds_waiting(&mut comm),
    }
    comm.close().wait().unwrap();
    say("done");
}

fn say_links(comm: &Communicator) {
    say(&format!("links {}", serde_json::to_string(&comm.links()).unwrap()));
}

fn all_kinds_waiting(comm: &mut Communicator) {
    let done = pin!(all_kinds(comm, true)).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(done, Poll::Ready(()));
}

async fn end(operation: Operation<Vec<u32>>, wait: bool) -> Vec<u32> {
    if wait { operation.wait().unwrap() } else { operation.await.unwrap() }
}

/// Each kind of operation, from what fits a header's line to what fills rings many times, every element checked.
async fn all_kinds(comm: &mut Communicator, wait: bool) {
    let (me, n) = (comm.rank().0, comm.size());
    let all = 0..n as u32;
    for bytes in [8usize, 64 << 10, 3 << 20] {
        let count = bytes / 4;
        let value = |rank: u32, index: usize| rank * 31 + index as u32;
        let own = || (0..count).map(|index| value(me, index)).collect::<Vec<u32>>();
        let sum = |index: usize| all.clone().map(|rank| value(rank, index)).sum::<u32>();
        let is = |got: &[u32], expected: &dyn Fn(usize) -> u32| {
            got.iter().enumerate().all(|(index, value)| *value == expected(index))
        };
        let sums = end(comm.all_reduce(own(), ReduceOp::Sum), wait).await;
        assert!(is(&sums, &sum), "all_reduce of {bytes} bytes");
        for root in all.clone() {
            let got = end(comm.broadcast(own(), Rank(root)), wait).await;
            assert!(is(&got, &|index| value(root, index)), "broadcast of {bytes} bytes");
        }
        let part = count.div_ceil(n);
        let mut parts = vec![0; part * n];
        parts[me as usize * part..][..part].fill(me + 1);
        let gathered = end(comm.all_gather(parts), wait).await;
        assert!(is(&gathered, &|index| (index / part) as u32 + 1), "all_gather of {bytes} bytes");
        let whole: Vec<u32> = (0..part * n).map(|index| value(me, index)).collect();
        let scattered = end(comm.reduce_scatter(whole, ReduceOp::Sum), wait).await;
        let first = me as usize * part;
        let mine = &scattered[first..][..part];
        assert!(is(mine, &|index| sum(first + index)), "reduce_scatter of {bytes} bytes");
        let (next, previous) = ((me + 1) % n as u32, (me + n as u32 - 1) % n as u32);
        let sent = comm.send(Rank(next), 7, own());
        let got = end(comm.recv(Rank(previous), 7, vec![0; count]), wait).await;
        assert!(is(&got, &|index| value(previous, index)), "a message of {bytes} bytes");
        end(sent, wait).await;
    }
}

#[test]
fn processes_share_memory_by_themselves() {
    for n in [2, 3] {
        for how in HOWS {
            let mut world = World::new("work", n).start(|_| {
                let mut command = own();
                command.env(HOW, how);
                command
            });
            world.assert_all_linked(LinkKind::SharedMemory, Some(""));
            world.end(None);
            assert!((0..n).all(|rank| world.says(rank, "done").is_empty()), "{:?}", world.said);
        }
    }
}

fn wanting(wanted: &str) -> World {
    World::new("work", 2).start(|_| {
        let mut command = own();
        command.env("HCOMM_SHARED_MEMORY", wanted);
        command
    })
}

#[test]
fn the_environment_says_whether_memory_is_shared() {
    for (wanted, kind) in
        [("auto", LinkKind::SharedMemory), ("require", LinkKind::SharedMemory), ("never", LinkKind::Tcp)]
    {
        let mut world = wanting(wanted);
        world.assert_all_linked(kind, Some(""));
        world.end(None);
        assert!((0..2).all(|rank| world.says(rank, "done").is_empty()), "{:?}", world.said);
    }
    for odd in ["sometimes", "Never", "1"] {
        let mut world = wanting(odd);
        for rank in 0..2 {
            let error = world.says(rank, "not joined, environment: ");
            assert!(error.contains("HCOMM_SHARED_MEMORY") && error.contains(odd), "{error}");
        }
        world.end(None);
    }
}

#[test]
fn one_process_that_wants_no_shared_memory_is_reached_by_tcp() {
    for (unwilling, other) in [(0, 1), (1, 0)] {
        let mut world = World::new("work", 2).start(|rank| {
            let mut command = own();
            command.env("HCOMM_SHARED_MEMORY", if rank == unwilling { "never" } else { "auto" });
            command
        });
        world.assert_all_linked(LinkKind::Tcp, None);
        let reason = |links: Vec<hcomm::LinkReport>, peer: usize| links[peer].reason.clone();
        assert_eq!(reason(world.links(unwilling), other), "");
        let told = reason(world.links(other), unwilling);
        assert!(told.contains("the other rank does not want it"), "{told}");
        world.end(None);
    }
}

#[test]
fn where_one_must_and_another_does_not_want_to_all_are_told() {
    for unwilling in 0..3 {
        let mut world = World::new("work", 3).start(|rank| {
            let mut command = own();
            command.env("HCOMM_SHARED_MEMORY", if rank == unwilling { "never" } else { "require" });
            command
        });
        (0..3).for_each(|rank| {
            let error = world.says(rank, "not joined, shared memory: ");
            assert!(error.contains("the other rank does not want it"), "{error}");
            assert!(error.contains(&format!("{unwilling}")), "{error}");
        });
        world.end(None);
    }
}
