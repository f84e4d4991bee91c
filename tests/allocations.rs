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

/// How often each rank repeats an operation while allocations are counted.
const OPERATIONS: usize = 500;

fn count(ranks: Vec<Communicator>, elements: usize) -> usize {
    let barrier = Barrier::new(ranks.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut comm| {
                let barrier = &barrier;
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
                    for _ in 0..OPERATIONS {
                        buffer = act(buffer);
                    }
                    barrier.wait();
                    let before = ALLOCATIONS.load(Ordering::SeqCst);
                    barrier.wait();
                    for _ in 0..OPERATIONS {
                        buffer = act(buffer);
                    }
                    barrier.wait();
                    let after = ALLOCATIONS.load(Ordering::SeqCst);
                    barrier.wait();
                    after - before
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
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

/// Queues may still find a new high-water mark, which depends on how threads are scheduled.
const SLACK: usize = OPERATIONS / 20;

#[test]
fn operations_allocate_nothing_after_warm_up() {
    for elements in [2, 20_000] {
        let memory = count(Communicator::local(2), elements);
        assert!(memory <= SLACK, "memory link, {elements} elements: {memory} allocations");
        let tcp = count(between_sockets(2), elements);
        assert!(tcp <= SLACK, "TCP, {elements} elements: {tcp} allocations");
    }
}
