//! What shared memory takes of a process, it gives back.

use std::time::{Duration, Instant};

use hcomm::{Communicator, LinkKind, Rank, ReduceOp};

use super::common::assert_usable;
use super::common::processes::{open_what_stays, own, say, taken};
use super::join;
use super::world::World;

/// How its communicators end, by the number of the time.
const WAYS: usize = 3;

/// Parts of the address space that are memory of this library.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:hcomm")).count()
}

/// Joins again and again.
pub fn join_and_leave() {
    open_what_stays();
    let before = taken();
    for time in 0..4 * WAYS {
        let mut comm = join().unwrap();
        let kinds = comm.links().into_iter().filter(|link| link.kind == LinkKind::SharedMemory);
        assert_eq!(kinds.count(), comm.size() - 1);
        assert!(mappings() > 0);
        compute(&mut comm);
        let mut other = comm.dup().wait().unwrap();
        match time % WAYS {
            0 => {
                other.close().wait().unwrap();
                comm.close().wait().unwrap();
            }
            1 => {
                compute(&mut other);
                drop(comm);
                drop(other);
            }
            _ => {
                // Under way, and given up.
                drop(other.all_reduce(vec![1u8; 1 << 20], ReduceOp::Sum));
                drop(comm.recv(Rank(1 - comm.rank().0.min(1)), 5, vec![0u8; 1 << 20]));
                drop(other);
                drop(comm);
            }
        }
        let until = Instant::now() + Duration::from_secs(15);
        while (taken(), mappings()) != (before, 0) {
            let (now, mappings) = (taken(), mappings());
            assert!(
                Instant::now() < until,
                "time {time}: {now:?}, not {before:?}; {mappings} mappings; {:?}",
                open()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    say("done");
}

fn compute(comm: &mut Communicator) {
    assert_usable(comm);
    let ones = comm.all_reduce(vec![1u8; 3 << 20], ReduceOp::Max).wait().unwrap();
    assert!(ones == vec![1; 3 << 20]);
}

/// What this process has open.
fn open() -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
}

#[test]
fn descriptors_threads_and_mappings_are_given_back() {
    for n in [2, 3] {
        let mut world = World::new("join and leave", n).start(|_| own());
        (0..n).for_each(|rank| drop(world.says(rank, "done")));
        world.end(None);
    }
}
