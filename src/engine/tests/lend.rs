//! Memory that is read where it lies: what a peer may say of its own.

use std::os::fd::{AsFd, OwnedFd};

use super::lies::*;
use super::*;
use crate::buffer::segment::{PAGE, Segment};
use crate::link::frame::Lent;
use crate::link::shm::Grant;

/// As large as a message.
const SEGMENT: usize = (LARGE * 4).next_multiple_of(PAGE);

fn far(liar: &mut Liar) -> &mut Far {
    liar.far.as_mut().unwrap()
}

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

/// Lends the message that is placed, or reduced, up to so many bytes.
fn lend(liar: &mut Liar, header: Header, lent: Lent, upto: u64) {
    let header = Header { kind: Kind::Lend, offset: upto, ..header };
    liar.send(Fast, header, &lent.encode());
}

fn lend_on(liar: &mut Liar, header: Header, upto: u64) {
    let header = Header { kind: Kind::Lend, offset: upto, ..header };
    liar.send(Fast, header, &[]);
}

/// Lends all of the message that is placed, of a place that is a little changed.
fn lend_changed(liar: &mut Liar, begun: &Begun, change: impl FnOnce(&mut Lent)) {
    let _segment = hand_over(liar);
    let mut lent = place(liar);
    change(&mut lent);
    lend(liar, begun.data(false, 0), lent, begun.bytes() as u64);
}

const PLACES: &[Lie] = &[
    (
        "of a segment that there can't be",
        Call::Place(LARGE),
        |liar, begun| lend_changed(liar, begun, |lent| lent.segment = 512),
        Lost("has no such"),
    ),
    (
        "of the last segment that can be numbered",
        Call::Place(LARGE),
        |liar, begun| lend_changed(liar, begun, |lent| lent.segment = u32::MAX - 1),
        Lost("has no such"),
    ),
    (
        "in no segment, where that can't be read",
        Call::Place(LARGE),
        |liar, begun| {
            lend_changed(liar, begun, |lent| {
                *lent = Lent::unmapped(lent.offset, Grant { slot: 0, number: 0 })
            })
        },
        Lost("lends what can't be read"),
    ),
    (
        "beyond the segment",
        Call::Place(LARGE),
        |liar, begun| lend_changed(liar, begun, |lent| lent.offset = PAGE as u64),
        Lost("has no such"),
    ),
    (
        "beyond all memory",
        Call::Place(LARGE),
        |liar, begun| lend_changed(liar, begun, |lent| lent.offset = u64::MAX - 8),
        Lost("has no such"),
    ),
    (
        "by a grant that there can't be",
        Call::Place(LARGE),
        |liar, begun| lend_changed(liar, begun, |lent| lent.slot = 256),
        Lost("lends what it can't lend"),
    ),
    (
        "by the last grant that can be numbered",
        Call::Place(LARGE),
        |liar, begun| lend_changed(liar, begun, |lent| lent.slot = u32::MAX),
        Lost("lends what it can't lend"),
    ),
    (
        "to be reduced, beyond the segment",
        Call::Reduce(LARGE),
        |liar, begun| {
            let _segment = hand_over(liar);
            let lent = Lent { offset: SEGMENT as u64 - 4, ..place(liar) };
            lend(liar, begun.data(true, 0), lent, begun.bytes() as u64);
        },
        Lost("has no such"),
    ),
];

const TERMS: &[Lie] = &[
    (
        "within an element",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, 1001);
        },
        Lost("lends 1001 of"),
    ),
    (
        "nothing of it",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, 0);
        },
        Lost("lends what is sent"),
    ),
    (
        "more than the message",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, begun.bytes() as u64 + 4);
        },
        Lost("lends 1600004 of"),
    ),
    (
        "up to the end of all numbers",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, u64::MAX - 3);
        },
        Lost("of 1600000 bytes"),
    ),
    (
        "without a place",
        Call::Place(LARGE),
        |liar, begun| lend_on(liar, begun.data(false, 0), 4096),
        Lost("without saying what"),
    ),
    (
        "with half of a place",
        Call::Place(LARGE),
        |liar, begun| {
            let header = Header { kind: Kind::Lend, offset: 4096, ..begun.data(false, 0) };
            liar.send(Fast, header, &[0; 12]);
        },
        Lost("without saying what"),
    ),
    (
        "with more than a place",
        Call::Place(LARGE),
        |liar, begun| {
            let header = Header { kind: Kind::Lend, offset: 4096, ..begun.data(false, 0) };
            liar.send(Fast, header, &[0; 25]);
        },
        Lost("exceeds 24"),
    ),
    (
        "twice",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, 4096);
            lend(liar, begun.data(false, 0), lent, 8192);
        },
        Lost("lends what is sent, lent further, or not read yet"),
    ),
    (
        "more before the first is read",
        Call::Place(LARGE),
        |liar, begun| {
            // Whose segment has not come, so that it can't be.
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, 4096);
            lend_on(liar, begun.data(false, 0), 8192);
        },
        Lost("not read yet"),
    ),
    (
        "less than before",
        Call::Place(LARGE),
        |liar, begun| {
            let _segment = hand_over(liar);
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, 4096);
            liar.read_kind(Fast, Kind::Taken);
            lend_on(liar, begun.data(false, 0), 4092);
        },
        Lost("lent further"),
    ),
    (
        "what is sent in part",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = place(liar);
            // On one connection, so that it comes first.
            liar.send(Fast, begun.data(false, 0), &large());
            lend(liar, begun.data(false, 0), lent, begun.bytes() as u64);
        },
        Lost("lends what is sent"),
    ),
    (
        "what is reduced in part",
        Call::Reduce(LARGE),
        |liar, begun| {
            let lent = place(liar);
            liar.send(Fast, begun.data(true, 0), &large());
            lend(liar, begun.data(true, 0), lent, begun.bytes() as u64);
        },
        Lost("lends what is sent"),
    ),
    (
        "and sends it as well",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, 4096);
            liar.send(Fast, begun.data(false, 0), &large());
        },
        Lost("was due"),
    ),
    (
        "and sends it as well, to be reduced",
        Call::Reduce(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, begun.data(true, 0), lent, 4096);
            liar.send(Fast, begun.data(true, 0), &large());
        },
        Lost("was due"),
    ),
    (
        "a message that is not in the plan",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, Header { item: 99, ..begun.data(false, 0) }, lent, 4096);
        },
        Lost("not in the plan"),
    ),
    (
        "what is its receiver's",
        Call::Send(LARGE),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, Header { item: begun.sent()[0], ..begun.header(Kind::Lend) }, lent, 4096);
        },
        Lost("not in the plan"),
    ),
    (
        "what is exchanged",
        Call::Exchange(SMALL),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, begun.data(true, 0), lent, SMALL as u64 * 4);
        },
        Lost("lends what is sent"),
    ),
    (
        "for another call",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = place(liar);
            let header = begun.data(false, 0);
            lend(liar, Header { digest: header.digest ^ 1, ..header }, lent, 4096);
        },
        Fails("mismatch"),
    ),
    (
        "a message between two ranks that nobody asked for",
        Call::Place(SMALL),
        |liar, begun| {
            let lent = place(liar);
            lend(liar, Header { flags: POINT, number: 7, ..begun.header(Kind::Lend) }, lent, 400);
        },
        Unheeded,
    ),
];

/// The first thing that a peer says on the socket, and then that it lends of that.
fn hand(liar: &mut Liar, begun: &Begun, about: [u64; 2], fds: &[&OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    far(liar).hand_over(about, &fds);
    let lent = place(liar);
    lend(liar, begun.data(false, 0), lent, begun.bytes() as u64);
}

fn file(bytes: usize) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("a test", flags).unwrap();
    rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
    fd
}

const SEGMENTS: &[Lie] = &[
    (
        "not sealed",
        Call::Place(LARGE),
        |liar, begun| hand(liar, begun, [0, SEGMENT as u64], &[&file(SEGMENT)]),
        Lost("not sealed"),
    ),
    (
        "no file in memory",
        Call::Place(LARGE),
        |liar, begun| {
            let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
            hand(liar, begun, [0, SEGMENT as u64], &[&file]);
        },
        Lost("no segment"),
    ),
    (
        "larger than it is",
        Call::Place(LARGE),
        |liar, begun| hand(liar, begun, [0, 1 << 40], &[&segment().fd]),
        Lost("bytes, not"),
    ),
    (
        "of no bytes",
        Call::Place(LARGE),
        |liar, begun| hand(liar, begun, [0, 0], &[&segment().fd]),
        Lost("segment 0 of 0 bytes"),
    ),
    (
        "not of whole pages",
        Call::Place(LARGE),
        |liar, begun| hand(liar, begun, [0, SEGMENT as u64 - 1], &[&segment().fd]),
        Lost("segment 0 of"),
    ),
    (
        "one too many",
        Call::Place(LARGE),
        |liar, begun| hand(liar, begun, [512, SEGMENT as u64], &[&segment().fd]),
        Lost("segment 512 of"),
    ),
    (
        "numbered beyond all numbers",
        Call::Place(LARGE),
        |liar, begun| hand(liar, begun, [1 << 32, SEGMENT as u64], &[&segment().fd]),
        Lost("that can't be"),
    ),
    (
        "two at once",
        Call::Place(LARGE),
        |liar, begun| hand(liar, begun, [0, SEGMENT as u64], &[&segment().fd, &segment().fd]),
        Lost("without its descriptor"),
    ),
    (
        "without a descriptor",
        Call::Place(LARGE),
        |liar, begun| {
            far(liar).say(&[0u64, SEGMENT as u64].map(u64::to_le_bytes).concat());
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, 4096);
        },
        Lost("without its descriptor"),
    ),
    (
        "half of what is said of one",
        Call::Place(LARGE),
        |liar, begun| {
            far(liar).say(&[0; 8]);
            let lent = place(liar);
            lend(liar, begun.data(false, 0), lent, 4096);
        },
        Lost("can't be taken"),
    ),
    (
        "given twice",
        Call::Place(LARGE),
        |liar, begun| {
            let _first = hand_over(liar);
            hand(liar, begun, [0, SEGMENT as u64], &[&segment().fd]);
        },
        Lost("segment 0 of"),
    ),
];

#[test]
fn what_is_lent_is_where_it_can_be_read() {
    tell_all_in(PLACES, Scene::beside);
    tell_all_in(SEGMENTS, Scene::beside);
}

#[test]
fn a_message_is_lent_as_it_goes_on_or_is_sent() {
    tell_all_in(TERMS, Scene::beside);
}

/// Over a socket nothing is lent.
#[test]
fn who_shares_no_memory_lends_none() {
    const LIES: &[Lie] = &[(
        "lends all the same",
        Call::Place(LARGE),
        |liar, begun| {
            let lent = Lent::new(0, 0, Grant { slot: 0, number: 0 });
            lend(liar, begun.data(false, 0), lent, 4096);
        },
        Lost("lends what it can't lend"),
    )];
    tell_all(LIES);
}

// --- messages between two ranks

#[test]
fn lies_about_messages_that_are_lent() {
    const LIES: &[Lie] = &[
        (
            "another length",
            Call::Receive(LARGE),
            |liar, begun| offer_and_lend(liar, begun, 4096),
            Lost("lends 4096 of 1600000 bytes"),
        ),
        (
            "twice",
            Call::Receive(LARGE),
            |liar, begun| (0..2).for_each(|_| offer_and_lend(liar, begun, begun.bytes() as u64)),
            Lost("lends a message that is sent, or lent"),
        ),
        (
            "and sent",
            Call::Receive(LARGE),
            |liar, begun| {
                offer_and_lend(liar, begun, begun.bytes() as u64);
                liar.send(Fast, begun.header(Kind::Body), &large());
            },
            Lost("both connections"),
        ),
        (
            "after part of it was sent",
            Call::Receive(LARGE),
            |liar, begun| {
                offer(liar, begun);
                liar.send(Fast, begun.header(Kind::Body), &large());
                let lent = place(liar);
                lend(liar, Header { flags: POINT, ..begun.header(Kind::Lend) }, lent, begun.bytes() as u64);
            },
            Lost("lends a message that is sent, or lent"),
        ),
    ];
    tell_all_in(LIES, Scene::beside);
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
    lend(liar, Header { flags: POINT, ..begun.header(Kind::Lend) }, lent, upto);
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
            lend(&mut scene.liar, begun.data(false, 0), lent, 4096);
            assert_eq!(scene.liar.read_kind(Fast, Kind::Taken).0.offset, 4096);
            lend_on(&mut scene.liar, begun.data(false, 0), begun.bytes() as u64);
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
            lend(&mut scene.liar, begun.data(matches!(call, Call::Reduce(_)), 0), lent, begun.bytes() as u64);
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
        lend(&mut scene.liar, begun.data(false, 0), lent, begun.bytes() as u64);
        assert!(matches!(scene.end(&begun).unwrap_err(), Error::Deadline(_)));
        scene.set_deadline(Duration::from_secs(60));
        scene.assert_usable();
        // One that comes late is in time for the next.
        let begun = scene.begin(Call::Place(LARGE));
        lend(&mut scene.liar, begun.data(false, 0), lent, begun.bytes() as u64);
        scene.engine.shared.drive();
        let _segment = hand_over(&mut scene.liar);
        assert_eq!(scene.end(&begun).unwrap(), [2f32; LARGE]);
    });
}

/// Where one process may read in the other, any memory is lent. One of an address that is not there is never read.
#[test]
fn memory_in_no_segment_is_read_where_that_is_allowed() {
    watched("unmapped", || {
        let [near, far] = Ends::both();
        let mut scene =
            Scene::between([Ends { reads: Some(std::process::id()), is_read: true, ..near }, far]);
        let there = vec![2f32; LARGE];
        for round in 0..2 {
            let begun = scene.begin(Call::Place(LARGE));
            let place = Lent { segment: u32::MAX, offset: there.as_ptr() as u64, ..place(&mut scene.liar) };
            lend(&mut scene.liar, begun.data(false, 0), place, begun.bytes() as u64);
            assert_eq!(scene.end(&begun).unwrap(), there, "round {round}");
        }
        for (call, address) in [(Call::Place(LARGE), 16), (Call::Reduce(LARGE), u64::MAX - 4096)] {
            let begun = scene.begin(call);
            let place = Lent { segment: u32::MAX, offset: address, ..place(&mut scene.liar) };
            let reduced = matches!(call, Call::Reduce(_));
            lend(&mut scene.liar, begun.data(reduced, 0), place, begun.bytes() as u64);
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
        assert!(segment == u32::MAX && far_of(&mut scene).stands(grant));
        scene.engine.cancel(&begun.op);
        scene.end(&begun).unwrap_err();
        assert!(!far_of(&mut scene).stands(grant));
        scene.assert_usable();
    });
}

fn far_of(scene: &mut Scene) -> &mut Far {
    far(&mut scene.liar)
}
