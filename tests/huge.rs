//! Huge pages that the system has set aside: segments take them as long as there are enough, and give them back. Alone in its
//! program, since all tests beside it would take them as well.

mod common;

use std::time::{Duration, Instant};

use hcomm::{Rank, ReduceOp};

use common::processes::say;
use common::{GENEROUS, Link, connect, run};

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const PAGE_BYTES: usize = 2 << 20;
/// Of each of two ranks.
const SEGMENT_BYTES: usize = 4 * PAGE_BYTES;
const PAGES: usize = 2 * SEGMENT_BYTES / PAGE_BYTES;

/// What the system says of its memory, in the unit in which it does.
fn system(name: &str) -> Option<usize> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn free() -> usize {
    system("HugePages_Free").unwrap_or(0) - system("HugePages_Rsvd").unwrap_or(0)
}

/// A pool that is larger than the system's own, until this is dropped.
struct Pool {
    before: String,
}

impl Pool {
    /// With so many free pages. None where this may not be done, or the system does not find them.
    fn with_free(pages: usize) -> Option<Pool> {
        if system("Hugepagesize")? * 1024 != PAGE_BYTES {
            return None;
        }
        let before = std::fs::read_to_string(POOL).ok()?;
        let all = before.trim().parse::<usize>().ok()? + pages.saturating_sub(free());
        let pool = Pool { before };
        std::fs::write(POOL, all.to_string()).ok()?;
        (free() >= pages).then_some(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::write(POOL, &self.before);
    }
}

#[test]
#[ignore = "changes what the system sets aside, for all, as long as it takes"]
fn segments_take_huge_pages_while_there_are_enough_and_give_them_back() {
    let Some(_pool) = Pool::with_free(PAGES) else {
        return say("skipped: no huge pages of 2 MiB can be set aside here");
    };
    let before = free();
    let left = run(connect(Link::Shm, 2), move |mut comm| {
        let me = comm.rank().0;
        // Less than a page is in pages of the other kind.
        let small = comm.alloc::<u8>(100_000);
        assert_eq!(comm.resources().shared_huge, 0);
        let mut large = comm.alloc::<u32>(SEGMENT_BYTES / 4);
        assert_eq!(comm.resources().shared_huge, SEGMENT_BYTES);
        for round in 0..3 {
            large.iter_mut().zip(0..).for_each(|(element, index)| *element = me + round + index);
            large = comm.all_reduce(large, ReduceOp::Sum).wait().unwrap();
            assert!(large.iter().zip(0..).all(|(sum, index)| *sum == 1 + 2 * (round + index)), "{round}");
            large = comm.broadcast(large, Rank(round % 2)).wait().unwrap();
        }
        let pulled: u64 = comm.links().iter().map(|link| link.pulled_bytes).sum();
        assert!(pulled >= SEGMENT_BYTES as u64, "{pulled} bytes");
        let left = free();
        comm.barrier().wait().unwrap();
        // As many as there are not.
        let larger = comm.alloc::<u8>((left + 1) * PAGE_BYTES);
        let resources = comm.resources();
        assert_eq!(resources.shared_huge, SEGMENT_BYTES);
        assert!(resources.shared > SEGMENT_BYTES + larger.len());
        drop(small);
        left
    });
    assert!(left.iter().all(|left| *left + PAGES <= before), "{left:?} of {before} are free");
    let until = Instant::now() + GENEROUS;
    while free() < before {
        assert!(Instant::now() < until, "{} of {before} are free", free());
        std::thread::sleep(Duration::from_millis(5));
    }
}
