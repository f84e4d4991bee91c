//! Protocols between ranks of one process, in all orders that the memory model allows; see `ARCHITECTURE.md`.

use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Wake, Waker};

use loom::thread;

use super::frame::{Header, Kind};
use super::memory::{Hub, Lease, Message};
use crate::buffer::raw::Raw;
use crate::runtime::sync::{AtomicBool, Memory};

/// A waker that notes that it was called.
#[derive(Default)]
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// A lease of one range, and the memory that it stands for, which a model must not touch on both sides at once.
fn lent() -> (Arc<Lease>, Arc<Memory>) {
    let mut lease = Lease::new();
    lease.reset(0, once(Raw::EMPTY));
    (Arc::new(lease), Arc::new(Memory::new()))
}

/// Reads the range if it may, and says how far it came.
fn read(lease: &Lease, memory: &Memory) {
    if let Some(bytes) = lease.readable(0)
        && lease.enter(0).is_some()
    {
        memory.read();
        lease.leave(0, bytes);
    }
}

#[test]
fn no_reader_is_in_memory_that_was_taken_back() {
    loom::model(|| {
        let (lease, memory) = lent();
        memory.write();
        lease.lend(0, 8);
        let reader = thread::spawn({
            let (lease, memory) = (lease.clone(), memory.clone());
            move || {
                read(&lease, &memory);
                read(&lease, &memory);
            }
        });
        if lease.revoke() {
            memory.write();
        }
        assert!(reader.join().is_ok());
        assert!(lease.revoke(), "nobody reads any more");
        memory.write();
    });
}

#[test]
fn what_is_lent_was_written_and_what_is_taken_was_read() {
    loom::model(|| {
        let (lease, memory) = lent();
        let reader = thread::spawn({
            let (lease, memory) = (lease.clone(), memory.clone());
            move || read(&lease, &memory)
        });
        memory.write();
        lease.lend(0, 8);
        if lease.taken(0) == Some(8) {
            memory.write();
        }
        assert!(reader.join().is_ok());
    });
}

/// The owner lends for operations 0 and 1 by one lease; gives 0 up if its reader is not done with it at the first look.
#[test]
fn a_lease_that_stands_lends_for_one_operation_at_a_time() {
    loom::model(|| {
        let (lease, memory) = lent();
        let reader = thread::spawn({
            let (lease, memory) = (lease.clone(), memory.clone());
            move || {
                for number in 0..2 {
                    let Some(digest) = lease.armed(0, number) else { continue };
                    assert_eq!(digest, 7 + number, "the digest of another operation");
                    if lease.enter(0).is_some() {
                        memory.write();
                        lease.finish(0, number);
                    }
                }
            }
        });
        memory.write();
        lease.arm(0, 7, once(Raw::EMPTY));
        if lease.is_finished(0, 0) {
            memory.write();
            lease.arm(1, 8, once(Raw::EMPTY));
            if lease.is_finished(0, 1) {
                memory.write();
            }
        } else if lease.revoke() {
            memory.write();
        }
        assert!(reader.join().is_ok());
    });
}

/// Rank 1 does something that rank 0 must not miss: rank 0 sleeps only if it was called after that.
fn nobody_sleeps_through(act: fn(&Hub, &Lease), seen: fn(&Hub, &Lease) -> bool) {
    loom::model(move || {
        let (hub, (lease, _)) = (Hub::new(2), lent());
        let bell = Arc::new(Bell::default());
        hub.attach(0, Waker::from(bell.clone()));
        let peer = thread::spawn({
            let (hub, lease) = (hub.clone(), lease.clone());
            move || act(&hub, &lease)
        });
        hub.park(0);
        let awake = seen(&hub, &lease) || !hub.is_parked(0);
        assert!(peer.join().is_ok());
        assert!(awake || bell.0.load(Relaxed), "what was published is not seen, and nobody is woken");
        assert!(seen(&hub, &lease) || awake, "what wakes is there");
    });
}

#[test]
fn a_message_is_seen_or_wakes() {
    nobody_sleeps_through(
        |hub, _| {
            let header = Header::new(Kind::Bye, 0, 0);
            assert!(hub.send(0, Message { from: 1, header, payload: Vec::new(), lease: None }).is_ok());
            hub.notify(0);
        },
        |hub, _| !hub.inbox_is_empty(0),
    );
}

#[test]
fn bytes_that_are_lent_are_seen_or_wake() {
    nobody_sleeps_through(
        |hub, lease| {
            lease.lend(0, 8);
            hub.notify(0);
        },
        |_, lease| lease.readable(0).is_some(),
    );
}

#[test]
fn a_rank_that_leaves_is_seen_or_wakes() {
    nobody_sleeps_through(|hub, _| hub.detach(1), |hub, _| hub.gone(1));
}
