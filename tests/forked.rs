//! A process that forks: the child gets an error, and the parent and all other ranks go on.

#![allow(unsafe_code)]

mod common;

use common::{GENEROUS, Link, assert_usable, connect, run};
use hcomm::{Communicator, Error, Rank, ReduceOp};

/// What a child of a fork does with what it has a copy of; its exit code says how that went.
fn in_child(act: impl FnOnce() -> bool) {
    // SAFETY: the child calls `act` and exits. Of what other threads of this process have locked it touches the allocator,
    // which the system's library takes care of.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let went_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(false);
        // SAFETY: ends the child at once, without what would run at the end of the test.
        unsafe { libc::_exit(if went_well { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: its own child, and memory for one status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(waited == child && libc::WIFEXITED(status), "status {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child found something else");
}

fn is_forked<T>(result: Result<T, hcomm::OpError<T>>) -> bool {
    matches!(result, Err(hcomm::OpError { error: Error::Forked { .. }, buffer: Some(_), .. }))
}

#[test]
fn a_child_gets_an_error_and_nobody_is_harmed() {
    for link in [Link::Shm, Link::Tcp] {
        run(connect(link, 2), move |mut comm| {
            assert_usable(&mut comm);
            if comm.rank() == Rank(0) {
                let mut taken = Some(&mut comm);
                in_child(|| {
                    let Some(comm) = taken.take() else { return false };
                    let reduced = comm.all_reduce(vec![1f32; 2], ReduceOp::Sum).wait();
                    let large = comm.all_reduce(vec![1f32; 1 << 20], ReduceOp::Sum).wait();
                    let sent = comm.send(Rank(1), 1, vec![1u8]).wait();
                    is_forked(reduced)
                        && is_forked(large)
                        && is_forked(sent)
                        && comm.barrier().wait().is_err()
                });
            }
            // The other one goes on meanwhile.
            assert_usable(&mut comm);
            let large = comm.alloc::<u64>(100_000);
            assert_eq!(comm.all_reduce(large, ReduceOp::Sum).wait().unwrap()[99_999], 0);
        });
    }
}

/// It says no goodbye in its parent's name.
#[test]
fn a_child_drops_its_copies_and_nobody_is_told() {
    for link in [Link::Shm, Link::Tcp] {
        run(connect(link, 2), move |mut comm| {
            assert_usable(&mut comm);
            if comm.rank() == Rank(0) {
                let copy = std::mem::ManuallyDrop::new(&comm);
                in_child(move || {
                    // SAFETY: the child's copy of the communicator, which nothing else in it uses.
                    drop(unsafe { std::ptr::read::<Communicator>(*copy) });
                    true
                });
            }
            let limit = GENEROUS;
            let sum = comm.all_reduce(vec![1u32; 3], ReduceOp::Sum).timeout(limit).wait().unwrap();
            assert_eq!(sum, [2; 3], "{link:?}");
        });
    }
}

/// What was begun before goes on in the parent, and ends in the child.
#[test]
fn a_call_in_flight_ends_in_the_child_and_goes_on_in_the_parent() {
    for link in [Link::Shm, Link::Tcp] {
        let step = std::sync::Arc::new(std::sync::Barrier::new(2));
        run(connect(link, 2), move |mut comm| {
            if comm.rank() == Rank(0) {
                let flying = comm.all_reduce(vec![1u32; 3], ReduceOp::Sum);
                let copy = std::mem::ManuallyDrop::new(&flying);
                in_child(move || {
                    // SAFETY: as above.
                    let flying = unsafe { std::ptr::read(*copy) };
                    matches!(flying.wait(), Err(hcomm::OpError { error: Error::Forked { .. }, .. }))
                });
                step.wait();
                assert_eq!(flying.wait().unwrap(), [2; 3]);
            } else {
                step.wait();
                assert_eq!(comm.all_reduce(vec![1u32; 3], ReduceOp::Sum).wait().unwrap(), [2; 3]);
            }
        });
    }
}

#[test]
fn a_child_of_one_that_has_a_communicator_makes_none() {
    run(connect(Link::Shm, 2), |mut comm| {
        assert_usable(&mut comm);
        if comm.rank() == Rank(0) {
            in_child(|| {
                let refused = Communicator::builder().rank(0).world(1).connect_blocking();
                refused.is_err_and(|error| error.to_string().contains("forked"))
            });
        }
        assert_usable(&mut comm);
    });
}
