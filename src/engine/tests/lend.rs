//! Memory that is read where it lies: what a peer may say of its own.

use std::os::fd::{AsFd, OwnedFd};

use super::lies::*;
use super::*;
use crate::buffer::segment::{PAGE, Segment};
use crate::link::frame::Lent;
use crate::link::shm::Grant;

/// As large as a message.
const SEGMENT: usize = (LARGE * 4).next_multiple_of(PAGE);

/// What it lends, where nothing is wrong with it.
fn place(liar: &mut Liar) -> Lent {
    Lent::new(0, 0, far(liar).lend(0))
}

/// A segment whose elements are all two.
fn segment() -> Segment {
    let segment = Segment::new(SEGMENT, &[(0, SEGMENT)]).unwrap();
    segment.mapping.raw(0, SEGMENT).copy_from_slice(&2f32.to_le_bytes().repeat(SEGMENT / 4));
    segment
}

fn hand_over(liar: &mut Liar) -> Segment {
    let segment = segment();
    far(liar).hand_over([0, SEGMENT as u64], &[segment.fd.as_fd()]);
    segment
}

/// Of the message that is placed, or reduced.
fn header(begun: &Begun) -> Header {
    Header { kind: Kind::Lend, ..begun.data(matches!(begun.call, Call::Reduce(_) | Call::Exchange(_)), 0) }
}

/// Lends what this is of, up to so many bytes.
fn lend_of(liar: &mut Liar, header: Header, lent: Lent, upto: u64) {
    liar.send(Fast, Header { offset: upto, ..header }, &lent.encode());
}

/// Lends the message, which is where it should be.
fn lend(liar: &mut Liar, begun: &Begun, upto: u64) {
    let lent = place(liar);
    lend_of(liar, header(begun), lent, upto);
}

/// What follows the first time is anything, or nothing.
fn lend_on(liar: &mut Liar, begun: &Begun, upto: u64, place: &[u8]) {
    liar.send(Fast, Header { offset: upto, ..header(begun) }, place);
}

/// Lends all of the message, of a place that is a little changed.
fn lend_changed(liar: &mut Liar, begun: &Begun, change: impl FnOnce(&mut Lent)) {
    let _segment = hand_over(liar);
    let mut lent = place(liar);
    change(&mut lent);
    lend_of(liar, header(begun), lent, begun.bytes() as u64);
}

/// Sends a part of the message.
fn send_part(liar: &mut Liar, begun: &Begun) {
    liar.send(Fast, Header { kind: Kind::Data, ..header(begun) }, &large());
}

const PLACES: &[Told] = &[
    (
        "of a segment that there can't be",
        |liar, begun| lend_changed(liar, begun, |lent| lent.segment = 512),
        "has no such",
    ),
    (
        "of the last segment that can be numbered",
        |liar, begun| lend_changed(liar, begun, |lent| lent.segment = u32::MAX - 1),
        "has no such",
    ),
    (
        "in no segment, where that can't be read",
        |liar, begun| {
            let unmapped = Grant { slot: 0, number: 0 };
            lend_changed(liar, begun, |lent| *lent = Lent::unmapped(lent.offset, unmapped))
        },
        "lends what can't be read",
    ),
    (
        "beyond the segment",
        |liar, begun| lend_changed(liar, begun, |lent| lent.offset = PAGE as u64),
        "has no such",
    ),
    (
        "beyond all memory",
        |liar, begun| lend_changed(liar, begun, |lent| lent.offset = u64::MAX - 8),
        "has no such",
    ),
    (
        "by a grant that there can't be",
        |liar, begun| lend_changed(liar, begun, |lent| lent.slot = 256),
        "lends what it can't lend",
    ),
    (
        "by the last grant that can be numbered",
        |liar, begun| lend_changed(liar, begun, |lent| lent.slot = u32::MAX),
        "lends what it can't lend",
    ),
];

const TERMS: &[Told] = &[
    ("within an element", |liar, begun| lend(liar, begun, 1001), "lends 1001 of"),
    ("nothing of it", |liar, begun| lend(liar, begun, 0), "lends what is sent"),
    ("more than the message", |liar, begun| lend(liar, begun, begun.bytes() as u64 + 4), "lends 1600004 of"),
    ("up to the end of all numbers", |liar, begun| lend(liar, begun, u64::MAX - 3), "of 1600000 bytes"),
    ("without a place", |liar, begun| lend_on(liar, begun, 4096, &[]), "without saying what"),
    ("with half of a place", |liar, begun| lend_on(liar, begun, 4096, &[0; 12]), "without saying what"),
    ("with more than a place", |liar, begun| lend_on(liar, begun, 4096, &[0; 25]), "exceeds 24"),
    (
        "twice",
        |liar, begun| [4096, 8192].iter().for_each(|upto| lend(liar, begun, *upto)),
        "lends what is sent, lent further, or not read yet",
    ),
    (
        "more before the first is read",
        |liar, begun| {
            // Whose segment has not come, so that it can't be.
            lend(liar, begun, 4096);
            lend_on(liar, begun, 8192, &[]);
        },
        "not read yet",
    ),
    (
        "less than before",
        |liar, begun| {
            let _segment = hand_over(liar);
            lend(liar, begun, 4096);
            liar.read_kind(Fast, Kind::Taken);
            lend_on(liar, begun, 4092, &[]);
        },
        "lent further",
    ),
    (
        "a message that is not in the plan",
        |liar, begun| {
            let lent = place(liar);
            lend_of(liar, Header { item: 99, ..header(begun) }, lent, 4096);
        },
        "not in the plan",
    ),
];

/// Whether it is placed or reduced.
const SENT_AS_WELL: &[Told] = &[
    (
        "what is sent in part",
        |liar, begun| {
            // On one connection, so that it comes first.
            send_part(liar, begun);
            lend(liar, begun, begun.bytes() as u64);
        },
        "lends what is sent",
    ),
    (
        "and sends it as well",
        |liar, begun| {
            lend(liar, begun, 4096);
            send_part(liar, begun);
        },
        "was due",
    ),
];

const CALLS: &[Lie] = &[
    (
        "to be reduced, beyond the segment",
        Call::Reduce(LARGE),
        |liar, begun| lend_changed(liar, begun, |lent| lent.offset = SEGMENT as u64 - 4),
        Lost("has no such"),
    ),
    (
        "what is its receiver's",
        Call::Send(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend_of(liar, Header { item: begun.sent()[0], ..begun.header(Kind::Lend) }, lent, 4096);
        },
        Lost("not in the plan"),
    ),
    (
        "what is exchanged",
        Call::Exchange(SMALL),
        |liar, begun| lend(liar, begun, SMALL as u64 * 4),
        Lost("lends what is sent"),
    ),
    (
        "for another call",
        Call::Place(LARGE),
        |liar, begun| {
            let (lent, header) = (place(liar), header(begun));
            lend_of(liar, Header { digest: header.digest ^ 1, ..header }, lent, 4096);
        },
        Fails("mismatch"),
    ),
    (
        "a message between two ranks that nobody asked for",
        Call::Place(SMALL),
        |liar, begun| {
            let lent = place(liar);
            lend_of(liar, Header { flags: POINT, number: 7, ..begun.header(Kind::Lend) }, lent, 400);
        },
        Unheeded,
    ),
];

/// The first thing that a peer says on the socket, and then that it lends of that.
fn hand(liar: &mut Liar, begun: &Begun, about: [u64; 2], fds: &[&OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    far(liar).hand_over(about, &fds);
    lend(liar, begun, begun.bytes() as u64);
}

fn file(bytes: usize) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("a test", flags).unwrap();
    rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
    fd
}

const SEGMENTS: &[Told] = &[
    ("not sealed", |liar, begun| hand(liar, begun, [0, SEGMENT as u64], &[&file(SEGMENT)]), "not sealed"),
    (
        "no file in memory",
        |liar, begun| {
            let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
            hand(liar, begun, [0, SEGMENT as u64], &[&file]);
        },
        "no segment",
    ),
    ("larger than it is", |liar, begun| hand(liar, begun, [0, 1 << 40], &[&segment().fd]), "bytes, not"),
    ("of no bytes", |liar, begun| hand(liar, begun, [0, 0], &[&segment().fd]), "segment 0 of 0 bytes"),
    (
        "not of whole pages",
        |liar, begun| hand(liar, begun, [0, SEGMENT as u64 - 1], &[&segment().fd]),
        "segment 0 of",
    ),
    (
        "one too many",
        |liar, begun| hand(liar, begun, [512, SEGMENT as u64], &[&segment().fd]),
        "segment 512 of",
    ),
    (
        "numbered beyond all numbers",
        |liar, begun| hand(liar, begun, [1 << 32, SEGMENT as u64], &[&segment().fd]),
        "that can't be",
    ),
    (
        "two at once",
        |liar, begun| hand(liar, begun, [0, SEGMENT as u64], &[&segment().fd, &segment().fd]),
        "without its descriptor",
    ),
    (
        "without a descriptor",
        |liar, begun| {
            far(liar).say(&[0u64, SEGMENT as u64].map(u64::to_le_bytes).concat());
            lend(liar, begun, 4096);
        },
        "without its descriptor",
    ),
    (
        "half of what is said of one",
        |liar, begun| {
            far(liar).say(&[0; 8]);
            lend(liar, begun, 4096);
        },
        "can't be taken",
    ),
    (
        "given twice",
        |liar, begun| {
            let (_first, _second) = (hand_over(liar), hand_over(liar));
            // A half, so that it is not over before the second one is seen.
            lend(liar, begun, begun.bytes() as u64 / 2);
        },
        "segment 0 of",
    ),
];

#[test]
fn what_is_lent_is_where_it_can_be_read() {
    tell_all_of(Call::Place(LARGE), PLACES, Scene::beside);
    tell_all_of(Call::Place(LARGE), SEGMENTS, Scene::beside);
}

#[test]
fn a_message_is_lent_as_it_goes_on_or_is_sent() {
    tell_all_of(Call::Place(LARGE), TERMS, Scene::beside);
    for call in [Call::Place(LARGE), Call::Reduce(LARGE)] {
        tell_all_of(call, SENT_AS_WELL, Scene::beside);
    }
    tell_all_in(CALLS, Scene::beside);
}

/// Over a socket nothing is lent.
#[test]
fn who_shares_no_memory_lends_none() {
    const LIES: &[Told] = &[(
        "lends all the same",
        |liar, begun| {
            lend_of(liar, header(begun), Lent::new(0, 0, Grant { slot: 0, number: 0 }), 4096);
        },
        "lends what it can't lend",
    )];
    tell_all_of(Call::Place(LARGE), LIES, Scene::new);
}

// --- messages between two ranks

#[test]
fn lies_about_messages_that_are_lent() {
    const LIES: &[Told] = &[
        ("another length", |liar, begun| offer_and_lend(liar, begun, 4096), "lends 4096 of 1600000 bytes"),
        (
            "twice",
            |liar, begun| (0..2).for_each(|_| offer_and_lend(liar, begun, begun.bytes() as u64)),
            "lends a message that is sent, or lent",
        ),
        (
            "and sent",
            |liar, begun| {
                offer_and_lend(liar, begun, begun.bytes() as u64);
                liar.send(Fast, begun.header(Kind::Body), &large());
            },
            "both connections",
        ),
        (
            "after part of it was sent",
            |liar, begun| {
                offer(liar, begun);
                liar.send(Fast, begun.header(Kind::Body), &large());
                offer_and_lend(liar, begun, begun.bytes() as u64);
            },
            "lends a message that is sent, or lent",
        ),
    ];
    tell_all_of(Call::Receive(LARGE), LIES, Scene::beside);
}

fn offer(liar: &mut Liar, begun: &Begun) {
    if liar.messages == 0 {
        let offer = liar.message(Kind::Offer, begun);
        liar.send(Fast, offer, &[]);
        liar.read_kind(Fast, Kind::Accept);
    }
}

fn offer_and_lend(liar: &mut Liar, begun: &Begun, upto: u64) {
    offer(liar, begun);
    let lent = place(liar);
    lend_of(liar, Header { flags: POINT, ..begun.header(Kind::Lend) }, lent, upto);
}

// --- what becomes of it

#[test]
fn what_is_lent_is_read_as_far_as_it_is_lent() {
    watched("lent", || {
        let mut scene = Scene::beside();
        let _segment = hand_over(&mut scene.liar);
        for round in 0..3 {
            let begun = scene.begin(Call::Place(LARGE));
            let lent = place(&mut scene.liar);
            lend_of(&mut scene.liar, header(&begun), lent, 4096);
            assert_eq!(scene.liar.read_kind(Fast, Kind::Taken).0.offset, 4096);
            lend_on(&mut scene.liar, &begun, begun.bytes() as u64, &[]);
            assert_eq!(scene.end(&begun).unwrap(), [2f32; LARGE], "round {round}");
            assert_eq!(scene.liar.read_kind(Fast, Kind::Taken).0.offset, begun.bytes() as u64);
            far(&mut scene.liar).take_back(Grant { slot: lent.slot, number: lent.number });
        }
    });
}

/// Who reads too late has read nothing, and learns why.
#[test]
fn what_is_not_lent_any_more_completes_nothing() {
    for call in [Call::Place(LARGE), Call::Reduce(LARGE)] {
        watched("taken back", move || {
            let mut scene = Scene::beside();
            let _segment = hand_over(&mut scene.liar);
            let begun = scene.begin(call);
            let lent = place(&mut scene.liar);
            far(&mut scene.liar).take_back(Grant { slot: lent.slot, number: lent.number });
            lend_of(&mut scene.liar, header(&begun), lent, begun.bytes() as u64);
            for _ in 0..50 {
                scene.engine.shared.drive();
                assert!(!begun.op.is_done());
            }
            scene.liar.send(Fast, begun.header(Kind::Abort), &encode(&Cause::Cancelled));
            let error = scene.end(&begun).unwrap_err();
            assert!(matches!(error, Error::Aborted { by: Rank(1), .. }), "{error}");
            while let Some((header, _)) = far(&mut scene.liar).read(Fast) {
                assert_ne!(header.kind, Kind::Taken, "it was not read");
            }
            scene.assert_usable();
        });
    }
}

/// What is lent of a segment that never comes is waited for until the deadline, and not for ever.
#[test]
fn a_segment_that_does_not_come_is_waited_for_in_time() {
    watched("no segment", || {
        let mut scene = Scene::beside();
        scene.set_deadline(Duration::from_millis(300));
        let begun = scene.begin(Call::Place(LARGE));
        let lent = place(&mut scene.liar);
        lend_of(&mut scene.liar, header(&begun), lent, begun.bytes() as u64);
        assert!(matches!(scene.end(&begun).unwrap_err(), Error::Deadline(_)));
        scene.set_deadline(Duration::from_secs(60));
        scene.assert_usable();
        // One that comes late is in time for the next.
        let begun = scene.begin(Call::Place(LARGE));
        lend_of(&mut scene.liar, header(&begun), lent, begun.bytes() as u64);
        scene.engine.shared.drive();
        let _segment = hand_over(&mut scene.liar);
        assert_eq!(scene.end(&begun).unwrap(), [2f32; LARGE]);
    });
}

/// Where one process may read in the other, any memory is lent. One of an address that is not there is never read.
#[test]
fn memory_in_no_segment_is_read_where_that_is_allowed() {
    watched("unmapped", || {
        let [near, other] = Ends::both();
        let mut scene =
            Scene::between([Ends { reads: Some(std::process::id()), is_read: true, ..near }, other]);
        let there = vec![2f32; LARGE];
        for round in 0..2 {
            let begun = scene.begin(Call::Place(LARGE));
            let place = Lent { segment: u32::MAX, offset: there.as_ptr() as u64, ..place(&mut scene.liar) };
            lend_of(&mut scene.liar, header(&begun), place, begun.bytes() as u64);
            assert_eq!(scene.end(&begun).unwrap(), there, "round {round}");
        }
        for (call, address) in [(Call::Place(LARGE), 16), (Call::Reduce(LARGE), u64::MAX - 4096)] {
            let begun = scene.begin(call);
            let place = Lent { segment: u32::MAX, offset: address, ..place(&mut scene.liar) };
            lend_of(&mut scene.liar, header(&begun), place, begun.bytes() as u64);
            (0..20).for_each(|_| _ = scene.engine.shared.drive());
            assert!(!begun.op.is_done());
            scene.liar.send(Fast, begun.header(Kind::Abort), &encode(&Cause::Cancelled));
            assert!(matches!(scene.end(&begun).unwrap_err(), Error::Aborted { .. }));
        }
        // The other way round: it is lent no longer than until it goes back to its owner.
        let begun = scene.begin(Call::Send(LARGE));
        let (_, said) = scene.liar.read_kind(Fast, Kind::Lend);
        let Lent { segment, slot, number, .. } = Lent::decode(&said).unwrap();
        let grant = Grant { slot, number };
        assert!(segment == u32::MAX && far(&mut scene.liar).stands(grant));
        scene.engine.cancel(&begun.op);
        scene.end(&begun).unwrap_err();
        assert!(!far(&mut scene.liar).stands(grant));
        scene.assert_usable();
    });
}
