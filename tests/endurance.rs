//! Long use: memory stays flat, and ports are enough, however often.

mod common;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{
    GENEROUS, LINKS, Link, WATCHDOG, assert_usable, connect, meeting_place, run, run_within, world,
};
use hcomm::{Communicator, Error, Rank, ReduceOp, Token};

/// The memory of the whole process is looked at: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// What a program does all day, and some that goes wrong.
fn round(comm: &mut Communicator, round: usize) {
    let (me, n) = (comm.rank().0, comm.size());
    let sum = comm.all_reduce(vec![me; 50], ReduceOp::Sum).wait().unwrap();
    assert_eq!(sum[49] as usize, n * (n - 1) / 2);
    let peer = Rank(1 - me);
    let sent = comm.send(peer, 1, vec![me; 10]);
    assert_eq!(comm.recv(peer, 1, vec![0u32; 10]).wait().unwrap(), [peer.0; 10]);
    sent.wait().unwrap();
    if round.is_multiple_of(50) {
        drop(comm.broadcast(vec![7u8; 100_000], Rank(0)));
        let given_up = comm.recv(peer, 2, vec![0u8; 10]);
        given_up.cancel();
        assert!(matches!(given_up.wait().unwrap_err().error, Error::Cancelled { .. }));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut child = runtime.block_on(comm.split(Some(1), 0)).unwrap().unwrap();
        // Kept for a receive that never comes, and gone with the communicator.
        child.send(Rank(1 - child.rank().0), 5, vec![0u8; 1000]).wait().unwrap();
        assert_usable(&mut child);
    }
}

/// Rounds of four operations each, after a tenth as many to warm up.
fn memory_stays_flat(link: Link, rounds: usize) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let grown = run_within(10 * WATCHDOG, connect(link, 2), move |mut comm| {
        (0..rounds / 10).for_each(|at| round(&mut comm, at));
        let before = resident_bytes();
        (0..rounds).for_each(|at| round(&mut comm, at));
        resident_bytes().saturating_sub(before)
    });
    assert!(grown.iter().all(|bytes| *bytes < 8 << 20), "{link:?}: grown by {grown:?} bytes");
}

#[test]
fn memory_stays_flat_over_thousands_of_operations() {
    for link in LINKS {
        memory_stays_flat(link, 1_000);
    }
}

#[test]
#[ignore = "takes minutes"]
fn memory_stays_flat_over_a_million_operations() {
    for link in LINKS {
        // With both links.
        memory_stays_flat(link, 120_000);
    }
}

/// Each job ends before the next begins; what it leaves to the system does not stand in the next one's way.
fn jobs_on_one_range_of_ports(jobs: usize) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Below what the system hands out by itself.
    let first = 20_000 + (std::process::id() % 1000) as u16 * 8;
    for job in 0..jobs {
        let (place, token) = (meeting_place(), Token::random().unwrap());
        let join = |rank: u32| {
            let builder = Communicator::builder().rank(rank).world(2).file(&place).token(token.clone());
            let builder = builder.ports(first..=first + 3).operation_deadline(GENEROUS);
            std::thread::spawn(move || {
                builder.rendezvous_deadline(Duration::from_secs(30)).connect_blocking()
            })
        };
        let ranks = [join(0), join(1)].map(|rank| rank.join().unwrap());
        let ranks = ranks.into_iter().map(|rank| rank.unwrap_or_else(|error| panic!("job {job}: {error}")));
        run(ranks.collect(), |mut comm| assert_usable(&mut comm));
    }
}

#[test]
fn jobs_follow_each_other_on_one_range_of_ports() {
    jobs_on_one_range_of_ports(20);
}

#[test]
#[ignore = "takes a minute"]
fn five_hundred_jobs_follow_each_other_on_one_range_of_ports() {
    jobs_on_one_range_of_ports(500);
}

/// All at once, wherever the system lets them listen; with `shared`, at one address, which one of them can have at a time.
/// Those that get it, or never met anybody else there, are jobs of their own; the others are told why not.
fn jobs_at_once(jobs: usize, shared: bool) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let port = 27_000 + (std::process::id() % 1000) as u16;
    let jobs = (0..jobs as u64).map(|job| std::thread::spawn(move || meets(job, shared.then_some(port))));
    let jobs: Vec<_> = jobs.collect();
    let met: Vec<bool> = jobs.into_iter().map(|job| job.join().unwrap()).collect();
    assert!(met.contains(&true), "nobody met");
}

/// A job of two ranks; says whether they met, which they do where the address is theirs alone.
fn meets(job: u64, shared: Option<u16>) -> bool {
    let (place, token) = (meeting_place(), Token::random().unwrap());
    let ranks = [0, 1u32].map(|rank| {
        let builder = Communicator::builder().rank(rank).world(2).token(token.clone());
        let builder = match shared {
            Some(port) => {
                builder.root(format!("127.0.0.1:{port}")).rendezvous_deadline(Duration::from_secs(10))
            }
            None => builder.file(&place).rendezvous_deadline(Duration::from_secs(50)),
        };
        std::thread::spawn(move || builder.operation_deadline(GENEROUS).connect_blocking())
    });
    let ranks = ranks.map(|rank| rank.join().unwrap());
    if shared.is_some() && ranks.iter().any(Result::is_err) {
        for error in ranks.into_iter().filter_map(Result::err) {
            let text = error.to_string();
            let told = ["in use", "another token", "missing rank 1", "tried"];
            assert!(told.iter().any(|words| text.contains(words)), "job {job}: {text}");
        }
        return false;
    }
    let ranks = ranks.map(|rank| rank.unwrap_or_else(|error| panic!("job {job}: {error}")));
    run(ranks.into(), move |mut comm| {
        // Of this job only.
        let sum = comm.all_reduce(vec![job; 10], ReduceOp::Sum).wait().unwrap();
        assert_eq!(sum, [2 * job; 10]);
    });
    true
}

#[test]
fn jobs_meet_at_the_same_time() {
    jobs_at_once(20, false);
    jobs_at_once(5, true);
}

#[test]
#[ignore = "takes a minute"]
fn two_hundred_jobs_meet_at_the_same_time() {
    jobs_at_once(200, false);
    jobs_at_once(40, true);
}

/// Splits share the connections of their parent: many at once take no descriptors and disturb nobody.
fn many_groups(ranks: usize, groups: u32) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for link in LINKS {
        world(link, ranks, move |mut comm| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let me = comm.rank().0;
            let splits: Vec<_> =
                (0..groups).map(|number| comm.split(Some(me >> (number & 1)), i64::from(me))).collect();
            let children = runtime.block_on(futures_util::future::try_join_all(splits)).unwrap();
            let mut children: Vec<_> = children.into_iter().flatten().collect();
            // And each of these again, at the same time; in either order of ranks.
            let nested = children.iter_mut().map(|child| child.split(Some(0), -i64::from(me)));
            let nested = runtime.block_on(futures_util::future::try_join_all(nested)).unwrap();
            let both: Vec<_> = nested.into_iter().flatten().zip(children).collect();
            for (mut inner, mut child) in both.into_iter().rev() {
                assert_eq!(inner.size(), child.size());
                assert_eq!(inner.rank().index(), child.size() - 1 - child.rank().index());
                assert_usable(&mut inner);
                assert_usable(&mut child);
            }
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn fifty_communicators_at_once() {
    many_groups(4, 50);
}

#[test]
#[ignore = "takes a minute"]
fn fifty_communicators_of_sixteen_ranks_at_once() {
    many_groups(16, 50);
}
