//! Parameters that one rank holds: how stale what is pulled may be, and what becomes of the others when a worker leaves, is lost,
//! drops its future, or sends something else.

use std::time::Duration;

use futures_util::FutureExt;
use hcomm::{Error, Parameters, Rank, ServedParameters, within};

use crate::common::server_and_workers;

const TAG: u32 = 3;
/// Long enough for what comes at once.
const SHORT: Duration = Duration::from_secs(20);
/// More than goes along with its header.
const LARGE: usize = 100_000;

/// Adds the next update, and answers who waits for it.
fn serve(served: &mut ServedParameters<'_, u64>) -> (Rank, u32) {
    let update = served.next_wait().unwrap().unwrap();
    served.parameters().iter_mut().zip(&update.buffer).for_each(|(sum, value)| *sum += value);
    answer(served);
    (update.worker, update.clock)
}

/// Answers who asks; there is no update.
fn answer(served: &mut ServedParameters<'_, u64>) {
    assert!(served.next().now_or_never().is_none());
}

fn pulled(worker: &mut Parameters<'_, u64>) -> (u32, u64) {
    let pulled = worker.pull_wait().unwrap();
    (pulled.version, pulled.values[0])
}

fn asks(worker: &mut Parameters<'_, u64>) {
    assert!(worker.pull().now_or_never().is_none(), "it is not there");
}

#[test]
fn what_is_pulled_is_no_staler_than_it_may_be() {
    for count in [1, LARGE] {
        let (server, workers) = server_and_workers(2);
        let mut served = server.serve_parameters([1, 2], TAG, vec![0u64; count]);
        let mut swift = workers[0].parameters::<u64>(0, TAG, count, 2);
        let mut slow = workers[1].parameters::<u64>(0, TAG, count, 2);
        let mut pushed = Vec::new();
        for clock in 0..2 {
            pushed.push(swift.push(vec![1u64; count]));
            assert_eq!(serve(&mut served), (Rank(1), clock));
        }
        // Two clocks ahead: it may have what there is.
        asks(&mut swift);
        answer(&mut served);
        assert_eq!(pulled(&mut swift), (0, 2));
        // Three: it waits for the other's first.
        pushed.push(swift.push(vec![1u64; count]));
        assert_eq!(serve(&mut served), (Rank(1), 2));
        asks(&mut swift);
        answer(&mut served);
        asks(&mut swift);
        pushed.push(slow.push(vec![10u64; count]));
        assert_eq!(serve(&mut served), (Rank(2), 0));
        assert_eq!(pulled(&mut swift), (1, 13));
        assert_eq!(served.clocks(), [(Rank(1), 3), (Rank(2), 1)]);
        assert_eq!(served.version(), 1);
        pushed.into_iter().for_each(|push| drop(push.wait().unwrap()));
    }
}

/// Each worker waits for what it may, and all end; sums are those of all updates.
#[test]
fn workers_go_on_with_whatever_staleness() {
    const CLOCKS: u32 = 60;
    for staleness in [0, 1, 3, u32::MAX] {
        let (server, workers) = server_and_workers(4);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async move {
            let tasks: Vec<_> = workers
                .into_iter()
                .map(|comm| {
                    tokio::spawn(async move {
                        let mut shared = comm.parameters::<u64>(0, TAG, 100, staleness);
                        for clock in 0..CLOCKS {
                            let pulled = shared.pull().await.unwrap();
                            assert!(u64::from(pulled.version) + u64::from(staleness) >= u64::from(clock));
                            // What is in is in whole.
                            assert!(pulled.values.iter().all(|value| *value == pulled.values[0]));
                            assert!(pulled.values[0] >= 4 * u64::from(pulled.version));
                            shared.push(vec![1u64; 100]).await.unwrap();
                        }
                    })
                })
                .collect();
            let mut served = server.serve_parameters(1..5, TAG, vec![0u64; 100]);
            let mut next = [0; 5];
            while let Some(update) = served.next().await.unwrap() {
                let at = &mut next[update.worker.index()];
                assert_eq!(update.clock, *at);
                *at += 1;
                served.parameters().iter_mut().zip(&update.buffer).for_each(|(sum, value)| *sum += value);
            }
            assert_eq!(served.parameters(), [u64::from(4 * CLOCKS); 100]);
            assert_eq!(served.left().len(), 4);
            for task in tasks {
                task.await.unwrap();
            }
        });
    }
}

#[test]
fn who_leaves_holds_up_nobody() {
    let (server, mut workers) = server_and_workers(2);
    let mut served = server.serve_parameters([1, 2], TAG, vec![0u64]);
    let gone = workers.pop().unwrap();
    let mut shared = workers[0].parameters::<u64>(0, TAG, 1, 0);
    shared.push(vec![5u64]).wait().unwrap();
    assert_eq!(serve(&mut served), (Rank(1), 0));
    asks(&mut shared);
    answer(&mut served);
    asks(&mut shared);
    drop(gone);
    while served.left().is_empty() {
        answer(&mut served);
        std::thread::yield_now();
    }
    assert_eq!(served.left(), [Rank(2)]);
    assert_eq!(pulled(&mut shared), (1, 5));
    drop(shared);
    drop(workers);
    assert_eq!(served.next_wait().unwrap(), None);
}

#[test]
fn a_worker_that_is_lost_is_named_to_all() {
    let (server, mut workers) = server_and_workers(2);
    let lost = workers.pop().unwrap();
    let mut served = server.serve_parameters([1, 2], TAG, vec![0u64]);
    let mut shared = workers[0].parameters::<u64>(0, TAG, 1, 0);
    shared.push(vec![5u64]).wait().unwrap();
    serve(&mut served);
    asks(&mut shared);
    let panics = std::thread::spawn(move || {
        let _lost = lost;
        std::panic::resume_unwind(Box::new("gone"));
    });
    panics.join().unwrap_err();
    let failed = served.next_wait().unwrap_err();
    assert!(failed.is_fatal() && failed.blamed() == [Rank(2)], "{failed}");
    let failed = shared.pull_wait().unwrap_err();
    assert!(failed.is_fatal() && failed.blamed() == [Rank(2)], "{failed}");
}

/// Whatever was asked for is there for the next.
#[test]
fn a_pull_that_is_dropped_is_gone_on_with() {
    let (server, workers) = server_and_workers(1);
    let mut served = server.serve_parameters([1], TAG, vec![7u64; LARGE]);
    let mut shared = workers[0].parameters::<u64>(0, TAG, LARGE, 0);
    asks(&mut shared);
    answer(&mut served);
    // The answer is of version 0, and is on its way; by then it wants another.
    let push = shared.push(vec![1u64; LARGE]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let serves = async {
            while let Some(update) = served.next().await.unwrap() {
                served.parameters().iter_mut().zip(&update.buffer).for_each(|(sum, value)| *sum += value);
            }
        };
        let pulls = async {
            let got = shared.pull().await.map(|pulled| (pulled.version, pulled.values[LARGE - 1]));
            assert_eq!(got.unwrap(), (1, 8));
            push.await.unwrap();
        };
        tokio::select! {
            () = serves => panic!("nobody has left"),
            () = pulls => {}
        }
    });
    drop(served);
    assert_eq!(server.resources().operations, 0);
}

#[test]
fn what_is_no_update_is_refused_and_the_rest_goes_on() {
    let (server, workers) = server_and_workers(1);
    let mut served = server.serve_parameters([1], TAG, vec![0u64; 3]);
    let refused = |served: &mut ServedParameters<'_, u64>| {
        let failed = served.next_wait().unwrap_err();
        assert!(matches!(failed, Error::Mismatch { .. }), "{failed}");
    };
    workers[0].send(0, TAG, vec![1u64; 3]).wait().unwrap();
    refused(&mut served);
    workers[0].contribute(0, TAG, 0, vec![1u64; 2]).wait().unwrap();
    refused(&mut served);
    workers[0].contribute(0, TAG, 0, vec![1i64; 3]).wait().unwrap();
    refused(&mut served);
    workers[0].contribute(0, TAG, 0, Vec::<f32>::new()).wait().unwrap();
    refused(&mut served);
    let mut shared = workers[0].parameters::<u64>(0, TAG, 3, 0);
    shared.push(vec![1u64; 3]).wait().unwrap();
    assert_eq!(serve(&mut served), (Rank(1), 0));
    // Whoever has another count in mind is told.
    let mut other = workers[0].parameters::<u64>(0, TAG, 3, 0);
    asks(&mut other);
    answer(&mut served);
    drop(other);
    let mut other = workers[0].parameters::<u64>(0, TAG, 2, 0);
    let failed = other.pull_wait().unwrap_err();
    assert!(matches!(failed, Error::Mismatch { .. }), "{failed}");
    let failed = server.serve_parameters([1], TAG, Vec::<u64>::new()).next_wait().unwrap_err();
    assert!(matches!(failed, Error::InvalidArgument { .. }), "{failed}");
    let failed = server.serve_parameters([2], TAG, vec![1u64]).next_wait().unwrap_err();
    assert!(matches!(failed, Error::InvalidArgument { .. }), "{failed}");
}

#[test]
fn who_waits_too_long_is_told_so() {
    let (server, workers) = server_and_workers(2);
    let mut served = server.serve_parameters([1, 2], TAG, vec![0u64]);
    let mut shared = workers[0].parameters::<u64>(0, TAG, 1, 0);
    shared.push(vec![1u64]).wait().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let waits = Duration::from_millis(40);
        let first = within(SHORT, async { served.next().await.map(|update| update.map(|of| of.clock)) });
        assert_eq!(first.await.unwrap(), Some(0));
        let (failed, late) = tokio::join!(
            within(waits, async { served.next().await.unwrap_err() }),
            within(waits, async { shared.pull().await.unwrap_err() })
        );
        assert!(failed.is_deadline(), "{failed}");
        assert!(late.is_deadline() && late.blamed() == [Rank(0)], "{late}");
        // Both go on.
        let mut other = workers[1].parameters::<u64>(0, TAG, 1, 0);
        other.push(vec![2u64]).await.unwrap();
        let serves = async { served.next().await.map(|update| update.map(|of| of.worker)) };
        assert_eq!(within(SHORT, serves).await.unwrap(), Some(Rank(2)));
        assert!(served.next().now_or_never().is_none());
        assert_eq!(within(SHORT, async { shared.pull().await.map(|got| got.version) }).await.unwrap(), 1);
    });
}

/// Between processes as well, for what goes along with its header and what is offered.
#[test]
fn on_all_links_parameters_are_pulled_and_pushed() {
    const CLOCKS: u32 = 12;
    for link in crate::common::LINKS {
        crate::common::world(link, 3, |mut comm| {
            for (count, staleness) in [(3, 0), (LARGE, 1)] {
                if comm.rank().0 == 0 {
                    let mut served = comm.serve_parameters(1..3, TAG, vec![0u64; count]);
                    for _ in 0..2 * CLOCKS {
                        let update = served.next_wait().unwrap().unwrap();
                        served.parameters().iter_mut().zip(&update.buffer).for_each(|(sum, one)| *sum += one);
                    }
                    assert_eq!(served.parameters(), vec![u64::from(2 * CLOCKS); count]);
                } else {
                    let mut shared = comm.parameters::<u64>(0, TAG, count, staleness);
                    for clock in 0..CLOCKS {
                        let pulled = shared.pull_wait().unwrap();
                        assert!(pulled.version + staleness >= clock);
                        assert!(pulled.values.iter().all(|value| *value >= u64::from(2 * pulled.version)));
                        shared.push(vec![1u64; count]).wait().unwrap();
                    }
                }
                comm.barrier().wait().unwrap();
            }
        });
    }
}
