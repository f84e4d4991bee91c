//! After warm-up, operations allocate nothing: neither the caller's side nor the engine's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use hcomm::{Buffer, Communicator, Rank, ReduceOp, SharedMemory, Token};

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

/// How often each rank repeats its operations in a round: more than a block of any queue holds.
const OPERATIONS: usize = 50;
/// A queue may find a new high-water mark in any round, depending on how threads are scheduled. But it doubles then, and
/// there are a dozen of them, so that rounds with an allocation must end; an operation that allocates does so in each.
const ROUNDS_MAX: usize = 200;

/// What a rank does again and again; made with all that it needs.
type Act = Box<dyn FnMut(&mut Communicator)>;
/// Makes it for vectors of so many elements.
type Make = fn(&mut Communicator, usize) -> Act;

/// Hands its buffer from each operation to the next.
fn with_buffer(
    comm: &Communicator,
    elements: usize,
    act: impl Fn(&mut Communicator, Buffer<f32>) -> Buffer<f32> + 'static,
) -> Act {
    let mut buffer = Some(comm.alloc::<f32>(elements));
    Box::new(move |comm| buffer = buffer.take().map(|buffer| act(comm, buffer)))
}

const ACTS: [(&str, Make); 8] = [
    ("all_reduce, broadcast, messages", |comm, elements| {
        let mut received = Some(comm.alloc::<f32>(elements));
        let mut buffer = Some(comm.alloc::<f32>(elements));
        Box::new(move |comm| {
            let (me, n) = (comm.rank().0, comm.size() as u32);
            let mine = comm.all_reduce(buffer.take().unwrap(), ReduceOp::Max).wait().unwrap();
            let mine = comm.broadcast(mine, Rank(0)).wait().unwrap();
            let sent = comm.send(Rank((me + 1) % n), 1, mine);
            let got = comm.recv(Rank((me + n - 1) % n), 1, received.take().unwrap());
            received = Some(got.wait().unwrap());
            buffer = Some(sent.wait().unwrap());
        })
    }),
    ("prepared all_reduce", |comm, elements| {
        let prepared = comm.prepare_all_reduce(elements, ReduceOp::Sum).unwrap();
        with_buffer(comm, elements, move |comm, buffer| prepared.run(comm, buffer).wait().unwrap())
    }),
    ("all_gather", |comm, elements| {
        with_buffer(comm, elements * comm.size(), |comm, buffer| comm.all_gather(buffer).wait().unwrap())
    }),
    ("reduce_scatter", |comm, elements| {
        with_buffer(comm, elements * comm.size(), |comm, buffer| {
            comm.reduce_scatter(buffer, ReduceOp::Sum).wait().unwrap()
        })
    }),
    ("barrier", |_, _| Box::new(|comm| comm.barrier().wait().unwrap())),
    ("under a key", |comm, elements| {
        let stream = Mutex::new(comm.keyed("held").unwrap());
        with_buffer(comm, elements, move |_, buffer| {
            let mut stream = stream.lock().unwrap();
            let buffer = stream.all_reduce(buffer, ReduceOp::Sum).wait().unwrap();
            stream.broadcast(buffer, Rank(1)).wait().unwrap()
        })
    }),
    ("under a key that is asked for each time", |comm, elements| {
        with_buffer(comm, elements, |comm, buffer| {
            comm.keyed("asked for").unwrap().all_reduce(buffer, ReduceOp::Sum).wait().unwrap()
        })
    }),
    ("awaited", |comm, elements| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let prepared = comm.prepare_all_reduce(elements, ReduceOp::Sum).unwrap();
        with_buffer(comm, elements, move |comm, buffer| {
            runtime.block_on(async {
                let buffer = comm.all_reduce(buffer, ReduceOp::Max).await.unwrap();
                let buffer = comm.broadcast(buffer, Rank(0)).await.unwrap();
                comm.barrier().await.unwrap();
                prepared.run(comm, buffer).await.unwrap()
            })
        })
    }),
];

/// Allocations of the whole process in each round, up to the first that has none.
fn rounds(ranks: Vec<Communicator>, make: Make, elements: usize) -> Vec<usize> {
    let barrier = Barrier::new(ranks.len());
    let (before, round) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut comm| {
                let (barrier, before, round) = (&barrier, &before, &round);
                scope.spawn(move || {
                    let mut act = make(&mut comm, elements);
                    let mut counted = Vec::with_capacity(ROUNDS_MAX);
                    while counted.len() < ROUNDS_MAX && counted.last() != Some(&0) {
                        if barrier.wait().is_leader() {
                            before.store(ALLOCATIONS.load(Ordering::SeqCst), Ordering::SeqCst);
                        }
                        barrier.wait();
                        for _ in 0..OPERATIONS {
                            act(&mut comm);
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

fn between_processes(ranks: u32, shared: SharedMemory) -> Vec<Communicator> {
    let path = std::env::temp_dir().join(format!("hcomm-allocations-{}", std::process::id()));
    let token = Token::random().unwrap();
    let threads: Vec<_> = (0..ranks)
        .map(|rank| {
            let builder = Communicator::builder().rank(rank).world(ranks).file(&path);
            let builder = builder.token(token.clone()).shared_memory(shared);
            std::thread::spawn(move || builder.connect_blocking().unwrap())
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// One test, since the whole process is counted.
#[test]
fn operations_allocate_nothing_after_warm_up() {
    for (n, acts) in [(2, &ACTS[..1]), (3, &ACTS[..])] {
        for (at, (name, make)) in acts.iter().enumerate() {
            for elements in [2, 20_000] {
                // Of links between processes one at a time, in turn: what they have in common is most of it.
                let between = [("shared memory", SharedMemory::Require), ("TCP", SharedMemory::Never)];
                let (link, shared) = between[(at + n + elements / 20_000) % 2];
                for (link, ranks) in
                    [("memory", Communicator::local(n)), (link, between_processes(n as u32, shared))]
                {
                    let counted = rounds(ranks, *make, elements);
                    assert_eq!(
                        counted.last(),
                        Some(&0),
                        "{name}, {link}, {n} ranks, {elements} elements: {counted:?} allocations"
                    );
                }
            }
        }
    }
}
