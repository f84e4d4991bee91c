//! What a peer may try once it has been let in, and what becomes of it: it is lost, by name and with what it did wrong;
//! or it is not heeded. It never reaches control state, lengths, or memory that it was not given.

use std::time::Duration;

use super::super::io::EAGER_MAX;
use super::super::status::{Current, Status};
use super::super::trouble::{Cause, encode};
use super::*;
use crate::error::{CallInfo, Report};
use crate::link::Class::{Bulk, Fast};
use crate::link::frame::{ASK, POINT, TO_SENDER};
use crate::rank::Seq;

/// Elements of a large message; of one reduced, each rank's half.
const LARGE: usize = 400_000;
const SMALL: usize = 100;

/// What the honest rank makes of it.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// The peer is lost; the cause has these words.
    Lost(&'static str),
    /// The operation fails with this class of error; the peer stays.
    Fails(&'static str),
    /// The operation goes on, and ends well when the peer does its part.
    Unheeded,
}
use Then::{Fails, Lost, Unheeded};

type Lie = (&'static str, Call, fn(&mut Liar, &Begun), Then);

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

fn tell(lie: &Lie) {
    let (name, call, act, then) = *lie;
    let mut scene = Scene::new();
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

fn tell_all(lies: &'static [Lie]) {
    let told = |lie: &'static Lie| std::panic::catch_unwind(|| watched(lie.0, move || tell(lie)));
    let failed: Vec<&str> = lies.iter().filter(|lie| told(lie).is_err()).map(|lie| lie.0).collect();
    assert!(failed.is_empty(), "the messages are above: {failed:#?}");
}

fn large() -> Vec<u8> {
    vec![9; PAYLOAD_MAX]
}

fn eager(mut header: Header) -> Header {
    header.flags = EAGER;
    header
}

fn call_info(operation: &str) -> CallInfo {
    CallInfo {
        operation: operation.into(),
        dtype: DType::F32,
        count: 1,
        op: None,
        root: None,
        tag: None,
        algorithm: "ring".into(),
    }
}

fn status(waits_for: Vec<u32>) -> Vec<u8> {
    let current = Current { seq: 0, call: call_info("barrier"), waits_for };
    encode(&Status { next: u64::MAX, current: Some(current), unpolled_ms: u64::MAX })
}

fn report(late: Rank) -> Report {
    Report {
        operation: "x".repeat(3000),
        seq: Seq(u64::MAX),
        communicator: String::new(),
        rank: late,
        waited: Duration::MAX,
        late: vec![late; 1000],
        states: vec![(late, "\u{1b}[2J".into())],
        cause: String::new(),
    }
}

#[test]
fn payload_goes_where_it_was_granted_or_nowhere() {
    tell_all(&[
        (
            "beyond the message",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(false, LARGE as u64 * 4 - 4), &[9; 8]);
            },
            Lost("payload up to"),
        ),
        (
            "from an offset near the end of all numbers",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(false, u64::MAX - 3), &[9; 8]);
            },
            Lost("payload up to"),
        ),
        (
            "more than the message",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, eager(begun.data(false, 0)), &[9; SMALL * 4 + 4]);
            },
            Lost("payload up to"),
        ),
        (
            "repeated",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(false, 0), &large());
                liar.send(Bulk, begun.data(false, 0), &large());
            },
            Lost("was due"),
        ),
        (
            "overlapping",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(false, 0), &large());
                liar.send(Bulk, begun.data(false, 4096), &large());
            },
            Lost("was due"),
        ),
        (
            "with a gap",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(false, 4096), &large());
            },
            Lost("was due"),
        ),
        (
            "repeated after the message was complete",
            Call::Reduce(LARGE),
            |liar, begun| {
                let half = vec![9; begun.bytes()];
                liar.send_all(begun.data(true, 0), &half);
                liar.send(Bulk, begun.data(true, 0), &large());
            },
            Lost("was due"),
        ),
        (
            "before credit",
            Call::Reduce(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(false, 0), &large());
            },
            Lost("beyond its credit"),
        ),
        (
            "across the end of the window",
            Call::Reduce(LARGE),
            |liar, begun| {
                let mut offset = 0;
                while offset + 100_000 < begun.bytes() as u64 {
                    liar.send(Bulk, begun.data(true, offset), &[9; 100_000]);
                    offset += 100_000;
                }
            },
            Lost("window"),
        ),
        (
            "of a small message in pieces",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, eager(begun.data(false, 0)), &[9; 200]);
            },
            Lost("in pieces"),
        ),
        (
            "ending within an element",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(false, 0), &[9; 1001]);
            },
            Lost("element"),
        ),
        (
            "to be reduced, ending within an element",
            Call::Reduce(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(true, 0), &[9; 1001]);
                liar.send(Bulk, begun.data(true, 1001), &[9; 1000]);
            },
            Lost("element"),
        ),
        (
            "of no bytes",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(false, 0), &[]);
            },
            Lost("empty"),
        ),
        (
            "of a message that is not in the plan",
            Call::Place(LARGE),
            |liar, begun| {
                let mut header = begun.data(false, 0);
                header.item = u32::MAX;
                liar.send(Bulk, header, &large());
            },
            Lost("not in the plan"),
        ),
        (
            "of a number that was not called",
            Call::Place(LARGE),
            |liar, begun| {
                let mut header = begun.data(false, 0);
                header.number = 5;
                liar.send(Bulk, header, &large());
            },
            Lost("nobody asked for"),
        ),
        (
            "of a communicator that does not exist",
            Call::Place(LARGE),
            |liar, begun| {
                let mut header = begun.data(false, 0);
                header.channel = u64::MAX;
                liar.send(Bulk, header, &large());
            },
            Unheeded,
        ),
        (
            "of another call",
            Call::Place(LARGE),
            |liar, begun| {
                let mut header = begun.data(false, 0);
                header.digest ^= 1;
                liar.send(Bulk, header, &large());
            },
            Fails("mismatch"),
        ),
    ]);
}

#[test]
fn credit_is_for_what_is_sent() {
    tell_all(&[
        (
            "beyond the message",
            Call::Send(LARGE),
            |liar, begun| {
                let mut credit = begun.header(Kind::Credit);
                credit.offset = LARGE as u64 * 4 + 4;
                liar.send(Fast, credit, &[]);
            },
            Lost("credit up to"),
        ),
        (
            "up to the end of all numbers",
            Call::Send(LARGE),
            |liar, begun| {
                let mut credit = begun.header(Kind::Credit);
                credit.offset = u64::MAX;
                liar.send(Fast, credit, &[]);
            },
            Lost("credit up to"),
        ),
        (
            "up to the middle of an element",
            Call::Send(LARGE),
            |liar, begun| {
                let mut credit = begun.header(Kind::Credit);
                credit.offset = 1001;
                liar.send(Fast, credit, &[]);
            },
            Lost("element"),
        ),
        (
            "backwards",
            Call::Send(LARGE),
            |liar, begun| {
                let mut credit = begun.header(Kind::Credit);
                for upto in [4096, 4, 0, 8192] {
                    credit.offset = upto;
                    liar.send(Fast, credit, &[]);
                }
            },
            Unheeded,
        ),
        (
            "for a message that is not in the plan",
            Call::Send(LARGE),
            |liar, begun| {
                let mut credit = begun.header(Kind::Credit);
                credit.item = 70_000;
                liar.send(Fast, credit, &[]);
            },
            Lost("not in the plan"),
        ),
        (
            "asked for a message that is not in the plan",
            Call::Place(SMALL),
            |liar, begun| {
                let mut request = begun.header(Kind::Request);
                request.item = 3;
                liar.send(Fast, request, &[]);
            },
            Lost("not in the plan"),
        ),
        (
            "asked for a message that is granted unasked",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Request), &[]);
            },
            Lost("asks for credit"),
        ),
        (
            "asked for twice",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Request), &[]);
                liar.send(Fast, begun.header(Kind::Request), &[]);
            },
            Lost("asks for credit"),
        ),
        (
            "asked for after the message has come",
            Call::Reduce(LARGE),
            |liar, begun| {
                liar.send_all(begun.data(true, 0), &vec![9; begun.bytes()]);
                std::thread::sleep(Duration::from_millis(20));
                let mut request = begun.data(true, 0);
                request.kind = Kind::Request;
                liar.send(Bulk, request, &[]);
            },
            Lost("asks for credit"),
        ),
        (
            "for a number that was not called",
            Call::Place(SMALL),
            |liar, begun| {
                let mut credit = begun.header(Kind::Credit);
                credit.number = u64::MAX;
                liar.send(Fast, credit, &[]);
            },
            Unheeded,
        ),
        (
            "for a communicator that does not exist",
            Call::Place(SMALL),
            |liar, begun| {
                let mut credit = begun.header(Kind::Credit);
                credit.channel = 99;
                liar.send(Fast, credit, &[]);
            },
            Unheeded,
        ),
    ]);
}

#[test]
fn counters_of_a_connection_run_in_one_direction() {
    tell_all(&[
        (
            "a frame number jumps",
            Call::Place(SMALL),
            |liar, begun| {
                liar.frames[0] = 7;
                liar.send(Fast, begun.header(Kind::Consumed), &[]);
            },
            Lost("frame 7 where 0 was due"),
        ),
        (
            "a frame number comes twice",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Consumed), &[]);
                liar.frames[0] = 0;
                liar.send(Fast, begun.header(Kind::Consumed), &[]);
            },
            Lost("frame 0 where 1 was due"),
        ),
        (
            "more is acknowledged than was sent",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Consumed);
                header.acknowledged = 1000;
                liar.send(Fast, header, &[]);
            },
            Lost("acknowledges"),
        ),
        (
            "an acknowledgement is taken back",
            Call::Place(LARGE),
            |liar, begun| {
                liar.read_kind(Fast, Kind::Credit);
                let mut header = begun.header(Kind::Consumed);
                header.acknowledged = 1;
                liar.send(Fast, header, &[]);
                header.acknowledged = 0;
                liar.send(Fast, header, &[]);
            },
            Lost("acknowledges"),
        ),
        (
            "more is consumed than was sent",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Consumed);
                header.consumed = 1;
                liar.send(Fast, header, &[]);
            },
            Lost("eager bytes consumed"),
        ),
        (
            "all there is was consumed",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Consumed);
                header.consumed = u64::MAX;
                liar.send(Fast, header, &[]);
            },
            Lost("eager bytes consumed"),
        ),
        (
            "not a frame",
            Call::Place(SMALL),
            |liar, _| {
                liar.raw(Fast, &[0; HEADER_BYTES]);
            },
            Lost("not a frame"),
        ),
        (
            "another version",
            Call::Place(SMALL),
            |liar, begun| {
                let mut bytes = liar.frame(Fast, begun.header(Kind::Consumed), &[]);
                bytes[4] = 200;
                liar.raw(Fast, &bytes);
            },
            Lost("frame version 200"),
        ),
        (
            "an unknown kind",
            Call::Place(SMALL),
            |liar, begun| {
                let mut bytes = liar.frame(Fast, begun.header(Kind::Consumed), &[]);
                bytes[5] = 0;
                liar.raw(Fast, &bytes);
            },
            Lost("unknown frame kind 0"),
        ),
        (
            "an unknown flag",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Consumed);
                header.flags = 0x8000;
                liar.send(Fast, header, &[]);
            },
            Lost("flags"),
        ),
        (
            "too much payload",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.data(false, 0), &vec![9; PAYLOAD_MAX + 4]);
            },
            Lost("exceeds"),
        ),
        (
            "payload where there is none",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Credit), &[1]);
            },
            Lost("exceeds"),
        ),
    ]);
}

#[test]
fn what_comes_unasked_is_bounded() {
    tell_all(&[
        (
            "eager messages",
            Call::Place(SMALL),
            |liar, begun| {
                for _ in 0..17 {
                    let header = liar.message(Kind::Eager, begun);
                    liar.send(Fast, header, &[9; EAGER_MAX]);
                }
            },
            Lost("budget"),
        ),
        (
            "empty eager messages",
            Call::Place(SMALL),
            |liar, begun| {
                for _ in 0..5000 {
                    let header = liar.message(Kind::Eager, begun);
                    liar.send(Fast, header, &[]);
                }
            },
            Lost("budget"),
        ),
        (
            "eager payload of numbers that were not called",
            Call::Place(SMALL),
            |liar, begun| {
                for number in 1..20 {
                    let mut header = eager(begun.data(false, 0));
                    header.number = number;
                    liar.send(Fast, header, &[9; EAGER_MAX]);
                }
            },
            Lost("budget"),
        ),
        (
            "eager payload of a communicator that does not exist",
            Call::Place(SMALL),
            |liar, begun| {
                for _ in 1..20 {
                    let mut header = eager(begun.data(false, 0));
                    header.channel = 5;
                    liar.send(Fast, header, &[9; EAGER_MAX]);
                }
            },
            Lost("budget"),
        ),
        (
            "an eager message that is large",
            Call::Place(SMALL),
            |liar, begun| {
                let header = liar.message(Kind::Eager, begun);
                liar.send(Fast, header, &large());
            },
            Lost("eager"),
        ),
        (
            "an eager message that does not count",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = liar.message(Kind::Eager, begun);
                header.flags = 0;
                liar.send(Fast, header, &[9; 4]);
            },
            Lost("flags"),
        ),
        (
            "offers",
            Call::Place(SMALL),
            |liar, begun| {
                for _ in 0..70_000 {
                    let header = liar.message(Kind::Offer, begun);
                    liar.send(Fast, header, &[]);
                }
            },
            Lost("offers"),
        ),
        (
            "frames of communicators that do not exist",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Credit);
                for channel in 1..100_000 {
                    header.channel = channel;
                    liar.send(Fast, header, &[]);
                }
            },
            Lost("too many frames"),
        ),
        (
            "text for communicators that do not exist",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Abort);
                for channel in 1..5000 {
                    header.channel = channel;
                    liar.send(Fast, header, &[9; 16 << 10]);
                }
            },
            Lost("too many frames"),
        ),
        (
            "frames of numbers that were not called",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Credit);
                for number in 1..100_000 {
                    header.number = number;
                    liar.send(Fast, header, &[]);
                }
            },
            Lost("too many frames"),
        ),
        (
            "verdicts on numbers that were not called",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Abort);
                for number in 1..20_000 {
                    header.number = u64::MAX - number;
                    liar.send(Fast, header, &encode(&Cause::Cancelled));
                }
            },
            Unheeded,
        ),
    ]);
}

#[test]
fn messages_between_two_ranks_keep_to_their_offer() {
    tell_all(&[
        (
            "an offer of all memory",
            Call::Receive(LARGE),
            |liar, begun| {
                let mut offer = liar.message(Kind::Offer, begun);
                offer.offset = u64::MAX;
                liar.send(Fast, offer, &[]);
            },
            Fails("mismatch"),
        ),
        (
            "an offer of all memory that nobody waits for",
            Call::Place(SMALL),
            |liar, begun| {
                let mut offer = liar.message(Kind::Offer, begun);
                offer.offset = u64::MAX;
                liar.send(Fast, offer, &[]);
            },
            Unheeded,
        ),
        (
            "another length under the same digest",
            Call::Receive(SMALL),
            |liar, begun| {
                let header = liar.message(Kind::Eager, begun);
                liar.send(Fast, header, &[9; SMALL * 4 + 4]);
            },
            Fails("mismatch"),
        ),
        (
            "a number that jumps",
            Call::Receive(LARGE),
            |liar, begun| {
                liar.messages = 3;
                let offer = liar.message(Kind::Offer, begun);
                liar.send(Fast, offer, &[]);
            },
            Lost("message 3 where 0 was due"),
        ),
        (
            "a number that comes twice",
            Call::Receive(LARGE),
            |liar, begun| {
                for _ in 0..2 {
                    liar.messages = 0;
                    let offer = liar.message(Kind::Offer, begun);
                    liar.send(Fast, offer, &[]);
                }
            },
            Lost("message 0 where 1 was due"),
        ),
        (
            "payload beyond the offer",
            Call::Receive(LARGE),
            |liar, begun| {
                let offer = liar.message(Kind::Offer, begun);
                liar.send(Fast, offer, &[]);
                let mut body = begun.header(Kind::Body);
                body.offset = begun.bytes() as u64;
                liar.send(Bulk, body, &[9; 4]);
            },
            Lost(""),
        ),
        (
            "payload far beyond the offer",
            Call::Receive(LARGE),
            |liar, begun| {
                let offer = liar.message(Kind::Offer, begun);
                liar.send(Fast, offer, &[]);
                liar.read_kind(Fast, Kind::Accept);
                let mut body = begun.header(Kind::Body);
                body.offset = u64::MAX - 1;
                liar.send(Bulk, body, &[9; 4]);
            },
            Lost("was due"),
        ),
        (
            "payload in another order",
            Call::Receive(LARGE),
            |liar, begun| {
                let offer = liar.message(Kind::Offer, begun);
                liar.send(Fast, offer, &[]);
                liar.read_kind(Fast, Kind::Accept);
                let mut body = begun.header(Kind::Body);
                body.offset = PAYLOAD_MAX as u64;
                liar.send(Bulk, body, &large());
            },
            Lost("was due"),
        ),
        (
            "payload that was not accepted",
            Call::Receive(LARGE),
            |liar, begun| {
                let mut body = begun.header(Kind::Body);
                body.number = 17;
                liar.send(Bulk, body, &large());
            },
            Unheeded,
        ),
        (
            "an offer is accepted that was not made",
            Call::PointSend(LARGE),
            |liar, begun| {
                let mut accept = begun.header(Kind::Accept);
                accept.number = 9;
                liar.send(Fast, accept, &[]);
            },
            Lost("accepts"),
        ),
        (
            "an offer is accepted twice",
            Call::PointSend(LARGE),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Accept), &[]);
                liar.send(Fast, begun.header(Kind::Accept), &[]);
            },
            Lost("accepts"),
        ),
        (
            "an offer is refused that was not made",
            Call::Place(SMALL),
            |liar, begun| {
                let mut abort = begun.header(Kind::Abort);
                abort.flags = POINT | TO_SENDER;
                abort.number = 99;
                liar.send(Fast, abort, &encode(&Cause::Cancelled));
            },
            Unheeded,
        ),
        (
            "an offer is refused",
            Call::PointSend(LARGE),
            |liar, begun| {
                let mut abort = begun.header(Kind::Abort);
                abort.flags = POINT | TO_SENDER;
                liar.send(Fast, abort, &encode(&Cause::Failed("no".into())));
            },
            Fails("aborted"),
        ),
    ]);
}

#[test]
fn text_is_read_or_refused() {
    tell_all(&[
        (
            "an abort of garbage",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Abort), &[0xff; 300]);
            },
            Lost("unreadable"),
        ),
        (
            "an abort of nothing",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Abort), &[]);
            },
            Lost("unreadable"),
        ),
        (
            "an abort cut off",
            Call::Place(SMALL),
            |liar, begun| {
                let body = encode(&Cause::Deadline(Box::new(report(Rank(0)))));
                liar.send(Fast, begun.header(Kind::Abort), &body[..body.len() / 2]);
            },
            Lost("unreadable"),
        ),
        (
            "a text that is none",
            Call::Place(SMALL),
            |liar, begun| {
                let mut body = encode(&Cause::Failed("abcd".into()));
                let end = body.len() - 1;
                body[end] = 0xff;
                liar.send(Fast, begun.header(Kind::Abort), &body);
            },
            Lost("unreadable"),
        ),
        (
            "a text that claims to be longer than memory",
            Call::Place(SMALL),
            |liar, begun| {
                let mut body = encode(&Cause::Failed(String::new()));
                body.pop();
                body.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
                liar.send(Fast, begun.header(Kind::Abort), &body);
            },
            Lost("unreadable"),
        ),
        (
            "a longest text",
            Call::Place(SMALL),
            |liar, begun| {
                let body = encode(&Cause::Failed("x".repeat((16 << 10) - 8)));
                liar.send(Fast, begun.header(Kind::Abort), &body);
            },
            Fails("aborted"),
        ),
        (
            "a report about nobody",
            Call::Place(SMALL),
            |liar, begun| {
                let body = encode(&Cause::Deadline(Box::new(report(Rank(u32::MAX)))));
                liar.send(Fast, begun.header(Kind::Abort), &body);
            },
            Fails("deadline"),
        ),
        (
            "the loss of nobody",
            Call::Place(SMALL),
            |liar, begun| {
                let body =
                    encode(&Cause::Lost { rank: Rank(u32::MAX), host: String::new(), cause: String::new() });
                liar.send(Fast, begun.header(Kind::Abort), &body);
            },
            Unheeded,
        ),
        (
            "the loss of the honest rank",
            Call::Place(SMALL),
            |liar, begun| {
                let body = encode(&Cause::Lost { rank: Rank(0), host: String::new(), cause: String::new() });
                liar.send(Fast, begun.header(Kind::Abort), &body);
            },
            Unheeded,
        ),
        (
            "a status of garbage",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Status), &[0x80; 100]);
            },
            Lost("unreadable"),
        ),
        (
            "a status that waits for nobody",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Status), &status(vec![u32::MAX]));
            },
            Lost("waits for rank"),
        ),
        (
            "a status that waits for all, often",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Status), &status(vec![0; 10_000]));
            },
            Lost("waits for rank"),
        ),
        (
            "a status of another call",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Status);
                header.digest ^= 1;
                liar.send(Fast, header, &status(vec![]));
            },
            Fails("mismatch"),
        ),
        (
            "a contradiction of garbage",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Mismatch), &[7; 40]);
            },
            Lost("unreadable"),
        ),
        (
            "a contradiction",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Mismatch), &encode(&call_info("barrier")));
            },
            Fails("mismatch"),
        ),
        (
            "a contradiction of a number that was not called",
            Call::Place(SMALL),
            |liar, begun| {
                let mut header = begun.header(Kind::Mismatch);
                header.number = u64::MAX;
                header.flags = ASK;
                liar.send(Fast, header, &encode(&call_info("barrier")));
            },
            Unheeded,
        ),
    ]);
}

#[test]
fn goodbyes_are_said_once() {
    tell_all(&[
        (
            "a communicator is closed on both connections",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Close), &[]);
                liar.send(Bulk, begun.header(Kind::Close), &[]);
            },
            Lost("closed"),
        ),
        (
            "closed up to the end of all numbers",
            Call::Place(SMALL),
            |liar, begun| {
                let mut close = begun.header(Kind::Close);
                close.number = u64::MAX;
                liar.send(Fast, close, &[]);
                liar.send(Bulk, close, &[]);
            },
            Lost("closed"),
        ),
        (
            "a communicator is closed 300 times",
            Call::Place(SMALL),
            |liar, begun| {
                for _ in 0..300 {
                    liar.send(Fast, begun.header(Kind::Close), &[]);
                }
            },
            Lost("closed"),
        ),
        (
            "a communicator is closed that does not exist",
            Call::Place(SMALL),
            |liar, begun| {
                let mut close = begun.header(Kind::Close);
                close.channel = 8;
                liar.send(Fast, close, &[]);
            },
            Unheeded,
        ),
        (
            "goodbye twice on one connection",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Bye), &[]);
                liar.send(Fast, begun.header(Kind::Bye), &[]);
            },
            Lost("goodbye"),
        ),
        (
            "payload after goodbye",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Bulk, begun.header(Kind::Bye), &[]);
                liar.send(Bulk, begun.data(false, 0), &large());
            },
            Lost("goodbye"),
        ),
        (
            "goodbye on both",
            Call::Place(SMALL),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Bye), &[]);
                liar.send(Bulk, begun.header(Kind::Bye), &[]);
            },
            Lost("closed"),
        ),
        (
            "the end within a header",
            Call::Place(LARGE),
            |liar, begun| {
                let bytes = liar.frame(Bulk, begun.data(false, 0), &large());
                liar.raw(Bulk, &bytes[..63]);
                liar.hang_up(Bulk);
            },
            Lost("without goodbye"),
        ),
        (
            "the end within payload",
            Call::Place(LARGE),
            |liar, begun| {
                let bytes = liar.frame(Bulk, begun.data(false, 0), &large());
                liar.raw(Bulk, &bytes[..70_000]);
                liar.hang_up(Bulk);
            },
            Lost("without goodbye"),
        ),
        (
            "the end after goodbye on the other connection",
            Call::Place(LARGE),
            |liar, begun| {
                liar.send(Fast, begun.header(Kind::Bye), &[]);
                liar.hang_up(Fast);
                liar.hang_up(Bulk);
            },
            Lost("without goodbye"),
        ),
    ]);
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
