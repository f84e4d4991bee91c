//! A rank that lends memory which the other one has not read yet, and lets go of its future, of the operation, or of the
//! communicator: the memory is its own again, or stays as it is until it is read; and the other one has its result or is told why
//! not.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use hcomm::{Buffer, Communicator, Error, LinkReport, OpError, Operation, Rank, ReduceOp};

use super::common::{GENEROUS, Link, assert_usable, class, connect, run};

/// 4 MiB: lent wherever it lies, also half of it.
const COUNT: usize = 1 << 20;
const TAG: u32 = 3;
/// What the lender lends, what the other rank has, and what nobody is to see.
const LENT: u32 = 11;
const OWN: u32 = 100;
const OTHER: u32 = 0xdead_beef;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Broadcast,
    AllReduce,
    Message,
}

const KINDS: [Kind; 3] = [Kind::Broadcast, Kind::AllReduce, Kind::Message];

impl Kind {
    fn begin(self, comm: &mut Communicator, buffer: Buffer<u32>) -> Operation<Buffer<u32>> {
        match (self, comm.rank()) {
            (Kind::Broadcast, _) => comm.broadcast(buffer, Rank(0)),
            (Kind::AllReduce, _) => comm.all_reduce(buffer, ReduceOp::Sum),
            (Kind::Message, Rank(0)) => comm.send(Rank(1), TAG, buffer),
            (Kind::Message, _) => comm.recv(Rank(0), TAG, buffer),
        }
    }

    fn result(self) -> u32 {
        if self == Kind::AllReduce { LENT + OWN } else { LENT }
    }
}

/// In a segment, or anywhere.
fn memory(comm: &Communicator, is_shared: bool, value: u32) -> Buffer<u32> {
    let mut buffer = if is_shared { comm.alloc(COUNT) } else { Buffer::zeroed(COUNT) };
    buffer.fill(value);
    buffer
}

fn is_all(buffer: &Buffer<u32>, value: u32) -> bool {
    buffer.len() == COUNT && buffer.iter().all(|of| *of == value)
}

/// Writes to all memory that an allocation is given next.
fn write_elsewhere(comm: &Communicator) {
    let all: Vec<_> = [true, true, false, false].map(|is_shared| memory(comm, is_shared, OTHER)).into();
    assert!(all.iter().all(|buffer| is_all(buffer, OTHER)));
}

/// The lender with what it has begun, which the other one has not called; and what tells that one to go on.
type Lender = fn(Communicator, Operation<Buffer<u32>>, Sender<()>);
/// What the other one makes of how its own call has ended.
type Reader = fn(Communicator, Kind, Result<Buffer<u32>, OpError<Buffer<u32>>>);

fn lend(lender: Lender, reader: Reader) {
    for kind in KINDS {
        for is_shared in [true, false] {
            let (sender, receiver) = channel();
            let receiver = Arc::new(Mutex::new(receiver));
            let pulled = run(connect(Link::Shm, 2), move |mut comm| {
                assert_usable(&mut comm);
                if comm.rank() == Rank(0) {
                    let buffer = memory(&comm, is_shared, LENT);
                    let begun = kind.begin(&mut comm, buffer);
                    lender(comm, begun, sender.clone());
                    return None;
                }
                receiver.lock().unwrap().recv_timeout(GENEROUS).unwrap();
                let buffer = memory(&comm, is_shared, OWN);
                let ended = kind.begin(&mut comm, buffer).wait();
                let (links, is_read) = (comm.links(), ended.is_ok());
                reader(comm, kind, ended);
                is_read.then(|| links.iter().map(|link: &LinkReport| link.pulled_bytes).sum::<u64>())
            });
            // It was read where it lies, and not sent.
            assert!(pulled.iter().flatten().all(|bytes| *bytes >= COUNT as u64 * 2), "{kind:?}: {pulled:?}");
        }
    }
}

fn assert_result(kind: Kind, ended: &Result<Buffer<u32>, OpError<Buffer<u32>>>) {
    match ended {
        Ok(buffer) => assert!(is_all(buffer, kind.result()), "{kind:?}: {:?}", &buffer[..4]),
        Err(error) => panic!("{kind:?}: {error}"),
    }
}

#[test]
fn a_future_that_is_dropped_lends_on() {
    lend(
        |mut comm, begun, go_on| {
            drop(begun);
            write_elsewhere(&comm);
            go_on.send(()).unwrap();
            assert_usable(&mut comm);
        },
        |mut comm, kind, ended| {
            assert_result(kind, &ended);
            assert_usable(&mut comm);
        },
    );
}

#[test]
fn what_is_cancelled_is_its_owners_at_once_and_the_reader_is_told() {
    lend(
        |mut comm, begun, go_on| {
            begun.cancel();
            let failed = begun.wait().unwrap_err();
            assert_eq!(class(&failed.error), "cancelled", "{failed}");
            let mut buffer = failed.buffer.expect("nobody reads it");
            assert!(is_all(&buffer, LENT));
            buffer.fill(OTHER);
            go_on.send(()).unwrap();
            // Of the message that comes in the place of the one that was cancelled.
            buffer.fill(LENT);
            let again = comm.send(Rank(1), TAG, buffer).wait().unwrap();
            assert!(is_all(&again, LENT));
            assert_usable(&mut comm);
        },
        |mut comm, kind, ended| {
            match ended {
                // Given up before anything of it was told.
                Ok(received) if kind == Kind::Message => assert!(is_all(&received, LENT)),
                Ok(_) => panic!("{kind:?}: of what is cancelled nothing comes"),
                Err(OpError { error, buffer, .. }) => {
                    assert!(matches!(error, Error::Aborted { by: Rank(0), .. }), "{kind:?}: {error:?}");
                    let told = error.to_string();
                    let cause = if kind == Kind::Message { "given it up" } else { "cancelled" };
                    assert!(told.contains("rank 0") && told.contains(cause), "{kind:?}: {told}");
                    let buffer = buffer.expect("nobody reads it");
                    let received = comm.recv(Rank(0), TAG, buffer).wait().unwrap();
                    assert!(is_all(&received, LENT), "{kind:?}");
                }
            }
            assert_usable(&mut comm);
        },
    );
}

/// Its handle is gone, and with it what it would have called next.
fn assert_left(mut comm: Communicator, kind: Kind, ended: &Result<Buffer<u32>, OpError<Buffer<u32>>>) {
    assert_result(kind, ended);
    let error = comm.all_reduce(vec![1u32; COUNT], ReduceOp::Sum).wait().unwrap_err().error;
    assert!(matches!(error, Error::Left { rank: Rank(0), .. }), "{kind:?}: {error}");
}

#[test]
fn who_drops_its_handle_lends_on() {
    lend(
        |comm, begun, go_on| {
            drop(comm);
            go_on.send(()).unwrap();
            drop(begun.wait().unwrap());
        },
        |comm, kind, ended| assert_left(comm, kind, &ended),
    );
}

#[test]
fn who_drops_all_that_it_has_lends_on() {
    lend(
        |comm, begun, go_on| {
            write_elsewhere(&comm);
            drop(begun);
            drop(comm);
            go_on.send(()).unwrap();
        },
        |comm, kind, ended| assert_left(comm, kind, &ended),
    );
    lend(
        |comm, begun, go_on| {
            drop(comm);
            drop(begun);
            go_on.send(()).unwrap();
        },
        |comm, kind, ended| assert_left(comm, kind, &ended),
    );
}

#[test]
fn a_close_waits_until_what_is_lent_is_read() {
    lend(
        |comm, begun, go_on| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut close = comm.close();
                let polled = std::pin::Pin::new(&mut close).poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending(), "nobody has read");
                drop(begun);
                go_on.send(()).unwrap();
                close.await.unwrap();
            });
        },
        |comm, kind, ended| {
            assert_result(kind, &ended);
            comm.close().wait().unwrap();
        },
    );
}

/// The other one does not read, but leaves: the lender is told, and has its memory back.
#[test]
fn memory_that_is_lent_to_who_leaves_comes_back() {
    for kind in KINDS {
        for is_shared in [true, false] {
            for closes in [true, false] {
                run(connect(Link::Shm, 2), move |mut comm| {
                    assert_usable(&mut comm);
                    if comm.rank() == Rank(1) {
                        let told = comm.recv(Rank(0), 1, vec![0u8]).wait().unwrap();
                        assert_eq!(told, [1], "it lends by now");
                        return if closes { drop(comm.close()) } else { drop(comm) };
                    }
                    let buffer = memory(&comm, is_shared, LENT);
                    let begun = kind.begin(&mut comm, buffer);
                    comm.send(Rank(1), 1, vec![1u8]).wait().unwrap();
                    let failed = begun.wait().unwrap_err();
                    let error = &failed.error;
                    // To close is to call something else.
                    let is_told = match error {
                        Error::Left { rank: Rank(1), .. } => !closes || kind == Kind::Message,
                        Error::Mismatch { .. } => closes && error.to_string().contains("rank 1 calls close"),
                        _ => false,
                    };
                    assert!(is_told, "{kind:?} {is_shared} {closes}: {error}");
                    assert!(is_all(&failed.buffer.expect("nobody reads it"), LENT), "{kind:?}");
                });
            }
        }
    }
}
