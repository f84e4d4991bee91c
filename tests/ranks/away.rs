//! A rank is away while others give up calls by the thousand. However many these are, it is told of each when it comes, at
//! once, and then all go on together.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::{GENEROUS, LINKS, Link, assert_usable, class, connect, run_within};
use hcomm::{Communicator, Error, OpError, Rank, ReduceOp};

/// More than what is kept one by one.
const CALLS: usize = 5_000;
/// For all of them, on a machine that is busy otherwise.
const PATIENCE: Duration = Duration::from_secs(600);

type Reduced = Result<Vec<u32>, OpError<Vec<u32>>>;

/// All ranks but the last call what ends without it; then it calls as often.
fn away(
    link: Link,
    n: usize,
    calls: usize,
    count: usize,
    present: fn(&mut Communicator, Vec<u32>) -> Reduced,
    told: fn(&Error) -> bool,
) {
    let step = Arc::new(Barrier::new(n));
    run_within(PATIENCE, connect(link, n), move |mut comm| {
        comm.set_deadline(PATIENCE);
        let mut buffer = vec![1u32; count];
        let is_away = comm.rank().index() == n - 1;
        if is_away {
            step.wait();
        }
        for call in 0..calls {
            let result = if is_away {
                comm.all_reduce(buffer, ReduceOp::Sum).wait()
            } else {
                present(&mut comm, buffer)
            };
            let OpError { error, buffer: back, .. } = result.expect_err("it can't have ended well");
            if is_away {
                assert!(told(&error), "{link:?} {n} ranks, {count} elements, call {call}: {error}");
            }
            buffer = back.unwrap_or_else(|| vec![1u32; count]);
        }
        if !is_away {
            step.wait();
        }
        comm.set_deadline(GENEROUS);
        assert_usable(&mut comm);
    });
}

fn given_up_by_rank_0(error: &Error) -> bool {
    matches!(error, Error::Aborted { by: Rank(0), .. })
}

/// Nobody has anything to do meanwhile.
fn on_all_links_at_once(act: fn(Link)) {
    let all = LINKS.map(|link| std::thread::spawn(move || act(link)));
    all.into_iter().for_each(|link| link.join().unwrap());
}

#[test]
fn cancelled_calls() {
    on_all_links_at_once(|link| {
        for count in [1, 40_000] {
            let cancel = |comm: &mut Communicator, buffer| {
                let reduced = comm.all_reduce(buffer, ReduceOp::Sum);
                reduced.cancel();
                reduced.wait()
            };
            away(link, 2, CALLS, count, cancel, given_up_by_rank_0);
        }
    });
}

#[test]
fn calls_whose_time_is_over() {
    on_all_links_at_once(|link| {
        let hurry = |comm: &mut Communicator, buffer| {
            comm.all_reduce(buffer, ReduceOp::Sum).timeout(Duration::ZERO).wait()
        };
        away(link, 2, 2_000, 1, hurry, given_up_by_rank_0);
    });
}

#[test]
fn calls_that_others_disagree_about() {
    // Each takes its time: the ranks that are there wait a little for what the last one has to say.
    on_all_links_at_once(|link| {
        let disagree = |comm: &mut Communicator, buffer: Vec<u32>| {
            let op = if comm.rank() == Rank(0) { ReduceOp::Sum } else { ReduceOp::Max };
            comm.all_reduce(buffer, op).wait()
        };
        away(link, 3, 100, 1, disagree, |error| matches!(class(error), "mismatch" | "aborted"));
    });
}
