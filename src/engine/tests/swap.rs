//! Two ranks that swap small vectors past the queues of a connection: what comes may be there, late, in parts, or another thing.

use super::super::Submitted;
use super::*;
use crate::link::tcp::{Conn, SMALL};
use crate::link::{Handler, RunKey, Sink};

const COUNT: usize = 16;

/// Begins an exchange after the liar has acted on what is known of it, and nobody else has looked at that.
fn swap(scene: &mut Scene, act: impl FnOnce(&mut Liar, &Begun)) -> (Begun, Option<Submitted>) {
    let (mut begun, mut request) = scene.request(Call::Exchange(COUNT), Parts::from_vec(vec![1f32; COUNT]));
    let shared = scene.engine.shared.clone();
    let submitted = shared.with_core(|core| {
        core.state.now = shared.clock.now();
        core.turn(true);
        // For long nothing has moved elsewhere, and it was looked at just now.
        core.quiet = 1024;
        act(&mut scene.liar, &begun);
        core.swap(&mut request, true, &shared.clock, || begun.op.clone())
    });
    match submitted {
        Some(Submitted::Flying(_)) => shared.keeper.attend(),
        Some(Submitted::Over(_)) => {}
        None => begun.op = flying(scene.engine.submit(request)),
    }
    (begun, submitted)
}

/// What an honest rank sends.
fn vector(begun: &Begun) -> (Header, Vec<u8>) {
    let mut header = begun.data(true, 0);
    header.flags = EAGER;
    (header, [2f32.to_le_bytes(); COUNT].concat())
}

fn send_vector(liar: &mut Liar, begun: &Begun) {
    let (header, payload) = vector(begun);
    liar.send(Class::Fast, header, &payload);
}

fn assert_over(submitted: Option<Submitted>) {
    match submitted {
        Some(Submitted::Over(parts)) => assert_eq!(parts.into_vec::<f32>(), [3f32; COUNT]),
        other => panic!("{other:?} although all was there"),
    }
}

fn assert_flies(scene: &Scene, begun: &Begun, submitted: &Option<Submitted>) {
    assert!(matches!(submitted, Some(Submitted::Flying(_))), "{submitted:?}");
    assert_eq!(scene.end(begun).unwrap(), [3f32; COUNT]);
}

/// Both connections' counters are right after any number of them: the other side checks each frame of ours.
#[test]
fn what_is_there_already_makes_the_call_over_before_it_returns() {
    watched("swap", || {
        let mut scene = Scene::new();
        for number in 0..200u32 {
            let (begun, submitted) = swap(&mut scene, send_vector);
            assert_over(submitted);
            let (header, payload) = scene.liar.read(Class::Fast).unwrap();
            let sent = [1f32.to_le_bytes(); COUNT].concat();
            assert_eq!((header.frame, header.acknowledged, payload), (number, number, sent));
            assert_eq!((header.number, header.digest, header.flags), (begun.number, begun.digest, EAGER));
            let cost = (COUNT * 4 + super::super::io::EAGER_OVERHEAD) as u64;
            assert_eq!(header.consumed, u64::from(number) * cost);
        }
        scene.assert_usable();
    });
}

#[test]
fn a_vector_that_is_late_or_in_parts_finds_the_call_in_flight() {
    watched("late", || {
        let mut scene = Scene::new();
        let (begun, submitted) = swap(&mut scene, |_, _| {});
        send_vector(&mut scene.liar, &begun);
        assert_flies(&scene, &begun, &submitted);
        for at in [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 4 * COUNT - 1] {
            let mut rest = Vec::new();
            let (begun, submitted) = swap(&mut scene, |liar, begun| {
                let (header, payload) = vector(begun);
                let frame = liar.frame(Class::Fast, header, &payload);
                liar.raw(Class::Fast, &frame[..at]);
                rest = frame[at..].to_vec();
            });
            scene.liar.raw(Class::Fast, &rest);
            assert_flies(&scene, &begun, &submitted);
        }
        scene.assert_usable();
    });
}

/// Smaller, larger, and as large as what is due; together with that, and alone.
#[test]
fn what_else_comes_is_read_in_its_turn() {
    watched("other", || {
        let mut scene = Scene::new();
        for bytes in [None, Some(0), Some(4 * COUNT), Some(300)] {
            let send_other = |liar: &mut Liar, begun: &Begun| match bytes {
                None => liar.send(Class::Fast, Header::new(Kind::Consumed, 0, 0), &[]),
                Some(bytes) => {
                    let header = liar.message(Kind::Eager, begun);
                    liar.send(Class::Fast, header, &vec![0; bytes]);
                }
            };
            let (begun, submitted) = swap(&mut scene, |liar, begun| {
                send_other(liar, begun);
                send_vector(liar, begun);
            });
            assert_flies(&scene, &begun, &submitted);
            let (begun, submitted) = swap(&mut scene, send_other);
            send_vector(&mut scene.liar, &begun);
            assert_flies(&scene, &begun, &submitted);
        }
        scene.assert_usable();
    });
}

/// The vector of the next call is left for that.
#[test]
fn a_peer_may_be_a_call_ahead() {
    watched("ahead", || {
        let mut scene = Scene::new();
        let (_, submitted) = swap(&mut scene, |liar, begun| {
            send_vector(liar, begun);
            let (mut header, payload) = vector(begun);
            header.number += 1;
            liar.send(Class::Fast, header, &payload);
        });
        assert_over(submitted);
        let begun = scene.begin_ahead();
        assert_eq!(begun.unwrap(), [3f32; COUNT]);
        scene.assert_usable();
    });
}

impl Scene {
    /// An exchange whose vector from the other has come, so that it may be over or not before it returns.
    fn begin_ahead(&mut self) -> Result<Vec<f32>, Error> {
        let parts = Parts::from_vec(vec![1f32; COUNT]);
        let (mut begun, request) = self.request(Call::Exchange(COUNT), parts);
        match self.engine.submit(request) {
            Submitted::Over(parts) => Ok(parts.into_vec()),
            Submitted::Flying(op) => {
                begun.op = op;
                self.end(&begun)
            }
        }
    }
}

#[test]
fn another_call_of_the_peer_is_a_contradiction() {
    watched("contradiction", || {
        let mut scene = Scene::new();
        let (begun, submitted) = swap(&mut scene, |liar, begun| {
            let (mut header, payload) = vector(begun);
            header.digest ^= 1;
            liar.send(Class::Fast, header, &payload);
        });
        assert!(matches!(submitted, Some(Submitted::Flying(_))), "{submitted:?}");
        scene.engine.shared.drive();
        let (header, _) = scene.liar.read_kind(Class::Fast, Kind::Mismatch);
        assert_eq!(header.number, begun.number, "the other is told what is called here");
    });
}

/// What a frame past the queues may not be, an ordinary one may not be either.
#[test]
fn nonsense_and_a_peer_that_goes_end_the_call() {
    type Act = fn(&mut Liar, &Begun);
    let acts: [(&str, Act); 7] = [
        ("eager bytes", |liar, begun| {
            let (mut header, payload) = vector(begun);
            header.consumed = u64::MAX;
            liar.send(Class::Fast, header, &payload);
        }),
        ("acknowledges", |liar, begun| {
            let (mut header, payload) = vector(begun);
            header.acknowledged = 1000;
            liar.send(Class::Fast, header, &payload);
        }),
        ("frame 5 where 0 was due", |liar, begun| {
            liar.frames = [5; 2];
            send_vector(liar, begun);
        }),
        ("not a frame", |liar, _| liar.raw(Class::Fast, &[b'x'; 1000])),
        ("plan", |liar, begun| {
            let (mut header, payload) = vector(begun);
            header.item = 99;
            liar.send(Class::Fast, header, &payload);
        }),
        ("closed without goodbye", |liar, _| liar.hang_up(Class::Fast)),
        ("reset", |liar, _| liar.reset(Class::Fast)),
    ];
    for (cause, act) in acts {
        watched(cause, move || {
            let mut scene = Scene::new();
            let (begun, submitted) = swap(&mut scene, act);
            assert!(!matches!(submitted, Some(Submitted::Over(_))), "{cause}");
            let error = scene.end(&begun).unwrap_err();
            assert!(matches!(error, Error::PeerLost { .. }), "{error}");
            assert!(error.to_string().contains(cause), "{error}, not {cause}");
        });
    }
}

/// Whoever only ever calls such swaps sees what comes elsewhere nevertheless.
#[test]
fn the_poll_set_is_asked_in_between() {
    let mut scene = Scene::new();
    let begun = scene.begin(Call::Exchange(COUNT));
    scene.liar.serve(&begun);
    scene.end(&begun).unwrap();
    let past = scene.engine.shared.with_core(|core| {
        core.turn(true);
        (0..1000).take_while(|_| core.may_look_past()).count()
    });
    assert!(past < 64, "{past} looks at one connection only");
    assert!(!scene.engine.shared.with_core(|core| core.may_look_past()), "until it has been asked");
}

/// Takes whole frames, whose payload tells their place.
#[derive(Default)]
struct Taken(Vec<Vec<u8>>);

impl Handler for Taken {
    fn begin(&mut self, _: usize, header: &Header) -> Result<Sink, String> {
        Ok(Sink::Owned(vec![0; header.length as usize]))
    }

    fn end(&mut self, _: usize, _: &Header, sink: Sink) -> Result<(), String> {
        let Sink::Owned(bytes) = sink else { return Err("not what was asked for".into()) };
        self.0.push(bytes);
        Ok(())
    }

    fn released(&mut self, _: RunKey, _: u16, _: usize) {}
}

/// The system may take a part of a frame. The rest follows in order, before anything else.
#[test]
fn a_frame_that_leaves_in_part_is_finished() {
    watched("in part", || {
        let (near, far) = pair();
        far.set_nonblocking(true).unwrap();
        let of = socket2::SockRef::from(&near);
        of.set_send_buffer_size(4096).unwrap();
        socket2::SockRef::from(&far).set_recv_buffer_size(4096).unwrap();
        let (mut near, mut far) = (Conn::new(near, Class::Fast), Conn::new(far, Class::Fast));
        let (mut taken, mut number, mut parts) = (Taken::default(), 0usize, 0);
        for length in (0..=SMALL).cycle().step_by(37).take(20_000) {
            if parts > 3 {
                break;
            }
            if near.is_at_rest() {
                let payload = vec![number as u8; length];
                let header = Header::new(Kind::Data, 0, number as u64);
                match near.send_past(header, &payload, 0) {
                    Ok(()) => number += 1,
                    Err(rustix::io::Errno::AGAIN) => while far.read(0, 1 << 20, &mut taken).unwrap() {},
                    Err(error) => panic!("{error}"),
                }
            } else {
                parts += 1;
                while near.has_outgoing() {
                    near.write(0, 1 << 20, &mut taken).unwrap();
                    near.write_blocked = false;
                    while far.read(0, 1 << 20, &mut taken).unwrap() {}
                }
            }
        }
        while taken.0.len() < number {
            far.read(0, 1 << 20, &mut taken).unwrap();
        }
        let right = |(at, bytes): (usize, &Vec<u8>)| bytes.iter().all(|byte| *byte == at as u8);
        assert!(taken.0.iter().enumerate().all(right));
        let frames = (near.traffic().sent_frames, far.traffic().received_frames);
        assert_eq!(frames, (number as u64, number as u64));
        assert_eq!(near.traffic().sent_bytes, far.traffic().received_bytes);
        assert!(parts > 0, "none of {number} left in part");
    });
}
