//! What one more communicator costs.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{LINKS, Link, assert_usable, connect};
use hcomm::Communicator;

struct Counting;

/// Bytes that are allocated.
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator, and counts.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Does the same as every rank, all at the same time; gives the ranks back.
fn all<R: Send>(ranks: &mut [Communicator], act: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter_mut().map(|comm| scope.spawn(|| act(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn records(ranks: &[Communicator]) -> usize {
    ranks.iter().map(|comm| comm.resources().records).sum()
}

/// Of communicators that are made of a world.
const MANY: usize = 25;
/// On each of them: more than it remembers.
const CALLS: usize = 80;

/// One test, since the whole process is looked at.
#[test]
fn a_communicator_costs_memory_alone_and_as_much_as_is_said() {
    for link in LINKS {
        for n in [2, 8] {
            costs(link, n);
        }
    }
}

fn costs(link: Link, n: usize) {
    let mut ranks = connect(link, n);
    // What is allocated once is there.
    drop(all(&mut ranks, |comm| {
        assert_usable(&mut comm.dup().wait().unwrap());
        assert_usable(comm);
    }));
    let (live, said) = (LIVE.load(Ordering::SeqCst), records(&ranks));
    let system = (descriptors(), threads());
    let twins = all(&mut ranks, |comm| -> Vec<Communicator> {
        let group = comm.group();
        (0..MANY).map(|_| comm.create(&group).wait().unwrap().unwrap()).collect()
    });
    let each = |bytes: usize| bytes / (n * MANY);
    // How much of it is said: the handle and tables of the engine are not, nor the program of a call.
    let judge = |percent_min: usize, when: &str| {
        let cost = each(LIVE.load(Ordering::SeqCst) - live);
        let told = each(records(&ranks) - said);
        assert!(told <= cost, "{link:?} {n} {when}: {told} of {cost}");
        assert!(told * 100 >= cost * percent_min, "{link:?} {n} {when}: {told} of {cost}");
    };
    judge(65, "at first");
    for comm in &ranks {
        let used = comm.resources();
        assert_eq!((used.communicators, used.keys), (1 + MANY, 0), "{link:?} {n}");
    }
    let mut twins: Vec<_> = twins.into_iter().map(Vec::into_iter).collect();
    let mut used = Vec::new();
    while let Some(mut same) = twins.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>() {
        drop(all(&mut same, |comm| (0..CALLS).for_each(|_| assert_usable(comm))));
        used.push(same);
    }
    judge(45, "after calls");
    assert_eq!((descriptors(), threads()), system, "{link:?} {n}");
}
