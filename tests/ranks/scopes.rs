//! Limits that operations inherit, and operations that end with their future.

use std::time::Duration;

use hcomm::{Communicator, Error, Operation, ReduceOp, Source, Tags, blocking, until, within};

use crate::common;

/// Nobody waits for it in a test.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(40);

fn pair() -> (Communicator, Communicator) {
    let mut ranks = Communicator::local(2);
    let one = ranks.pop().unwrap();
    let mut zero = ranks.pop().unwrap();
    zero.set_deadline(LONG);
    (zero, one)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn whatever_is_called_within_a_limit_has_no_longer() {
    let (mut zero, _one) = pair();
    let stream = zero.keyed("key").unwrap();
    runtime().block_on(async {
        let collective = async |comm: &mut Communicator| comm.all_reduce(vec![1u8], ReduceOp::Sum).await;
        let failed = within(SHORT, collective(&mut zero)).await.unwrap_err();
        assert!(failed.error.is_deadline() && failed.buffer == Some(vec![1]), "{failed:?}");
        // The shorter holds, around or inside.
        let failed = within(LONG, within(SHORT, collective(&mut zero))).await.unwrap_err();
        assert!(failed.error.is_deadline());
        let failed = within(SHORT, within(LONG, collective(&mut zero))).await.unwrap_err();
        assert!(failed.error.is_deadline());
        // Its own limit may be shorter only.
        let receive = async || zero.recv(1, 0, vec![0u8]).timeout(LONG).await;
        assert!(within(SHORT, receive()).await.unwrap_err().error.is_deadline());
        let receive = async || zero.recv(1, 0, vec![0u8]).timeout(SHORT).await;
        assert!(within(LONG, receive()).await.unwrap_err().error.is_deadline());
        let look = async || zero.probe(Source::Any, Tags::Any).await;
        assert!(until(std::time::Instant::now() + SHORT, look()).await.unwrap_err().is_deadline());
        // It was over before the call.
        assert!(until(std::time::Instant::now(), look()).await.unwrap_err().is_deadline());
        let mut stream = stream;
        let keyed = async || stream.barrier().await;
        let mut keyed = keyed;
        assert!(within(SHORT, keyed()).await.unwrap_err().error.is_deadline());
        let mut first = zero.contributions::<f32>([1], 3, 1);
        let failed = within(SHORT, async { first.reduce_first(1, 0, ReduceOp::Sum).await }).await;
        assert!(failed.unwrap_err().is_deadline());
    });
    let failed = blocking::within(SHORT, || blocking::all_reduce(&mut zero, &mut [1u8], ReduceOp::Sum));
    assert!(failed.unwrap_err().is_deadline());
}

/// It is over with the poll of its future: other tasks of the thread have their own.
#[test]
fn a_limit_is_for_one_future() {
    let (zero, one) = pair();
    runtime().block_on(async {
        let limited = within(SHORT, async { zero.recv(1, 0, vec![0u8]).await });
        let other = async { zero.recv(1, 1, vec![0u8]).await };
        let sends = async {
            // Once the first is over.
            while one.try_probe(0, 9).unwrap().is_none() {
                tokio::task::yield_now().await;
            }
            one.send(0, 1, vec![7u8]).await.unwrap();
        };
        let tell = async {
            let failed = limited.await.unwrap_err();
            zero.send(1, 9, vec![0u8]).await.unwrap();
            failed
        };
        let (failed, got, ()) = tokio::join!(tell, other, sends);
        assert!(failed.error.is_deadline());
        assert_eq!(got.unwrap(), [7]);
    });
}

#[test]
fn what_is_tied_to_its_future_is_cancelled_with_it_on_all_ranks() {
    let (mut zero, mut one) = pair();
    let sum = |comm: &mut Communicator| -> Operation<Vec<u32>> {
        comm.all_reduce(vec![1u32; 1 << 16], ReduceOp::Sum)
    };
    runtime().block_on(async {
        // As a server drops what it did for a client that has gone.
        let tied = sum(&mut zero).cancel_on_drop();
        let task = tokio::spawn(tied);
        tokio::task::yield_now().await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        let failed = sum(&mut one).await.unwrap_err();
        assert_eq!(common::class(&failed.error), "aborted");
        // Without, it goes on.
        drop(sum(&mut zero));
        assert_eq!(sum(&mut one).await.unwrap(), vec![2; 1 << 16]);
        // What has ended is not harmed.
        let (got, other) = tokio::join!(sum(&mut zero).cancel_on_drop(), sum(&mut one).cancel_on_drop());
        assert_eq!((got.unwrap()[0], other.unwrap()[0]), (2, 2));
        // Nor is what was done before its future was polled.
        let tied = sum(&mut zero).cancel_on_drop();
        assert_eq!(sum(&mut one).await.unwrap()[0], 2);
        drop(tied);
        // A message that nobody waits for any more is left to others.
        drop(zero.recv(1, 4, vec![0u8]).cancel_on_drop());
        one.send(0, 4, vec![8u8]).await.unwrap();
        assert_eq!(zero.recv(1, 4, vec![0u8]).await.unwrap(), [8]);
    });
}

#[test]
fn a_receive_that_is_cancelled_says_so() {
    let (zero, _one) = pair();
    let receive = zero.recv(1, 0, vec![0u8]);
    receive.cancel();
    let failed = runtime().block_on(receive.cancel_on_drop()).unwrap_err();
    assert!(matches!(failed.error, Error::Cancelled { .. }), "{failed:?}");
}
