//! What a rank uses beyond its callers' buffers stays within its limit, and is shown.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::processes::passes_alone;
use crate::common::{GENEROUS, LINKS, assert_usable, meeting_place, run, world};
use hcomm::{Communicator, Error, InitError, Rank, ReduceOp, Token};

/// A world of ranks of this process by TCP, each with its own limit.
fn limited(limits: &[usize]) -> Vec<Result<Communicator, InitError>> {
    let (place, token) = (meeting_place(), Token::random().unwrap());
    let threads: Vec<_> = limits
        .iter()
        .enumerate()
        .map(|(rank, limit)| {
            let builder = Communicator::builder()
                .rank(rank as u32)
                .world(limits.len() as u32)
                .file(&place)
                .token(token.clone())
                .operation_deadline(GENEROUS)
                .memory(*limit);
            std::thread::spawn(move || builder.connect_blocking())
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn connect(n: usize, limit: usize) -> Vec<Communicator> {
    limited(&vec![limit; n]).into_iter().map(Result::unwrap).collect()
}

#[test]
fn collectives_beyond_the_limit_wait_for_room() {
    const LIMIT: usize = 8 << 20;
    // Two messages are reduced as they come, through a window of half a MiB each.
    const NEED: usize = 1 << 20;
    let step = Arc::new(Barrier::new(3));
    run(connect(3, LIMIT), move |mut comm| {
        let n = comm.size() as u32;
        let mut sibling = None;
        for round in 0..2u32 {
            let count = 140_000;
            if comm.rank() == Rank(0) {
                // The others' operations can't end before this.
                step.wait();
            }
            let mut sums = Vec::new();
            let mut waited = 0;
            for value in 0..24u32 {
                let part = vec![value + round; count];
                let at = if value % 2 == 0 { &mut comm } else { sibling.as_mut().unwrap_or(&mut comm) };
                sums.push((value + round, at.all_reduce(part, ReduceOp::Sum)));
                let used = comm.resources();
                assert!(used.working <= LIMIT / 2 + 2 * NEED, "{used:?}");
                waited = waited.max(used.delayed);
            }
            if comm.rank() != Rank(0) {
                assert!(waited >= 24 - LIMIT / 2 / NEED - 2, "{waited} operations have waited for room");
                step.wait();
            }
            for (value, sum) in sums {
                assert_eq!(sum.wait().unwrap(), vec![n * value; count]);
            }
            let used = comm.resources();
            assert_eq!((used.working, used.operations, used.delayed), (0, 0, 0), "{used:?}");
            assert!(used.pooled <= LIMIT / 4, "{used:?}");
            let most = used.in_use_max;
            assert!(most <= LIMIT / 2 + 2 * NEED, "at most {most} bytes at a time");
            let dup = comm.dup();
            sibling = Some(
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap()
                    .block_on(dup)
                    .unwrap(),
            );
        }
    });
}

/// Calls that wait for room are over like others when their communicator is dropped, or a rank gives one up.
#[test]
fn what_waits_for_room_is_ended_like_the_rest() {
    let step = Arc::new(Barrier::new(2));
    run(connect(2, 4 << 20), move |mut comm| {
        if comm.rank() == Rank(0) {
            let sums: Vec<_> = (0..20).map(|_| comm.all_reduce(vec![1f64; 300_000], ReduceOp::Sum)).collect();
            assert!(comm.resources().delayed > 0);
            sums[0].cancel();
            sums[10].cancel();
            step.wait();
            let failed = sums.into_iter().map(|sum| sum.wait()).filter(Result::is_err).count();
            assert_eq!(failed, 2);
            assert_usable(&mut comm);
            (0..20).for_each(|_| drop(comm.all_reduce(vec![1f64; 300_000], ReduceOp::Sum)));
        } else {
            step.wait();
            for number in 0..20 {
                let sum = comm.all_reduce(vec![1f64; 300_000], ReduceOp::Sum).wait();
                assert_eq!(sum.is_err(), number % 10 == 0, "{number}");
            }
            assert_usable(&mut comm);
            for _ in 0..20 {
                assert_eq!(comm.all_reduce(vec![1f64; 300_000], ReduceOp::Sum).wait().unwrap()[0], 2.0);
            }
        }
    });
}

/// A call that waits for room has its own limit, and can be given up; so it is on all ranks, wherever it waits.
#[test]
fn what_waits_for_room_does_not_wait_for_longer_than_it_may() {
    const COUNT: usize = 1 << 20;
    let step = Arc::new(Barrier::new(3));
    run(connect(3, 1 << 20), move |mut comm| {
        let me = comm.rank();
        for round in 0..10 {
            let sum = |comm: &mut Communicator| comm.all_reduce(vec![1u32; COUNT], ReduceOp::Sum);
            if me == Rank(2) {
                // The others' first call can't end before this, and the second begins when it has.
                step.wait();
            }
            let first = sum(&mut comm);
            let mut second = sum(&mut comm);
            if me == Rank(0) {
                assert_eq!(comm.resources().delayed, 1);
                if round % 2 == 0 {
                    second = second.timeout(Duration::from_millis(200));
                } else {
                    second.cancel();
                }
            }
            let third = sum(&mut comm);
            let failed = second.wait().unwrap_err();
            assert_eq!(failed.buffer.map(|buffer| buffer.len()), Some(COUNT), "it comes back");
            match (&failed.error, me, round % 2) {
                (Error::Deadline(report), Rank(0), 0) => {
                    assert!(report.late.contains(&Rank(2)), "{report}");
                    assert!(report.cause.contains("not over before it: all_reduce(1048576"), "{report}");
                }
                (Error::Cancelled { .. }, Rank(0), 1)
                | (Error::Deadline(_), Rank(1), 0)
                | (Error::Aborted { by: Rank(0), .. }, Rank(1 | 2), _) => {}
                (error, ..) => panic!("rank {me} round {round}: {error}"),
            }
            if me != Rank(2) {
                step.wait();
            }
            assert!(first.wait().unwrap().iter().all(|value| *value == 3));
            assert!(third.wait().unwrap().iter().all(|value| *value == 3));
            assert_usable(&mut comm);
        }
    });
}

/// It is no part of what else is in flight, whichever that is.
#[test]
fn a_call_that_is_refused_leaves_the_first_one_alone() {
    const BYTES: usize = 64 << 20;
    for round in 0..5u8 {
        run(connect(2, 64 << 20), move |mut comm| {
            let mut whole = vec![0u8; BYTES];
            if comm.rank() == Rank(0) {
                whole.fill(round + 1);
            }
            let whole = comm.broadcast(whole, Rank(0));
            for _ in 0..200 {
                let failed = comm.reduce_scatter(vec![1u32; 3], ReduceOp::Sum).wait().unwrap_err();
                assert!(matches!(failed.error, Error::InvalidArgument { .. }), "{}", failed.error);
            }
            assert!(whole.wait().unwrap().iter().all(|byte| *byte == round + 1));
        });
    }
}

#[test]
fn messages_sent_ahead_are_kept_within_their_share() {
    const LIMIT: usize = 2 << 20;
    let step = Arc::new(Barrier::new(3));
    run(connect(3, LIMIT), move |mut comm| {
        let me = comm.rank();
        if me == Rank(0) {
            step.wait();
            assert_usable(&mut comm);
            let kept = comm.resources().kept;
            assert!(kept > LIMIT / 8 && kept <= LIMIT / 4, "{kept} bytes are kept");
            for from in [1, 2] {
                for number in 0..100u8 {
                    assert_eq!(
                        comm.recv(Rank(from), 1, vec![0u8; 10_000]).wait().unwrap(),
                        vec![number; 10_000]
                    );
                }
            }
            // What comes for the next call may be there already.
            assert!(comm.resources().kept < 10_000);
        } else {
            let sent: Vec<_> = (0..100u8).map(|number| comm.send(Rank(0), 1, vec![number; 10_000])).collect();
            step.wait();
            assert_usable(&mut comm);
            sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
        }
        assert_usable(&mut comm);
    });
}

#[test]
fn copies_of_slices_and_descriptors_are_shown() {
    for link in LINKS {
        let step = Arc::new(Barrier::new(3));
        world(link, 3, move |mut comm| {
            let used = comm.resources();
            let (descriptors, lanes) = match link {
                crate::common::Link::Memory => (0, 0),
                crate::common::Link::Shm => (2 * 3, 2 * ((4 << 10) + (256 << 10) + (512 << 10))),
                crate::common::Link::Tcp => (2 * 2, 0),
            };
            assert_eq!((used.descriptors, used.threads, used.staged), (descriptors + 2, 1, 0), "{link:?}");
            assert_eq!((used.lanes, used.shared), (lanes, 0), "{link:?}");
            let buffer = comm.alloc::<u8>(3 << 20);
            let used = comm.resources();
            let segments = usize::from(link == crate::common::Link::Shm);
            assert_eq!(used.descriptors, descriptors + 2 + segments, "{link:?}");
            assert_eq!(used.shared >= 3 << 20, segments == 1, "{link:?} {used:?}");
            drop(buffer);
            let mut slice = vec![1u8; 3 << 20];
            if comm.rank() == Rank(0) {
                let sum = comm.all_reduce(&mut slice, ReduceOp::Sum);
                // Nobody else has called.
                step.wait();
                sum.wait().unwrap();
            } else {
                step.wait();
                comm.all_reduce(&mut slice, ReduceOp::Sum).wait().unwrap();
            }
            assert_eq!(comm.resources().staged, 0, "{link:?}");
            if comm.rank() == Rank(0) {
                let received = comm.recv(Rank(1), 1, &mut slice);
                let mut used = comm.resources();
                assert!(used.staged >= 3 << 20 && used.operations == 1, "{link:?}: {used:?}");
                received.cancel();
                received.wait().unwrap_err();
                used = comm.resources();
                assert_eq!((used.staged, used.operations), (0, 0), "{link:?}");
            }
            step.wait();
        });
    }
}

#[test]
fn communicators_and_keys_are_counted() {
    for link in LINKS {
        world(link, 2, move |mut comm| {
            let counted = |comm: &Communicator| {
                let used = comm.resources();
                (used.communicators, used.keys)
            };
            assert_eq!(counted(&comm), (1, 0), "{link:?}");
            let first = comm.resources().records;
            let alone = comm.split(Some(comm.rank().0), 0).wait().unwrap().unwrap();
            let mut twin = comm.dup().wait().unwrap();
            assert_eq!((counted(&comm), counted(&alone)), ((3, 0), (3, 0)), "{link:?}");
            let records = comm.resources().records;
            assert!(records > first, "{link:?}: {records} bytes of three, {first} of one");
            (0..100).for_each(|_| assert_usable(&mut twin));
            let grown = comm.resources().records;
            assert!(grown > records + 4096, "{link:?}: {grown} bytes with what was called, {records} before");
            // A key that is given back is known.
            (0..2).for_each(|_| drop(twin.keyed("a").unwrap()));
            drop(comm.keyed("b").unwrap());
            assert_eq!(counted(&comm), (3, 2), "{link:?}");
            drop(alone);
            twin.close().wait().unwrap();
            assert_eq!(counted(&comm), (1, 1), "{link:?}");
            assert!(comm.resources().records < records, "{link:?}");
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_limit_that_differs_or_is_too_small_is_told() {
    for joined in limited(&[8 << 20, 9 << 20]) {
        let error = joined.expect_err("limits differ").to_string();
        assert!(error.contains("HCOMM_MEMORY") && error.contains("9437184"), "{error}");
    }
    for joined in limited(&[100 << 10, 100 << 10]) {
        assert!(matches!(joined, Err(InitError::Limit { available: 102_400, .. })), "{joined:?}");
    }
}

/// Set in a process whose environment or limits are others.
const CHILD: &str = "HCOMM_TEST_CHILD";

/// Runs what follows with these limits of open files: soft and hard.
fn with_files(soft: u32, hard: u32) -> String {
    format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$@\"")
}

#[test]
fn ranks_of_one_process_are_told_of_limits() {
    passes_alone(&["env", "HCOMM_MEMORY=a lot"], "resources::child_cannot_read_the_limit_of_memory", CHILD);
    passes_alone(&["env", "HCOMM_MEMORY=1K"], "resources::child_has_too_little_memory", CHILD);
    passes_alone(&["env", "HCOMM_MEMORY=24MiB"], "resources::child_has_enough", CHILD);
    passes_alone(&["sh", "-c", &with_files(40, 40), "sh"], "resources::child_has_too_few_descriptors", CHILD);
    passes_alone(&["sh", "-c", &with_files(40, 400), "sh"], "resources::child_has_enough", CHILD);
}

#[test]
fn child_cannot_read_the_limit_of_memory() {
    if std::env::var_os(CHILD).is_some() {
        let error = Communicator::try_local(2).unwrap_err();
        assert!(matches!(error, InitError::Environment { .. }), "{error}");
        assert!(error.to_string().contains("HCOMM_MEMORY=\"a lot\""), "{error}");
    }
}

#[test]
fn child_has_too_little_memory() {
    if std::env::var_os(CHILD).is_some() {
        let error = Communicator::try_local(64).unwrap_err();
        let InitError::Limit { what, needed, available, .. } = &error else { panic!("{error}") };
        assert_eq!((what.as_str(), *available), ("memory", 1024));
        assert!(*needed > 64 * 63 * (256 << 10), "{error}");
    }
}

#[test]
fn child_has_too_few_descriptors() {
    if std::env::var_os(CHILD).is_some() {
        let error = Communicator::try_local(8).unwrap_err();
        let InitError::Limit { what, needed, available, .. } = &error else { panic!("{error}") };
        assert_eq!((what.as_str(), *available), ("file descriptors", 40));
        assert!(*needed > 24, "{error}");
    }
}

#[test]
fn child_has_enough() {
    if std::env::var_os(CHILD).is_some() {
        run(Communicator::local(8), |mut comm| {
            let all = if std::env::var_os("HCOMM_MEMORY").is_some() { 24 << 20 } else { 64 << 20 };
            assert_eq!(comm.resources().limit, all / 8);
            assert_usable(&mut comm);
        });
    }
}
