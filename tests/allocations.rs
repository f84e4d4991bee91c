//! After warm-up, operations allocate nothing: neither the caller's side nor the engine's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use hcomm::{Buffer, Communicator, Rank, ReduceOp, Token};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator, and counts.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often each rank repeats its operations in a round.
const OPERATIONS: usize = 200;
/// A queue may find a new high-water mark in any round, depending on how threads are scheduled. But it doubles then, and
/// there are a dozen of them, so that rounds with an allocation must end; an operation that allocates does so in each.
const ROUNDS_MAX: usize = 200;

/// Allocations of the whole process in each round, up to the first that has none.
fn rounds(ranks: Vec<Communicator>, elements: usize) -> Vec<usize> {
    let barrier = Barrier::new(ranks.len());
    let (before, round) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut comm| {
                let (barrier, before, round) = (&barrier, &before, &round);
                scope.spawn(move || {
                    let mut buffer = Buffer::<f32>::zeroed(elements);
                    let peer = Rank(1 - comm.rank().0.min(1));
                    let mut act = |mut buffer: Buffer<f32>| {
                        buffer = comm.all_reduce(buffer, ReduceOp::Max).wait().unwrap();
                        buffer = comm.broadcast(buffer, Rank(0)).wait().unwrap();
                        if comm.rank().0 == 0 {
                            comm.send(peer, 1, buffer).wait().unwrap()
                        } else {
                            comm.recv(peer, 1, buffer).wait().unwrap()
                        }
                    };
                    let mut counted = Vec::with_capacity(ROUNDS_MAX);
                    while counted.len() < ROUNDS_MAX && counted.last() != Some(&0) {
                        if barrier.wait().is_leader() {
                            before.store(ALLOCATIONS.load(Ordering::SeqCst), Ordering::SeqCst);
                        }
                        barrier.wait();
                        for _ in 0..OPERATIONS {
                            buffer = act(buffer);
                        }
                        // One of them looks, so that all go on or none does.
                        if barrier.wait().is_leader() {
                            let since = ALLOCATIONS.load(Ordering::SeqCst) - before.load(Ordering::SeqCst);
                            round.store(since, Ordering::SeqCst);
                        }
                        barrier.wait();
                        counted.push(round.load(Ordering::SeqCst));
                    }
                    counted
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).next_back().unwrap()
    })
}

fn between_sockets(ranks: u32) -> Vec<Communicator> {
    let path = std::env::temp_dir().join(format!("hcomm-allocations-{}", std::process::id()));
    let token = Token::random().unwrap();
    let threads: Vec<_> = (0..ranks)
        .map(|rank| {
            let builder = Communicator::builder().rank(rank).world(ranks).file(&path).token(token.clone());
            std::thread::spawn(move || builder.connect_blocking().unwrap())
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn operations_allocate_nothing_after_warm_up() {
    for elements in [2, 20_000] {
        for (link, ranks) in [("memory", Communicator::local(2)), ("TCP", between_sockets(2))] {
            let counted = rounds(ranks, elements);
            assert_eq!(counted.last(), Some(&0), "{link}, {elements} elements: {counted:?} allocations");
        }
    }
}
