//! What waiting costs others: the processor time of idle ranks, and how late a ticker is that shares its runtime with
//! large operations.
//!
//! `cargo bench --bench waiting` takes two minutes and some 5 GiB; `-- --quick` some twenty seconds, and fails if idle ranks
//! do anything at all.

#![allow(clippy::print_stdout, reason = "it reports")]

#[path = "../tests/common/idle.rs"]
mod idle;

use std::thread::JoinHandle;
use std::time::Duration;

use hcomm::{Communicator, InitError, Rank, ReduceOp, Tag, Token};
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

/// The ranks from `first` on of a world that begin to meet.
fn meet(first: usize, world: usize, deadline: Duration) -> Vec<JoinHandle<Result<Communicator, InitError>>> {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
    let token = Token::random().expect("random bytes");
    let join = |rank: usize| {
        let builder = Communicator::builder().rank(rank as u32).world(world as u32).token(token.clone());
        let connect = builder.root(free.to_string()).rendezvous_deadline(deadline).connect();
        std::thread::spawn(move || runtime().block_on(connect))
    };
    (first..first + IDLE_RANKS).map(join).collect()
}

/// Ranks that wait: for a message on each link, and for a rank that does not come to set-up.
fn idle_ranks(quick: bool, wall: Duration) {
    let quick = quick.then_some(idle::QUIET);
    receives("in a pending receive, memory", quick, wall, Communicator::local(IDLE_RANKS));
    let ranks = meet(0, IDLE_RANKS, Duration::from_secs(60)).into_iter();
    let ranks = ranks.map(|rank| rank.join().expect("a rank").expect("a world")).collect();
    receives("in a pending receive, TCP", quick, wall, ranks);
    idle("in set-up, the last rank absent", quick, wall, meet(0, IDLE_RANKS + 1, wall));
    idle("in set-up, the root absent", quick.map(|_| TRIES), wall, meet(1, IDLE_RANKS + 1, wall));
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

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let (wall, count, bytes) = match quick {
        true => (QUICK, 200, 16 << 20),
        false => (Duration::from_secs(10), 5000, 1 << 30),
    };
    idle_ranks(quick, wall);
    show("the ticker alone", &runtime().block_on(async { tokio::spawn(ticks(count)).await.expect("ticks") }));
    beside(bytes, count);
}
