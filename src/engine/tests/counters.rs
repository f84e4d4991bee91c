//! Lies in what frames count, and more than there is room for.

use super::lies::*;
use super::*;

pub(super) const COUNTERS: &[Lie] = &[
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
];

#[test]
fn counters_of_a_connection_run_in_one_direction() {
    tell_all(COUNTERS);
}

pub(super) const UNASKED: &[Lie] = &[
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
            for _ in 0..140_000 {
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
];

#[test]
fn what_comes_unasked_is_bounded() {
    tell_all(UNASKED);
}
