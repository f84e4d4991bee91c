//! What waiting costs: the processor time of idle ranks, how long it takes to wake one, and how late a ticker is that shares
//! its runtime with large operations.
//!
//! `cargo bench --bench waiting` takes two minutes and some 5 GiB; `-- --quick` some twenty seconds, and fails if idle ranks
//! do anything at all.

#![allow(clippy::print_stdout, reason = "it reports")]

#[path = "../tests/common/idle.rs"]
mod idle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hcomm::{Communicator, InitError, Rank, ReduceOp, SharedMemory, Tag, Token};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval};

const TICK: Duration = Duration::from_millis(1);
const IDLE_RANKS: usize = 16;
/// A rank looks for the root twice a second, and wakes up for the pause, the answer, and what tokio does for both.
const TRIES: u64 = 10;
/// The first looks, and what ranks tell each other after a second, are over by then.
const SETTLE: Duration = Duration::from_millis(1500);
/// What the windows of a quick run take, and something to spare.
const QUICK: Duration = Duration::from_secs(8);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Measures while ranks wait for `wall` in all, each on a thread of its own; a quick run has a limit instead.
fn idle<R>(what: &str, quick: Option<u64>, wall: Duration, ranks: Vec<JoinHandle<R>>) {
    let spent = if let Some(wakes_per_rank) = quick {
        std::thread::sleep(SETTLE);
        idle::assert_nothing_goes_on(what, IDLE_RANKS, wakes_per_rank)
    } else {
        // Looking for news at the beginning is part of it.
        idle::during(wall)
    };
    // Who leaves is told to those that wait a moment longer: nobody does before all are done.
    let done: Vec<R> = ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect();
    drop(done);
    println!(
        "{IDLE_RANKS} ranks {what}: in {:.1?} {:.3} % of one processor in all, {} wake-ups",
        spent.wall,
        spent.percent(),
        spent.sleeps
    );
}

/// Each rank, a thread with a runtime of its own, waits for a message.
fn receives(what: &str, quick: Option<u64>, wall: Duration, ranks: Vec<Communicator>) {
    let receive = |comm: Communicator| {
        std::thread::spawn(move || {
            runtime().block_on(async move {
                let from = Rank((comm.rank().0 + 1) % comm.size() as u32);
                let receive = comm.recv(from, Tag(0), vec![0u8; 8]);
                let over = tokio::time::timeout(wall, receive).await.is_err();
                assert!(over, "nothing was sent");
                comm
            })
        })
    };
    idle(what, quick, wall, ranks.into_iter().map(receive).collect());
}

/// The ranks from `first` on of a world that begin to meet, each a process to the others.
fn meet(
    (first, world): (usize, usize),
    deadline: Duration,
    shared: SharedMemory,
) -> Vec<JoinHandle<Result<Communicator, InitError>>> {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
    let token = Token::random().expect("random bytes");
    let join = |rank: usize| {
        let builder = Communicator::builder().rank(rank as u32).world(world as u32);
        let builder = builder.token(token.clone()).shared_memory(shared);
        let connect = builder.root(free.to_string()).rendezvous_deadline(deadline).connect();
        std::thread::spawn(move || runtime().block_on(connect))
    };
    (first..world.min(first + IDLE_RANKS)).map(join).collect()
}

/// All ranks of a world.
fn all(world: usize, shared: SharedMemory) -> Vec<Communicator> {
    let ranks = meet((0, world), Duration::from_secs(60), shared).into_iter();
    ranks.map(|rank| rank.join().expect("a rank").expect("a world")).collect()
}

/// Ranks that wait: for a message on each link, and for a rank that does not come to set-up.
fn idle_ranks(quick: bool, wall: Duration) {
    let quick = quick.then_some(idle::QUIET);
    receives("in a pending receive, memory", quick, wall, Communicator::local(IDLE_RANKS));
    let shared = all(IDLE_RANKS, SharedMemory::Require);
    receives("in a pending receive, shared memory", quick, wall, shared);
    receives("in a pending receive, TCP", quick, wall, all(IDLE_RANKS, SharedMemory::Never));
    idle("in set-up, the last rank absent", quick, wall, meet((0, IDLE_RANKS + 1), wall, SharedMemory::Auto));
    idle(
        "in set-up, the root absent",
        quick.map(|_| TRIES),
        wall,
        meet((1, IDLE_RANKS + 1), wall, SharedMemory::Auto),
    );
}

/// How late each tick is, in order of lateness.
async fn ticks(count: usize) -> Vec<Duration> {
    let mut ticker = interval(TICK);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticker.tick().await;
    let mut late = Vec::with_capacity(count);
    while late.len() < count {
        let due = ticker.tick().await;
        late.push(due.elapsed());
    }
    late.sort_unstable();
    late
}

fn show(what: &str, late: &[Duration]) {
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{what:<44} {:>6} ticks, late by p50 {:.3} ms, p99 {:.3} ms, at most {:.3} ms",
        late.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// A 1 ms ticker and repeated all_reduces on the same current-thread runtime, as rank 0 of two.
fn beside(bytes: usize, count: usize) {
    let ranks: Vec<_> = Communicator::local(2)
        .into_iter()
        .map(|mut comm| {
            std::thread::spawn(move || {
                runtime().block_on(async move {
                    let mut buffer = vec![1f32; bytes / 4];
                    let ticker = (comm.rank() == Rank(0)).then(|| tokio::spawn(ticks(count)));
                    let mut rounds = 0;
                    loop {
                        let done = ticker.as_ref().is_some_and(|ticker| ticker.is_finished());
                        let stop =
                            comm.all_reduce(vec![u8::from(done)], ReduceOp::Max).await.expect("agreement");
                        if stop[0] == 1 {
                            break;
                        }
                        buffer = comm.all_reduce(buffer, ReduceOp::Max).await.expect("an all_reduce");
                        rounds += 1;
                    }
                    match ticker {
                        Some(ticker) => Some((ticker.await.expect("the ticker"), rounds)),
                        None => None,
                    }
                })
            })
        })
        .collect();
    for rank in ranks {
        if let Some((late, rounds)) = rank.join().expect("a rank") {
            show(&format!("beside {rounds} all_reduces of {} MiB", bytes >> 20), &late);
        }
    }
}

/// Long enough to be asleep by then.
const PAUSE: Duration = Duration::from_millis(3);

/// The median of how long each of these takes from one thread to another that sleeps: `send` gets the time, `receive` gives it
/// back when it has come.
fn one_way(
    count: usize,
    mut send: impl FnMut(u64) + Send + 'static,
    mut receive: impl FnMut() -> u64,
) -> Duration {
    let begun = Instant::now();
    let sender = std::thread::spawn(move || {
        for _ in 0..count {
            std::thread::sleep(PAUSE);
            send(begun.elapsed().as_nanos() as u64);
        }
    });
    let late = |_| {
        // What came is looked at before the time is.
        let sent_at = Duration::from_nanos(receive());
        begun.elapsed().saturating_sub(sent_at)
    };
    let mut late: Vec<Duration> = (0..count).map(late).collect();
    sender.join().expect("a sender");
    late.sort_unstable();
    late[count / 2]
}

/// A descriptor of the system, that a thread sleeps on.
fn raw_wake(count: usize) -> Duration {
    let bell = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("an eventfd"));
    let sent_at = Arc::new(AtomicU64::new(0));
    let (far, sent) = (bell.clone(), sent_at.clone());
    let send = move |at: u64| {
        sent.store(at, Ordering::SeqCst);
        rustix::io::write(&*far, &1u64.to_ne_bytes()).expect("a counter that is not full");
    };
    let rings = std::cell::Cell::new(0);
    one_way(count, send, || {
        if rings.get() == 0 {
            let mut bytes = [0; 8];
            rustix::io::read(&*bell, &mut bytes).expect("a number");
            rings.set(u64::from_ne_bytes(bytes));
        }
        rings.set(rings.get() - 1);
        sent_at.load(Ordering::SeqCst)
    })
}

/// A message of eight bytes to a rank that sleeps, in such a runtime.
fn message_wake(count: usize, shared: SharedMemory, runtime: &Runtime) -> Duration {
    let mut ranks = all(2, shared);
    let (receiver, sender) = (ranks.remove(0), ranks.remove(0));
    let send = move |at| drop(sender.send(Rank(0), Tag(0), vec![at]).wait());
    one_way(count, send, || {
        runtime.block_on(receiver.recv(Rank(1), Tag(0), vec![0u64])).expect("a message")[0]
    })
}

/// What waking costs, beside what the system takes for it.
fn wakes(count: usize) {
    let many = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let raw = raw_wake(count);
    println!("one way to a thread that sleeps, eventfd: {:.1} us", raw.as_secs_f64() * 1e6);
    for (shared, link) in [(SharedMemory::Require, "shared memory"), (SharedMemory::Never, "TCP")] {
        for (runtime, flavour) in [(&runtime(), "current-thread"), (&many, "multi-thread")] {
            let late = message_wake(count, shared, runtime);
            println!(
                "one way to a rank that sleeps, {link}, {flavour}: {:.1} us, {:.2} times that",
                late.as_secs_f64() * 1e6,
                late.as_secs_f64() / raw.as_secs_f64()
            );
        }
    }
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let (wall, count, bytes) = match quick {
        true => (QUICK, 200, 16 << 20),
        false => (Duration::from_secs(10), 5000, 1 << 30),
    };
    idle_ranks(quick, wall);
    wakes(if quick { 50 } else { 1000 });
    show("the ticker alone", &runtime().block_on(async { tokio::spawn(ticks(count)).await.expect("ticks") }));
    beside(bytes, count);
}
