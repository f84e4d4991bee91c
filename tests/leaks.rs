//! What worlds take, they give back.

mod common;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{Link, TWO_LINKS, assert_usable, class, connect, meeting_place, run};
use hcomm::{Communicator, Rank, ReduceOp, Token, blocking};

/// The whole process is looked at: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// A world with a group, something dropped and something given up; and a set-up that comes to nothing.
fn cycle(link: Link, number: usize) {
    run(connect(link, 2), |mut comm| {
        assert_usable(&mut comm);
        let me = comm.rank().0;
        let mut group = blocking::split(&mut comm, Some(0), -i64::from(me)).unwrap().unwrap();
        assert_usable(&mut group);
        let alone = blocking::split(&mut group, Some(me), 0).unwrap().unwrap();
        assert_eq!(alone.size(), 1);
        drop(group.all_reduce(vec![1u8; 100_000], ReduceOp::Max));
        let given_up = comm.recv(Rank(1 - me), 2, vec![0u8; 100]);
        given_up.cancel();
        // The other one may have come to its end by now.
        assert!(matches!(class(&given_up.wait().unwrap_err().error), "cancelled" | "left"));
        if me == 0 {
            let given_up = comm.all_reduce(vec![1u32; 50_000], ReduceOp::Sum);
            given_up.cancel();
            let _ = given_up.wait();
        } else {
            let _ = comm.all_reduce(vec![1u32; 50_000], ReduceOp::Sum).wait();
        }
        drop(alone);
    });
    if link == Link::Tcp && number.is_multiple_of(5) {
        let builder = Communicator::builder().rank(0).world(2).file(meeting_place());
        let builder = builder.token(Token::random().unwrap());
        let failed = builder.rendezvous_deadline(Duration::from_millis(20)).connect_blocking();
        assert!(failed.is_err());
    }
}

fn nothing_stays(cycles: usize) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for link in TWO_LINKS {
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
        (0..6).for_each(|number| cycle(link, number));
        // The service thread ends, too.
        settled((usize::MAX, untouched));
        let (before, mapped) = ((descriptors(), threads()), mappings());
        (0..cycles).for_each(|number| cycle(link, number));
        settled(before);
        // The allocator has arenas for threads, which come and go; cycles would leave as many as there are of them.
        let grown = mappings().saturating_sub(mapped);
        assert!(grown < 40, "{link:?}: {grown} mappings more after {cycles} cycles");
    }
}

#[test]
fn descriptors_threads_and_mappings_return_to_what_they_were() {
    nothing_stays(100);
}

#[test]
#[ignore = "takes a minute"]
fn nothing_stays_of_thousands_of_worlds() {
    nothing_stays(2000);
}
