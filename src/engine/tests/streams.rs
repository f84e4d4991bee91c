//! Frames at random: whatever comes, no panic, no hang, and an outcome for every call.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use super::super::channel::Family;
use super::super::family::key_id;
use super::super::rebuild::View;
use super::lies::{ASK, Cause, call_info, encode, report, status};
use super::*;

/// A key of the communicator that the honest rank may have asked for, and one that it has not.
const KEYS: [&str; 2] = ["a", "b"];

/// One frame on either connection.
#[derive(Clone, Debug)]
struct Shot {
    bulk: bool,
    kind: u8,
    flags: u16,
    /// Mostly what exists.
    channel: u64,
    number: u64,
    item: u32,
    offset: u64,
    payload: Payload,
    byte: u8,
    /// Whether the digest is the right one, the frame number, the header's bytes.
    digest: bool,
    consumed: u64,
    flip: Option<u16>,
}

#[derive(Clone, Debug)]
enum Payload {
    /// The same byte so many times.
    Bytes(usize),
    /// What such a frame says, with flags and fields that fit it, and damage.
    Text { which: usize, damage: Vec<(Index, u8)>, cut: Option<Index> },
}

/// What frames of a kind say; nothing, for most.
fn text(kind: u8, which: usize) -> Vec<u8> {
    let kind = KINDS.into_iter().find(|of| *of as u8 == kind);
    match (kind, which) {
        (Some(Kind::Abort), 0 | 4) => encode(&Cause::Deadline(Box::new(report(Rank(1))))),
        (Some(Kind::Abort), 1) => {
            encode(&Cause::Lost { rank: Rank(0), host: "node".into(), cause: "x".into() })
        }
        (Some(Kind::Abort), 2) => encode(&Cause::Departed { rank: Rank(1), host: "node".into() }),
        (Some(Kind::Abort), _) => encode(&Cause::Cancelled),
        (Some(Kind::Status), which) => status(vec![0; which]),
        (Some(Kind::Mismatch), _) => encode(&call_info("barrier")),
        (Some(Kind::Close), 0) => Vec::new(),
        (Some(Kind::Close), which) => {
            encode(&(0..which as u64).map(|number| (number, call_info("all_reduce"))).collect::<Vec<_>>())
        }
        (Some(Kind::Rebuild), which) => {
            // Of as many ranks as there are, or of one more.
            let gone = [which & 1 != 0, false, true][..2 + usize::from(which & 4 != 0)].to_vec();
            encode(&View { gone, decided: which & 2 != 0 })
        }
        (Some(Kind::Key), which) => KEYS[which % 2].into(),
        _ => Vec::new(),
    }
}

/// Those with a text.
const KINDS: [Kind; 6] = [Kind::Abort, Kind::Status, Kind::Mismatch, Kind::Close, Kind::Rebuild, Kind::Key];

fn payload() -> impl Strategy<Value = Payload> {
    let bytes = prop_oneof![
        3 => Just(0usize),
        3 => Just(400),
        2 => Just(PAYLOAD_MAX),
        2 => 0usize..2000,
        1 => 0usize..PAYLOAD_MAX,
    ];
    let damage = prop_oneof![
        1 => Just(Vec::new()),
        1 => proptest::collection::vec((any::<Index>(), any::<u8>()), 1..4),
    ];
    let cut = proptest::option::weighted(0.1, any::<Index>());
    let text = (0usize..8, damage, cut).prop_map(|(which, damage, cut)| Payload::Text { which, damage, cut });
    prop_oneof![2 => bytes.prop_map(Payload::Bytes), 1 => text]
}

fn shot() -> impl Strategy<Value = Shot> {
    let mostly = |usual: std::ops::Range<u64>| prop_oneof![9 => usual, 1 => any::<u64>()];
    let channel = prop_oneof![8 => Just(CHANNEL), 1 => Just(key_id(CHANNEL, KEYS[0])), 1 => any::<u64>()];
    let where_to = (any::<bool>(), 1..=Kind::ALL.len() as u8, channel, mostly(0..3));
    let what = (
        prop_oneof![4 => Just(0u16), 3 => Just(1), 1 => Just(2), 1 => Just(4), 1 => Just(12), 1 => Just(32), 1 => any::<u16>()],
        prop_oneof![9 => 0u32..3, 2 => Just(TAG), 1 => any::<u32>()],
        prop_oneof![6 => Just(0u64), 3 => (0u64..9).prop_map(|piece| piece << 17), 1 => 0u64..2_000_000, 1 => any::<u64>()],
        payload(),
    );
    let rest = (
        any::<u8>(),
        proptest::bool::weighted(0.9),
        mostly(0..1),
        proptest::option::weighted(0.02, 0u16..512),
    );
    (where_to, what, rest).prop_map(
        |((bulk, kind, channel, number), (flags, item, offset, payload), (byte, digest, consumed, flip))| {
            Shot { bulk, kind, flags, channel, number, item, offset, payload, byte, digest, consumed, flip }
        },
    )
}

impl Shot {
    /// Its payload; a header that goes with it.
    fn fill(&self, header: &mut Header) -> Vec<u8> {
        let Payload::Text { which, damage, cut } = &self.payload else {
            let Payload::Bytes(length) = self.payload else { return Vec::new() };
            return vec![self.byte; length];
        };
        let mut body = text(self.kind, *which);
        header.flags = 0;
        if self.kind == Kind::Status as u8 || self.kind == Kind::Mismatch as u8 {
            header.flags = self.flags & ASK;
        }
        if self.kind == Kind::Key as u8 {
            (header.channel, header.offset) = (key_id(CHANNEL, KEYS[which % 2]), CHANNEL);
        }
        for (at, byte) in damage {
            if !body.is_empty() {
                let at = at.index(body.len());
                body[at] = *byte;
            }
        }
        body.truncate(cut.map_or(body.len(), |at| at.index(body.len() + 1)));
        body
    }
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        Just(Call::Place(100)),
        Just(Call::Place(300_000)),
        Just(Call::Reduce(400_000)),
        Just(Call::Reduce(200)),
        Just(Call::Exchange(100)),
        Just(Call::Exchange(10_000)),
        Just(Call::Send(100_000)),
        Just(Call::Receive(100_000)),
        Just(Call::PointSend(100_000)),
    ];
    proptest::collection::vec(call, 1..3)
}

/// What else the honest rank has done.
#[derive(Clone, Copy, Debug)]
struct Besides {
    rebuild: bool,
    key: bool,
}

impl Scene {
    fn begin_rebuild(&self) -> Arc<Op> {
        let desc = CallDesc::new("rebuild", DType::U8, self.members);
        super::flying(self.engine.submit(Request {
            channel: self.channel,
            seq: 1,
            desc,
            digest: desc.digest(),
            work: Work::Rebuild,
            parts: Parts::from_vec(vec![0u8; self.members]),
            deadline: self.deadline,
            priority: Priority::Normal,
        }))
    }

    fn open_key(&self, key: &'static str) {
        let mut channel = Channel::new(key_id(CHANNEL, key), "world/a".into(), [0, 1].into(), 0);
        channel.family = Some(Family { parent: CHANNEL, key: key.into() });
        self.engine.open(channel);
    }
}

fn play(calls: &[Call], besides: Besides, shots: &[Shot]) {
    let mut scene = Scene::new();
    scene.set_deadline(Duration::from_millis(30));
    if besides.key {
        scene.open_key(KEYS[0]);
    }
    let begun: Vec<Begun> = calls.iter().map(|call| scene.begin(*call)).collect();
    let rebuild = besides.rebuild.then(|| scene.begin_rebuild());
    for shot in shots {
        let class = if shot.bulk { Class::Bulk } else { Class::Fast };
        let about = &begun[usize::from(shot.byte) % begun.len()];
        let mut header = Header::new(Kind::Consumed, shot.channel, shot.number);
        header.flags = shot.flags;
        header.item = shot.item;
        header.offset = shot.offset;
        header.digest = if shot.digest { about.digest } else { shot.offset };
        header.consumed = shot.consumed;
        let body = shot.fill(&mut header);
        let mut bytes = scene.liar.frame(class, header, &body);
        bytes[5] = shot.kind;
        if let Some(bit) = shot.flip {
            bytes[usize::from(bit) / 8] ^= 1 << (bit % 8);
        }
        // Whoever is not read from any more would block.
        scene.liar.conns[class as usize].set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        scene.liar.raw(class, &bytes);
    }
    if shots.iter().any(|shot| shot.kind == Kind::Hold as u8) {
        // It may hold deadlines, as long as it lives.
        scene.liar.hang_up(Class::Fast);
        scene.liar.hang_up(Class::Bulk);
    }
    for call in &begun {
        let _ = scene.end(call);
    }
    if let Some(rebuild) = rebuild {
        scene.engine.block_on(&rebuild);
        let members = rebuild.take_outcome().unwrap().parts.unwrap();
        assert!(members.raw().to_vec().iter().all(|gone| *gone <= 1));
    }
}

fn run(cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let shots = proptest::collection::vec(shot(), 1..12);
    let besides = (proptest::bool::weighted(0.3), any::<bool>());
    let besides = besides.prop_map(|(rebuild, key)| Besides { rebuild, key });
    let result = TestRunner::new(config).run(&(calls(), besides, shots), |(calls, besides, shots)| {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let play = std::panic::AssertUnwindSafe(|| play(&calls, besides, &shots));
            let _ = sender.send(std::panic::catch_unwind(play).is_ok());
        });
        match receiver.recv_timeout(WATCHDOG) {
            Ok(true) => Ok(()),
            Ok(false) => Err(TestCaseError::fail("panicked")),
            Err(_) => Err(TestCaseError::fail("hangs")),
        }
    });
    result.unwrap();
}

#[test]
fn frames_at_random_end_every_call() {
    run(2_000);
}

#[test]
#[ignore = "takes minutes"]
fn very_many_frames_at_random_end_every_call() {
    run(15_000);
}
