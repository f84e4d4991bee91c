//! Two ranks that swap small vectors past the queues of a connection: what comes may be there, late, in parts, or another thing.

use std::sync::Barrier;
use std::time::Instant;

use super::super::Submitted;
use super::super::core::Core;
use super::super::meet::Meetings;
use super::*;
use crate::link::frame::{Outgoing, Payload};
use crate::link::tcp::{Conn, SMALL};
use crate::link::{Handler, RunKey, Sink};

const COUNT: usize = 16;

fn swap(scene: &mut Scene, act: impl FnOnce(&mut Liar, &Begun)) -> (Begun, Option<Submitted>) {
    swap_of(scene, COUNT, act)
}

/// Begins an exchange after the liar has acted on what is known of it, and nobody else has looked at that.
fn swap_of(
    scene: &mut Scene,
    count: usize,
    act: impl FnOnce(&mut Liar, &Begun),
) -> (Begun, Option<Submitted>) {
    let (mut begun, mut request) = scene.request(Call::Exchange(count), Parts::from_vec(vec![1f32; count]));
    let shared = scene.engine.shared.clone();
    let submitted = shared.with_core(|core| {
        core.state.now = shared.clock.now();
        core.ask_poll_set();
        core.turn(true);
        // For long nothing has moved elsewhere, it was looked at just now, however long this takes, and the other was
        // always there.
        core.quiet = 1024;
        core.asked_at = Instant::now() + Duration::from_secs(3600);
        if let Some(link) = &mut core.links[1] {
            link.swaps = Meetings::default();
        }
        act(&mut scene.liar, &begun);
        let received = |core: &Core| core.links[1].as_ref().map(|link| link.fast.traffic().received_bytes);
        let fast = &core.links[1].as_ref().unwrap().fast;
        let unread = rustix::io::ioctl_fionread(fast.socket().unwrap()).unwrap();
        let before = received(core);
        let submitted = core.swap(&mut request, true, &shared.clock, || begun.op.clone());
        if unread > 0 && submitted.is_some() {
            assert_ne!(received(core), before, "it was not looked at");
        }
        submitted
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
    (header, 2f32.to_le_bytes().repeat(begun.bytes() / 4))
}

fn send_vector(liar: &mut Liar, begun: &Begun) {
    let (header, payload) = vector(begun);
    liar.send(Class::Fast, header, &payload);
}

fn assert_over(submitted: Option<Submitted>) {
    match submitted {
        Some(Submitted::Over(parts)) => assert!(parts.into_vec::<f32>().iter().all(|sum| *sum == 3.0)),
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

#[test]
fn the_smallest_and_the_largest_swap() {
    watched("sizes", || {
        let mut scene = Scene::new();
        for count in [0, 1, SMALL / 4] {
            let (_, submitted) = swap_of(&mut scene, count, send_vector);
            assert_over(submitted);
        }
        let (begun, submitted) = swap_of(&mut scene, SMALL / 4 + 1, |_, _| {});
        assert!(submitted.is_none(), "larger ones begin in the ordinary way");
        send_vector(&mut scene.liar, &begun);
        scene.end(&begun).unwrap();
        scene.assert_usable();
    });
}

/// Whoever only ever calls such swaps sees what comes elsewhere nevertheless.
#[test]
fn the_poll_set_is_asked_in_between() {
    let mut scene = Scene::new();
    let begun = scene.begin(Call::Exchange(COUNT));
    scene.liar.serve(&begun);
    scene.end(&begun).unwrap();
    scene.engine.shared.with_core(|core| {
        let now = Instant::now();
        core.quiet = 1024;
        for _ in 0..3 {
            core.state.now = now;
            core.turn(true);
            let past = (0..1000).take_while(|_| core.may_look_past(now)).count();
            assert!((1..64).contains(&past), "{past} looks at one connection only");
            assert!(!core.may_look_past(now), "until it has been asked");
        }
        core.turn(true);
        assert!(core.may_look_past(now + Duration::from_micros(900)));
        assert!(!core.may_look_past(now + Duration::from_micros(1100)), "for long");
    });
}

/// Two ranks that look for each other, each on its thread.
#[test]
fn ranks_that_call_at_the_same_time_are_over_before_they_return() {
    const CALLS: usize = 3000;
    watched("both", || {
        let (near, [fast, bulk]) = link();
        [&fast, &bulk].into_iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let plan = PlanCache::new()
            .get(Algorithm::MeshOneShot, Collective::AllReduce, crate::path::Placement::InPlace, 2)
            .unwrap();
        let begin = Arc::new(Barrier::new(2));
        let rank = |me: usize, link: PeerLink| {
            let (plan, begin) = (plan.clone(), begin.clone());
            std::thread::spawn(move || {
                let mut peers = vec![PeerLink::Myself, link];
                peers.rotate_right(me);
                let labels = vec!["host0".to_string(), "host1".to_string()];
                let memory = Memory { limit: 64 << 20 };
                let engine = Engine::new(me, peers, labels, None, SpinPolicy::Look, memory).unwrap();
                let channel = engine.open(Channel::new(CHANNEL, "world".into(), Arc::new([0, 1]), me));
                let program = Arc::new(Program::new(plan, me));
                begin.wait();
                let mut over = 0;
                for seq in 0..CALLS as u64 {
                    let values = vec![me as f32 + 1.0, seq as f32];
                    let desc = sum_of(&program, values.len());
                    let submitted = engine.submit(Request {
                        channel,
                        seq,
                        desc,
                        digest: desc.digest(),
                        work: Work::Collective(program.clone()),
                        parts: Parts::from_vec(values),
                        deadline: Duration::from_secs(60),
                        priority: Priority::Normal,
                    });
                    let parts = match submitted {
                        Submitted::Over(parts) => {
                            over += 1;
                            parts
                        }
                        Submitted::Flying(op) => {
                            engine.block_on(&op);
                            let outcome = op.take_outcome().unwrap();
                            outcome.result.unwrap();
                            outcome.parts.unwrap()
                        }
                    };
                    assert_eq!(parts.into_vec::<f32>(), [3.0, 2.0 * seq as f32]);
                }
                begin.wait();
                over
            })
        };
        let ranks = [rank(0, near), rank(1, PeerLink::Tcp { fast, bulk })];
        let over: usize = ranks.into_iter().map(|rank| rank.join().unwrap()).sum();
        assert!(over > 0, "not one of {CALLS}");
    });
}

/// A peer that does not read: what has left in part is the call's until the rest has left.
#[test]
fn a_call_is_not_over_while_its_vector_has_not_left() {
    watched("not read", || {
        let (peer, conns) = link();
        if let PeerLink::Tcp { fast, .. } = &peer {
            socket2::SockRef::from(fast).set_send_buffer_size(1).unwrap();
        }
        socket2::SockRef::from(&conns[0]).set_recv_buffer_size(1).unwrap();
        let mut scene = Scene::with(0, vec![PeerLink::Myself, peer], conns);
        let mut calls = 0;
        let begun = loop {
            let (begun, submitted) = swap(&mut scene, send_vector);
            calls += 1;
            assert!(calls < 2000, "all have left");
            if !matches!(submitted, Some(Submitted::Over(_))) {
                break begun;
            }
        };
        scene.engine.shared.drive();
        assert!(!begun.op.is_done());
        for number in 0..calls {
            assert_eq!(scene.liar.read(Class::Fast).unwrap().0.frame, number);
        }
        assert_eq!(scene.end(&begun).unwrap(), [3f32; COUNT]);
        scene.assert_usable();
    });
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
                    Ok(None) => number += 1,
                    Ok(Some((header, sent))) => {
                        near.queue_rest(Outgoing { header, payload: Payload::Owned(payload) }, sent);
                        number += 1;
                    }
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
