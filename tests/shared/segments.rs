//! Memory that others read where it lies goes back to the system in all processes; and where one may have no more descriptors,
//! the others stay, and what it can't map is copied.

use std::time::{Duration, Instant};

use hcomm::{Buffer, Communicator, LinkKind, Rank, ReduceOp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::common::processes::own;
use super::common::processes::say;
use super::events::Events;
use super::world::World;
use super::{all_kinds_waiting, join};

/// More than what is kept when it is free.
const LARGE: usize = 66 << 20;
const KEPT_MAX: usize = 64 << 20;
/// Within this a process that nobody drives is told.
const PROMPT: Duration = Duration::from_secs(15);

/// Bytes of this process's addresses that are memory of this library.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ranges = maps.lines().filter(|line| line.contains("memfd:hcomm"));
    let bytes = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some(usize::from_str_radix(end, 16).ok()? - usize::from_str_radix(start, 16).ok()?)
    };
    ranges.map(|line| bytes(line).unwrap()).sum()
}

/// Rank 0 sends from memory that the others map, drops it, and calls nothing: in no process it stays.
pub fn drop_what_was_lent() {
    let mut comm = join().unwrap();
    comm.barrier().wait().unwrap();
    let before = mapped();
    for round in 0..3 {
        let mut buffer: Buffer<u8> =
            if comm.rank() == Rank(0) { comm.alloc(LARGE) } else { Buffer::zeroed(LARGE) };
        buffer.fill(comm.rank().0 as u8 + 7);
        let buffer = comm.broadcast(buffer, Rank(0)).wait().unwrap();
        assert!(buffer.iter().step_by(1009).all(|value| *value == 7));
        assert!(mapped() >= before + LARGE, "round {round}: it was not lent");
        // No rank calls anything before all have seen that.
        comm.barrier().wait().unwrap();
        std::thread::spawn(move || drop(buffer)).join().unwrap();
        let until = Instant::now() + PROMPT;
        while mapped() > before {
            assert!(Instant::now() < until, "round {round}: {} bytes stay", mapped() - before);
            std::thread::sleep(Duration::from_millis(2));
        }
        let used = comm.resources();
        assert_eq!((used.shared, used.shared_free), (0, 0), "{used:?}");
        comm.barrier().wait().unwrap();
    }
    // What is small stays for the next.
    drop(comm.alloc::<u8>(1 << 20));
    let used = comm.resources();
    assert!(used.shared == used.shared_free && (1 << 20..=KEPT_MAX).contains(&used.shared), "{used:?}");
    comm.close().wait().unwrap();
    say("done");
}

#[test]
fn memory_that_is_dropped_goes_back_in_all_processes() {
    let mut world = World::new("drop", 3).start(|_| own());
    (0..3).for_each(|rank| drop(world.says(rank, "done")));
    world.end(None);
}

/// Lets this process open nothing more, and says how many descriptors that are.
fn open_no_more() -> u64 {
    let next = std::fs::File::open("/dev/null").unwrap();
    let next = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
    let limit = Rlimit { current: Some(next), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    next
}

fn open_more() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Elements of each message below, from what is copied in any case to what fills rings.
const COUNTS: [usize; 4] = [100, 6_000, 20_000, 600_000];

/// Each kind of operation on memory that is lent where it can be.
fn compute_on_shared(comm: &mut Communicator) {
    let (me, n) = (comm.rank().0, comm.size() as u32);
    for count in COUNTS {
        let own = |comm: &Communicator| {
            let mut buffer: Buffer<u32> = comm.alloc(count);
            buffer.fill(me + 1);
            buffer
        };
        let sums = comm.all_reduce(own(comm), ReduceOp::Sum).wait().unwrap();
        assert!(sums.iter().all(|sum| *sum == n * (n + 1) / 2), "all_reduce of {count}");
        for root in 0..n {
            let got = comm.broadcast(own(comm), Rank(root)).wait().unwrap();
            assert!(got.iter().all(|value| *value == root + 1), "broadcast of {count} from {root}");
        }
        let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
        let sent = comm.send(Rank(next), 7, own(comm));
        let got = comm.recv(Rank(previous), 7, own(comm)).wait().unwrap();
        assert!(got.iter().all(|value| *value == previous + 1), "a message of {count}");
        drop(sent.wait().unwrap());
    }
}

/// Rank 1 may open nothing more: what the others lend it can't map.
pub fn work_without_descriptors() {
    let events = Events::of_all_threads();
    let mut comm = join().unwrap();
    all_kinds_waiting(&mut comm);
    let limit = if comm.rank() == Rank(1) { open_no_more() } else { 0 };
    comm.barrier().wait().unwrap();
    (0..3).for_each(|_| compute_on_shared(&mut comm));
    let told = [
        ("a peer's buffers can't be read where they lie, and are copied", comm.size() - 1),
        ("a buffer is not in memory that other processes read", usize::MAX),
    ];
    for (message, times) in told {
        let told = events.with(message);
        if comm.rank() != Rank(1) {
            assert!(told.is_empty(), "{told:?}");
            continue;
        }
        assert!(!told.is_empty() && (told.len() == times || times == usize::MAX), "{told:?}");
        let reason =
            format!("1 descriptor is needed and 0 available of {limit} (RLIMIT_NOFILE, `ulimit -n`)");
        assert!(told.iter().all(|event| event.field("reason") == reason), "{told:?}");
    }
    if comm.rank() == Rank(1) {
        open_more();
    }
    comm.barrier().wait().unwrap();
    // A new segment, which can be mapped.
    let pulled = |comm: &Communicator| comm.links()[0].pulled_bytes;
    let before = pulled(&comm);
    let mut buffer: Buffer<u8> =
        if comm.rank() == Rank(0) { comm.alloc(LARGE) } else { Buffer::zeroed(LARGE) };
    buffer.fill(comm.rank().0 as u8);
    let buffer = comm.broadcast(buffer, Rank(0)).wait().unwrap();
    assert!(buffer.iter().step_by(1009).all(|value| *value == 0));
    if comm.rank() == Rank(1) {
        assert!(pulled(&comm) > before, "{:?}", comm.links());
    }
    assert!(comm.links().iter().all(|link| matches!(link.kind, LinkKind::Myself | LinkKind::SharedMemory)));
    drop(buffer);
    comm.close().wait().unwrap();
    say("done");
}

#[test]
fn who_may_open_nothing_more_is_sent_copies_and_stays() {
    for n in [2, 3] {
        let mut world = World::new("few descriptors", n).start(|_| own());
        (0..n).for_each(|rank| drop(world.says(rank, "done")));
        world.end(None);
    }
}
