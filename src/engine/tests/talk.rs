//! Lies in messages between two ranks, in texts, and in goodbyes.

use super::lies::*;
use super::*;
use crate::error::LinkState;

/// The deadlines of a communicator are held, or not.
fn hold(liar: &mut Liar, begun: &Begun, held: bool) {
    let mut header = begun.header(Kind::Hold);
    header.flags = if held { HELD } else { 0 };
    liar.send(Fast, header, &[]);
}

pub(super) const HOLDS: &[Lie] = &[
    (
        "deadlines held twice",
        Call::Place(SMALL),
        |liar, begun| {
            hold(liar, begun, true);
            hold(liar, begun, true);
        },
        Lost("holds deadlines that it holds"),
    ),
    (
        "deadlines let go of that were not held",
        Call::Place(SMALL),
        |liar, begun| hold(liar, begun, false),
        Lost("does not hold"),
    ),
    (
        "deadlines let go of twice",
        Call::Place(SMALL),
        |liar, begun| [true, false, false].map(|held| hold(liar, begun, held)).iter().for_each(drop),
        Lost("does not hold"),
    ),
    (
        "deadlines with text",
        Call::Place(SMALL),
        |liar, begun| {
            let mut header = begun.header(Kind::Hold);
            header.flags = HELD;
            liar.send(Fast, header, b"for ever");
        },
        Lost("exceeds 0"),
    ),
    (
        "deadlines held, let go of and held, for good",
        Call::Reduce(LARGE),
        |liar, begun| [true, false, true].map(|held| hold(liar, begun, held)).iter().for_each(drop),
        Unheeded,
    ),
];

#[test]
fn lies_about_deadlines() {
    tell_all(HOLDS);
    watched("deadlines held after the communicator was closed", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(SMALL));
        for class in [Fast, Bulk] {
            scene.liar.send(class, begun.header(Kind::Close), &[]);
        }
        assert!(matches!(scene.end(&begun).unwrap_err(), Error::Left { .. }));
        let is_down = || scene.engine.links([(1, Rank(1))].into_iter())[0].state == LinkState::Down;
        assert!(!is_down());
        hold(&mut scene.liar, &begun, true);
        while !is_down() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

pub(super) const MESSAGES: &[Lie] = &[
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
            // At once: else the message may be over when the second one comes.
            let twice = [(); 2].map(|()| liar.frame(Fast, begun.header(Kind::Accept), &[]));
            match liar.far {
                Some(_) => twice.iter().for_each(|frame| liar.raw(Fast, frame)),
                None => liar.raw(Fast, &twice.concat()),
            }
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
];

#[test]
fn messages_between_two_ranks_keep_to_their_offer() {
    tell_all(MESSAGES);
}

/// It refuses each, and keeps only so many refusals for somebody who does not read them.
#[test]
fn offers_to_a_rank_that_closes_are_bounded() {
    watched("offers to a rank that closes", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(SMALL));
        scene.engine.leave(scene.channel);
        for _ in 0..2000 {
            let frames: Vec<Vec<u8>> = (0..1000)
                .map(|_| {
                    let mut offer = scene.liar.message(Kind::Offer, &begun);
                    offer.offset = 1 << 20;
                    scene.liar.frame(Fast, offer, &[])
                })
                .collect();
            scene.liar.raw(Fast, &frames.concat());
            if begun.op.is_done() {
                break;
            }
        }
        assert!(begun.op.is_done(), "two million offers were heeded");
        let error = scene.end(&begun).unwrap_err();
        assert!(error.to_string().contains("too many offers"), "{error}");
    });
}

pub(super) const TEXTS: &[Lie] = &[
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
];

#[test]
fn text_is_read_or_refused() {
    tell_all(TEXTS);
}

pub(super) const GOODBYES: &[Lie] = &[
    (
        "a communicator is closed on both connections",
        Call::Place(SMALL),
        |liar, begun| {
            liar.send(Fast, begun.header(Kind::Close), &[]);
            liar.send(Bulk, begun.header(Kind::Close), &[]);
        },
        Left,
    ),
    (
        "begins to leave twice",
        Call::Place(SMALL),
        |liar, begun| (0..2).for_each(|_| liar.send(Fast, begun.header(Kind::Leaving), &[])),
        Lost("begun to leave a communicator twice"),
    ),
    (
        "begins to leave and sends a message",
        Call::Place(SMALL),
        |liar, begun| {
            liar.send(Fast, begun.header(Kind::Leaving), &[]);
            let offer = liar.message(Kind::Offer, begun);
            liar.send(Fast, offer, &[]);
        },
        Lost("message 0 after it has begun to leave"),
    ),
    (
        "begins to leave with a reason",
        Call::Place(SMALL),
        |liar, begun| liar.send(Fast, begun.header(Kind::Leaving), b"tired"),
        Lost("exceeds 0"),
    ),
    (
        "begins to leave a communicator that does not exist",
        Call::Place(SMALL),
        |liar, begun| {
            let mut leaving = begun.header(Kind::Leaving);
            leaving.channel = 8;
            liar.send(Fast, leaving, &[]);
        },
        Unheeded,
    ),
    (
        "begins to leave, and does its part all the same",
        Call::Reduce(LARGE),
        |liar, begun| liar.send(Fast, begun.header(Kind::Leaving), &[]),
        Unheeded,
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
        Left,
    ),
    (
        "a communicator is closed 300 times",
        Call::Place(SMALL),
        |liar, begun| {
            for _ in 0..300 {
                liar.send(Fast, begun.header(Kind::Close), &[]);
            }
        },
        Left,
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
        Left,
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
];

#[test]
fn goodbyes_are_said_once() {
    tell_all(GOODBYES);
}

/// A peer may write to a connection whose other end has said goodbye and closed, and be refused before it has read the
/// goodbye: that is no loss, and what is under way on the other connection arrives.
#[test]
fn a_goodbye_counts_although_the_system_refuses_a_write_first() {
    watched("goodbye, refused", || {
        for _ in 0..20 {
            let mut scene = Scene::new();
            let begun = scene.begin(Call::Place(LARGE));
            scene.liar.send(Fast, begun.header(Kind::Bye), &[]);
            scene.liar.reset(Fast);
            // Its offer is the write.
            let refused = scene.begin(Call::PointSend(LARGE));
            scene.liar.serve(&begun);
            assert!(scene.end(&begun).unwrap().iter().all(|value| *value == 2.0));
            scene.liar.send(Bulk, begun.header(Kind::Bye), &[]);
            scene.liar.hang_up(Bulk);
            let refused = scene.end(&refused).unwrap_err();
            assert!(matches!(refused, Error::Left { .. }), "{refused}");
        }
    });
}

/// A rank that has ended waits for its peers' goodbyes, since what it had sent may still be under way; also on the one
/// connection after the other one broke.
#[test]
fn who_has_ended_gives_up_no_more_than_the_connection_that_broke() {
    watched("ended, and one connection breaks", || {
        let Scene { engine, mut liar, .. } = Scene::new();
        drop(engine);
        liar.read_kind(Fast, Kind::Bye);
        liar.hang_up(Bulk);
        // Nothing shows that it has noticed; a write to a connection that is closed fails soon after.
        for _ in 0..50 {
            let bytes = liar.frame(Fast, Header::new(Kind::Consumed, 0, 0), &[]);
            liar.conns[Fast as usize].write_all(&bytes).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        liar.send(Fast, Header::new(Kind::Bye, 0, 0), &[]);
        liar.conns[Fast as usize].shutdown(std::net::Shutdown::Write).unwrap();
        // Closed in order, with nothing unread.
        let mut rest = Vec::new();
        liar.conns[Fast as usize].read_to_end(&mut rest).unwrap();
    });
}
