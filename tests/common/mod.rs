//! Worlds for tests: ranks as threads of this process, connected by memory, by memory as between processes, or by TCP, under a watchdog.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod hosts;
pub mod processes;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use hcomm::{Communicator, Error, ReduceOp, SharedMemory, Token};

/// How the ranks of a world are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Memory,
    Shm,
    Tcp,
}

pub const LINKS: [Link; 3] = [Link::Memory, Link::Shm, Link::Tcp];
/// For what takes long, and does not depend on how processes reach each other.
pub const TWO_LINKS: [Link; 2] = [Link::Memory, Link::Tcp];

/// The deadline of operations that are expected to end: only a bug reaches it.
pub const GENEROUS: Duration = Duration::from_secs(20);
/// A rank that has not ended by then hangs.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// A path that no other test uses.
pub fn meeting_place() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("hcomm-test-{}-{number}", std::process::id()))
}

/// Joins a world through a file, as a process would.
pub fn join(link: Link, rank: usize, n: usize, place: &std::path::Path, token: &Token) -> Communicator {
    Communicator::builder()
        .rank(rank as u32)
        .world(n as u32)
        .file(place)
        .token(token.clone())
        .shared_memory(if link == Link::Tcp { SharedMemory::Never } else { SharedMemory::Require })
        .rendezvous_deadline(Duration::from_secs(30))
        .operation_deadline(GENEROUS)
        .connect_blocking()
        .unwrap()
}

/// The communicators of a world of `n`, in rank order.
pub fn connect(link: Link, n: usize) -> Vec<Communicator> {
    if link == Link::Memory {
        let mut ranks = Communicator::local(n);
        ranks.iter_mut().for_each(|comm| comm.set_deadline(GENEROUS));
        return ranks;
    }
    let (place, token) = (meeting_place(), Token::random().unwrap());
    let threads: Vec<_> = (0..n)
        .map(|rank| {
            let (place, token) = (place.clone(), token.clone());
            std::thread::spawn(move || join(link, rank, n, &place, &token))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Rank 0, which serves, and its workers, which are ranks 1 and up.
pub fn server_and_workers(workers: usize) -> (Communicator, Vec<Communicator>) {
    let mut ranks = Communicator::local(workers + 1);
    let workers = ranks.split_off(1);
    (ranks.remove(0), workers)
}

/// Runs `act` as every rank of a world of `n`, each on a thread of its own; results in rank order.
pub fn world<R: Send + 'static>(
    link: Link,
    n: usize,
    act: impl Fn(Communicator) -> R + Send + Clone + 'static,
) -> Vec<R> {
    run(connect(link, n), act)
}

/// Runs `act` with each of these ranks. A rank that does not end fails the test, instead of hanging it.
pub fn run<R: Send + 'static>(
    ranks: Vec<Communicator>,
    act: impl Fn(Communicator) -> R + Send + Clone + 'static,
) -> Vec<R> {
    run_within(WATCHDOG, ranks, act)
}

/// The same for what takes long: beside other work, each of thousands of operations may wait for a processor.
pub fn run_within<R: Send + 'static>(
    watchdog: Duration,
    ranks: Vec<Communicator>,
    act: impl Fn(Communicator) -> R + Send + Clone + 'static,
) -> Vec<R> {
    run_stepwise(watchdog, ranks, move |comm, _| act(comm))
}

/// What all ranks of a test have done so far.
#[derive(Clone, Default)]
pub struct Steps(Arc<AtomicU64>);

impl Steps {
    pub fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The same, where ranks count their steps: they hang if none has counted one for that long, however long they take for all.
pub fn run_stepwise<R: Send + 'static>(
    watchdog: Duration,
    ranks: Vec<Communicator>,
    act: impl Fn(Communicator, &Steps) -> R + Send + Clone + 'static,
) -> Vec<R> {
    let steps = Steps::default();
    let (sender, receiver) = mpsc::channel();
    let n = ranks.len();
    for (rank, comm) in ranks.into_iter().enumerate() {
        let (act, sender, steps) = (act.clone(), sender.clone(), steps.clone());
        std::thread::spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(comm, &steps)));
            let _ = sender.send((rank, result));
        });
    }
    let mut results: Vec<Option<R>> = (0..n).map(|_| None).collect();
    for _ in 0..n {
        let missing =
            || results.iter().enumerate().filter(|(_, result)| result.is_none()).map(|(rank, _)| rank);
        let (rank, result) = loop {
            let before = steps.count();
            match receiver.recv_timeout(watchdog) {
                Ok(ended) => break ended,
                Err(_) if steps.count() > before => {}
                Err(_) => panic!("ranks {:?} hang after {before} steps", missing().collect::<Vec<_>>()),
            }
        };
        results[rank] =
            Some(result.unwrap_or_else(|_| panic!("rank {rank} of {n} failed; its message is above")));
    }
    results.into_iter().flatten().collect()
}

/// One operation on all ranks, with every element checked.
pub fn assert_usable(comm: &mut Communicator) {
    let (rank, n) = (comm.rank().0 as usize, comm.size());
    let input: Vec<u32> = (0..100).map(|index| (rank * 1000 + index) as u32).collect();
    let sum = comm.all_reduce(input, ReduceOp::Sum).wait().unwrap();
    for (index, value) in sum.iter().enumerate() {
        assert_eq!(*value as usize, n * (n - 1) / 2 * 1000 + n * index, "rank {rank} index {index}");
    }
}

/// The class of an error, for comparison across ranks.
pub fn class(error: &Error) -> &'static str {
    match error {
        Error::Mismatch { .. } => "mismatch",
        Error::Deadline(_) => "deadline",
        Error::PeerLost { .. } => "peer lost",
        Error::Left { .. } => "left",
        Error::Aborted { .. } => "aborted",
        Error::Cancelled { .. } => "cancelled",
        Error::InvalidArgument { .. } => "invalid argument",
        Error::KeyInUse { .. } => "key in use",
        Error::Limit { .. } => "limit",
        Error::Failed { .. } => "failed",
        Error::Closed { .. } => "closed",
        Error::Protocol { .. } => "protocol",
        _ => "other",
    }
}

/// Numbers that look random and are the same for the same seed (splitmix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn one_of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }

    pub fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_micros(self.next() % (bound * 1000))
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }
}
