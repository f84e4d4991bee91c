//! `hcomm::blocking`: slices are lent without a copy. They are right when the call has gone well; and when it returns,
//! whichever way, they are their owner's again: what he writes there at once reaches nobody, and nobody writes over it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::processes::{Processes, Role, say};
use crate::common::{
    GENEROUS, LINKS, Link, Random, assert_usable, class, connect, meeting_place, run, world,
};
use hcomm::path::Algorithm;
use hcomm::{Communicator, Error, Rank, ReduceOp, blocking};
use rustix::process::Signal;

/// What owners write into their slices once a call has returned.
const OWN: u32 = 0xdddd_dddd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    /// From rank 0 to all others.
    Messages,
}

const KINDS: [Kind; 5] =
    [Kind::AllReduce, Kind::Broadcast, Kind::AllGather, Kind::ReduceScatter, Kind::Messages];

/// What a rank hands in at an index.
fn value(rank: usize, index: usize) -> u32 {
    (rank as u32 + 1).wrapping_mul(0x9e37_79b1).wrapping_add(index as u32)
}

impl Kind {
    /// `part` elements of each rank.
    fn input(self, rank: usize, n: usize, part: usize) -> Vec<u32> {
        let mine = |index: usize| match self {
            Kind::AllReduce | Kind::ReduceScatter => true,
            Kind::Broadcast | Kind::Messages => rank == 0,
            Kind::AllGather => index / part == rank,
        };
        (0..n * part).map(|index| if mine(index) { value(rank, index) } else { 1 }).collect()
    }

    /// `tag` is for messages: one that nobody has taken must not be taken for the next.
    fn call(self, comm: &mut Communicator, slice: &mut [u32], tag: u32) -> Result<(), Error> {
        match self {
            Kind::AllReduce => blocking::all_reduce(comm, slice, ReduceOp::Sum),
            Kind::Broadcast => blocking::broadcast(comm, slice, Rank(0)),
            Kind::AllGather => blocking::all_gather(comm, slice),
            Kind::ReduceScatter => blocking::reduce_scatter(comm, slice, ReduceOp::Sum),
            Kind::Messages if comm.rank() == Rank(0) => {
                // Also if one of them fails: each is between two.
                let send = |to| blocking::send(comm, Rank(to), tag, slice);
                (1..comm.size() as u32).map(send).fold(Ok(()), Result::and)
            }
            Kind::Messages => blocking::recv(comm, Rank(0), tag, slice),
        }
    }

    fn assert_right(self, rank: usize, n: usize, slice: &[u32], context: &str) {
        let part = slice.len() / n;
        let sum = |index| (0..n).fold(0u32, |sum, of| sum.wrapping_add(value(of, index)));
        for (index, got) in slice.iter().enumerate() {
            let expected = match self {
                Kind::AllReduce => sum(index),
                Kind::Broadcast | Kind::Messages => value(0, index),
                Kind::AllGather => value(index / part, index),
                Kind::ReduceScatter if index / part == rank => sum(index),
                // Undefined.
                Kind::ReduceScatter => continue,
            };
            assert_eq!(*got, expected, "{context}: rank {rank} index {index}");
        }
    }
}

#[test]
fn every_element_is_right_and_what_is_written_afterwards_reaches_nobody() {
    for link in LINKS {
        for n in 3..=5 {
            world(link, n, move |mut comm| {
                let rank = comm.rank().index();
                for kind in KINDS {
                    for (round, part) in [1usize, 7, 5_003, 30_001, 30_001, 30_001].into_iter().enumerate() {
                        let mut slice = kind.input(rank, n, part).into_boxed_slice();
                        kind.call(&mut comm, &mut slice, 3).unwrap();
                        // Who does not look writes over it while the others may not have got theirs.
                        if rank != round % n {
                            kind.assert_right(rank, n, &slice, &format!("{link:?} n {n} {kind:?} {part}"));
                        }
                        slice.fill(OWN);
                    }
                }
                blocking::barrier(&mut comm).unwrap();
            });
        }
    }
}

#[test]
fn options_keys_and_prepared_handles_take_slices_without_a_copy() {
    const PART: usize = 1 << 17;
    for link in LINKS {
        for n in [3, 4] {
            world(link, n, move |mut comm| {
                let (rank, sum) = (comm.rank().index(), ReduceOp::Sum);
                let prepared = comm.bulk().prepare_all_reduce::<u32>(n * PART, sum).unwrap();
                let mut layer = comm.keyed("layer").unwrap();
                let under_key = layer.prepare_all_reduce::<u32>(n * PART, sum).unwrap();
                let check = |kind: Kind, call: &mut dyn FnMut(&mut [u32]) -> Result<(), Error>| {
                    let mut slice = kind.input(rank, n, PART);
                    call(&mut slice).unwrap();
                    kind.assert_right(rank, n, &slice, &format!("{link:?} n {n} {kind:?}"));
                    slice.fill(OWN);
                };
                check(Kind::AllReduce, &mut |data| {
                    comm.using(Algorithm::Ring).urgent().blocking().all_reduce(data, sum)
                });
                check(Kind::Broadcast, &mut |data| comm.bulk().blocking().broadcast(data, 0));
                check(Kind::AllGather, &mut |data| comm.urgent().blocking().all_gather(data));
                check(Kind::ReduceScatter, &mut |data| comm.bulk().blocking().reduce_scatter(data, sum));
                check(Kind::AllReduce, &mut |data| blocking::run(&mut comm, &prepared, data));
                check(Kind::AllReduce, &mut |data| layer.blocking().all_reduce(data, sum));
                check(Kind::AllReduce, &mut |data| layer.run_blocking(&under_key, data));
                layer.blocking().barrier().unwrap();
                let beside = comm.resources().in_use_max;
                assert!(beside < n * PART * size_of::<u32>(), "{link:?}: {beside} bytes beside the slices");
                let refused = blocking::run(&mut comm, &under_key, &mut vec![0; n * PART]);
                assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
            });
        }
    }
}

/// How a call is made to fail on some rank.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// A rank comes when the deadline of others is over.
    Late,
    /// A rank has a deadline at some point of the operation.
    Hurry,
    /// A rank gives it up at some point of the operation.
    Cancel,
}

/// The call of the rank that makes trouble, by value; others have theirs lent.
fn given_up(
    kind: Kind,
    comm: &mut Communicator,
    input: Vec<u32>,
    tag: u32,
    after: Duration,
) -> Result<(), Error> {
    let operation = match kind {
        Kind::AllReduce => comm.all_reduce(input, ReduceOp::Sum),
        Kind::Broadcast => comm.broadcast(input, Rank(0)),
        Kind::AllGather => comm.all_gather(input),
        Kind::ReduceScatter => comm.reduce_scatter(input, ReduceOp::Sum),
        // A message is between two: who receives gives it up.
        Kind::Messages => comm.recv(Rank(0), tag, input),
    };
    std::thread::sleep(after);
    operation.cancel();
    Ok(operation.wait().map(drop)?)
}

/// One call that may fail on any rank; then the slice is written over, and watched until all have returned.
fn troubled(link: Link, n: usize, seed: u64, trouble: Trouble, comm: &mut Communicator, all: &Barrier) {
    // All draw the same, and then each for itself.
    let mut random = Random(seed);
    let kind = random.one_of(&KINDS);
    let part = random.one_of(&[300usize, 20_000, 70_000]);
    let troubler = 1 + random.below(n - 1);
    let rank = comm.rank().index();
    let context = format!("{link:?} n {n} seed {seed}: {trouble:?} {troubler}, {kind:?} of {part}");
    let mut own = Random(seed ^ (rank as u64 + 1) << 32);
    let (start, when) = (own.millis(3), own.millis(12));
    let mut slice = kind.input(rank, n, part).into_boxed_slice();
    let (is_troubler, tag) = (rank == troubler, seed as u32);
    if kind == Kind::Messages {
        // Who sends, or receives, after the other has given up waits for nobody.
        comm.set_deadline(Duration::from_millis(400));
    }
    all.wait();
    let result = match trouble {
        Trouble::Late if is_troubler => {
            all.wait();
            kind.call(comm, &mut slice, tag)
        }
        Trouble::Late => {
            comm.set_deadline(Duration::from_millis(60) + when);
            let result = kind.call(comm, &mut slice, tag);
            slice.fill(OWN);
            all.wait();
            // A root has sent all, or may have.
            let must_fail = matches!(kind, Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter);
            assert!(
                result.is_err() || !must_fail,
                "{context}: rank {rank} has a result without another's part"
            );
            result
        }
        Trouble::Hurry => {
            if is_troubler {
                comm.set_deadline(when);
            }
            std::thread::sleep(start);
            kind.call(comm, &mut slice, tag)
        }
        Trouble::Cancel => {
            std::thread::sleep(start);
            let input = slice.to_vec();
            if is_troubler {
                given_up(kind, comm, input, tag, when)
            } else {
                kind.call(comm, &mut slice, tag)
            }
        }
    };
    match result {
        Ok(()) if matches!(trouble, Trouble::Late) || matches!(trouble, Trouble::Cancel) && is_troubler => {}
        // Rank 0 does not look.
        Ok(()) if rank > 0 => kind.assert_right(rank, n, &slice, &context),
        Ok(()) => {}
        Err(error) => {
            // A deadline is told to all, with the rank whose it was.
            let known = match &error {
                Error::Deadline(_) if kind == Kind::Messages => true,
                Error::Deadline(report) => match trouble {
                    Trouble::Late => report.rank.index() != troubler,
                    Trouble::Hurry => report.rank.index() == troubler,
                    Trouble::Cancel => false,
                },
                Error::Cancelled { .. } => matches!(trouble, Trouble::Cancel) && is_troubler,
                error => class(error) == "aborted",
            };
            assert!(known, "{context}: rank {rank}: {error}");
        }
    }
    slice.fill(OWN);
    all.wait();
    assert!(slice.iter().all(|value| *value == OWN), "{context}: rank {rank}: written by another");
    drop(slice);
    comm.set_deadline(GENEROUS);
    assert_usable(comm);
}

fn in_trouble(link: Link, n: usize, trouble: Trouble, seeds: std::ops::Range<u64>) {
    let all = Arc::new(Barrier::new(n));
    world(link, n, move |mut comm| {
        for seed in seeds.clone() {
            troubled(link, n, seed, trouble, &mut comm, &all);
        }
    });
}

#[test]
fn a_slice_is_its_owners_when_a_rank_was_late() {
    for link in LINKS {
        for n in 3..=5 {
            in_trouble(link, n, Trouble::Late, 0..5);
        }
    }
}

#[test]
fn a_slice_is_its_owners_when_the_time_was_up_half_way() {
    for link in LINKS {
        for n in 3..=5 {
            in_trouble(link, n, Trouble::Hurry, 0..10);
        }
    }
}

#[test]
fn a_slice_is_its_owners_when_another_gave_up_half_way() {
    for link in LINKS {
        for n in 3..=5 {
            in_trouble(link, n, Trouble::Cancel, 0..10);
        }
    }
}

#[test]
#[ignore = "takes a minute"]
fn a_slice_is_its_owners_whenever_another_gave_up() {
    for link in LINKS {
        for n in 3..=5 {
            in_trouble(link, n, Trouble::Hurry, 100..160);
            in_trouble(link, n, Trouble::Cancel, 100..160);
        }
    }
}

/// The rank is lost before it calls, while the others are in the middle of their parts.
#[test]
fn a_slice_is_its_owners_when_a_rank_was_lost() {
    for link in LINKS {
        for n in 3..=5 {
            for kind in KINDS {
                let all = Arc::new(Barrier::new(n));
                run(connect(link, n), move |mut comm| {
                    let rank = comm.rank().index();
                    if rank == 1 {
                        all.wait();
                        std::thread::sleep(Duration::from_millis(5));
                        // As a panic, without its message.
                        let lost = catch_unwind(AssertUnwindSafe(move || {
                            let _comm = comm;
                            resume_unwind(Box::new("on purpose"));
                        }));
                        assert!(lost.is_err());
                        all.wait();
                        return;
                    }
                    let context = format!("{link:?} n {n} {kind:?}: rank {rank}");
                    let mut slice = kind.input(rank, n, 40_000).into_boxed_slice();
                    all.wait();
                    match kind.call(&mut comm, &mut slice, 3) {
                        // Messages that have to do with others; a root that has sent all.
                        Ok(()) => kind.assert_right(rank, n, &slice, &context),
                        Err(Error::PeerLost { rank: Rank(1), .. } | Error::Failed { .. }) => {}
                        Err(error) => panic!("{context}: {error}"),
                    }
                    slice.fill(OWN);
                    all.wait();
                    assert!(slice.iter().all(|value| *value == OWN), "{context}: written by another");
                });
            }
        }
    }
}

/// A process of a world.
pub fn child(Role { count, joined, .. }: Role) {
    let mut comm = joined.unwrap();
    let (rank, n) = (comm.rank().index(), comm.size());
    for round in 0.. {
        for kind in KINDS {
            let context = format!("round {round} {kind:?}");
            let mut slice = kind.input(rank, n, count).into_boxed_slice();
            match kind.call(&mut comm, &mut slice, 3) {
                Ok(()) => kind.assert_right(rank, n, &slice, &context),
                Err(error) => {
                    slice.fill(OWN);
                    std::thread::sleep(Duration::from_millis(100));
                    assert!(slice.iter().all(|value| *value == OWN), "{context}: written by another");
                    say(&format!("{} {}", class(&error), error.blamed()[0]));
                    std::process::exit(0);
                }
            }
            slice.fill(OWN);
        }
        if round == 0 {
            say("running");
        }
    }
}

#[test]
fn a_slice_is_its_owners_when_a_process_was_killed() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let (n, victim) = (3 + seed as usize % 3, 1);
        let mut world = Processes::start("blocking: slices", n, 40_000, &meeting_place(), 30);
        world.all_say("running", None);
        std::thread::sleep(random.millis(30));
        world.signal(victim, Signal::KILL);
        world.all_say(&format!("peer lost {victim}"), Some(victim));
        world.end(Some(victim));
    }
}
