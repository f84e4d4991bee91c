//! What a peer may try once it has been let in, and what becomes of it: it is lost, by name and with what it did wrong;
//! or it is not heeded. It never reaches control state, lengths, or memory that it was not given.

use std::time::Duration;

use super::super::family::key_id;
pub(super) use super::super::io::EAGER_MAX;
use super::super::status::{Current, Status};
pub(super) use super::super::trouble::{Cause, encode};
use super::*;
use crate::error::{CallInfo, Report};
pub(super) use crate::link::Class::{Bulk, Fast};
pub(super) use crate::link::frame::{ASK, HELD, POINT, TO_SENDER};
use crate::rank::Seq;

/// Elements of a large message; of one reduced, each rank's half.
pub(super) const LARGE: usize = 400_000;
pub(super) const SMALL: usize = 100;

/// What the honest rank makes of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    /// The peer is lost; the cause has these words.
    Lost(&'static str),
    /// The peer has left in order.
    Left,
    /// The operation fails with this class of error; the peer stays.
    Fails(&'static str),
    /// The operation goes on, and ends well when the peer does its part.
    Unheeded,
}
pub(super) use Then::{Fails, Left, Lost, Unheeded};

pub(super) type Lie = (&'static str, Call, fn(&mut Liar, &Begun), Then);

fn class(error: &Error) -> &'static str {
    match error {
        Error::Mismatch { .. } => "mismatch",
        Error::Deadline(_) => "deadline",
        Error::Aborted { .. } => "aborted",
        Error::Protocol { .. } => "protocol",
        Error::PeerLost { .. } => "lost",
        _ => "another",
    }
}

pub(super) fn tell(lie: &Lie, mut scene: Scene) {
    let (name, call, act, then) = *lie;
    let begun = scene.begin(call);
    act(&mut scene.liar, &begun);
    match then {
        Lost(words) => {
            let error = scene.end(&begun).expect_err(name);
            let (blamed, text) = match &error {
                Error::PeerLost { rank, cause, .. } => (*rank, cause.clone()),
                Error::Protocol { rank, problem } => (*rank, problem.clone()),
                other => panic!("{name}: {other}"),
            };
            assert_eq!(blamed, Rank(1), "{name}: {error}");
            assert!(text.contains(words), "{name}: {text}");
            // Neither does the next call hang.
            let next = scene.begin(Call::Place(SMALL));
            scene.end(&next).expect_err(name);
        }
        Left => {
            let error = scene.end(&begun).expect_err(name);
            assert!(matches!(error, Error::Left { rank: Rank(1), .. }), "{name}: {error}");
            let next = scene.begin(Call::Place(SMALL));
            scene.end(&next).expect_err(name);
        }
        Fails(as_class) => {
            let error = scene.end(&begun).expect_err(name);
            assert_eq!(class(&error), as_class, "{name}: {error}");
            scene.assert_usable();
        }
        Unheeded => {
            scene.liar.serve(&begun);
            let result = scene.end(&begun).unwrap_or_else(|error| panic!("{name}: {error}"));
            let value = match call {
                Call::Place(_) | Call::Receive(_) => 2.0,
                Call::Send(_) | Call::PointSend(_) => 1.0,
                Call::Exchange(_) => 3.0,
                // The half that is reduced here, and the one that the liar made up.
                Call::Reduce(count) => {
                    assert!(result[..count / 2].iter().all(|value| [2.0, 3.0].contains(value)), "{name}");
                    result[0]
                }
            };
            assert!(result.iter().all(|of| *of == value || matches!(call, Call::Reduce(_))), "{name}");
            scene.assert_usable();
        }
    }
}

pub(super) fn tell_all(lies: &[Lie]) {
    tell_all_in(lies, Scene::new);
}

pub(super) fn tell_all_in(lies: &[Lie], scene: fn() -> Scene) {
    let told = |lie: &Lie| {
        let lie = *lie;
        std::panic::catch_unwind(|| watched(lie.0, move || tell(&lie, scene())))
    };
    let failed: Vec<&str> = lies.iter().filter(|lie| told(lie).is_err()).map(|lie| lie.0).collect();
    assert!(failed.is_empty(), "the messages are above: {failed:#?}");
}

/// What all do in the same call: its name, and the words of the cause for which the peer is lost.
pub(super) type Told = (&'static str, fn(&mut Liar, &Begun), &'static str);

pub(super) fn tell_all_of(call: Call, all: &[Told], scene: fn() -> Scene) {
    let lies: Vec<Lie> = all.iter().map(|(name, act, words)| (*name, call, *act, Lost(words))).collect();
    tell_all_in(&lies, scene);
}

/// The far side, where both share memory.
pub(super) fn far(liar: &mut Liar) -> &mut Far {
    liar.far.as_mut().unwrap()
}

pub(super) fn large() -> Vec<u8> {
    vec![9; PAYLOAD_MAX]
}

pub(super) fn eager(mut header: Header) -> Header {
    header.flags = EAGER;
    header
}

pub(super) fn call_info(operation: &str) -> CallInfo {
    CallInfo {
        operation: operation.into(),
        dtype: DType::F32,
        count: 1,
        op: None,
        root: None,
        tag: None,
        algorithm: "ring".into(),
        plan: 0,
        counts: None,
    }
}

pub(super) fn status(waits_for: Vec<u32>) -> Vec<u8> {
    let current = Current { seq: 0, call: call_info("barrier"), waits_for };
    encode(&Status { next: u64::MAX, current: Some(current), unpolled_ms: u64::MAX, elsewhere: None })
}

pub(super) fn report(late: Rank) -> Report {
    Report {
        operation: "x".repeat(3000),
        seq: Seq(u64::MAX),
        communicator: String::new(),
        rank: late,
        waited: Duration::MAX,
        late: vec![late; 1000],
        states: vec![(late, "\u{1b}[2J".into())],
        cause: String::new(),
        completed: Some(Seq(7)),
        waits_for: vec![Rank(1)],
        ..Report::default()
    }
}

#[test]
fn a_peer_may_be_slow() {
    watched("one byte at a time", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(SMALL));
        let bytes = scene.liar.frame(Fast, eager(begun.data(false, 0)), &[0; SMALL * 4]);
        for byte in bytes {
            scene.liar.raw(Fast, &[byte]);
        }
        assert_eq!(scene.end(&begun).unwrap(), [0f32; SMALL]);
        scene.assert_usable();
    });
}

/// The memory goes back to its owner when the operation is over; nothing that is still on its way may reach it then.
#[test]
fn a_message_on_both_connections_reaches_no_memory_that_was_given_back() {
    watched("both connections", || {
        let mut scene = Scene::new();
        let count = PAYLOAD_MAX / 4;
        let begun = scene.begin(Call::Place(count));
        let slow = scene.liar.frame(Bulk, begun.data(false, 0), &large());
        scene.liar.raw(Bulk, &slow[..1000]);
        std::thread::sleep(Duration::from_millis(50));
        scene.liar.send(Fast, begun.data(false, 0), &large());
        scene.engine.block_on(&begun.op);
        let outcome = begun.op.take_outcome().unwrap();
        let memory = outcome.parts.unwrap();
        let before = memory.raw().to_vec();
        scene.liar.raw(Bulk, &slow[1000..].iter().map(|byte| byte ^ 0xff).collect::<Vec<_>>());
        let next = scene.begin(Call::Place(SMALL));
        assert!(scene.end(&next).is_err());
        assert!(memory.raw().to_vec() == before, "memory was written after it was given back");
        let error = outcome.result.unwrap_err();
        assert!(error.to_string().contains("both connections"), "{error}");
    });
    watched("both connections, between two ranks", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Receive(PAYLOAD_MAX / 4));
        let offer = scene.liar.message(Kind::Offer, &begun);
        scene.liar.send(Fast, offer, &[]);
        scene.liar.read_kind(Fast, Kind::Accept);
        let slow = scene.liar.frame(Bulk, begun.header(Kind::Body), &large());
        scene.liar.raw(Bulk, &slow[..1000]);
        std::thread::sleep(Duration::from_millis(50));
        scene.liar.send(Fast, begun.header(Kind::Body), &large());
        let error = scene.end(&begun).unwrap_err();
        assert!(error.to_string().contains("both connections"), "{error}");
    });
}

/// Answers to a peer that does not read them are not piled up.
#[test]
fn questions_without_end_get_answers_with_one() {
    watched("status", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(SMALL));
        let mut header = begun.header(Kind::Status);
        header.flags = ASK;
        let body = status(vec![]);
        for _ in 0..300_000 {
            scene.liar.send(Fast, header, &body);
        }
        let answers = scene.liar.count(Fast, Kind::Status);
        assert!((1..100_000).contains(&answers), "{answers} answers");
        scene.liar.serve(&begun);
        assert_eq!(scene.end(&begun).unwrap(), [2f32; SMALL]);
    });
    watched("contradictions", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(SMALL));
        scene.liar.serve(&begun);
        scene.end(&begun).unwrap();
        let mut header = begun.header(Kind::Mismatch);
        header.flags = ASK;
        let body = encode(&call_info("barrier"));
        let mut data = eager(begun.data(false, 0));
        data.digest ^= 1;
        for _ in 0..1000 {
            scene.liar.send(Fast, header, &body);
            scene.liar.send(Fast, data, &[0; 4]);
        }
        assert_eq!(scene.liar.count(Fast, Kind::Mismatch), 1);
    });
}

/// Whoever holds deadlines, and holds them again, of a communicator that is not open here has nothing piled up by that.
#[test]
fn what_is_told_of_deadlines_ahead_is_not_piled_up() {
    watched("deadlines of a new communicator", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(SMALL));
        let mut header = begun.header(Kind::Hold);
        header.channel = 5;
        for time in 0..200_001 {
            header.flags = if time % 2 == 0 { HELD } else { 0 };
            scene.liar.send(Fast, header, &[]);
        }
        scene.liar.serve(&begun);
        assert_eq!(scene.end(&begun).unwrap(), [2f32; SMALL]);
        // The last word counts: it is held.
        scene.engine.open(Channel::new(5, "child".into(), [0, 1].into(), 0));
        scene.liar.send(Fast, header, &[]);
        let next = scene.begin(Call::Place(SMALL));
        let error = scene.end(&next).unwrap_err();
        assert!(error.to_string().contains("holds deadlines that it holds"), "{error}");
    });
    watched("deadlines of a new communicator, held twice", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(SMALL));
        let mut header = begun.header(Kind::Hold);
        (header.channel, header.flags) = (5, HELD);
        [(); 2].map(|()| scene.liar.send(Fast, header, &[])).iter().for_each(drop);
        let error = scene.end(&begun).unwrap_err();
        assert!(error.to_string().contains("holds deadlines that it holds"), "{error}");
    });
}

/// A peer that does not read is told the last state only, once it does.
#[test]
fn notes_of_deadlines_to_a_peer_that_does_not_read_are_not_piled_up() {
    const TIMES: usize = 150_000;
    watched("deadlines", || {
        let mut scene = Scene::new();
        let mut last = false;
        for _ in 0..TIMES {
            scene.engine.hold(scene.channel, CHANNEL);
            scene.engine.release(scene.channel, CHANNEL);
        }
        scene.engine.hold(scene.channel, CHANNEL);
        scene.liar.conns[Fast as usize].set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut count = 0;
        while let Some((header, _)) = scene.liar.read(Fast) {
            assert_eq!(header.kind, Kind::Hold);
            let held = header.flags & HELD != 0;
            assert_ne!(held, last, "the same word twice");
            (last, count) = (held, count + 1);
        }
        assert!(last, "the last word is missing");
        assert!(count < TIMES, "{count} notes");
    });
}

/// Both connections tell it, and the later word may come first.
#[test]
fn what_was_consumed_may_be_told_out_of_order() {
    watched("consumed", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Send(SMALL));
        assert_eq!(scene.end(&begun).unwrap(), [1f32; SMALL]);
        let mut header = begun.header(Kind::Consumed);
        for consumed in [SMALL as u64 * 4, 1, 0] {
            header.consumed = consumed;
            scene.liar.send(Fast, header, &[]);
        }
        scene.assert_usable();
    });
}

/// Whoever is not in a communicator has no say in it.
#[test]
fn others_communicators_are_none_of_its_business() {
    watched("a communicator without the liar", || {
        let mut scene = Scene::new();
        scene.engine.open(Channel::new(77, "alone".into(), [0].into(), 0));
        let begun = scene.begin(Call::Place(SMALL));
        let mut header = begun.header(Kind::Credit);
        header.channel = 77;
        scene.liar.send(Fast, header, &[]);
        let error = scene.end(&begun).unwrap_err();
        assert!(error.to_string().contains("it is not in"), "{error}");
    });
}

/// A channel's identifier says which key of which communicator it is for.
#[test]
fn a_key_is_one_of_a_communicator_that_its_asker_is_in() {
    const ALONE: u64 = 77;
    let long = "x".repeat(300);
    let lies: [(&[u8], u64, u64, &str); 5] = [
        (b"a", 5, CHANNEL, "does not belong"),
        (b"\xff", key_id(CHANNEL, "a"), CHANNEL, "does not belong"),
        (long.as_bytes(), key_id(CHANNEL, &long), CHANNEL, "does not belong"),
        (b"a", key_id(ALONE, "a"), ALONE, "it is not in"),
        (b"a", CHANNEL, CHANNEL, "another name"),
    ];
    for (key, channel, parent, words) in lies {
        let mut scene = Scene::new();
        scene.engine.open(Channel::new(ALONE, "alone".into(), [0].into(), 0));
        let begun = scene.begin(Call::Place(SMALL));
        let mut header = begun.header(Kind::Key);
        (header.channel, header.offset) = (channel, parent);
        scene.liar.send(Fast, header, key);
        let error = scene.end(&begun).unwrap_err();
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
}

/// A frame kept for later is looked at later; its sender is lost then, too.
#[test]
fn a_lie_told_early_comes_out_when_its_time_comes() {
    watched("an early frame for the next operation", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(SMALL));
        let mut header = begun.header(Kind::Request);
        header.number = 1;
        header.item = 40;
        scene.liar.send(Fast, header, &[]);
        scene.liar.serve(&begun);
        scene.end(&begun).unwrap();
        let next = scene.begin(Call::Place(SMALL));
        let error = scene.end(&next).unwrap_err();
        assert!(error.to_string().contains("not in the plan"), "{error}");
        let third = scene.begin(Call::Place(SMALL));
        let error = scene.end(&third).unwrap_err();
        assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
    });
    watched("an early frame for a new communicator", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(SMALL));
        let mut header = begun.header(Kind::Abort);
        header.channel = 5;
        scene.liar.send(Fast, header, &[0xff; 9]);
        std::thread::sleep(Duration::from_millis(50));
        let also = scene.begin(Call::Place(SMALL));
        scene.engine.open(Channel::new(5, "child".into(), [0, 1].into(), 0));
        for op in [begun, also] {
            let error = scene.end(&op).unwrap_err();
            assert!(error.to_string().contains("unreadable"), "{error}");
        }
    });
}
