//! What worlds take, they give back.

mod common;

use std::time::{Duration, Instant};

use common::{LINKS, assert_usable, connect, run};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Alone in its process: other tests would count.
#[test]
fn descriptors_and_threads_return_to_what_they_were() {
    for link in LINKS {
        let cycle = |rounds: usize| {
            for _ in 0..rounds {
                run(connect(link, 2), |mut comm| {
                    assert_usable(&mut comm);
                    let child = comm.all_reduce(vec![1u8; 100_000], hcomm::ReduceOp::Max);
                    drop(child);
                });
            }
        };
        let settled = |limits: (usize, usize)| {
            let until = Instant::now() + Duration::from_secs(15);
            loop {
                let have = (descriptors(), threads());
                if have.0 <= limits.0 && have.1 <= limits.1 {
                    return;
                }
                assert!(
                    Instant::now() < until,
                    "{link:?}: {have:?} descriptors and threads, {limits:?} before"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let untouched = threads();
        cycle(2);
        // The service thread ends, too.
        settled((usize::MAX, untouched));
        let before = (descriptors(), threads());
        cycle(100);
        settled(before);
    }
}
