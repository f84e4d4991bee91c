//! Every algorithm where it can be used, on the engine: worlds and counts that are no multiple of anything, on all links,
//! every element checked.

use crate::common::{LINKS, Link, world};
use hcomm::path::{Algorithm, Collective};
use hcomm::{Buffer, Communicator, Rank, ReduceOp};

/// What a rank hands in at an index.
fn value(rank: usize, index: usize) -> u64 {
    (rank as u64 + 1) * 1_000_003 + index as u64
}

fn all_algorithms(comm: &mut Communicator, counts: &[usize], context: &str) {
    let (me, n) = (comm.rank().index(), comm.size());
    let sum = |index: usize| (0..n).map(|rank| value(rank, index)).sum::<u64>();
    for algorithm in Algorithm::ALL.iter().copied() {
        for count in counts.iter().copied() {
            let context = format!("{context} {algorithm} count {count} rank {me}");
            // In memory that others read, on some ranks, and not on others.
            let memory = |comm: &Communicator, count: usize| match (me + count) % 2 {
                0 => comm.alloc::<u64>(count),
                _ => Buffer::zeroed(count),
            };
            let mine = |comm: &Communicator, count: usize| {
                let mut buffer = memory(comm, count);
                buffer.iter_mut().enumerate().for_each(|(index, element)| *element = value(me, index));
                buffer
            };
            if algorithm.supports(Collective::AllReduce) {
                let all = mine(comm, count);
                let got = comm.using(algorithm).all_reduce(all, ReduceOp::Sum).wait().unwrap();
                assert!(
                    got.iter().enumerate().all(|(index, got)| *got == sum(index)),
                    "{context}: all_reduce"
                );
            }
            if algorithm.supports(Collective::ReduceScatter) {
                let all = mine(comm, count * n);
                let got = comm.using(algorithm).reduce_scatter(all, ReduceOp::Sum).wait().unwrap();
                let right = (me * count..(me + 1) * count).all(|index| got[index] == sum(index));
                assert!(right, "{context}: reduce_scatter");
            }
            if algorithm.supports(Collective::AllGather) {
                let own = mine(comm, count);
                let mut all = memory(comm, count * n);
                all[me * count..(me + 1) * count].copy_from_slice(&own);
                let got = comm.using(algorithm).all_gather(all).wait().unwrap();
                let right = (0..count * n).all(|index| got[index] == value(index / count, index % count));
                assert!(right, "{context}: all_gather");
            }
            for root in [0, n / 2, n - 1] {
                let root = Rank(root as u32);
                if algorithm.supports(Collective::Broadcast { root }) {
                    let all = mine(comm, count);
                    let got = comm.using(algorithm).broadcast(all, root).wait().unwrap();
                    let right = |(index, got): (usize, &u64)| *got == value(root.index(), index);
                    assert!(got.iter().enumerate().all(right), "{context}: broadcast from {root}");
                }
            }
        }
    }
}

/// Nothing, one, around the number of ranks, eager, more than a frame.
fn run(link: Link, n: usize) {
    let counts = [0, 1, n - 1, n, n + 1, 61, 1009, if n <= 8 { 30_011 } else { 18_013 }];
    world(link, n, move |mut comm| all_algorithms(&mut comm, &counts, &format!("{link:?} n {n}")));
}

#[test]
fn every_algorithm_is_right_in_some_worlds() {
    for link in LINKS {
        for n in [2, 3, 5, 8] {
            run(link, n);
        }
    }
}

/// As much as goes without being asked for, and as much as a frame holds or is reduced at a time: exactly that, one element
/// less and more, and one more than that for each rank.
#[test]
fn every_algorithm_is_right_around_the_size_of_a_frame() {
    /// Elements of an eager message of 64 KiB at most, and of a frame's payload of 128 KiB.
    const EAGER: usize = (64 << 10) / size_of::<u64>();
    const FRAME: usize = 2 * EAGER;
    for link in LINKS {
        for n in [2, 3] {
            let mut counts = vec![EAGER, EAGER + 1, FRAME - 1, FRAME, FRAME + 1];
            // Once: it takes the most time.
            counts.extend((n == 2).then_some(2 * FRAME * n + 1));
            // So much is read in another process's memory although that is not mapped.
            counts.extend((n == 2 && link == Link::Shm).then_some(300_001));
            world(link, n, move |mut comm| all_algorithms(&mut comm, &counts, &format!("{link:?} n {n}")));
        }
    }
}

#[test]
#[ignore = "takes a minute"]
fn every_algorithm_is_right_in_worlds_up_to_seventeen() {
    for link in LINKS {
        for n in 1..=17 {
            run(link, n);
        }
    }
}
