//! Frames at random: whatever comes, no panic, no hang, and an outcome for every call.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

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
    payload: usize,
    byte: u8,
    /// Whether the digest is the right one, the frame number, the header's bytes.
    digest: bool,
    consumed: u64,
    flip: Option<u16>,
}

fn shot() -> impl Strategy<Value = Shot> {
    let mostly = |usual: std::ops::Range<u64>| prop_oneof![9 => usual, 1 => any::<u64>()];
    let where_to = (any::<bool>(), 1u8..17, mostly(0..1), mostly(0..3));
    let what = (
        prop_oneof![4 => Just(0u16), 3 => Just(1), 1 => Just(2), 1 => Just(4), 1 => Just(12), 1 => Just(32), 1 => any::<u16>()],
        prop_oneof![9 => 0u32..3, 2 => Just(TAG), 1 => any::<u32>()],
        prop_oneof![6 => Just(0u64), 3 => (0u64..9).prop_map(|piece| piece << 17), 1 => 0u64..2_000_000, 1 => any::<u64>()],
        prop_oneof![3 => Just(0usize), 3 => Just(400), 2 => Just(PAYLOAD_MAX), 2 => 0usize..2000, 1 => 0usize..PAYLOAD_MAX],
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

fn play(calls: &[Call], shots: &[Shot]) {
    let mut scene = Scene::new();
    scene.set_deadline(Duration::from_millis(30));
    let begun: Vec<Begun> = calls.iter().map(|call| scene.begin(*call)).collect();
    for shot in shots {
        let class = if shot.bulk { Class::Bulk } else { Class::Fast };
        let about = &begun[usize::from(shot.byte) % begun.len()];
        let mut header = Header::new(Kind::Consumed, shot.channel, shot.number);
        header.flags = shot.flags;
        header.item = shot.item;
        header.offset = shot.offset;
        header.digest = if shot.digest { about.digest } else { shot.offset };
        header.consumed = shot.consumed;
        let mut bytes = scene.liar.frame(class, header, &vec![shot.byte; shot.payload]);
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
}

fn run(cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let shots = proptest::collection::vec(shot(), 1..12);
    let result = TestRunner::new(config).run(&(calls(), shots), |(calls, shots)| {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let play = std::panic::AssertUnwindSafe(|| play(&calls, &shots));
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
    run(100_000);
}
