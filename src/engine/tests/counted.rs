//! Messages that say how long they are, and lie.

use super::lies::*;
use super::*;
use crate::buffer::parts::{Cut, Cuts, Sizes};

/// A message of the liar to whoever has room for so many, or for them and no others.
fn begin(scene: &mut Scene, count: usize, sizes: Sizes) -> Begun {
    let cut = Cut::InTurn([0, count].into());
    let cuts = Cuts { output: cut.clone(), input: cut, sizes };
    scene.begin_with(Call::Place(count), Parts::from_vec(vec![1f32; count]).with_cuts(cuts))
}

fn size(begun: &Begun, bytes: usize) -> Header {
    Header { kind: Kind::Size, offset: bytes as u64, ..begun.data(false, 0) }
}

fn shorter(scene: &mut Scene, begun: &Begun, count: usize) {
    let payload: Vec<u8> = std::iter::repeat_n(2f32.to_le_bytes(), count).flatten().collect();
    if payload.len() <= EAGER_MAX {
        scene.liar.send(Fast, eager(begun.data(false, 0)), &payload);
    } else {
        scene.liar.send(Fast, size(begun, payload.len()), &[]);
        scene.liar.send_all(begun.data(false, 0), &payload);
    }
}

#[test]
fn a_part_may_be_shorter_than_the_room_for_it() {
    for (room, count) in [(SMALL, 7), (LARGE, 7), (LARGE, LARGE - 1), (LARGE, 0), (0, 0)] {
        watched("shorter", move || {
            let mut scene = Scene::new();
            let begun = begin(&mut scene, room, Sizes::Learned);
            shorter(&mut scene, &begun, count);
            let got = scene.end(&begun).unwrap();
            assert!(
                got[..count].iter().all(|value| *value == 2.0)
                    && got[count..].iter().all(|value| *value == 1.0)
            );
            scene.assert_usable();
        });
    }
}

type Lying = (&'static str, Sizes, fn(&mut Liar, &Begun), &'static str);

const LIES: [Lying; 9] = [
    (
        "payload before its length",
        Sizes::Told,
        |liar, begun| {
            liar.send(Bulk, begun.data(false, 0), &large());
        },
        "has not said how long it is",
    ),
    (
        "payload before its length, which is open",
        Sizes::Learned,
        |liar, begun| {
            liar.send(Bulk, begun.data(false, 0), &large());
        },
        "has not said how long it is",
    ),
    (
        "a request before its length",
        Sizes::Learned,
        |liar, begun| {
            liar.send(Fast, Header { kind: Kind::Request, ..begun.data(false, 0) }, &[]);
        },
        "has not said how long it is",
    ),
    (
        "a length within an element",
        Sizes::Learned,
        |liar, begun| {
            liar.send(Fast, size(begun, 7), &[]);
        },
        "end within an element",
    ),
    (
        "its length twice",
        Sizes::Told,
        |liar, begun| {
            liar.send(Fast, size(begun, LARGE * 4), &[]);
            liar.send(Fast, size(begun, LARGE * 4), &[]);
        },
        "tells a length that is known",
    ),
    (
        "another length later",
        Sizes::Learned,
        |liar, begun| {
            liar.send(Fast, size(begun, LARGE * 4), &[]);
            liar.send(Bulk, begun.data(false, 0), &large());
            liar.send(Fast, size(begun, 8), &[]);
        },
        "tells a length that is known",
    ),
    (
        "more than it has said",
        Sizes::Learned,
        |liar, begun| {
            liar.send(Fast, size(begun, EAGER_MAX + 4), &[]);
            liar.send(Bulk, begun.data(false, 0), &large());
        },
        "payload up to 0 + 131072 of 65540 bytes",
    ),
    (
        "the length of another message",
        Sizes::Told,
        |liar, begun| {
            liar.send(Fast, Header { item: 77, ..size(begun, 8) }, &[]);
        },
        "not in the plan",
    ),
    (
        "a small message within an element",
        Sizes::Learned,
        |liar, begun| {
            liar.send(Fast, eager(begun.data(false, 0)), &[9; 7]);
        },
        "within an element",
    ),
];

#[test]
fn what_lies_about_lengths_is_lost() {
    for (name, sizes, act, words) in LIES {
        watched(name, move || {
            let mut scene = Scene::new();
            let begun = begin(&mut scene, LARGE, sizes);
            act(&mut scene.liar, &begun);
            let error = scene.end(&begun).expect_err(name);
            assert!(error.to_string().contains(words), "{name}: {error}");
        });
    }
}

/// Where the plan says how long a message is.
#[test]
fn a_length_that_all_know_is_not_told() {
    for call in [Call::Place(LARGE), Call::Place(SMALL), Call::Exchange(SMALL), Call::Reduce(LARGE)] {
        watched("known", move || {
            let mut scene = Scene::new();
            let begun = scene.begin(call);
            let header = begun.data(!matches!(call, Call::Place(_)), 0);
            scene.liar.send(Fast, Header { kind: Kind::Size, offset: 8, ..header }, &[]);
            let error = scene.end(&begun).unwrap_err();
            assert!(error.to_string().contains("tells a length that is known"), "{call:?}: {error}");
        });
    }
}
