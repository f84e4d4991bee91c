//! Memory of this rank that a peer reads where it lies: what it may say of that, and when it is lent no more.

use super::lies::*;
use super::*;
use crate::link::frame::Lent;
use crate::link::shm::Grant;

/// Says that it has read the broadcast up to there.
fn taken(liar: &mut Liar, begun: &Begun, upto: u64) {
    let mut header = begun.header(Kind::Taken);
    (header.item, header.offset) = (begun.sent()[0], upto);
    liar.send(Fast, header, &[]);
}

/// What the near side lends: by which grant.
fn lent(liar: &mut Liar) -> Grant {
    let (_, place) = liar.read_kind(Fast, Kind::Lend);
    let Lent { slot, number, .. } = Lent::decode(&place).unwrap();
    let grant = Grant { slot, number };
    assert!(far(liar).stands(grant));
    grant
}

/// Its buffers are where others read them.
fn lending() -> Scene {
    Scene { lends: true, ..Scene::beside() }
}

/// Of a broadcast from here.
const TAKEN: &[Told] = &[
    ("more than there is", |liar, begun| taken(liar, begun, begun.bytes() as u64 + 4), "has read up to"),
    ("up to the end of all numbers", |liar, begun| taken(liar, begun, u64::MAX), "has read up to"),
    ("nothing", |liar, begun| taken(liar, begun, 0), "has read up to 0"),
    ("less than was lent", |liar, begun| taken(liar, begun, 4096), "has read up to 4096"),
    (
        "of a message that is not in the plan",
        |liar, begun| liar.send(Fast, Header { item: 99, ..begun.header(Kind::Taken) }, &[]),
        "not in the plan",
    ),
    ("with something else", |liar, begun| liar.send(Fast, begun.header(Kind::Taken), &[9; 24]), "exceeds 0"),
];

const OF_OTHER_CALLS: &[Lie] = &[
    (
        "of a message that it sends",
        Call::Place(LARGE),
        |liar, begun| {
            let header = begun.data(false, 0);
            liar.send(Fast, Header { kind: Kind::Taken, offset: 4096, ..header }, &[]);
        },
        Lost("not in the plan"),
    ),
    (
        "of what is exchanged",
        Call::Exchange(SMALL),
        |liar, begun| liar.send(Fast, begun.header(Kind::Taken), &[]),
        Lost("lends what is sent"),
    ),
    (
        "of a message that it has not accepted",
        Call::PointSend(LARGE),
        |liar, begun| liar.send(Fast, Header { flags: POINT, ..begun.header(Kind::Taken) }, &[]),
        Lost("not lent"),
    ),
];

#[test]
fn what_is_read_is_what_was_lent() {
    tell_all_of(Call::Send(LARGE), TAKEN, lending);
    tell_all_in(OF_OTHER_CALLS, lending);
}

/// What is not lent is not read.
#[test]
fn what_is_sent_is_not_read_where_it_lies() {
    const LIES: &[Told] =
        &[("has read what is sent", |liar, begun| taken(liar, begun, begun.bytes() as u64), "not lent")];
    tell_all_of(Call::Send(LARGE), LIES, Scene::new);
    tell_all_of(Call::Send(LARGE), LIES, Scene::beside);
}

/// Its buffers are in no segment, and read all the same.
fn unmapped() -> Scene {
    let [near, other] = Ends::both();
    Scene::between([Ends { is_read: true, ..near }, other])
}

/// Begins to send, and is asked for it.
fn begin_and_lend(scene: &mut Scene, call: Call) -> (Begun, Grant) {
    let begun = scene.begin(call);
    if matches!(call, Call::PointSend(_)) {
        scene.liar.send(Fast, begun.header(Kind::Accept), &[]);
        scene.engine.shared.drive();
    }
    (begun, lent(&mut scene.liar))
}

const LENT: [Call; 2] = [Call::Send(LARGE), Call::PointSend(LARGE)];
const MEMORIES: [fn() -> Scene; 2] = [lending, unmapped];

/// However an operation ends, its owner may write to the memory: who reads it then has read nothing.
#[test]
fn what_is_over_is_lent_no_more() {
    type End = fn(&mut Scene, &Begun);
    let ends: [(&str, End, bool); 6] = [
        ("it is read", |scene, begun| taken_all(&mut scene.liar, begun), true),
        ("cancelled", |scene, begun| scene.engine.cancel(&begun.op), true),
        ("too late", |scene, begun| scene.engine.limit(&begun.op, Duration::from_millis(1)), true),
        ("given up", |scene, begun| abort(scene, begun), true),
        ("the peer is lost", |scene, _| scene.liar.hang_up(Fast), false),
        ("the peer breaks the protocol", |scene, _| scene.liar.raw(Bulk, &[b'x'; HEADER_BYTES]), false),
    ];
    for (call, memory) in LENT.into_iter().flat_map(|call| MEMORIES.map(|memory| (call, memory))) {
        for (name, end, stays) in ends {
            watched(name, move || {
                let mut scene = memory();
                let (begun, grant) = begin_and_lend(&mut scene, call);
                end(&mut scene, &begun);
                let result = scene.end(&begun);
                assert_eq!(result.is_ok(), name == "it is read", "{name}: {result:?}", result = result.err());
                assert!(!far(&mut scene.liar).stands(grant), "{name}");
                if stays {
                    // Once more is no harm.
                    taken_all(&mut scene.liar, &begun);
                    scene.assert_usable();
                }
            });
        }
    }
}

/// What nobody waits for any more is lent until it is read all the same.
#[test]
fn what_is_left_alone_is_lent_until_it_is_read() {
    type Leave = fn(Arc<Engine>, usize, Begun);
    let ways: [(&str, Leave); 3] = [
        ("its future is dropped", |engine, _, begun| engine.detach(&begun.op)),
        ("its communicator is dropped", |engine, channel, _| engine.close(channel)),
        ("all is dropped", |engine, channel, begun| {
            engine.detach(&begun.op);
            engine.close(channel);
        }),
    ];
    for (call, memory) in LENT.into_iter().flat_map(|call| MEMORIES.map(|memory| (call, memory))) {
        for (name, leave) in ways {
            watched(name, move || {
                let mut scene = memory();
                let (begun, grant) = begin_and_lend(&mut scene, call);
                let again = Begun { op: begun.op.clone(), program: begun.program.clone(), ..begun };
                let Scene { engine, mut liar, channel, .. } = scene;
                leave(engine, channel, begun);
                // Whoever looks after it has had its turns, and has nothing to do.
                std::thread::sleep(Duration::from_millis(20));
                assert!(far(&mut liar).stands(grant), "{name}");
                taken_all(&mut liar, &again);
                while far(&mut liar).stands(grant) {
                    std::thread::yield_now();
                }
            });
        }
    }
}

fn taken_all(liar: &mut Liar, begun: &Begun) {
    match begun.call {
        Call::PointSend(_) => liar.send(Fast, Header { flags: POINT, ..begun.header(Kind::Taken) }, &[]),
        _ => taken(liar, begun, begun.bytes() as u64),
    }
}

fn abort(scene: &mut Scene, begun: &Begun) {
    let mut header = begun.header(Kind::Abort);
    if matches!(begun.call, Call::PointSend(_)) {
        header.flags = POINT | TO_SENDER;
    }
    scene.liar.send(Fast, header, &encode(&Cause::Cancelled));
}

/// There are few grants, and each comes back.
#[test]
fn grants_are_taken_back_and_used_again() {
    watched("grants", || {
        let mut scene = lending();
        for round in 0..600 {
            let begun = scene.begin(Call::Send(16 << 10));
            let grant = lent(&mut scene.liar);
            assert!(grant.slot < 256);
            if round % 2 == 0 {
                taken_all(&mut scene.liar, &begun);
                scene.end(&begun).unwrap();
            } else {
                scene.engine.cancel(&begun.op);
                scene.end(&begun).unwrap_err();
            }
        }
        let [segment] = [far(&mut scene.liar).receive().unwrap()];
        assert_eq!((segment.about[0], segment.fds.len()), (0, 1));
        assert!(far(&mut scene.liar).receive().is_none(), "a segment is handed over once");
    });
}

/// Where there is no grant left, messages are sent.
#[test]
fn what_can_t_be_lent_is_sent() {
    watched("many at once", || {
        let mut scene = lending();
        let all: Vec<Begun> = (0..260).map(|_| scene.begin(Call::Send(10_000))).collect();
        for (number, begun) in all.iter().enumerate() {
            if number < 256 {
                taken_all(&mut scene.liar, begun);
            }
        }
        for (number, begun) in all.iter().enumerate() {
            scene.end(begun).unwrap_or_else(|error| panic!("{number}: {error}"));
        }
    });
}
