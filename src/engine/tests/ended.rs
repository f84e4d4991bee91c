//! What an operation that has ended leaves behind on its links, and what the other side of a message is told.

use super::super::board::Wish;
use super::super::matching::Unexpected;
use super::super::trouble::{Cause, decode};
use super::lies::large;
use super::*;
use crate::link::frame::{POINT, TO_SENDER};

/// More than both ends of a connection take in, in frames.
const FRAMES: usize = 64;

/// Connections that take in little.
fn narrow() -> Scene {
    let (peer, conns) = link();
    if let PeerLink::Tcp { fast, .. } = &peer {
        socket2::SockRef::from(fast).set_send_buffer_size(1 << 16).unwrap();
        socket2::SockRef::from(&conns[0]).set_recv_buffer_size(1 << 16).unwrap();
    }
    Scene::with(0, vec![PeerLink::Myself, peer], conns)
}

/// A call that is known to be wrong.
fn refused(scene: &mut Scene) -> Error {
    let desc = CallDesc::new("all_gather", DType::F32, 3);
    let problem = Error::InvalidArgument { operation: desc.operation.into(), problem: "on purpose".into() };
    let op = flying(scene.engine.submit(Request {
        channel: scene.channel,
        seq: scene.next,
        desc,
        digest: desc.digest(),
        work: Work::Refuse(Box::new(problem)),
        parts: Parts::NONE,
        deadline: scene.deadline,
        priority: Priority::Normal,
    }));
    scene.next += 1;
    scene.engine.block_on(&op);
    op.take_outcome().unwrap().result.unwrap_err()
}

fn received(scene: &Scene, class: Class) -> u64 {
    scene.engine.shared.with_core(|core| {
        let pair = core.links[1].as_ref().unwrap();
        let conn = if class == Class::Fast { &pair.fast } else { &pair.bulk };
        conn.traffic().received_bytes
    })
}

/// A call that fails before it begins has no memory that links could know, and what links know is another one's.
#[test]
fn a_refused_call_disturbs_no_other() {
    watched("refused", || {
        let mut scene = Scene::new();
        scene.set_deadline(Duration::from_secs(20));
        // The first ever.
        let begun = scene.begin(Call::Place(PAYLOAD_MAX / 4));
        let frame = scene.liar.frame(Class::Bulk, begun.data(false, 0), &large());
        scene.liar.raw(Class::Bulk, &frame[..1000]);
        while received(&scene, Class::Bulk) < 1000 {
            scene.engine.shared.drive();
        }
        let error = refused(&mut scene);
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        scene.liar.raw(Class::Bulk, &frame[1000..]);
        scene.end(&begun).unwrap();
    });
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

/// How a call is given up.
#[derive(Clone, Copy, Debug)]
enum Way {
    Cancel,
    Deadline,
}

fn give_up(scene: &Scene, begun: &Begun, way: Way) {
    match way {
        Way::Cancel => scene.engine.cancel(&begun.op),
        Way::Deadline => scene.engine.limit(&begun.op, Duration::from_millis(1)),
    }
    let error = scene.end(begun).unwrap_err();
    match way {
        Way::Cancel => assert!(matches!(error, Error::Cancelled { .. }), "{error}"),
        Way::Deadline => assert!(matches!(error, Error::Deadline(_)), "{error}"),
    }
}

fn assert_told(liar: &mut Liar, flags: u16, number: u64) {
    let (header, body) = liar.read_kind(Class::Fast, Kind::Abort);
    assert_eq!((header.flags, header.number), (flags, number));
    assert!(matches!(decode(&body), Ok(Cause::Failed(_))));
}

/// The rest of the message does not come, and the receiver hears it.
#[test]
fn who_receives_a_message_is_told_that_its_sender_gave_it_up() {
    for way in [Way::Cancel, Way::Deadline] {
        watched("given up by its sender", move || {
            let mut scene = Scene::new();
            let begun = scene.begin(Call::PointSend(FRAMES * PAYLOAD_MAX / 4));
            scene.liar.read_kind(Class::Fast, Kind::Offer);
            scene.liar.send(Class::Fast, begun.header(Kind::Accept), &[]);
            scene.liar.read_kind(Class::Bulk, Kind::Body);
            give_up(&scene, &begun, way);
            assert_told(&mut scene.liar, POINT, 0);
            // Half of a frame is finished.
            let next = scene.begin(Call::Send(PAYLOAD_MAX / 4));
            scene.liar.serve(&next);
            scene.end(&next).unwrap();
        });
    }
}

/// What is on its way already is of no harm.
#[test]
fn who_sends_a_message_is_told_that_its_receiver_gave_it_up() {
    for way in [Way::Cancel, Way::Deadline] {
        watched("given up by its receiver", move || {
            let mut scene = Scene::new();
            let begun = scene.begin(Call::Receive(PAYLOAD_MAX / 2));
            let offer = scene.liar.message(Kind::Offer, &begun);
            scene.liar.send(Class::Fast, offer, &[]);
            scene.liar.read_kind(Class::Fast, Kind::Accept);
            let mut body = begun.header(Kind::Body);
            let [first, second] = [0, PAYLOAD_MAX as u64].map(|offset| {
                body.offset = offset;
                scene.liar.frame(Class::Bulk, body, &large())
            });
            scene.liar.raw(Class::Bulk, &first[..1000]);
            while received(&scene, Class::Bulk) < 1000 {
                scene.engine.shared.drive();
            }
            give_up(&scene, &begun, way);
            assert_told(&mut scene.liar, POINT | TO_SENDER, 0);
            scene.liar.raw(Class::Bulk, &first[1000..]);
            scene.liar.raw(Class::Bulk, &second);
            scene.assert_usable();
        });
    }
}

/// Nobody has the other side of a receive without a message.
#[test]
fn a_receive_that_no_message_has_come_for_ends_silently() {
    watched("given up without a message", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Receive(PAYLOAD_MAX));
        give_up(&scene, &begun, Way::Cancel);
        assert_eq!(scene.liar.count(Class::Fast, Kind::Abort), 0);
        let waiting = |unexpected: &Unexpected| unexpected.number;
        scene.engine.shared.with_core(|core| {
            let channel = core.state.channels[0].as_ref().unwrap();
            assert_eq!(channel.board.first_held(Wish::of_rank(1)).map(|(_, message)| waiting(message)), None);
        });
        let next = scene.begin(Call::Receive(PAYLOAD_MAX));
        scene.liar.serve(&next);
        scene.end(&next).unwrap();
    });
}
