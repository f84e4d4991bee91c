//! Lies about payload and credit.

use super::lies::*;
use super::*;

pub(super) const PAYLOAD: &[Lie] = &[
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
];

#[test]
fn payload_goes_where_it_was_granted_or_nowhere() {
    tell_all(PAYLOAD);
}

pub(super) const CREDIT: &[Lie] = &[
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
];

#[test]
fn credit_is_for_what_is_sent() {
    tell_all(CREDIT);
}

pub(super) const EXCHANGES: &[Lie] = &[
    (
        "with more than the message",
        Call::Exchange(SMALL),
        |liar, begun| {
            liar.send(Fast, eager(begun.data(true, 0)), &[9; SMALL * 4 + 4]);
        },
        Lost("payload up to"),
    ),
    (
        "with a part of the message",
        Call::Exchange(SMALL),
        |liar, begun| {
            liar.send(Fast, eager(begun.data(true, 0)), &[9; 200]);
        },
        Lost("in pieces"),
    ),
    (
        "with a message that is not in the plan",
        Call::Exchange(SMALL),
        |liar, begun| {
            let mut header = eager(begun.data(true, 0));
            header.item = 1;
            liar.send(Fast, header, &[9; SMALL * 4]);
        },
        Lost("not in the plan"),
    ),
    (
        "on both connections",
        Call::Exchange(SMALL),
        |liar, begun| {
            let frame = liar.frame(Fast, eager(begun.data(true, 0)), &[9; SMALL * 4]);
            liar.raw(Fast, &frame[..frame.len() / 2]);
            std::thread::sleep(Duration::from_millis(50));
            liar.send(Bulk, eager(begun.data(true, 0)), &[9; SMALL * 4]);
        },
        Lost("both connections"),
    ),
    (
        "in another call",
        Call::Exchange(SMALL),
        |liar, begun| {
            let mut header = eager(begun.data(true, 0));
            header.digest ^= 1;
            liar.send(Fast, header, &[9; SMALL * 4]);
        },
        Fails("mismatch"),
    ),
    (
        "and grants what was sent unasked",
        Call::Exchange(SMALL),
        |liar, begun| {
            let mut credit = begun.header(Kind::Credit);
            credit.offset = SMALL as u64 * 4;
            liar.send(Fast, credit, &[]);
        },
        Lost("credit for a message that needs none"),
    ),
    (
        "and asks for credit twice",
        Call::Exchange(SMALL),
        |liar, begun| {
            let mut request = begun.data(true, 0);
            request.kind = Kind::Request;
            liar.send(Fast, request, &[]);
            liar.send(Fast, request, &[]);
        },
        Lost("asks for credit twice"),
    ),
    (
        "and asks for credit, as it may",
        Call::Exchange(20_000 / 4),
        |liar, begun| {
            let mut request = begun.data(true, 0);
            request.kind = Kind::Request;
            liar.send(Fast, request, &[]);
            let (granted, _) = liar.read_kind(Fast, Kind::Credit);
            assert_eq!(granted.offset, begun.bytes() as u64);
        },
        Unheeded,
    ),
];

#[test]
fn an_exchange_takes_one_message_of_each_rank() {
    tell_all(EXCHANGES);
}

/// An exchange is given up while a message is half way into its memory; the next one has other memory by then.
#[test]
fn an_exchange_that_was_given_up_leaves_the_next_one_alone() {
    for count in [SMALL, 5000] {
        watched("given up", move || {
            let mut scene = Scene::new();
            let first = scene.begin(Call::Exchange(count));
            let bytes = count * 4;
            let stale = scene.liar.frame(Fast, eager(first.data(true, 0)), &vec![0x7f; bytes]);
            scene.liar.raw(Fast, &stale[..stale.len() / 2]);
            std::thread::sleep(Duration::from_millis(50));
            scene.engine.cancel(&first.op);
            assert!(matches!(scene.end(&first), Err(Error::Cancelled { .. })));
            let second = scene.begin(Call::Exchange(count));
            scene.liar.raw(Fast, &stale[stale.len() / 2..]);
            scene.liar.serve(&second);
            assert_eq!(scene.end(&second).unwrap(), vec![3f32; count]);
            scene.assert_usable();
        });
    }
}
