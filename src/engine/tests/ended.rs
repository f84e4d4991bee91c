//! What an operation that has ended leaves behind on its links.

use super::*;

/// Connections that take in little.
fn narrow() -> Scene {
    let (peer, conns) = link();
    if let PeerLink::Tcp { fast, .. } = &peer {
        socket2::SockRef::from(fast).set_send_buffer_size(1 << 16).unwrap();
        socket2::SockRef::from(&conns[0]).set_recv_buffer_size(1 << 16).unwrap();
    }
    Scene::with(0, vec![PeerLink::Myself, peer], conns)
}

/// The receiver counts messages, and each has taken of its budget: what was on its way goes there, given up or not, and the
/// caller has the memory back nevertheless.
#[test]
fn a_small_message_that_is_given_up_in_the_queue_takes_its_turn() {
    const COUNT: usize = 14_000;
    watched("given up in the queue", || {
        let mut scene = narrow();
        let mut sent: Vec<Begun> = (0..17).map(|_| scene.begin(Call::PointSend(COUNT))).collect();
        let last = sent.pop().unwrap();
        assert!(!last.op.is_done(), "more than the connection takes");
        scene.engine.cancel(&last.op);
        scene.engine.block_on(&last.op);
        let outcome = last.op.take_outcome().unwrap();
        assert!(matches!(outcome.result, Err(Error::Cancelled { .. })), "{outcome:?}");
        let mut memory: Vec<f32> = outcome.parts.unwrap().into_vec();
        memory.fill(9.0);
        let next = scene.begin(Call::PointSend(1));
        for number in 0..18 {
            let (header, payload) = scene.liar.read_kind(Class::Fast, Kind::Eager);
            assert_eq!(header.number, number);
            assert!(payload.chunks(4).all(|value| value == 1f32.to_le_bytes()), "message {number}");
        }
        for sent in sent.iter().chain([&next]) {
            scene.end(sent).unwrap();
        }
        drop(memory);
    });
}
