//! A peer that shares memory: what it may try over a socket, and what only memory lets it try.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::Submitted;
use super::super::meet::Meetings;
use super::super::near::Terms;
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
        assert!(!is_ready(), "what is told is told");
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

// --- calls that are over before they return

const COUNT: usize = 16;

/// Begins an exchange after the liar has acted on what is known of it.
fn near(scene: &mut Scene, act: impl FnOnce(&mut Liar, &Begun)) -> (Begun, Option<Submitted>) {
    let (mut begun, mut request) = scene.request(Call::Exchange(COUNT), Parts::from_vec(vec![1f32; COUNT]));
    let shared = scene.engine.shared.clone();
    let submitted = shared.with_core(|core| {
        core.state.now = shared.clock.now();
        core.turn(true);
        core.state.meetings = Meetings::default();
        act(&mut scene.liar, &begun);
        let record = || begun.op.clone();
        core.near(&mut request, Terms { policy: SpinPolicy::Look, clock: &shared.clock, record })
    });
    match submitted {
        Some(Submitted::Flying(_)) => shared.keeper.attend(),
        Some(Submitted::Over(_)) => {}
        None => begun.op = flying(scene.engine.submit(request)),
    }
    (begun, submitted)
}

fn vector(begun: &Begun) -> (Header, Vec<u8>) {
    (eager(begun.data(true, 0)), 2f32.to_le_bytes().repeat(COUNT))
}

fn send_vector(liar: &mut Liar, begun: &Begun) {
    let (header, payload) = vector(begun);
    liar.send(Fast, header, &payload);
}

#[test]
fn who_is_there_makes_the_call_over_before_it_returns() {
    watched("near", || {
        let mut scene = Scene::beside();
        for number in 0..500u32 {
            let (begun, submitted) = near(&mut scene, send_vector);
            let Some(Submitted::Over(parts)) = submitted else { panic!("{submitted:?}") };
            assert_eq!(parts.into_vec::<f32>(), [3f32; COUNT]);
            let (mut header, _) = scene.liar.read(Fast).unwrap();
            while header.kind == Kind::Consumed {
                header = scene.liar.read(Fast).unwrap().0;
            }
            assert_eq!((header.number, header.digest, header.flags), (begun.number, begun.digest, EAGER));
            assert_eq!(header.acknowledged, number);
        }
    });
}

#[test]
fn who_is_late_finds_the_call_in_flight() {
    watched("late", || {
        let mut scene = Scene::beside();
        let (begun, submitted) = near(&mut scene, |_, _| {});
        assert!(matches!(submitted, Some(Submitted::Flying(_))), "{submitted:?}");
        send_vector(&mut scene.liar, &begun);
        assert_eq!(scene.end(&begun).unwrap(), [3f32; COUNT]);
        // Another frame comes first.
        let (begun, submitted) = near(&mut scene, |liar, begun| {
            liar.send(Fast, Header::new(Kind::Consumed, 0, 0), &[]);
            send_vector(liar, begun);
        });
        assert!(matches!(submitted, Some(Submitted::Flying(_))), "{submitted:?}");
        assert_eq!(scene.end(&begun).unwrap(), [3f32; COUNT]);
        scene.assert_usable();
        // Who has gone on may have given the call up: that is looked at first.
        let (_, submitted) = near(&mut scene, |liar, begun| {
            send_vector(liar, begun);
            let (mut header, payload) = vector(begun);
            header.number += 1;
            liar.send(Fast, header, &payload);
        });
        assert!(submitted.is_none(), "{submitted:?}");
    });
}

#[test]
fn who_calls_something_else_is_contradicted() {
    watched("contradiction", || {
        let mut scene = Scene::beside();
        let (begun, submitted) = near(&mut scene, |liar, begun| {
            let (mut header, payload) = vector(begun);
            header.digest ^= 1;
            liar.send(Fast, header, &payload);
        });
        assert!(matches!(submitted, Some(Submitted::Flying(_))), "{submitted:?}");
        scene.engine.shared.drive();
        let (header, _) = scene.liar.read_kind(Fast, Kind::Mismatch);
        assert_eq!(header.number, begun.number, "the other is told what is called here");
    });
}

/// What is wrong with a frame that is otherwise the one that is due ends the call at once, and so does what else is wrong.
#[test]
fn nonsense_and_a_peer_that_goes_end_the_call() {
    type Act = fn(&mut Liar, &Begun);
    let acts: [(&str, Act); 7] = [
        ("eager bytes", |liar, begun| {
            let (mut header, payload) = vector(begun);
            header.consumed = u64::MAX;
            liar.send(Fast, header, &payload);
        }),
        ("acknowledges", |liar, begun| {
            let (mut header, payload) = vector(begun);
            header.acknowledged = 1000;
            liar.send(Fast, header, &payload);
        }),
        ("frame 5 where 0 was due", |liar, begun| {
            liar.frames = [5; 2];
            send_vector(liar, begun);
        }),
        ("not a frame", |liar, _| liar.raw(Fast, &[b'x'; 1000])),
        ("plan", |liar, begun| {
            let (mut header, payload) = vector(begun);
            header.item = 99;
            liar.send(Fast, header, &payload);
        }),
        ("after its goodbye", |liar, begun| {
            liar.send(Fast, begun.header(Kind::Bye), &[]);
            send_vector(liar, begun);
        }),
        ("without goodbye", |liar, _| liar.hang_up(Fast)),
    ];
    for (cause, act) in acts {
        watched(cause, move || {
            let mut scene = Scene::beside();
            let (begun, submitted) = near(&mut scene, act);
            assert!(!matches!(submitted, Some(Submitted::Over(_))), "{cause}");
            let since = Instant::now();
            let error = scene.end(&begun).unwrap_err();
            assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
            assert!(error.to_string().contains(cause), "{error}, not {cause}");
            assert!(since.elapsed() < A_WHILE, "{cause}: it is not waited for");
        });
    }
}

/// A header is looked at twice: it is the same one both times, or no frame.
#[test]
fn a_frame_that_becomes_another_one_is_no_frame() {
    watched("two frames", || {
        let mut scene = Scene::beside();
        let begun = scene.begin(Call::Exchange(COUNT));
        let (mut due, payload) = vector(&begun);
        due.length = payload.len() as u32;
        let shared = scene.engine.shared.clone();
        shared.with_core(|core| {
            let conn = core.links[1].as_mut().unwrap().fast.shm_mut().unwrap();
            scene.liar.send(Fast, due, &payload);
            assert!(conn.holds(&due));
            for other in
                [begun.header(Kind::Bye), begun.header(Kind::Consumed), Header { length: 1 << 17, ..due }]
            {
                far(&mut scene.liar).overwrite_first(Fast, &other.encode());
                assert!(conn.receive_past(&due).is_err(), "{other:?}");
            }
            far(&mut scene.liar).overwrite_first(Fast, &due.encode());
            assert!(conn.receive_past(&due).is_ok());
        });
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
