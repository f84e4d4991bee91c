//! What waiting costs others: the processor time of idle ranks, and how late a ticker is that shares its runtime with
//! large operations.
//!
//! `cargo bench --bench waiting` takes two minutes and some 5 GiB; `-- --quick` a few seconds.

#![allow(clippy::print_stdout, reason = "it reports")]

use std::time::{Duration, Instant};

use hcomm::{Communicator, Rank, ReduceOp, Tag};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval};

const TICK: Duration = Duration::from_millis(1);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sixteen ranks, each a thread with a runtime of its own, wait for a message.
fn idle(wall: Duration) {
    let ranks: Vec<_> = Communicator::local(16)
        .into_iter()
        .map(|comm| {
            std::thread::spawn(move || {
                runtime().block_on(async move {
                    let from = Rank((comm.rank().0 + 1) % comm.size() as u32);
                    let receive = comm.recv(from, Tag(0), vec![0u8; 8]);
                    let over = tokio::time::timeout(wall, receive).await.is_err();
                    assert!(over, "nothing was sent");
                });
            })
        })
        .collect();
    // Spinning at the beginning is part of it.
    let (began, used) = (Instant::now(), cpu_time());
    for rank in ranks {
        rank.join().expect("a rank");
    }
    let share = (cpu_time() - used).as_secs_f64() / began.elapsed().as_secs_f64();
    println!("16 ranks in a pending receive for {wall:?}: {:.3} % of one processor in all", share * 100.0);
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
        true => (Duration::from_secs(1), 200, 16 << 20),
        false => (Duration::from_secs(10), 5000, 1 << 30),
    };
    idle(wall);
    show("the ticker alone", &runtime().block_on(async { tokio::spawn(ticks(count)).await.expect("ticks") }));
    beside(bytes, count);
}
