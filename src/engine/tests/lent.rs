//! An operation that is given up while another rank reads its memory: whoever waits for it has that memory back only when
//! the reader has left. Memory that came by value stays with the lease instead.

use super::super::*;
use super::*;
use crate::buffer::raw::Raw;
use crate::link::memory::{Hub, Lease, Message};

/// Calls that lend memory to the other rank.
const CALLS: [Call; 3] = [Call::Reduce(300_000), Call::Send(300_000), Call::PointSend(300_000)];
/// Long enough for who does not wait to have gone on.
const A_WHILE: Duration = Duration::from_millis(50);

/// Both ranks in this process; rank 1 is the test.
fn scene() -> (Scene, Arc<Hub>) {
    let hub = Hub::new(2);
    let (peers, labels) = (vec![PeerLink::Myself, PeerLink::Memory], vec!["here".into(); 2]);
    let memory = Memory { limit: 64 << 20 };
    let engine = Engine::new(0, peers, labels, Some(hub.clone()), SpinPolicy::Yield, memory).unwrap();
    let channel = engine.open(Channel::new(CHANNEL, "world".into(), [0, 1].into(), 0));
    let liar = Liar { conns: link().1, far: None, frames: [0; 2], messages: 0 };
    let (plans, deadline) = (PlanCache::new(), Duration::from_secs(60));
    (Scene { engine, liar, channel, members: 2, plans, next: 0, deadline, lends: false }, hub)
}

/// What the call lends, entered by a reader: by steps as far as they say, or at once in the direct way.
fn entered(hub: &Hub) -> (Arc<Lease>, usize, Raw) {
    let lease = loop {
        if let Some(lease) = hub.receive(1).and_then(|message| message.lease) {
            break lease;
        }
    };
    loop {
        for slot in 0..16 {
            let lent = lease.readable(slot).is_some_and(|bytes| bytes > 0) || lease.armed(slot, 0).is_some();
            let range = lent.then(|| lease.enter(slot)).flatten();
            match range {
                Some(range) if range.len() > 0 => return (lease, slot, range),
                Some(_) => lease.pass(slot),
                None => {}
            }
        }
    }
}

#[test]
fn who_waits_has_his_memory_back_when_no_reader_is_in_it() {
    for call in CALLS {
        watched("memory that is lent", move || {
            let (mut scene, hub) = scene();
            let mut memory = vec![1f32; 300_000];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
            let raw = Raw::new(bytes.as_mut_ptr(), bytes.len());
            let begun = scene.begin_with(call, Parts::lent(raw));
            let (lease, slot, range) = entered(&hub);
            let giving_up = {
                let (engine, op) = (scene.engine.clone(), begun.op.clone());
                std::thread::spawn(move || engine.cancel(&op))
            };
            std::thread::sleep(A_WHILE);
            assert!(!begun.op.is_done(), "{call:?}: a reader is in memory that was given back");
            assert!(range.to_vec().iter().any(|byte| *byte != 0));
            assert!(!lease.leave(slot, 4), "{call:?}: the lease stood");
            scene.engine.block_on(&begun.op);
            giving_up.join().unwrap();
            let outcome = begun.op.take_outcome().unwrap();
            assert!(matches!(outcome.result, Err(Error::Cancelled { .. })), "{call:?}: {outcome:?}");
            assert!(outcome.parts.is_some_and(|parts| parts.is_lent()), "{call:?}");
            assert!(lease.enter(slot).is_none(), "{call:?}: nobody reads any more");
        });
    }
}

#[test]
fn memory_by_value_stays_with_its_reader() {
    for call in CALLS {
        watched("memory by value", move || {
            let (mut scene, hub) = scene();
            let begun = scene.begin(call);
            let (lease, slot, range) = entered(&hub);
            scene.engine.cancel(&begun.op);
            scene.engine.block_on(&begun.op);
            let outcome = begun.op.take_outcome().unwrap();
            assert!(matches!(outcome.result, Err(Error::Cancelled { .. })), "{call:?}: {outcome:?}");
            assert!(outcome.parts.is_none(), "{call:?}: it was given back");
            assert_eq!(range.to_vec()[..4], 1f32.to_le_bytes());
            lease.leave(slot, 4);
        });
    }
}

/// A message is taken in slices, so that others have their turn: the next one needs no call of its own.
#[test]
fn a_large_message_is_taken_whole_although_nobody_polls() {
    const COUNT: usize = 4 << 20;
    watched("a message that nobody polls", || {
        let (mut scene, hub) = scene();
        let begun = scene.begin(Call::Receive(COUNT));
        let memory = Parts::from_vec(vec![2f32; COUNT]);
        let raw = memory.raw();
        let mut lease = Lease::new();
        lease.reset(begun.digest, std::iter::once(raw));
        lease.lend(0, raw.len());
        // Whoever fails leaves a reader in it: it goes with the lease.
        lease.quarantine(memory);
        let lease = Arc::new(lease);
        let header = scene.liar.message(Kind::Offer, &begun);
        let message = Message { from: 1, header, payload: Vec::new(), lease: Some(lease.clone()) };
        hub.send(0, message).unwrap();
        hub.notify(0);
        let begun_at = std::time::Instant::now();
        while !begun.op.is_done() {
            assert!(begun_at.elapsed() < Duration::from_secs(30), "taken: {:?} bytes", lease.taken(0));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(scene.end(&begun).unwrap() == vec![2f32; COUNT]);
    });
}
