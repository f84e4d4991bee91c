//! A program that does not come back to its operations is called busy where others wait for it; one that sleeps in an
//! await, or waits on a thread, is not. Nobody is lost for it.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::{Link, TWO_LINKS, WATCHDOG, assert_usable, connect, run};
use hcomm::{Communicator, Error, Rank};
use tokio::runtime::{Builder, Runtime};

const ASKED: u32 = 1;
const AWAITED: u32 = 2;
/// Beyond a second, after which a rank that waits asks again.
const LIMIT: Duration = Duration::from_millis(1600);
const ATTEMPTS: usize = 5;

/// What rank 1 does while it is asked about; the message comes, and rank 0 is at the barrier, once that is over.
type Part = fn(&mut Communicator, &Barrier);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// What a deadline's report says of rank 1, which the caller waits for in vain.
fn state_of_the_other(comm: &Communicator) -> String {
    let error = comm.recv(Rank(1), ASKED, vec![0u8]).timeout(LIMIT).wait().unwrap_err().error;
    let Error::Deadline(report) = &error else { panic!("{error}") };
    let state = report.states.iter().find(|(rank, _)| *rank == Rank(1));
    state.unwrap_or_else(|| panic!("nothing of rank 1: {error}")).1.clone()
}

/// Rank 1 does its part until it is told that rank 0 has asked for `reports` of how it is; both are of use afterwards.
fn reports(link: Link, reports: usize, part: Part) -> Vec<String> {
    let told = Arc::new(Barrier::new(2));
    let states = run(connect(link, 2), move |mut comm| {
        // Only a bug reaches it, even if the machine stands still for a while.
        comm.set_deadline(WATCHDOG);
        assert_usable(&mut comm);
        let mut states = Vec::new();
        if comm.rank() == Rank(0) {
            states.extend((0..reports).map(|_| state_of_the_other(&comm)));
            let sent = comm.send(Rank(1), AWAITED, vec![7u8]);
            told.wait();
            sent.wait().unwrap();
        } else {
            part(&mut comm, &told);
        }
        assert_usable(&mut comm);
        states
    });
    states.into_iter().flatten().collect()
}

/// As it must be in one of some worlds at least: a machine may stand still at the wrong moment.
fn one_of_some_worlds(part: Part, fits: impl Fn(&str) -> bool) {
    for link in TWO_LINKS {
        let mut all = Vec::new();
        let is_found = (0..ATTEMPTS).any(|_| {
            let states = reports(link, 1, part);
            let is_found = states.iter().all(|state| fits(state));
            all.extend(states);
            is_found
        });
        assert!(is_found, "{link:?}: {all:#?}");
    }
}

#[test]
fn a_rank_that_sleeps_in_an_await_is_not_busy() {
    let part: Part = |comm, told| {
        let received = runtime().block_on(comm.recv(Rank(0), AWAITED, vec![0u8]));
        assert_eq!(received.unwrap(), [7]);
        told.wait();
    };
    one_of_some_worlds(part, |state| state.contains("is in recv(") && !state.contains("busy"));
}

#[test]
fn a_rank_that_waits_on_a_thread_is_not_busy() {
    let part: Part = |comm, told| {
        assert_eq!(comm.recv(Rank(0), AWAITED, vec![0u8]).wait().unwrap(), [7]);
        told.wait();
    };
    one_of_some_worlds(part, |state| state.contains("is in recv(") && !state.contains("busy"));
}

#[test]
fn a_rank_that_blocks_its_executor_before_a_call_is_busy() {
    let part: Part = |comm, told| {
        runtime().block_on(async {
            told.wait();
            assert_eq!(comm.recv(Rank(0), AWAITED, vec![0u8]).await.unwrap(), [7]);
        });
    };
    one_of_some_worlds(part, |state| state.contains("is in no operation here, busy elsewhere for"));
}

/// It has slept in the operation before, so that it could be woken.
#[test]
fn a_rank_that_blocks_its_executor_within_an_operation_is_busy() {
    let part: Part = |comm, told| {
        runtime().block_on(async {
            let mut received = comm.recv(Rank(0), AWAITED, vec![0u8]);
            let early = tokio::time::timeout(Duration::from_millis(20), &mut received).await;
            assert!(early.is_err());
            told.wait();
            assert_eq!(received.await.unwrap(), [7]);
        });
    };
    one_of_some_worlds(part, |state| state.contains("waiting for 0, busy elsewhere for"));
}

#[test]
fn a_rank_that_has_not_polled_what_it_has_begun_is_busy() {
    let part: Part = |comm, told| {
        let received = comm.recv(Rank(0), AWAITED, vec![0u8]);
        told.wait();
        assert_eq!(received.wait().unwrap(), [7]);
    };
    one_of_some_worlds(part, |state| state.contains("waiting for 0, busy elsewhere for"));
}

#[cfg(feature = "testing")]
mod simulated {
    use std::time::Duration;

    use futures_util::future::join_all;
    use hcomm::testing::{Net, World};
    use hcomm::{Communicator, Error, Rank};

    /// What the last rank's report says of rank 0, which does its part for 30 s, in a world of `n`.
    fn state<Fut: Future>(n: usize, seed: u64, part: impl Fn(Communicator) -> Fut) -> String {
        let program = async |comm: Communicator, _: Net| {
            if comm.rank() == Rank(0) {
                let _ = tokio::time::timeout(Duration::from_secs(30), part(comm)).await;
                return None;
            }
            if comm.rank().index() + 1 < comm.size() {
                tokio::time::sleep(Duration::from_secs(40)).await;
                return None;
            }
            let error =
                comm.recv(Rank(0), 1, vec![0u8]).timeout(Duration::from_secs(8)).await.unwrap_err().error;
            let Error::Deadline(report) = &error else { panic!("{error}") };
            let states = &report.states;
            Some(states.iter().find(|(rank, _)| *rank == Rank(0)).expect("it was asked").1.clone())
        };
        let states = World::new(n).seed(seed).run(program);
        states.into_iter().flatten().flatten().next().unwrap()
    }

    #[test]
    fn whoever_awaits_is_not_busy() {
        for (n, seed) in [(2, 1), (3, 2), (5, 3), (8, 4)] {
            let last = Rank(n - 1);
            let one = state(n as usize, seed, async |comm| {
                let _ = comm.recv(last, 2, vec![0u8]).await;
            });
            let kept = state(n as usize, seed, async |comm| {
                // In front of those who sleep is one whom nobody polls any more.
                let mut first = comm.recv(last, 2, vec![0u8]);
                assert!(futures_util::poll!(&mut first).is_pending());
                let _ = comm.recv(last, 3, vec![0u8]).await;
            });
            let many = state(n as usize, seed, async |comm| {
                let receives = (2..20).map(|tag| comm.recv(last, tag, vec![0u8]));
                let _ = join_all(receives).await;
            });
            for state in [one, kept, many] {
                assert!(state.contains("is in recv(") && !state.contains("busy"), "n {n}: {state}");
            }
        }
    }

    #[test]
    fn whoever_does_not_come_back_is_busy() {
        for (n, seed) in [(2, 1), (3, 2), (5, 3), (8, 4)] {
            let last = Rank(n - 1);
            let polled = state(n as usize, seed, async |comm| {
                let mut first = comm.recv(last, 2, vec![0u8]);
                assert!(futures_util::poll!(&mut first).is_pending());
                tokio::time::sleep(Duration::from_secs(30)).await;
                drop(first);
            });
            let begun = state(n as usize, seed, async |comm| {
                let first = comm.recv(last, 2, vec![0u8]);
                tokio::time::sleep(Duration::from_secs(30)).await;
                drop(first);
            });
            let detached = state(n as usize, seed, async |comm| {
                drop(comm.recv(last, 2, vec![0u8]));
                tokio::time::sleep(Duration::from_secs(30)).await;
            });
            for state in [polled, begun, detached] {
                assert!(
                    state.contains("is in recv(") && state.contains("busy elsewhere for"),
                    "n {n}: {state}"
                );
            }
        }
    }
}
