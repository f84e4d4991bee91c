//! A limit on what is in flight: calls keep their order, callers wait, and nothing hangs where ranks differ or end.

use std::time::Duration;

use futures_util::FutureExt;
use hcomm::{Communicator, Error, Operation, Rank, ReduceOp};

use crate::common;

/// Long enough for what comes at once.
const SHORT: Duration = Duration::from_secs(20);

fn pair() -> (Communicator, Communicator) {
    let mut ranks = Communicator::local(2);
    let one = ranks.pop().unwrap();
    (ranks.pop().unwrap(), one)
}

/// Too large to be over at its call.
fn sum(comm: &mut Communicator, step: u32) -> Operation<Vec<u32>> {
    comm.all_reduce(vec![step; 1 << 16], ReduceOp::Sum)
}

#[test]
fn what_is_called_beyond_the_limit_waits_for_its_turn() {
    let (mut zero, mut one) = pair();
    zero.set_admission(2);
    let sums: Vec<_> = (0..5).map(|step| sum(&mut zero, step)).collect();
    let used = zero.resources();
    assert_eq!((used.operations, used.delayed), (2, 3));
    assert!(zero.ready().now_or_never().is_none());
    assert_eq!(zero.resources().operations, 2, "who does not wait any more is not in flight");
    for step in 0..5 {
        assert_eq!(sum(&mut one, step).timeout(SHORT).wait().unwrap()[0], 2 * step);
    }
    zero.ready().timeout(SHORT).wait().unwrap();
    for (step, sum) in (0..).zip(sums) {
        assert_eq!(sum.timeout(SHORT).wait().unwrap()[7], 2 * step);
    }
    // A limit that is raised lets them call.
    zero.set_admission(1);
    let first = sum(&mut zero, 9);
    assert!(zero.ready().now_or_never().is_none());
    zero.set_admission(2);
    assert!(zero.ready().now_or_never().unwrap().is_ok());
    assert_eq!(sum(&mut one, 9).wait().unwrap()[0], 18);
    first.wait().unwrap();
    // A key has its own.
    let (mut keys, mut other) = (zero.keyed("key").unwrap(), one.keyed("key").unwrap());
    keys.set_admission(1);
    let first = keys.all_reduce(vec![1u32; 1 << 16], ReduceOp::Sum);
    assert!(keys.ready().now_or_never().is_none());
    assert!(zero.ready().now_or_never().unwrap().is_ok());
    other.all_reduce(vec![1u32; 1 << 16], ReduceOp::Sum).wait().unwrap();
    keys.ready().timeout(SHORT).wait().unwrap();
    assert_eq!(first.wait().unwrap()[0], 2);
    // Messages are not counted.
    zero.set_admission(0);
    let receives: Vec<_> = (0..5).map(|tag| zero.recv(1, tag, vec![0u8])).collect();
    assert!(zero.ready().now_or_never().unwrap().is_ok());
    for (tag, receive) in (0..).zip(receives) {
        one.send(0, tag, vec![tag as u8]).wait().unwrap();
        assert_eq!(receive.wait().unwrap(), [tag as u8]);
    }
}

#[test]
fn ranks_with_different_limits_do_not_wait_for_each_other() {
    let threads = Communicator::local(3).into_iter().map(|mut comm| {
        std::thread::spawn(move || {
            comm.set_admission([1, 3, usize::MAX][comm.rank().index()]);
            let sums: Vec<_> = (0..50).map(|step| sum(&mut comm, step)).collect();
            for (step, sum) in (0..).zip(sums) {
                assert_eq!(sum.timeout(SHORT).wait().unwrap()[1], 3 * step);
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

/// As a service does: requests as tasks, one issuer that lets as many of them in as there may be.
#[test]
fn a_service_that_awaits_it_has_no_more_buffers_than_the_limit() {
    const LIMIT: usize = 3;
    let serve = |mut comm: Communicator| async move {
        comm.set_admission(LIMIT);
        let (answers, mut results) = tokio::sync::mpsc::channel(1000);
        for step in 0..100 {
            comm.ready().await.unwrap();
            assert!(comm.resources().operations < LIMIT);
            let answers = answers.clone();
            let sum = sum(&mut comm, step);
            tokio::spawn(async move { answers.send(sum.await.unwrap()[5]).await });
        }
        drop(answers);
        let mut got = Vec::new();
        while let Some(sum) = results.recv().await {
            got.push(sum);
        }
        got.sort_unstable();
        assert_eq!(got, (0..100).map(|step| 2 * step).collect::<Vec<_>>());
        comm
    };
    let (zero, one) = pair();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::join!(serve(zero), serve(one)) });
}

#[test]
fn who_waits_to_call_is_told_who_is_late_or_lost() {
    let (mut zero, one) = pair();
    zero.set_admission(1);
    let first = sum(&mut zero, 0);
    let failed = zero.ready().timeout(Duration::from_millis(50)).wait().unwrap_err();
    let Error::Deadline(report) = &failed else { panic!("{failed}") };
    assert_eq!((report.operation.as_str(), &report.late[..]), ("ready", &[Rank(1)][..]));
    let text = failed.to_string();
    assert!(!text.contains("may have"), "{text}");
    let mut waits = zero.ready();
    assert!((&mut waits).now_or_never().is_none());
    let panics = std::thread::spawn(move || {
        let _lost = one;
        std::panic::resume_unwind(Box::new("gone"));
    });
    panics.join().unwrap_err();
    // The first has failed by then, and so has whatever is called next; either may be told first.
    match waits.timeout(SHORT).wait() {
        Ok(()) => {}
        Err(failed) => assert_eq!(failed.blamed(), [Rank(1)], "{failed}"),
    }
    let failed = first.wait().unwrap_err();
    assert_eq!(common::class(&failed.error), "peer lost");
}
