//! Small calls through shared memory that are over before they return, and what a liar may make of them.

use super::super::Submitted;
use super::super::meet::Meetings;
use super::super::near::Terms;
use super::super::trouble::Cause;
use super::lies::*;
use super::*;

const COUNT: usize = 16;

/// Begins a call after the liar has acted on what is known of it.
fn near_call(
    scene: &mut Scene,
    call: Call,
    act: impl FnOnce(&mut Liar, &Begun),
) -> (Begun, Option<Submitted>) {
    let count = match call {
        Call::Exchange(count) | Call::Place(count) | Call::Send(count) => count,
        Call::Receive(count) | Call::PointSend(count) | Call::Reduce(count) => count,
    };
    let (mut begun, mut request) = scene.request(call, Parts::from_vec(vec![1f32; count]));
    let shared = scene.engine.shared.clone();
    let submitted = shared.with_core(|core| {
        core.state.now = shared.clock.now();
        // Whoever else drove just now may have left them to the next turn.
        shared.begin_submitted(core);
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

/// Begins an exchange after the liar has acted.
fn near(scene: &mut Scene, act: impl FnOnce(&mut Liar, &Begun)) -> (Begun, Option<Submitted>) {
    near_call(scene, Call::Exchange(COUNT), act)
}

fn assert_over(submitted: Option<Submitted>, expected: &[f32]) {
    let Some(Submitted::Over(parts)) = submitted else { panic!("{submitted:?}") };
    assert_eq!(parts.into_vec::<f32>(), expected);
}

fn assert_flies(submitted: &Option<Submitted>) {
    assert!(matches!(submitted, Some(Submitted::Flying(_))), "{submitted:?}");
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
            assert_over(submitted, &[3f32; COUNT]);
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
        assert_flies(&submitted);
        send_vector(&mut scene.liar, &begun);
        assert_eq!(scene.end(&begun).unwrap(), [3f32; COUNT]);
        // Another frame comes first.
        let (begun, submitted) = near(&mut scene, |liar, begun| {
            liar.send(Fast, Header::new(Kind::Consumed, 0, 0), &[]);
            send_vector(liar, begun);
        });
        assert!(submitted.is_none(), "{submitted:?}");
        assert_eq!(scene.end(&begun).unwrap(), [3f32; COUNT]);
        scene.assert_usable();
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
        assert_flies(&submitted);
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

// --- other calls

/// What fills many lines, and is told of while it is written.
const MANY: usize = 15_000;

/// What the liar does for such a call, as an honest rank.
fn send_all(liar: &mut Liar, begun: &Begun) {
    let header = match begun.call {
        Call::Exchange(_) => return send_vector(liar, begun),
        Call::Receive(_) => liar.message(Kind::Eager, begun),
        Call::Place(_) => eager(begun.data(false, 0)),
        _ => return,
    };
    liar.send(Fast, header, &2f32.to_le_bytes().repeat(begun.bytes() / 4));
}

/// What it is then: sent, or got, or both.
fn result(call: Call) -> Vec<f32> {
    match call {
        Call::Exchange(count) => vec![3.0; count],
        Call::Place(count) | Call::Receive(count) => vec![2.0; count],
        Call::Send(count) | Call::PointSend(count) | Call::Reduce(count) => vec![1.0; count],
    }
}

/// More often than the eager budget lasts for what is not given back.
#[test]
fn any_small_call_is_over_before_it_returns() {
    for count in [0, 2, MANY] {
        for call in [Call::Place(count), Call::Receive(count), Call::Send(count), Call::PointSend(count)] {
            watched("small calls", move || {
                let mut scene = Scene::beside();
                let mut sent = Vec::new();
                for number in 0..60 {
                    let (begun, submitted) = near_call(&mut scene, call, send_all);
                    assert_over(submitted, &result(call));
                    let sends = matches!(call, Call::Send(_) | Call::PointSend(_));
                    while let Some((header, payload)) = take(far(&mut scene.liar), Fast) {
                        if header.kind != Kind::Consumed {
                            assert_eq!((header.digest, header.flags), (begun.digest, EAGER));
                            assert_eq!(payload, 1f32.to_le_bytes().repeat(count));
                            sent.push(header.number);
                        }
                    }
                    assert_eq!(sent.len(), if sends { number + 1 } else { 0 });
                    if sends {
                        let consumed = (number as u64 + 1) * (count as u64 * 4 + 256);
                        let mut header = Header::new(Kind::Consumed, 0, 0);
                        header.consumed = consumed;
                        scene.liar.send(Fast, header, &[]);
                    }
                }
                assert!(sent.iter().copied().eq(0..sent.len() as u64), "{sent:?}");
                scene.assert_usable();
            });
        }
    }
}

#[test]
fn any_small_call_goes_on_when_the_other_is_late() {
    for call in [Call::Exchange(COUNT), Call::Place(COUNT), Call::Place(MANY), Call::Receive(MANY)] {
        watched("late", move || {
            let mut scene = Scene::beside();
            let (begun, submitted) = near_call(&mut scene, call, |_, _| {});
            assert!(!matches!(submitted, Some(Submitted::Over(_))), "{call:?}");
            send_all(&mut scene.liar, &begun);
            assert_eq!(scene.end(&begun).unwrap(), result(call));
            let (_, submitted) = near_call(&mut scene, call, send_all);
            assert_over(submitted, &result(call));
        });
    }
}

/// What is copied while it is written is nothing before it is all there.
#[test]
fn what_is_told_of_is_no_result_before_it_is_published() {
    for call in [Call::Place(MANY), Call::Receive(MANY)] {
        for told in [1, MANY * 2, usize::MAX / 2] {
            watched("told", move || {
                let mut scene = Scene::beside();
                let write = |liar: &mut Liar, begun: &Begun| {
                    let mut header = match begun.call {
                        Call::Place(_) => eager(begun.data(false, 0)),
                        _ => Header { number: 0, ..eager(begun.header(Kind::Eager)) },
                    };
                    if matches!(begun.call, Call::Receive(_)) {
                        header.item = TAG;
                    }
                    header.length = begun.bytes() as u32;
                    far(liar).write_ahead(Fast, &header, &9f32.to_le_bytes().repeat(100), told);
                };
                let (begun, submitted) = near_call(&mut scene, call, write);
                assert!(!matches!(submitted, Some(Submitted::Over(_))), "{call:?}");
                // It was not meant so.
                send_all(&mut scene.liar, &begun);
                assert_eq!(scene.end(&begun).unwrap(), result(call));
                scene.assert_usable();
            });
        }
    }
}

/// Who calls late learns that the call is given up, although what it needs is there.
#[test]
fn what_was_given_up_is_told_before_its_payload_is_used() {
    for call in [Call::Exchange(COUNT), Call::Place(COUNT), Call::Place(MANY)] {
        watched("given up", move || {
            let mut scene = Scene::beside();
            let (begun, submitted) = near_call(&mut scene, call, |liar, begun| {
                send_all(liar, begun);
                liar.send(Fast, begun.header(Kind::Abort), &encode(&Cause::Cancelled));
            });
            assert!(submitted.is_none(), "{call:?}: {submitted:?}");
            let error = scene.end(&begun).unwrap_err();
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
        });
    }
}

/// A rank that says that it has written what it has not is served in the ordinary way.
#[test]
fn notices_that_do_not_come_stop_nobody() {
    watched("notices", || {
        let mut scene = Scene::beside();
        far(&mut scene.liar).tell_notices(Fast, 1 << 40);
        for call in [Call::Exchange(COUNT), Call::Place(COUNT), Call::Receive(COUNT)] {
            let (begun, submitted) = near_call(&mut scene, call, |_, _| {});
            assert!(submitted.is_none(), "{submitted:?}");
            send_all(&mut scene.liar, &begun);
            assert_eq!(scene.end(&begun).unwrap(), result(call));
        }
    });
}

/// Messages of another tag, or that came before, are found by who asks for them; none overtakes another.
#[test]
fn messages_keep_their_order() {
    watched("order", || {
        let mut scene = Scene::beside();
        let message = |liar: &mut Liar, begun: &Begun, tag: u32, value: f32| {
            let header = Header { item: tag, ..liar.message(Kind::Eager, begun) };
            liar.send(Fast, header, &value.to_le_bytes().repeat(COUNT));
        };
        // Behind one of another tag.
        let (begun, submitted) = near_call(&mut scene, Call::Receive(COUNT), |liar, begun| {
            message(liar, begun, TAG + 1, 5.0);
            message(liar, begun, TAG, 6.0);
            message(liar, begun, TAG, 7.0);
        });
        assert!(submitted.is_none(), "{submitted:?}");
        assert_eq!(scene.end(&begun).unwrap(), [6f32; COUNT]);
        // One is kept already; one that comes now is the one after it.
        let (begun, submitted) =
            near_call(&mut scene, Call::Receive(COUNT), |liar, begun| message(liar, begun, TAG, 8.0));
        assert!(submitted.is_none(), "{submitted:?}");
        assert_eq!(scene.end(&begun).unwrap(), [7f32; COUNT]);
        let (begun, _) = near_call(&mut scene, Call::Receive(COUNT), |_, _| {});
        assert_eq!(scene.end(&begun).unwrap(), [8f32; COUNT]);
        // Two receives wait: what comes is for the first.
        let (first, _) = near_call(&mut scene, Call::Receive(COUNT), |_, _| {});
        let (second, submitted) =
            near_call(&mut scene, Call::Receive(COUNT), |liar, begun| message(liar, begun, TAG, 9.0));
        assert!(submitted.is_none(), "{submitted:?}");
        assert_eq!(scene.end(&first).unwrap(), [9f32; COUNT]);
        message(&mut scene.liar, &second, TAG, 10.0);
        assert_eq!(scene.end(&second).unwrap(), [10f32; COUNT]);
    });
}

/// Of a message that is of another type, or of another size, its receiver is told.
#[test]
fn a_message_that_does_not_fit_is_told() {
    watched("another size", || {
        let mut scene = Scene::beside();
        let (begun, submitted) = near_call(&mut scene, Call::Receive(COUNT), |liar, begun| {
            let header = liar.message(Kind::Eager, begun);
            liar.send(Fast, header, &2f32.to_le_bytes().repeat(COUNT + 1));
        });
        assert!(submitted.is_none(), "{submitted:?}");
        let error = scene.end(&begun).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    });
}

/// A rank that waits for room in the ring is rung for when there is some, also by a call that takes no turn.
#[test]
fn who_waits_for_room_is_rung_for() {
    watched("room", || {
        let mut scene = Scene::beside();
        far(&mut scene.liar).sleep();
        for _ in 0..2 {
            let (_, submitted) = near_call(&mut scene, Call::Receive(MANY), send_all);
            assert_over(submitted, &[2f32; MANY]);
        }
        while far(&mut scene.liar).rung() > 0 {}
        // What was sent rang for what was announced by then.
        far(&mut scene.liar).sleep();
        for _ in 0..2 {
            let (_, submitted) = near_call(&mut scene, Call::Receive(MANY), send_all);
            assert_over(submitted, &[2f32; MANY]);
        }
        scene.engine.shared.drive();
        assert!(far(&mut scene.liar).rung() > 0, "nobody rings");
    });
}

/// Also of calls that are over at once there is no end before others are looked at.
#[test]
fn calls_that_are_over_at_once_leave_nothing_unread_for_long() {
    watched("unread", || {
        let mut scene = Scene::beside();
        scene.liar.send(Bulk, Header::new(Kind::Bye, 0, 0), &[]);
        let shared = scene.engine.shared.clone();
        // The service thread would read it as well, and is not meant here.
        let is_read = || shared.with_core(|core| core.links[1].as_ref().unwrap().bulk.said_bye());
        for _ in 0..64 {
            let (_, request) = scene.request(Call::PointSend(COUNT), Parts::from_vec(vec![1f32; COUNT]));
            drop(scene.engine.submit(request));
        }
        assert!(is_read());
    });
}

/// A call that is given up by a rank that it gets nothing from is none that goes well.
#[test]
fn what_was_given_up_by_a_third_rank_is_told_first() {
    watched("three ranks", || {
        let ([near, root], [other, leaf]) = (Ends::both(), Ends::both());
        let peers = vec![PeerLink::Myself, PeerLink::Shm(near), PeerLink::Shm(other)];
        let mut scene = Scene::with(0, peers, link().1);
        let (mut root, mut leaf) = (Far::new(root), Far::new(leaf));
        let (begun, mut request) = scene.request(Call::Place(COUNT), Parts::from_vec(vec![1f32; COUNT]));
        let mut header = eager(begun.data(false, 0));
        header.length = COUNT as u32 * 4;
        let shared = scene.engine.shared.clone();
        let submitted = shared.with_core(|core| {
            root.publish(Fast, &header.encode(), &2f32.to_le_bytes().repeat(COUNT));
            let cause = encode(&Cause::Cancelled);
            let abort = Header { length: cause.len() as u32, ..begun.header(Kind::Abort) };
            leaf.publish(Fast, &abort.encode(), &cause);
            let record = || begun.op.clone();
            core.near(&mut request, Terms { policy: SpinPolicy::Look, clock: &shared.clock, record })
        });
        assert!(submitted.is_none(), "{submitted:?}");
        let begun = Begun { op: flying(scene.engine.submit(request)), ..begun };
        assert!(matches!(scene.end(&begun).unwrap_err(), Error::Aborted { .. }));
    });
}
