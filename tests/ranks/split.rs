//! `split`, `dup` and `close`: without a runtime, with limits of their own, given up.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::{LINKS, assert_usable, class, world};
use hcomm::path::Algorithm;
use hcomm::{Error, Rank, ReduceOp, blocking};

/// What waits for a rank that is late by design.
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn no_runtime_is_needed() {
    for link in LINKS {
        world(link, 3, |mut comm| {
            let rank = comm.rank().0;
            let apart = blocking::split(&mut comm, (rank != 1).then_some(5), -i64::from(rank)).unwrap();
            assert_eq!(apart.is_some(), rank != 1);
            if let Some(mut apart) = apart {
                assert_eq!((apart.name(), apart.rank().0), ("world/0:5", u32::from(rank == 0)));
                assert_usable(&mut apart);
                blocking::close(apart).unwrap();
            }
            let mut twin = blocking::dup(&mut comm).unwrap();
            assert_usable(&mut twin);
            assert_usable(&mut comm);
            blocking::barrier(&mut comm).unwrap();
            comm.close().wait().unwrap();
        });
    }
}

/// Threads and processes of one host, whatever connects them; not all of them, and in another order.
#[test]
fn ranks_of_one_host_are_one_part() {
    for link in LINKS {
        world(link, 4, |mut comm| {
            let me = comm.rank();
            let mut host = blocking::split_by_host(&mut comm).unwrap();
            assert_eq!((host.name(), host.rank(), host.size()), ("world/0:0", me, 4));
            assert_eq!(comm.host_group(), comm.group());
            assert_usable(&mut host);
            let part = blocking::split(&mut host, (me.0 != 2).then_some(1), -i64::from(me.0)).unwrap();
            if let Some(mut part) = part {
                let mut host = part.split_by_host().wait().unwrap();
                assert_eq!((host.rank(), host.group()), (part.rank(), part.group()));
                assert_eq!(host.host_group().rank(), Some(part.rank()));
                assert_usable(&mut host);
            }
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_split_by_host_is_no_other_call() {
    for link in LINKS {
        world(link, 3, |mut comm| {
            let error = match comm.rank().0 {
                1 => comm.split(Some(0), 0).wait().map(drop).unwrap_err(),
                _ => comm.split_by_host().wait().unwrap_err(),
            };
            let told = error.to_string();
            assert!(matches!(error, Error::Mismatch { .. }), "{told}");
            assert!(
                told.contains("rank 1 calls split(") && told.contains("ranks 0, 2 call split_by_host("),
                "{told}"
            );
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_limit_of_its_own_names_who_is_late() {
    for link in LINKS {
        world(link, 3, |mut comm| {
            let (zero, late, last) = (Rank(0), Rank(1), Rank(2));
            match comm.rank() {
                Rank(0) => {
                    // Rank 2 has called by then.
                    blocking::recv(&comm, last, 1, &mut [0u8]).unwrap();
                    let Err(Error::Deadline(report)) = comm.split(Some(0), 0).timeout(SHORT).wait() else {
                        panic!("a communicator without rank 1")
                    };
                    assert_eq!((report.operation.as_str(), &report.late[..]), ("split", &[late][..]));
                    blocking::send(&comm, late, 1, &[1u8]).unwrap();
                }
                Rank(1) => {
                    // It comes when the others have given up.
                    blocking::recv(&comm, zero, 1, &mut [0u8]).unwrap();
                    assert_eq!(class(&comm.split(Some(0), 0).wait().unwrap_err()), "aborted");
                }
                _ => {
                    let split = comm.split(Some(0), 0);
                    blocking::send(&comm, zero, 1, &[1u8]).unwrap();
                    // What it is told is rank 0's report, and says so.
                    let told = split.wait().unwrap_err().to_string();
                    assert!(told.contains("rank 0 waited") && told.contains("for rank 1"), "{told}");
                }
            }
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn given_up_on_one_rank_is_given_up_on_all() {
    for link in LINKS {
        world(link, 2, |mut comm| {
            if comm.rank().0 == 0 {
                let dup = comm.dup();
                dup.cancel();
                assert_eq!(class(&dup.wait().unwrap_err()), "cancelled");
                let split = comm.split(None, 0);
                split.cancel();
                assert_eq!(class(&split.wait().unwrap_err()), "cancelled");
            } else {
                blocking::recv(&comm, Rank(0), 1, &mut [0u8]).unwrap();
                assert_eq!(class(&comm.dup().wait().unwrap_err()), "aborted");
                assert_eq!(class(&comm.split(None, 0).wait().unwrap_err()), "aborted");
            }
            if comm.rank().0 == 0 {
                blocking::send(&comm, Rank(1), 1, &[1u8]).unwrap();
            }
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn close_has_a_limit_and_an_operation_of_its_own() {
    for link in LINKS {
        world(link, 2, |mut comm| {
            let mut twin = comm.dup().wait().unwrap();
            if comm.rank().0 == 0 {
                let Err(Error::Deadline(report)) = twin.close().timeout(SHORT).wait() else {
                    panic!("closed without rank 1")
                };
                assert_eq!((report.operation.as_str(), &report.late[..]), ("close", &[Rank(1)][..]));
            } else {
                blocking::recv(&comm, Rank(0), 1, &mut [0u8]).unwrap();
                twin.barrier().wait().unwrap_err();
            }
            if comm.rank().0 == 0 {
                blocking::send(&comm, Rank(1), 1, &[1u8]).unwrap();
            }
            assert_usable(&mut comm);
        });
    }
}

/// Whoever drops the future is told of as one that has left, and keeps nothing of what comes for the communicator.
#[test]
fn a_communicator_that_a_rank_does_not_take_is_left_by_it() {
    for link in LINKS {
        let step = Arc::new(Barrier::new(2));
        world(link, 3, move |mut comm| {
            for round in 0..20 {
                if comm.rank() == Rank(1) {
                    let split = comm.split(Some(7), 0);
                    if round % 3 == 0 {
                        // It has ended, and what others send for the new one has come.
                        std::thread::sleep(Duration::from_millis(30));
                    }
                    drop(split);
                } else {
                    let mut child = comm.split(Some(7), 0).wait().unwrap().unwrap();
                    drop(child.send(Rank(1), 3, vec![1u8; 60_000]));
                    let error: Error = match round % 4 {
                        0 => child.recv(Rank(1), 3, vec![0u8]).wait().unwrap_err().into(),
                        1 => {
                            child.keyed("a").unwrap().broadcast(vec![0u8], Rank(1)).wait().unwrap_err().into()
                        }
                        _ => {
                            let child = child.using(Algorithm::MeshOneShot);
                            child.all_reduce(vec![1u32; 100], ReduceOp::Sum).wait().unwrap_err().into()
                        }
                    };
                    assert!(matches!(error, Error::Left { rank: Rank(1), .. }), "{link:?} {round}: {error}");
                    // Who closes it first is one that has left, too.
                    step.wait();
                    assert_eq!(class(&child.close().wait().unwrap_err()), "left");
                }
            }
            assert_usable(&mut comm);
            assert_eq!(comm.resources().kept, 0, "{link:?} rank {}", comm.rank());
        });
    }
}

/// A rank that drops its future because it panics is told of as one that has.
#[test]
fn a_rank_that_panics_before_it_takes_a_communicator_is_lost_to_it() {
    for link in LINKS {
        world(link, 2, move |mut comm| {
            if comm.rank() == Rank(1) {
                let split = comm.split(Some(7), 0);
                let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                    let _split = split;
                    std::panic::resume_unwind(Box::new("on purpose"));
                }));
                assert!(panicked.is_err());
            } else {
                let mut child = comm.split(Some(7), 0).wait().unwrap().unwrap();
                let error = child.all_reduce(vec![1u32; 100], ReduceOp::Sum).wait().unwrap_err().error;
                assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{link:?}: {error}");
            }
            assert_usable(&mut comm);
        });
    }
}

/// However long ago this rank has closed it: what another one says of it when he does is kept by nobody.
#[test]
#[ignore = "takes half a minute"]
fn what_was_closed_long_ago_is_remembered() {
    const MANY: usize = 4_300;
    for link in LINKS {
        world(link, 2, move |mut comm| {
            let mut twins = Vec::new();
            for _ in 0..MANY {
                let twin = comm.dup().wait().unwrap();
                if comm.rank() == Rank(1) {
                    twins.push(twin);
                }
            }
            drop(twins);
            assert_usable(&mut comm);
            assert_eq!(comm.resources().kept, 0, "{link:?}");
        });
    }
}
