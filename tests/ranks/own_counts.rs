//! Collectives of parts of which each rank knows its own.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::{LINKS, Link, class, run, world};
use hcomm::path::Algorithm;
use hcomm::{Buffer, Communicator, Counts, Error, Rank, blocking};

/// Elements from one rank to another: none, few, more than goes without being asked for, and more than a frame.
fn length(from: usize, to: usize, shape: usize) -> usize {
    match shape {
        0 => (from * 7 + to * 3) % 5,
        1 if (from + to).is_multiple_of(3) => 70_001 + from,
        1 => to,
        2 if from == 0 => 40_000,
        2 => 0,
        3 => (from * to + from + to) * 11,
        _ => 0,
    }
}

const SHAPES: usize = 5;

fn value(from: usize, to: usize, index: usize) -> u32 {
    (from * 1_000_003 + to * 10_007 + index) as u32
}

fn memory(comm: &Communicator, len: usize, alloc: bool) -> Buffer<u32> {
    if alloc { comm.alloc(len) } else { Buffer::zeroed(len) }
}

fn filled(mut buffer: Buffer<u32>, parts: &[usize], value: impl Fn(usize, usize) -> u32) -> Buffer<u32> {
    let mut rest: &mut [u32] = &mut buffer;
    for (part, len) in parts.iter().enumerate() {
        let (this, others) = rest.split_at_mut(*len);
        this.iter_mut().enumerate().for_each(|(index, element)| *element = value(part, index));
        rest = others;
    }
    buffer
}

fn check(buffer: &[u32], parts: &[usize], value: impl Fn(usize, usize) -> u32, context: &str) {
    assert_eq!(buffer.len(), parts.iter().sum::<usize>(), "{context}");
    let mut at = 0;
    for (part, len) in parts.iter().enumerate() {
        for index in 0..*len {
            assert_eq!(buffer[at + index], value(part, index), "{context}: {index} of part {part}");
        }
        at += len;
    }
}

fn all_to_all(comm: &mut Communicator, shape: usize, alloc: bool, context: &str) {
    let (me, n) = (comm.rank().index(), comm.size());
    let sent: Vec<usize> = (0..n).map(|to| length(me, to, shape)).collect();
    let got: Vec<usize> = (0..n).map(|from| length(from, me, shape)).collect();
    for algorithm in [None, Some(Algorithm::MeshOneShot), Some(Algorithm::Pairwise)] {
        let context = format!("{context} all_to_all_v_into {algorithm:?} shape {shape} rank {me}");
        let input = memory(comm, sent.iter().sum(), alloc);
        let input = filled(input, &sent, |to, index| value(me, to, index));
        let output = memory(comm, got.iter().sum(), alloc);
        let call = match algorithm {
            None => comm.all_to_all_v_into(input, &sent, output, &got),
            Some(algorithm) => comm.using(algorithm).all_to_all_v_into(input, &sent, output, &got),
        };
        let (input, output) = call.wait().unwrap();
        check(&output, &got, |from, index| value(from, me, index), &context);
        check(&input, &sent, |to, index| value(me, to, index), &context);
    }
    let both: Vec<usize> = (0..n).map(|to| length(me.min(to), me.max(to), shape)).collect();
    let buffer = memory(comm, both.iter().sum(), alloc);
    let buffer = filled(buffer, &both, |to, index| value(me, to, index));
    let buffer = comm.all_to_all_v(buffer, &both).wait().unwrap();
    check(&buffer, &both, |from, index| value(from, me, index), &format!("{context} all_to_all_v {shape}"));
}

fn gather(comm: &mut Communicator, root: usize, shape: usize, alloc: bool, context: &str) {
    let (me, n) = (comm.rank().index(), comm.size());
    let context = format!("{context} gather_v to {root} shape {shape} rank {me}");
    let parts: Vec<usize> = (0..n).map(|from| length(from, root, shape)).collect();
    let part = |comm: &Communicator| {
        filled(memory(comm, parts[me], alloc), &[parts[me]], |_, index| value(me, root, index))
    };
    let (given, counts) = match me == root {
        true => {
            let all = memory(comm, parts.iter().sum(), alloc);
            let own = |from: usize, index| if from == me { value(me, root, index) } else { 0 };
            (filled(all, &parts, own), &parts[..])
        }
        false => (part(comm), &[][..]),
    };
    let got = comm.gather_v(given, counts, root as u32).wait().unwrap();
    let (input, room) = (part(comm), if me == root { parts.iter().sum() } else { 0 });
    let output = memory(comm, room, alloc);
    let (_, output) = comm.gather_v_into(input, output, counts, root as u32).wait().unwrap();
    if me == root {
        check(&got, &parts, |from, index| value(from, root, index), &context);
        check(&output, &parts, |from, index| value(from, root, index), &context);
    } else {
        check(&got, &[parts[me]], |_, index| value(me, root, index), &context);
    }
}

/// With room to spare at those who don't know.
fn scatter(comm: &mut Communicator, root: usize, shape: usize, alloc: bool, context: &str) {
    let (me, n) = (comm.rank().index(), comm.size());
    let context = format!("{context} scatter_v from {root} shape {shape} rank {me}");
    let parts: Vec<usize> = (0..n).map(|to| length(root, to, shape)).collect();
    let all = |comm: &Communicator| {
        let all = memory(comm, parts.iter().sum(), alloc);
        filled(all, &parts, |to, index| value(root, to, index))
    };
    let (given, counts) = match me == root {
        true => (all(comm), &parts[..]),
        false => (memory(comm, parts[me] + me * 3, alloc), &[][..]),
    };
    let got = comm.scatter_v(given, counts, root as u32).wait().unwrap();
    assert_eq!(got.count, parts[me], "{context}");
    let input = if me == root { all(comm) } else { memory(comm, 0, alloc) };
    let output = memory(comm, parts[me] + 5, alloc);
    let into = comm.scatter_v_into(input, output, counts, root as u32).wait().unwrap();
    assert_eq!(into.count, parts[me], "{context}");
    check(&into.buffer.1[..parts[me]], &[parts[me]], |_, index| value(root, me, index), &context);
    assert!(into.buffer.1[parts[me]..].iter().all(|element| *element == 0), "{context}");
    if me == root {
        check(&got.buffer, &parts, |to, index| value(root, to, index), &context);
    } else {
        check(&got.buffer[..parts[me]], &[parts[me]], |_, index| value(root, me, index), &context);
        assert!(got.buffer[parts[me]..].iter().all(|element| *element == 0), "{context}");
    }
}

#[test]
fn parts_of_any_length_come_where_they_belong() {
    for link in LINKS {
        for n in [1, 2, 3, 5, 9] {
            world(link, n, move |mut comm| {
                for shape in 0..SHAPES {
                    let alloc = shape % 2 == 1;
                    let context = format!("{link:?} {n}");
                    all_to_all(&mut comm, shape, alloc, &context);
                    for root in [0, n - 1] {
                        gather(&mut comm, root, shape, alloc, &context);
                        scatter(&mut comm, root, shape, alloc, &context);
                    }
                }
            });
        }
    }
}

/// What the ranks of a pair are told, and that all go on.
fn both_are_told(
    link: Link,
    (n, pair): (usize, [u32; 2]),
    call: impl Fn(&mut Communicator) -> Result<(), Error> + Send + Clone + 'static,
    said: &str,
) {
    let said = said.to_string();
    world(link, n, move |mut comm| {
        let mut told = call(&mut comm).err();
        // Who needed nothing of the others is told by a later call, which is given up.
        for _ in 0..2 {
            let late = comm.barrier().wait().err().map(|failed| failed.error);
            told = match (told, late) {
                (Some(told), _) if class(&told) == "mismatch" => Some(told),
                (told, late) => late.or(told),
            };
        }
        match told {
            Some(ref error @ Error::Mismatch { ref calls, .. }) => {
                assert!(error.to_string().contains(&said), "{link:?} rank {}: {error}", comm.rank());
                assert!(calls.iter().all(|(_, call)| matches!(call.counts, Some(Counts::Own { .. }))));
            }
            // Whose parts have come, and went well, need not know.
            other => {
                assert!(!pair.contains(&comm.rank().0), "{link:?}: rank {} was told {other:?}", comm.rank())
            }
        }
        crate::common::assert_usable(&mut comm);
    });
}

/// Small ones, those that are asked for first, and those that are lent.
const LENGTHS: [usize; 3] = [3, 20_000, 100_000];

#[test]
fn a_pair_that_does_not_agree_is_named() {
    for link in LINKS {
        for len in LENGTHS {
            for alloc in [false, true] {
                for wrong in [len + 1, len - 1, 0] {
                    let call = move |comm: &mut Communicator| {
                        let (me, n) = (comm.rank().index(), comm.size());
                        let counts = vec![len; n];
                        let mut sent = counts.clone();
                        if me == 2 {
                            sent[0] = wrong;
                        }
                        let input = memory(comm, sent.iter().sum(), alloc);
                        let output = memory(comm, n * len, alloc);
                        let call = comm.all_to_all_v_into(input, &sent, output, &counts);
                        call.wait().map(|_| ()).map_err(|failed| failed.error)
                    };
                    let said = format!("rank 2 sends {wrong} × u32 to rank 0, which takes {len}");
                    both_are_told(link, (3, [0, 2]), call, &said);
                }
            }
        }
    }
}

#[test]
fn a_root_that_expects_another_length_is_named() {
    for link in LINKS {
        for len in LENGTHS {
            let call = move |comm: &mut Communicator| {
                let me = comm.rank().index();
                let own = memory(comm, if me == 0 { 3 * len } else { len + me - 1 }, false);
                let call = comm.gather_v(own, &[len; 3], 0);
                call.wait().map(|_| ()).map_err(|failed| failed.error)
            };
            let said = format!("rank 2 sends {} × u32 to rank 0, which takes {len}", len + 1);
            both_are_told(link, (3, [0, 2]), call, &said);
        }
    }
}

#[test]
fn a_part_that_is_longer_than_the_room_for_it_is_told() {
    for link in LINKS {
        for len in LENGTHS {
            let call = move |comm: &mut Communicator| {
                let me = comm.rank().index();
                let (own, counts) = if me == 1 { (3 * len, &[len; 3][..]) } else { (len - me / 2, &[][..]) };
                let own = memory(comm, own, true);
                comm.scatter_v(own, counts, 1).wait().map(|_| ()).map_err(|failed| failed.error)
            };
            let said = format!("rank 1 sends {len} × u32 to rank 2, which takes {}", len - 1);
            both_are_told(link, (3, [1, 2]), call, &said);
        }
    }
}

#[test]
fn another_call_is_told_as_such() {
    for link in LINKS {
        world(link, 2, move |mut comm| {
            let result = match comm.rank().0 {
                1 => comm.scatter_v(vec![0u32; 9], &[], 0).wait().map(|_| ()),
                _ => comm.all_to_all_v(vec![0u32; 6], &[3; 2]).wait().map(|_| ()),
            };
            let error = result.unwrap_err().error;
            assert!(matches!(error, Error::Mismatch { .. }), "{link:?}: {error}");
            let text = error.to_string();
            assert!(text.contains("rank 0 calls all_to_all_v(u32, mesh-one-shot)"), "{link:?}: {text}");
            assert!(text.contains("rank 1 calls scatter_v(u32, root 0, flat-tree)"), "{link:?}: {text}");
            crate::common::assert_usable(&mut comm);
        });
    }
}

#[test]
fn counts_that_all_give_are_told() {
    for link in LINKS {
        world(link, 2, move |mut comm| {
            let counts = if comm.rank().0 == 1 { [2, 3] } else { [3, 2] };
            let failed = comm.all_gather_v(vec![0u8; 5], &counts).wait().unwrap_err();
            let text = failed.error.to_string();
            assert!(text.contains("rank 1 calls all_gather_v(5 × u8, counts [2, 3], "), "{link:?}: {text}");
            assert!(text.contains("rank 0 calls all_gather_v(5 × u8, counts [3, 2], "), "{link:?}: {text}");
        });
    }
}

#[test]
fn who_does_not_call_is_named_and_the_others_go_on() {
    for link in LINKS {
        let given_up = Arc::new(Barrier::new(2));
        world(link, 3, move |mut comm| {
            let me = comm.rank().0;
            if me == 2 {
                given_up.wait();
            }
            let counts: &[usize] = if me == 0 { &[50_000; 3] } else { &[] };
            let room = vec![0u32; if me == 0 { 150_000 } else { 50_000 }];
            let call = comm.scatter_v(room, counts, 0);
            let call = if me == 0 { call.timeout(Duration::from_millis(300)) } else { call };
            let result = call.wait().map(|part| part.count).map_err(|failed| failed.error);
            match me {
                0 => {
                    let Err(Error::Deadline(report)) = &result else { panic!("{link:?}: {result:?}") };
                    assert_eq!(report.late, [Rank(2)], "{link:?}");
                    given_up.wait();
                }
                // It may have its part, and keeps it.
                1 => assert!(matches!(&result, Ok(50_000) | Err(Error::Deadline(_))), "{link:?}: {result:?}"),
                _ => assert!(matches!(&result, Err(Error::Aborted { .. })), "{link:?}: {result:?}"),
            }
            crate::common::assert_usable(&mut comm);
        });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut comm = Communicator::local(1).remove(0);
    let told = |failed: Error| {
        assert_eq!(class(&failed), "invalid argument");
        failed.to_string()
    };
    let failed = comm.gather_v(vec![0u8; 3], &[1, 2], 0).wait().unwrap_err();
    assert!(told(failed.error).contains("2 counts for 1 ranks: give one for each"));
    let failed = comm.scatter_v(vec![0u8; 3], &[4], 0).wait().unwrap_err();
    assert!(told(failed.error).contains("the buffer has 3 elements: give it 4, the sum of the counts"));
    let failed = comm.all_to_all_v_into(vec![0u8; 3], &[3], vec![0u8; 2], &[2]).wait().unwrap_err();
    let text = told(failed.error);
    assert!(text.contains("this rank has 3 elements for itself, but room for 2: give it as many"), "{text}");
    let failed = comm.gather_v(vec![0u8; 3], &[3], 1).wait().unwrap_err();
    assert!(told(failed.error).contains("there is no rank 1 among 1"));
    let failed = comm.using(Algorithm::BinomialTree).gather_v(vec![0u8; 3], &[3], 0).wait();
    assert!(failed.is_ok(), "a rank alone sends nothing: {failed:?}");
}

#[test]
fn an_algorithm_that_passes_parts_on_is_refused() {
    for mut comm in Communicator::local(4) {
        let failed =
            comm.using(Algorithm::BinomialTree).gather_v(vec![0u8; 4], &[1; 4], 0).wait().unwrap_err();
        let text = failed.error.to_string();
        assert!(
            text.contains("by \"binomial-tree\" parts come through ranks that don't know how long"),
            "{text}"
        );
    }
}

#[test]
fn under_a_key_and_on_a_thread_that_waits() {
    world(Link::Memory, 2, |mut comm| {
        let me = comm.rank().index();
        let mut keyed = comm.keyed("experts").unwrap();
        let counts = if me == 0 { [0, 1] } else { [1, 2] };
        let input = vec![me as u32 + 1; counts.iter().sum()];
        let (_, output) =
            keyed.all_to_all_v_into(input, &counts, vec![0; counts.iter().sum()], &counts).wait().unwrap();
        assert_eq!(output, if me == 0 { vec![2] } else { vec![1, 2, 2] });
        let mut part = [0u16; 4];
        if me == 0 {
            part = [1, 2, 3, 4];
        }
        let parts: &[usize] = if me == 0 { &[1, 3] } else { &[] };
        let count = blocking::scatter_v(&mut comm, &mut part, parts, 0).unwrap();
        assert_eq!((count, part), if me == 0 { (1, [1, 2, 3, 4]) } else { (3, [2, 3, 4, 0]) });
        let own = [me as u16; 2];
        let mut all = [9u16; 4];
        let room = if me == 1 { &mut all[..] } else { &mut [] };
        blocking::gather_v_into(&mut comm, &own, room, &[2, 2], 1).unwrap();
        assert_eq!(all, if me == 1 { [0, 0, 1, 1] } else { [9; 4] });
    });
}

/// A borrowed buffer with room to spare keeps what is behind its part.
#[test]
fn a_borrowed_buffer_is_filled_as_far_as_its_part_goes() {
    world(Link::Memory, 2, |mut comm| {
        let mut room = [9u8; 4];
        let parts = [7u8, 1, 2];
        let got = match comm.rank() {
            Rank(0) => {
                let mut all = parts;
                comm.scatter_v(&mut all, &[1, 2], 0).wait().unwrap().count
            }
            _ => comm.scatter_v(&mut room, &[], 0).wait().unwrap().count,
        };
        assert_eq!((got, room), if comm.rank().0 == 0 { (1, [9; 4]) } else { (2, [1, 2, 9, 9]) });
    });
}

/// Calls follow each other without waiting, and are not mistaken for each other.
#[test]
fn many_in_flight_are_kept_apart() {
    for link in LINKS {
        let ranks = crate::common::connect(link, 3);
        run(ranks, move |mut comm| {
            let (me, n) = (comm.rank().index(), comm.size());
            let calls: Vec<_> = (0..50)
                .map(|round| {
                    let sent: Vec<usize> = (0..n).map(|to| (me + to + round) % 4 * round).collect();
                    let got: Vec<usize> = (0..n).map(|from| (me + from + round) % 4 * round).collect();
                    let input = filled(memory(&comm, sent.iter().sum(), false), &sent, |to, index| {
                        value(me, to, index + round)
                    });
                    let output = memory(&comm, got.iter().sum(), false);
                    (round, got.clone(), comm.all_to_all_v_into(input, &sent, output, &got))
                })
                .collect();
            for (round, got, call) in calls {
                let (_, output) = call.wait().unwrap();
                check(
                    &output,
                    &got,
                    |from, index| value(from, me, index + round),
                    &format!("{link:?} {round}"),
                );
            }
        });
    }
}
