//! The first k of n contributions to a round: who counts, who is late, who does not come; and that nothing is lost with a future.

use std::time::Duration;

use futures_util::FutureExt;
use hcomm::{Error, Rank, ReduceOp};

use crate::common::{self, server_and_workers};

const TAG: u32 = 7;
/// Long enough for what comes at once.
const SHORT: Duration = Duration::from_secs(20);
/// More than goes along with its header.
const LARGE: usize = 100_000;

fn ranks(of: &[u32]) -> Vec<Rank> {
    of.iter().copied().map(Rank).collect()
}

/// Of which the order of addition shows.
fn value(rank: u32) -> f32 {
    [1e8, 1.0, -1e8, 3.5, 0.1, 7e7][rank as usize % 6]
}

/// (a + b) + c differs from a + (b + c) here, so the order of arrival would show.
#[test]
fn the_same_contributors_give_the_same_bits_in_whatever_order_they_come() {
    let expected = [1, 2, 3, 4, 5].map(value).into_iter().reduce(|sum, value| sum + value).unwrap();
    for rotation in 0..5 {
        for count in [1, LARGE] {
            let (server, workers) = server_and_workers(6);
            let mut first = server.contributions::<f32>(1..7, TAG, count);
            let mut order = [0, 1, 2, 3, 4];
            order.rotate_left(rotation);
            let sent: Vec<_> = order
                .iter()
                .map(|at| workers[*at].contribute(0, TAG, 9, vec![value(*at as u32 + 1); count]))
                .collect();
            let reduced = first.reduce_first(5, 9, ReduceOp::Sum).timeout(SHORT).wait().unwrap();
            assert_eq!(reduced.contributors, ranks(&[1, 2, 3, 4, 5]));
            assert_eq!(reduced.missing, ranks(&[6]));
            assert!(reduced.buffer.len() == count, "{}", reduced.buffer.len());
            assert!(reduced.buffer.iter().all(|sum| sum.to_bits() == expected.to_bits()));
            sent.into_iter().for_each(|sent| assert_eq!(sent.wait().unwrap().len(), count));
        }
    }
}

#[test]
fn what_is_late_is_of_no_other_round_and_what_is_early_of_its_own() {
    let (server, workers) = server_and_workers(3);
    let mut first = server.contributions::<u32>(1..4, TAG, 1);
    let give = |worker: usize, round, value: u32| {
        workers[worker].contribute(0, TAG, round, vec![value]).wait().unwrap();
    };
    for round in 0..50 {
        // The third is two rounds behind, and the first is one ahead.
        give(1, round, 10);
        if round >= 2 {
            give(2, round - 2, 9000);
        }
        if round == 0 {
            give(0, 0, 1);
        }
        give(0, round + 1, 1);
        let reduced = first.reduce_first(2, round, ReduceOp::Sum).timeout(SHORT).wait().unwrap();
        assert_eq!((reduced.buffer, reduced.contributors), (vec![11], ranks(&[1, 2])), "round {round}");
    }
    // Those that came behind what was looked at count once they are.
    give(2, 60, 7);
    let last = first.reduce_first(1, 60, ReduceOp::Max).timeout(SHORT).wait().unwrap();
    assert_eq!((last.buffer, last.contributors), (vec![7], ranks(&[3])));
    assert_eq!(first.late(), 1 + 48, "one of the first, and all of the third but its last");
}

#[test]
fn a_contributor_counts_once_with_its_first_word() {
    let (server, workers) = server_and_workers(2);
    let mut first = server.contributions::<i64>(1..3, TAG, 2);
    for value in [5i32, 6, 7] {
        workers[0].contribute(0, TAG, 1, vec![i64::from(value); 2]).wait().unwrap();
    }
    let late = first.reduce_first(2, 1, ReduceOp::Sum).timeout(Duration::from_millis(30)).wait();
    let Err(Error::Deadline(report)) = late else { panic!("{late:?}") };
    assert_eq!(report.late, ranks(&[2]));
    assert_eq!(first.contributed(), ranks(&[1]));
    // Nothing is lost: with one there are enough.
    let reduced = first.reduce_first(1, 1, ReduceOp::Sum).wait().unwrap();
    assert_eq!(reduced.buffer, [5, 5]);
    // The others are late.
    workers[0].contribute(0, TAG, 2, vec![8i64; 2]).wait().unwrap();
    let reduced = first.reduce_first(1, 2, ReduceOp::Sum).wait().unwrap();
    assert_eq!((reduced.buffer, first.late()), (vec![8, 8], 2));
}

#[test]
fn who_leaves_does_not_come_and_who_can_not_be_enough_is_told_who_is_missing() {
    let (server, mut workers) = server_and_workers(3);
    let mut first = server.contributions::<f64>(1..4, TAG, 1);
    workers[0].contribute(0, TAG, 4, vec![0.5]).wait().unwrap();
    workers[1].contribute(0, TAG, 5, vec![9.0]).wait().unwrap();
    // It has contributed before it left.
    workers[2].contribute(0, TAG, 4, vec![0.25]).wait().unwrap();
    drop(workers.pop());
    let reduced = first.reduce_first(2, 4, ReduceOp::Sum).timeout(SHORT).wait().unwrap();
    assert_eq!((reduced.buffer, reduced.contributors), (vec![0.75], ranks(&[1, 3])));

    workers[0].contribute(0, TAG, 7, vec![1.0]).wait().unwrap();
    let failed = first.reduce_first(1, 6, ReduceOp::Sum).timeout(SHORT).now_or_never();
    assert!(failed.is_none(), "the second may contribute");
    workers[1].contribute(0, TAG, 8, vec![2.0]).wait().unwrap();
    let failed = first.reduce_first(1, 6, ReduceOp::Sum).timeout(SHORT).wait().unwrap_err();
    let Error::TooFew { needed: 1, contributed, missing, cause, .. } = &failed else { panic!("{failed}") };
    assert_eq!((&contributed[..], &missing[..]), (&[][..], &ranks(&[1, 2, 3])[..]));
    assert!(cause.contains("rank 2 is in round 8 already") && cause.contains("rank 3 has left"), "{cause}");
    assert!(!failed.is_fatal() && failed.blamed() == ranks(&[1, 2, 3]));
    // In their own rounds they are there.
    let reduced = first.reduce_first(1, 7, ReduceOp::Sum).timeout(SHORT).wait().unwrap();
    assert_eq!(reduced.contributors, ranks(&[1]));
    let reduced = first.reduce_first(1, 8, ReduceOp::Sum).timeout(SHORT).wait().unwrap();
    assert_eq!(reduced.contributors, ranks(&[2]));
}

/// Each of its polls in a future of its own, which is dropped.
#[test]
fn a_future_that_is_dropped_loses_nothing() {
    for count in [1, LARGE] {
        let (server, workers) = server_and_workers(3);
        let mut first = server.contributions::<u64>(1..4, TAG, count);
        let mut sent = Vec::new();
        for (worker, value) in [(2, 300u64), (0, 1), (1, 20)] {
            let early = first.reduce_first(3, 1, ReduceOp::Sum).now_or_never();
            assert!(early.is_none(), "{early:?}");
            sent.push(workers[worker].contribute(0, TAG, 1, vec![value; count]));
        }
        let reduced = first.reduce_first(3, 1, ReduceOp::Sum).timeout(SHORT).wait().unwrap();
        assert_eq!(reduced.buffer, vec![321; count]);
        sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
        assert_eq!(server.resources().operations, 0, "no look is left");
    }
}

#[test]
fn what_is_no_contribution_of_this_shape_is_refused_and_the_others_count() {
    let (server, workers) = server_and_workers(2);
    let mut first = server.contributions::<f32>(1..3, TAG, 3);
    let ended = |first: &mut hcomm::Contributions<'_, f32>| {
        let failed = first.reduce_first(2, 1, ReduceOp::Sum).timeout(SHORT).wait().unwrap_err();
        assert!(matches!(failed, Error::Mismatch { .. }), "{failed}");
        failed.to_string()
    };
    workers[0].contribute(0, TAG, 1, vec![1.0f32; 3]).wait().unwrap();
    workers[1].contribute(0, TAG, 1, vec![1.0f32; 2]).wait().unwrap();
    let text = ended(&mut first);
    assert!(text.contains("reduce_first(3 × f32") && text.contains("contribute(2 × f32, tag 7)"), "{text}");
    workers[1].contribute(0, TAG, 1, vec![1u32; 3]).wait().unwrap();
    assert!(ended(&mut first).contains("contribute(3 × u32"));
    workers[1].send(0, TAG, vec![1.0f32; 3]).wait().unwrap();
    assert!(ended(&mut first).contains("send(3 × f32"));
    let large = workers[1].contribute(0, TAG, 1, vec![1.0f64; LARGE]);
    ended(&mut first);
    let failed = large.wait().unwrap_err();
    assert!(matches!(failed.error, Error::Aborted { .. }), "{failed:?}");
    workers[1].contribute(0, TAG, 1, vec![2.0f32; 3]).wait().unwrap();
    let reduced = first.reduce_first(2, 1, ReduceOp::Sum).timeout(SHORT).wait().unwrap();
    assert_eq!(reduced.buffer, [3.0; 3]);
    // And one of them is no message for a receive.
    drop(first);
    workers[0].contribute(0, TAG, 2, vec![1.0f32; 3]).wait().unwrap();
    let failed = server.recv(1, TAG, vec![0f32; 3]).wait().unwrap_err();
    assert!(matches!(failed.error, Error::Mismatch { .. }), "{failed:?}");
}

#[test]
fn a_large_one_that_is_late_need_not_be_sent() {
    let (server, workers) = server_and_workers(2);
    let mut first = server.contributions::<u8>(1..3, TAG, LARGE);
    let slow = workers[1].contribute(0, TAG, 0, vec![9u8; LARGE]);
    let swift = workers[0].contribute(0, TAG, 1, vec![1u8; LARGE]);
    let reduced = first.reduce_first(1, 1, ReduceOp::Max).timeout(SHORT).wait().unwrap();
    assert_eq!(reduced.contributors, ranks(&[1]));
    swift.wait().unwrap();
    // It is looked at in a later round at the latest.
    let last = workers[0].contribute(0, TAG, 2, vec![2u8; LARGE]);
    let more = first.reduce_first(2, 2, ReduceOp::Max).timeout(Duration::from_millis(100)).wait();
    assert!(matches!(more, Err(Error::Deadline(_))), "{more:?}");
    let failed = slow.wait().unwrap_err();
    assert!(matches!(failed.error, Error::Aborted { .. }), "{failed:?}");
    assert_eq!(failed.buffer.map(|buffer| buffer.len()), Some(LARGE));
    last.wait().unwrap();
}

#[test]
fn a_worker_that_gives_its_contribution_up_may_give_another() {
    let (server, workers) = server_and_workers(1);
    let mut first = server.contributions::<u8>([1], TAG, LARGE);
    let sent = workers[0].contribute(0, TAG, 3, vec![9u8; LARGE]);
    sent.cancel();
    sent.wait().unwrap_err();
    let again = workers[0].contribute(0, TAG, 3, vec![4u8; LARGE]);
    let reduced = first.reduce_first(1, 3, ReduceOp::Sum).timeout(SHORT).wait().unwrap();
    assert_eq!(reduced.buffer, vec![4; LARGE]);
    again.wait().unwrap();
}

/// A rank that is lost fails the communicator, whoever else would contribute.
#[test]
fn a_rank_that_is_lost_is_named() {
    let (server, mut workers) = server_and_workers(2);
    let lost = workers.pop().unwrap();
    let panics = std::thread::spawn(move || {
        let _lost = lost;
        std::panic::resume_unwind(Box::new("gone"));
    });
    panics.join().unwrap_err();
    let mut first = server.contributions::<f32>(1..3, TAG, 1);
    let failed = first.reduce_first(2, 0, ReduceOp::Sum).timeout(SHORT).wait().unwrap_err();
    assert!(failed.is_fatal() && failed.blamed() == ranks(&[2]), "{failed}");
}

#[test]
fn what_can_not_be_is_refused() {
    let (server, workers) = server_and_workers(2);
    let mut first = server.contributions::<f32>([2, 1, 2], TAG, 1);
    for (k, round, op, told) in [
        (0, 5, ReduceOp::Sum, "from 1 to 2"),
        (3, 5, ReduceOp::Sum, "from 1 to 2"),
        (1, 5, ReduceOp::BitXor, "is not for elements of f32"),
    ] {
        let failed = first.reduce_first(k, round, op).wait().unwrap_err().to_string();
        assert!(failed.contains(told), "{failed}");
    }
    workers[0].contribute(0, TAG, 5, vec![1.0f32]).wait().unwrap();
    first.reduce_first(1, 5, ReduceOp::Sum).wait().unwrap();
    let failed = first.reduce_first(1, 4, ReduceOp::Sum).wait().unwrap_err();
    assert!(matches!(&failed, Error::InvalidArgument { .. }), "{failed}");
    let wrong = server.contributions::<f32>([3], TAG, 1).reduce_first(1, 0, ReduceOp::Sum).wait();
    assert!(matches!(wrong, Err(Error::InvalidArgument { .. })), "{wrong:?}");
    let wrong = workers[0].contribute(3, TAG, 0, vec![1.0f32]).wait();
    assert!(wrong.is_err_and(|failed| common::class(&failed.error) == "invalid argument"));
}

/// As a service does: workers as tasks of a runtime, more of them than are waited for, each as fast as it likes.
#[test]
fn a_server_goes_on_with_the_first_of_its_workers() {
    const ROUNDS: u32 = 40;
    let (server, workers) = server_and_workers(5);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                tokio::spawn(async move {
                    for round in 0..ROUNDS {
                        worker.contribute(0, TAG, round, vec![round; 10]).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                    worker
                })
            })
            .collect();
        let mut first = server.contributions::<u32>(1..6, TAG, 10);
        let mut counted = 0;
        for round in 0..ROUNDS {
            // A worker that is ahead has contributed before.
            let reduced = first.reduce_first(3, round, ReduceOp::Sum).timeout(SHORT).await.unwrap();
            let n = reduced.contributors.len();
            assert!((3..=5).contains(&n) && n + reduced.missing.len() == 5, "{reduced:?}");
            assert_eq!(reduced.buffer, [round * n as u32; 10]);
            counted += n as u64;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(counted + first.late() <= u64::from(5 * ROUNDS));
    });
}

/// Between processes as well, for what goes along with its header and what is offered.
#[test]
fn on_all_links_the_first_count_and_the_others_are_late() {
    const ROUNDS: u32 = 12;
    for link in common::LINKS {
        common::world(link, 4, |mut comm| {
            let me = comm.rank().0;
            for (tag, count) in [(TAG, 3), (TAG + 1, LARGE)] {
                if me == 0 {
                    let mut first = comm.contributions::<u32>(1..4, tag, count);
                    for round in 0..ROUNDS {
                        // All have a last word.
                        let k = if round + 1 < ROUNDS { 2 } else { 3 };
                        let reduced =
                            first.reduce_first(k, round, ReduceOp::Max).timeout(SHORT).wait().unwrap();
                        assert_eq!(reduced.contributors.len() + reduced.missing.len(), 3);
                        assert!(reduced.contributors.len() >= k, "{reduced:?}");
                        let most = reduced.contributors.iter().map(|rank| rank.0).max().unwrap();
                        assert_eq!(reduced.buffer, vec![most * 100 + round; count]);
                    }
                } else {
                    for round in 0..ROUNDS {
                        let sent = comm.contribute(0, tag, round, vec![me * 100 + round; count]).wait();
                        // One that is late need not be sent.
                        let late = |failed: &hcomm::OpError<_>| common::class(&failed.error) == "aborted";
                        assert!(sent.is_ok() || sent.as_ref().is_err_and(late), "{sent:?}");
                    }
                }
                comm.barrier().wait().unwrap();
            }
        });
    }
}
