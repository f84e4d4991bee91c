//! What types promise to programs that are generic over buffers, and to lints.

use std::error::Error as StdError;

use hcomm::{
    Buffer, Builder, Close, Communicator, Connect, Dup, Error, InitError, Keyed, LendMut, Nothing, OpError,
    Operation, Prepared, Rebuild, ReduceOp, Split, SuspendedDeadlines, View,
};

fn shared<T: Send + Sync + Unpin>() {}
fn spawned<T: Send + Unpin + 'static>() {}

#[test]
fn handles_are_shared_and_futures_are_spawned() {
    shared::<Communicator>();
    shared::<Builder>();
    shared::<Keyed>();
    shared::<View<'_>>();
    shared::<Prepared<f32>>();
    shared::<SuspendedDeadlines>();
    shared::<Buffer<f32>>();
    shared::<Error>();
    shared::<InitError>();
    spawned::<Operation<Vec<f32>>>();
    spawned::<Operation<Box<[f32]>>>();
    spawned::<Operation<Buffer<f32>>>();
    spawned::<Operation<hcomm::bytes::Bytes>>();
    spawned::<Operation<Nothing>>();
    spawned::<Operation<&'static [f32]>>();
    spawned::<Operation<&'static mut [f32]>>();
    spawned::<Connect>();
    spawned::<Split>();
    spawned::<Dup>();
    spawned::<Rebuild>();
    spawned::<Close>();
}

/// Of any buffer: neither what it becomes on its way nor what comes back is named.
async fn boxed<B: LendMut + Send + 'static>(
    comm: &mut Communicator,
    buffer: B,
) -> Result<B::Returned, Box<dyn StdError + Send + Sync>> {
    Ok(comm.all_reduce(buffer, ReduceOp::Sum).await?)
}

fn generic<B: LendMut + Send + 'static>(
    mut comm: Communicator,
    buffer: B,
) -> tokio::task::JoinHandle<B::Returned> {
    tokio::spawn(async move { boxed(&mut comm, buffer).await.unwrap() })
}

#[test]
fn a_task_is_generic_over_its_buffer() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut ranks = Communicator::local(2).into_iter();
        let (zero, one) = (ranks.next().unwrap(), ranks.next().unwrap());
        let vec = generic(zero, vec![1u32, 2]);
        let mut buffer = Buffer::zeroed(2);
        buffer.copy_from_slice(&[10u32, 20]);
        let buffer = generic(one, buffer);
        assert_eq!(vec.await.unwrap(), [11, 22]);
        assert_eq!(buffer.await.unwrap()[..], [11, 22]);
    });
}

/// From 128 bytes on clippy's `result_large_err` warns in every crate that returns one.
#[test]
fn errors_are_small() {
    const LARGE: usize = 128;
    const {
        assert!(size_of::<Error>() < LARGE);
        assert!(size_of::<InitError>() < LARGE);
        assert!(size_of::<OpError<()>>() < LARGE);
        assert!(size_of::<OpError<Vec<f32>>>() < LARGE);
        assert!(size_of::<OpError<Box<[f32]>>>() < LARGE);
        assert!(size_of::<OpError<Buffer<f32>>>() < LARGE);
        assert!(size_of::<OpError<hcomm::bytes::Bytes>>() < LARGE);
    }
}

/// What is printed with all its sources says nothing twice.
#[test]
fn an_error_and_its_sources_say_nothing_twice() {
    let mut ranks = Communicator::local(2);
    drop(ranks.pop());
    let failed = ranks[0].all_reduce(vec![1.0f32], ReduceOp::Sum).wait().unwrap_err();
    assert_eq!(failed.to_string(), "all_reduce #0 failed because of rank 1; its buffer is given back");
    let whole = format!("{failed:?}");
    let source = failed.source().unwrap();
    assert!(whole.starts_with(&source.to_string()) && whole.ends_with("[buffer given back]"), "{whole}");
    assert!(source.downcast_ref::<Error>().is_some() && source.source().is_none());
}
