//! Segments come, go, and can't be mapped: who lies about that, who waits for it, and who reads meanwhile.

use std::os::fd::{AsFd, OwnedFd};

use super::lies::*;
use super::*;
use crate::buffer::arena::KEPT_MAX;
use crate::buffer::segment::{PAGE, Segment};
use crate::link::frame::Lent;
use crate::link::shm::Grant;
use crate::link::shm::hand_over::Received;

const SEGMENT: usize = (LARGE * 4).next_multiple_of(PAGE);

fn far(liar: &mut Liar) -> &mut Far {
    liar.far.as_mut().unwrap()
}

/// A segment whose elements are all two, which it hands over under this number.
fn hand_over(liar: &mut Liar, number: u64) -> Segment {
    let segment = Segment::new(SEGMENT, &[(0, SEGMENT)]).unwrap();
    segment.mapping.raw(0, SEGMENT).copy_from_slice(&2f32.to_le_bytes().repeat(SEGMENT / 4));
    far(liar).hand_over([number, SEGMENT as u64], &[segment.fd.as_fd()]);
    segment
}

fn retire(liar: &mut Liar, number: u64) {
    far(liar).hand_over([number, 0], &[]);
}

/// Lends the message that is placed, up to so many bytes of a segment.
fn lend(liar: &mut Liar, begun: &Begun, segment: u32, upto: usize) -> Grant {
    let grant = far(liar).lend(0);
    let header = Header { kind: Kind::Lend, offset: upto as u64, ..begun.data(false, 0) };
    liar.send(Fast, header, &Lent::new(segment, 0, grant).encode());
    grant
}

/// Says that the broadcast can't be read where it lies.
fn decline(liar: &mut Liar, begun: &Begun) {
    decline_after(liar, begun, 0);
}

/// The same, after so many bytes were read.
fn decline_after(liar: &mut Liar, begun: &Begun, upto: usize) {
    let header = Header { offset: upto as u64, ..begun.header(Kind::Declined) };
    let header = match begun.call {
        Call::PointSend(_) => Header { flags: POINT, ..header },
        _ => Header { item: begun.sent()[0], ..header },
    };
    liar.send(Fast, header, &[]);
}

/// Its buffers are where others read them.
fn lending() -> Scene {
    Scene { lends: true, ..Scene::beside() }
}

const TAKEN_BACK: &[Lie] = &[
    (
        "a segment that it has not handed over",
        Call::Place(LARGE),
        |liar, _| retire(liar, 0),
        Lost("takes segment 0 back, which it has not handed over"),
    ),
    (
        "another one",
        Call::Place(LARGE),
        |liar, _| {
            let _segment = hand_over(liar, 0);
            retire(liar, 1);
        },
        Lost("takes segment 1 back"),
    ),
    (
        "the last one that can be numbered",
        Call::Place(LARGE),
        |liar, _| retire(liar, u64::from(u32::MAX)),
        Lost("takes segment 4294967295 back"),
    ),
    (
        "twice",
        Call::Place(LARGE),
        |liar, _| {
            let _segment = hand_over(liar, 0);
            (0..2).for_each(|_| retire(liar, 0));
        },
        Lost("takes segment 0 back"),
    ),
    (
        "and hands it over once more",
        Call::Place(LARGE),
        |liar, _| {
            let _segment = hand_over(liar, 0);
            retire(liar, 0);
            let _again = hand_over(liar, 0);
        },
        Lost("segment 0 of"),
    ),
    ("and leaves a number out", Call::Place(LARGE), |liar, _| _ = hand_over(liar, 1), Lost("segment 1 of")),
];

#[test]
fn what_is_taken_back_was_handed_over() {
    tell_all_in(TAKEN_BACK, Scene::beside);
}

/// Where that has been seen; before it, there is something to read still.
#[test]
fn what_was_taken_back_is_lent_no_more() {
    for call in [Call::Place(LARGE), Call::Receive(LARGE)] {
        watched("taken back", move || {
            let mut scene = Scene::beside();
            let begun = scene.begin(call);
            let _segment = hand_over(&mut scene.liar, 0);
            retire(&mut scene.liar, 0);
            look(&scene);
            if matches!(call, Call::Receive(_)) {
                let offer = scene.liar.message(Kind::Offer, &begun);
                scene.liar.send(Fast, offer, &[]);
                scene.liar.read_kind(Fast, Kind::Accept);
                let header =
                    Header { flags: POINT, offset: begun.bytes() as u64, ..begun.header(Kind::Lend) };
                let grant = far(&mut scene.liar).lend(0);
                scene.liar.send(Fast, header, &Lent::new(0, 0, grant).encode());
            } else {
                lend(&mut scene.liar, &begun, 0, begun.bytes());
            }
            let error = scene.end(&begun).unwrap_err();
            assert!(error.to_string().contains("of segment 0, which has no such"), "{error}");
        });
    }
}

const DECLINED: &[Lie] = &[
    (
        "twice",
        Call::Send(LARGE),
        |liar, begun| (0..2).for_each(|_| decline(liar, begun)),
        Lost("declines a message that is not lent"),
    ),
    (
        "a message that is not in the plan",
        Call::Send(LARGE),
        |liar, begun| liar.send(Fast, Header { item: 99, ..begun.header(Kind::Declined) }, &[]),
        Lost("not in the plan"),
    ),
    (
        "a message that it sends",
        Call::Place(LARGE),
        |liar, begun| {
            liar.send(Fast, Header { kind: Kind::Declined, ..begun.data(false, 0) }, &[]);
        },
        Lost("not in the plan"),
    ),
    (
        "what is exchanged",
        Call::Exchange(SMALL),
        |liar, begun| liar.send(Fast, begun.header(Kind::Declined), &[]),
        Lost("lends what is sent"),
    ),
    (
        "with something else",
        Call::Send(LARGE),
        |liar, begun| liar.send(Fast, begun.header(Kind::Declined), &[9; 24]),
        Lost("exceeds 0"),
    ),
    (
        "all of a message",
        Call::Send(LARGE),
        |liar, begun| decline_after(liar, begun, begun.bytes()),
        Lost("not lent, or is read"),
    ),
    (
        "within an element",
        Call::Send(LARGE),
        |liar, begun| decline_after(liar, begun, 402),
        Lost("not lent, or is read"),
    ),
    (
        "more than there is",
        Call::Send(LARGE),
        |liar, begun| decline_after(liar, begun, usize::MAX),
        Lost("not lent, or is read"),
    ),
    (
        "a message that it has not accepted",
        Call::PointSend(LARGE),
        |liar, begun| decline(liar, begun),
        Lost("not lent"),
    ),
];

#[test]
fn what_is_declined_was_lent() {
    tell_all_in(DECLINED, lending);
    const SENT: &[Lie] =
        &[("what is sent", Call::Send(LARGE), |liar, begun| decline(liar, begun), Lost("not lent"))];
    tell_all_in(SENT, Scene::beside);
    tell_all(SENT);
}

/// Whoever can't map a segment is sent what lies in it, from then on.
#[test]
fn what_is_declined_is_sent() {
    let calls = [
        (Call::Send(LARGE), 0),
        (Call::Send(LARGE), 400_000),
        (Call::Send(10_000), 0),
        (Call::PointSend(LARGE), 0),
        (Call::PointSend(LARGE), 400_000),
        (Call::PointSend(20_000), 0),
    ];
    for (call, read) in calls {
        watched("declined", move || {
            let mut scene = lending();
            let begun = scene.begin(call);
            if matches!(call, Call::PointSend(_)) {
                scene.liar.send(Fast, begun.header(Kind::Accept), &[]);
            }
            let (_, said) = scene.liar.read_kind(Fast, Kind::Lend);
            let Lent { slot, number, .. } = Lent::decode(&said).unwrap();
            let grant = Grant { slot, number };
            assert!(far(&mut scene.liar).stands(grant));
            decline_after(&mut scene.liar, &begun, read);
            take_sent_from(&mut scene, &begun, read);
            assert!(!far(&mut scene.liar).stands(grant));
            // All that is left of that segment.
            let next = scene.begin(Call::Send(10_000));
            take_sent(&mut scene, &next);
            scene.assert_usable();
        });
    }
}

/// Takes a message as one that is not lent, and ends it.
fn take_sent(scene: &mut Scene, begun: &Begun) {
    take_sent_from(scene, begun, 0);
}

/// The same of one that was read so far.
fn take_sent_from(scene: &mut Scene, begun: &Begun, read: usize) {
    let (kind, class) = match begun.call {
        Call::PointSend(_) => (Kind::Body, if begun.bytes() > EAGER_MAX { Bulk } else { Fast }),
        _ if begun.bytes() <= EAGER_MAX => (Kind::Data, Fast),
        _ => {
            let header = Header { item: begun.sent()[0], ..begun.header(Kind::Credit) };
            scene.liar.send(Fast, Header { offset: begun.bytes() as u64, ..header }, &[]);
            (Kind::Data, Bulk)
        }
    };
    let mut came = Vec::new();
    while came.len() < begun.bytes() - read {
        let (header, bytes) = scene.liar.read_kind(class, kind);
        assert_eq!(header.offset, (read + came.len()) as u64);
        came.extend(bytes);
    }
    assert!(came == 1f32.to_le_bytes().repeat((begun.bytes() - read) / 4));
    assert_eq!(scene.end(begun).unwrap().len(), begun.bytes() / 4);
}

/// Looks at what is on the socket, whatever else comes.
fn look(scene: &Scene) {
    scene.engine.shared.with_core(|core| {
        core.collect();
        core.turn(false);
    });
}

/// Who takes a segment back that is read has it read all the same: nothing is unmapped under a reader.
#[test]
fn what_is_read_stays_mapped() {
    watched("a reader", || {
        let mut scene = Scene::beside();
        let segment = hand_over(&mut scene.liar, 0);
        let begun = scene.begin(Call::Place(LARGE));
        lend(&mut scene.liar, &begun, 0, 4096);
        assert_eq!(scene.liar.read_kind(Fast, Kind::Taken).0.offset, 4096);
        retire(&mut scene.liar, 0);
        drop(segment);
        look(&scene);
        let header = Header { kind: Kind::Lend, offset: begun.bytes() as u64, ..begun.data(false, 0) };
        scene.liar.send(Fast, header, &[]);
        assert_eq!(scene.end(&begun).unwrap(), [2f32; LARGE]);
        scene.assert_usable();
    });
}

/// What was taken back before its segment went is no lie, however late it is seen.
#[test]
fn who_sees_a_loan_after_its_segment_is_gone_waits_to_be_told() {
    watched("late", || {
        let mut scene = Scene::beside();
        let _segment = hand_over(&mut scene.liar, 0);
        let begun = scene.begin(Call::Place(LARGE));
        let grant = far(&mut scene.liar).lend(0);
        far(&mut scene.liar).take_back(grant);
        retire(&mut scene.liar, 0);
        let header = Header { kind: Kind::Lend, offset: begun.bytes() as u64, ..begun.data(false, 0) };
        scene.liar.send(Fast, header, &Lent::new(0, 0, grant).encode());
        (0..20).for_each(|_| look(&scene));
        assert!(!begun.op.is_done());
        scene.liar.send(Fast, begun.header(Kind::Abort), &encode(&Cause::Cancelled));
        assert!(matches!(scene.end(&begun).unwrap_err(), Error::Aborted { by: Rank(1), .. }));
        scene.assert_usable();
        let _next = hand_over(&mut scene.liar, 1);
        let begun = scene.begin(Call::Place(LARGE));
        lend(&mut scene.liar, &begun, 1, begun.bytes());
        assert_eq!(scene.end(&begun).unwrap(), [2f32; LARGE]);
    });
}

/// Turns until nothing moves. Says whether more could be done without waiting.
fn settle(scene: &Scene) -> bool {
    (0..3).for_each(|_| look(scene));
    let shared = &scene.engine.shared;
    while shared.drive() {}
    shared.with_core(|core| core.is_ready())
}

/// Who waits for a segment sleeps, and its coming wakes him.
#[test]
fn who_waits_for_a_segment_sleeps_until_it_comes() {
    watched("sleep", || {
        let mut scene = Scene::beside();
        for number in 0..3u32 {
            let begun = scene.begin(Call::Place(LARGE));
            lend(&mut scene.liar, &begun, number, begun.bytes());
            assert!(!settle(&scene), "there is nothing to do");
            let (engine, op) = (scene.engine.clone(), begun.op.clone());
            let waiter = std::thread::spawn(move || engine.block_on(&op));
            // Long enough to lie down.
            std::thread::sleep(Duration::from_millis(20));
            let _segment = hand_over(&mut scene.liar, number.into());
            waiter.join().unwrap();
            assert_eq!(scene.end(&begun).unwrap(), [2f32; LARGE]);
            assert!(!settle(&scene));
        }
    });
}

/// Fills a socket, so that nothing more can be said on it for now.
fn fill(socket: &OwnedFd) {
    let send = || rustix::net::send(socket, &[0; 16], rustix::net::SendFlags::DONTWAIT);
    while send().is_ok() {}
}

/// What can't be handed over since the socket is full is, once that shows that it can be written again.
#[test]
fn a_segment_goes_when_the_socket_can_be_written() {
    watched("a full socket", || {
        let [near, other] = Ends::both();
        let socket = near.socket.try_clone().unwrap();
        let mut scene = Scene { lends: true, ..Scene::between([near, other]) };
        fill(&socket);
        let begun = scene.begin(Call::Send(LARGE));
        scene.liar.read_kind(Fast, Kind::Lend);
        assert!(!settle(&scene), "it is not tried again and again");
        let came = drain(&mut scene);
        assert_eq!((came.about[0], came.fds.len()), (0, 1));
        let mut header = begun.header(Kind::Taken);
        (header.item, header.offset) = (begun.sent()[0], begun.bytes() as u64);
        scene.liar.send(Fast, header, &[]);
        scene.end(&begun).unwrap();
        // Where nothing is in flight, nothing is due either.
        let begun = scene.begin(Call::Send((KEPT_MAX + SEGMENT) / 4));
        scene.liar.read_kind(Fast, Kind::Lend);
        assert_eq!(far(&mut scene.liar).receive().unwrap().about[0], 1);
        scene.engine.cancel(&begun.op);
        scene.engine.block_on(&begun.op);
        // Long enough for all here to sleep, before and after.
        std::thread::sleep(Duration::from_millis(200));
        fill(&socket);
        drop(begun.op.take_outcome());
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(drain(&mut scene).about, [1, 0]);
    });
}

/// What comes on the socket after all that it was filled with, and without that anybody drives here.
fn drain(scene: &mut Scene) -> Received {
    let until = Instant::now() + A_WHILE;
    loop {
        match far(&mut scene.liar).receive() {
            Some(message) if message.about != [0; 2] => return message,
            Some(_) => {}
            None => {
                assert!(Instant::now() < until, "nothing comes");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Of a process that has ended nothing stays mapped.
#[test]
fn what_a_lost_peer_had_is_unmapped() {
    watched("lost", || {
        let mut scene = Scene::beside();
        let segment = hand_over(&mut scene.liar, 0);
        let begun = scene.begin(Call::Place(LARGE));
        lend(&mut scene.liar, &begun, 0, begun.bytes());
        assert_eq!(scene.end(&begun).unwrap(), [2f32; LARGE]);
        let shared = scene.engine.shared.clone();
        let mapped = || shared.with_core(|core| core.state.io.reach(1).unwrap().mapped());
        assert_eq!(mapped(), 1);
        drop(segment);
        let begun = scene.begin(Call::Place(LARGE));
        scene.liar.hang_up(Fast);
        scene.end(&begun).unwrap_err();
        assert_eq!(mapped(), 0);
    });
}

/// What its owner drops is unmapped by the others, and nobody needs to call anything for that.
#[test]
fn memory_that_is_dropped_is_said_to_be_gone() {
    watched("dropped", || {
        let mut scene = lending();
        let arena = scene.engine.arena().unwrap().clone();
        for number in 0..2u64 {
            // Beyond all that is kept.
            let count = (KEPT_MAX + SEGMENT) / 4;
            let begun = scene.begin(Call::Send(count));
            scene.liar.read_kind(Fast, Kind::Lend);
            let handed = far(&mut scene.liar).receive().unwrap();
            assert_eq!((handed.about[0], handed.fds.len()), (number, 1));
            scene.engine.cancel(&begun.op);
            scene.engine.block_on(&begun.op);
            let outcome = begun.op.take_outcome().unwrap();
            // Long enough for all here to sleep.
            std::thread::sleep(Duration::from_millis(200));
            std::thread::spawn(move || drop(outcome)).join().unwrap();
            assert_eq!(arena.taken().bytes, 0);
            let until = Instant::now() + A_WHILE;
            let gone = std::iter::repeat_with(|| {
                std::thread::sleep(Duration::from_millis(1));
                far(&mut scene.liar).receive()
            });
            let gone = gone.take_while(|_| Instant::now() < until).find_map(|message| message).unwrap();
            assert_eq!((gone.about, gone.fds.len()), ([number, 0], 0));
        }
    });
}
