//! A peer that shares memory: what it may try over a socket, and what only memory lets it try.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::lies::*;
use super::*;
use crate::link::tcp::Broken;

/// What only a stream of bytes can do, or what memory makes no fault: that it is reduced from where it lies needs no window.
const OTHERWISE: [&str; 5] = [
    "not a frame",
    "the end within a header",
    "the end within payload",
    "on both connections",
    "across the end of the window",
];

#[test]
#[ignore = "takes a quarter of a minute"]
fn the_same_lies_are_found_out_in_memory() {
    use super::{counters, payload, talk};
    let tables = [
        payload::PAYLOAD,
        payload::CREDIT,
        payload::EXCHANGES,
        counters::COUNTERS,
        counters::UNASKED,
        talk::HOLDS,
        talk::MESSAGES,
        talk::TEXTS,
        talk::GOODBYES,
    ];
    let lies = tables.into_iter().flatten().filter(|lie| !OTHERWISE.contains(&lie.0));
    let told = |lie: &'static Lie| {
        std::panic::catch_unwind(|| watched(lie.0, move || tell(lie, Scene::beside()))).is_ok()
    };
    let failed: Vec<&str> = lies.filter(|lie| !told(lie)).map(|lie| lie.0).collect();
    assert!(failed.is_empty(), "the messages are above: {failed:#?}");
}

/// The receiver takes all of the broadcast.
fn credit(liar: &mut Liar, begun: &Begun) {
    let mut credit = begun.header(Kind::Credit);
    (credit.offset, credit.item) = (begun.bytes() as u64, begun.sent()[0]);
    liar.send(Fast, credit, &[]);
}

const RINGS: &[Lie] = &[
    (
        "nonsense in place of a header",
        Call::Place(SMALL),
        |liar, _| far(liar).publish(Fast, &[b'x'; HEADER_BYTES], &[]),
        Lost("not a frame"),
    ),
    (
        "nonsense in the other ring",
        Call::Place(SMALL),
        |liar, _| far(liar).publish(Bulk, &[0xff; HEADER_BYTES], &[]),
        Lost("not a frame"),
    ),
    (
        "a length of almost all memory",
        Call::Place(LARGE),
        |liar, begun| {
            let mut header = begun.data(false, 0);
            header.length = u32::MAX;
            far(liar).publish(Bulk, &header.encode(), &[9; 64]);
        },
        Lost("exceeds"),
    ),
    (
        "a length that is not there, so that something old follows",
        Call::Place(LARGE),
        |liar, begun| {
            let mut header = begun.data(false, 0);
            header.length = 128;
            far(liar).publish(Bulk, &header.encode(), &[9; 256]);
            liar.frames[1] = 1;
            liar.send(Bulk, begun.data(false, 128), &[9; 64]);
        },
        Lost("not a frame"),
    ),
    (
        "more is read than was written",
        Call::Send(LARGE),
        |liar, begun| {
            far(liar).claim(Bulk, 1 << 40);
            credit(liar, begun);
        },
        Lost("claims to have read"),
    ),
    (
        "all that can be is read",
        Call::Send(LARGE),
        |liar, begun| {
            far(liar).claim(Bulk, u64::MAX);
            credit(liar, begun);
        },
        Lost("claims to have read"),
    ),
    (
        "what was read is read no more",
        Call::Send(LARGE),
        |liar, begun| {
            credit(liar, begun);
            [(); 2].map(|()| liar.read_kind(Bulk, Kind::Data)).iter().for_each(drop);
            far(liar).claim(Bulk, 0);
            far(liar).ring();
        },
        Lost("claims to have read"),
    ),
];

#[test]
fn lies_about_rings() {
    tell_all_in(RINGS, Scene::beside);
}

/// Whatever a peer says that it has read, its engine is let go of.
#[test]
fn claims_of_what_was_read_are_no_progress() {
    watched("claims", || {
        let mut scene = Scene::beside();
        scene.assert_usable();
        let shared = scene.engine.shared.clone();
        let delivered = || shared.with_core(|core| core.delivered());
        let before = delivered();
        for claim in [u64::MAX, 1 << 63, u64::MAX - 7] {
            for class in [Fast, Bulk] {
                far(&mut scene.liar).claim(class, claim);
            }
            assert_eq!(delivered(), before);
        }
    });
}

#[test]
fn frames_that_are_there_at_the_end_are_read() {
    watched("the end of a process", || {
        let mut scene = Scene::beside();
        let begun = scene.begin(Call::Place(SMALL));
        let mut header = eager(begun.data(false, 0));
        header.length = SMALL as u32 * 4;
        // It dies before it rings.
        far(&mut scene.liar).publish(Fast, &header.encode(), &2f32.to_le_bytes().repeat(SMALL));
        scene.liar.hang_up(Fast);
        assert_eq!(scene.end(&begun).unwrap(), [2f32; SMALL]);
        let next = scene.begin(Call::Place(SMALL));
        let error = scene.end(&next).unwrap_err();
        assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
        assert!(error.to_string().contains("without goodbye"), "{error}");
    });
}

/// Who shuts its socket and goes on writing is not read for ever.
#[test]
fn a_peer_that_writes_on_after_its_end_is_lost() {
    watched("after the end", || {
        let mut scene = Scene::beside();
        let begun = scene.begin(Call::Place(LARGE));
        let header = begun.header(Kind::Consumed);
        let over = AtomicBool::new(false);
        let Scene { engine, mut liar, .. } = scene;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    liar.send(Fast, header, &[]);
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            engine.shared.with_core(|core| core.broken(1, Fast, Broken::Lost("it is gone".into())));
            engine.block_on(&begun.op);
            over.store(true, Ordering::Relaxed);
        });
        let error = begun.op.take_outcome().unwrap().result.unwrap_err();
        assert!(error.to_string().contains("it is gone"), "{error}");
    });
}

/// One goodbye is no reason to look without end for the other.
#[test]
fn who_has_heard_one_goodbye_sleeps_until_the_other() {
    watched("goodbyes", || {
        let mut scene = Scene::beside();
        let begun = scene.begin(Call::Place(SMALL));
        scene.liar.send(Bulk, begun.header(Kind::Bye), &[]);
        let shared = scene.engine.shared.clone();
        let is_ready = || {
            (0..3).for_each(|_| _ = shared.drive());
            shared.with_core(|core| core.is_ready())
        };
        // Once it is told. Others may have a turn just now.
        while is_ready() {}
        far(&mut scene.liar).sleep();
        scene.liar.send(Fast, begun.header(Kind::Bye), &[]);
        assert!(matches!(scene.end(&begun).unwrap_err(), Error::Left { .. }));
        // It sleeps until it is answered.
        let mut rung = 0;
        while rung == 0 {
            shared.drive();
            rung = far(&mut scene.liar).rung();
        }
        for class in [Fast, Bulk] {
            scene.liar.read_kind(class, Kind::Bye);
        }
    });
}

/// Both sleep whenever there is nothing to do, and are rung for: who waits for frames, and who waits for room.
#[test]
fn who_sleeps_is_rung_for() {
    watched("bells", || {
        let mut scene = Scene::beside();
        let begun = scene.begin(Call::Send(LARGE));
        let (engine, op) = (scene.engine.clone(), begun.op.clone());
        let waiter = std::thread::spawn(move || engine.block_on(&op));
        credit(&mut scene.liar, &begun);
        let mut left = begun.bytes();
        while left > 0 {
            // Long enough for the other side to lie down; announced first, and then looked.
            std::thread::sleep(Duration::from_millis(30));
            let far = far(&mut scene.liar);
            far.sleep();
            let mut found = take(far, Bulk);
            let until = Instant::now() + A_WHILE;
            while found.is_none() {
                while far.rung() == 0 {
                    assert!(Instant::now() < until, "nobody rings");
                    std::thread::sleep(Duration::from_millis(1));
                }
                far.sleep();
                found = take(far, Bulk);
            }
            let (header, payload) = found.unwrap();
            left -= if header.kind == Kind::Data { payload.len() } else { 0 };
        }
        waiter.join().unwrap();
        assert_eq!(scene.end(&begun).unwrap(), [1f32; LARGE]);
        scene.assert_usable();
    });
}

/// Who is given up sees that, as over a socket, and waits for nothing.
#[test]
fn who_is_found_out_learns_that_it_is() {
    watched("found out", || {
        let mut scene = Scene::beside();
        let begun = scene.begin(Call::Place(SMALL));
        assert!(!far(&mut scene.liar).is_cut_off());
        far(&mut scene.liar).publish(Fast, &[b'x'; HEADER_BYTES], &[]);
        scene.end(&begun).unwrap_err();
        while !far(&mut scene.liar).is_cut_off() {
            std::thread::yield_now();
        }
    });
}

/// Who is found out takes nothing with it that others use.
#[test]
fn others_go_on_without_the_liar() {
    watched("three ranks", || {
        let ([near, honest], [other, liar]) = (Ends::both(), Ends::both());
        let peers = vec![PeerLink::Myself, PeerLink::Shm(near), PeerLink::Shm(other)];
        let mut scene = Scene::with(0, peers, link().1);
        let (mut honest, mut liar) = (Far::new(honest), Far::new(liar));
        let all = scene.channel;
        let both = scene.engine.open(Channel::new(5, "both".into(), [0, 1].into(), 0));
        let begun = scene.begin(Call::Place(SMALL));
        publish(&mut liar, Fast, &[b'x'; HEADER_BYTES]);
        let error = scene.end(&begun).unwrap_err();
        assert!(matches!(error, Error::PeerLost { rank: Rank(2), .. }), "{error}");
        (scene.channel, scene.members, scene.next) = (both, 2, 0);
        let begun = scene.begin(Call::Place(SMALL));
        let mut header = eager(begun.data(false, 0));
        // What was sent to it before is none of its business here.
        (header.channel, header.length) = (5, SMALL as u32 * 4);
        publish(&mut honest, Fast, &[&header.encode()[..], &2f32.to_le_bytes().repeat(SMALL)].concat());
        assert_eq!(scene.end(&begun).unwrap(), [2f32; SMALL]);
        assert!(scene.engine.failure(all).is_some() && scene.engine.failure(both).is_none());
    });
}
