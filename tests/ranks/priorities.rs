//! What is urgent overtakes, what can wait waits but never stands still, and no result changes.

use crate::common::{LINKS, Random, assert_usable, world};
use hcomm::path::Algorithm;
use hcomm::{Communicator, Operation, Rank, ReduceOp, SchedulerStats};

/// Elements of what is overtaken: many slices.
const LARGE: usize = 1 << 18;

fn moves(stats: SchedulerStats) -> [u64; 3] {
    [stats.urgent, stats.normal, stats.bulk]
}

fn large(comm: &mut Communicator, count: usize) -> Vec<Operation<Vec<f32>>> {
    (0..count).map(|_| comm.all_reduce(vec![1f32; LARGE], ReduceOp::Sum)).collect()
}

/// Without driving it.
fn has_ended(operation: &Operation<Vec<f32>>) -> bool {
    format!("{operation:?}").contains("ended: true")
}

/// The same values, however urgent ranks find them, and in whatever mixture.
#[test]
fn results_do_not_depend_on_priority() {
    for link in LINKS {
        let bits = |mixed: bool| {
            world(link, 4, move |mut comm| {
                let mut random = Random(u64::from(comm.rank().0) + 1);
                let mut twin = comm.dup().wait().unwrap();
                let mut sums = Vec::new();
                for round in 0..8usize {
                    let count = [1, 1000, 40_000, 200_000][round % 4];
                    let mine = (0..count).map(|index| 1.0 / (index + round + 1) as f32);
                    let mine: Vec<f32> = mine.map(|value| value * (comm.rank().0 + 1) as f32).collect();
                    let at = if round % 3 == 0 { &mut twin } else { &mut comm };
                    // Each rank has an opinion of its own.
                    sums.push(match random.below(3) {
                        0 if mixed => at.urgent().all_reduce(mine, ReduceOp::Sum),
                        1 if mixed => at.bulk().all_reduce(mine, ReduceOp::Sum),
                        _ => at.all_reduce(mine, ReduceOp::Sum),
                    });
                }
                let sums = sums.into_iter().map(|sum| sum.wait().unwrap());
                let bits: Vec<Vec<u32>> =
                    sums.map(|sum| sum.into_iter().map(f32::to_bits).collect()).collect();
                assert_usable(&mut comm);
                bits
            })
        };
        let mixed = bits(true);
        assert!(mixed.iter().all(|of| *of == mixed[0]), "{link:?}: ranks differ");
        assert!(mixed == bits(false), "{link:?}: priority changes bits");
    }
}

/// Many urgent ones, one after the other, and still the rest goes on.
#[test]
fn nobody_starves() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let mut twin = comm.dup().wait().unwrap();
            let mut rest = large(&mut comm, 3);
            rest.extend((0..3).map(|_| comm.bulk().all_reduce(vec![1f32; LARGE], ReduceOp::Sum)));
            let flying = rest.len() as u64 + 3;
            // Urgent all the time, two at a time, until all the others are done, on all ranks.
            while {
                let open = !rest.iter().all(has_ended);
                let sums = [0, 1].map(|_| twin.urgent().all_reduce(vec![u32::from(open)], ReduceOp::Max));
                let [open, again] = sums.map(|sum| sum.wait().unwrap()[0]);
                assert_eq!(open, again);
                open > 0
            } {}
            let stats = comm.scheduler_stats();
            assert!(stats.urgent > 0 && stats.normal > 0 && stats.bulk > 0, "{stats:?}");
            assert!(stats.waited_max <= 8 + flying, "{stats:?}");
            for sum in rest {
                assert!(sum.wait().unwrap() == vec![3f32; LARGE]);
            }
        });
    }
}

/// Options combine, in any order, and hold for what is prepared.
#[test]
fn options_combine() {
    for link in LINKS {
        world(link, 2, |mut comm| {
            let before = moves(comm.scheduler_stats());
            let sum = comm.urgent().using(Algorithm::Ring).all_reduce(vec![1u8; 9], ReduceOp::Sum);
            assert_eq!(sum.wait().unwrap(), [2; 9]);
            let plan = comm.using(Algorithm::Ring).urgent().prepare_all_reduce(5, ReduceOp::Sum).unwrap();
            assert_eq!(plan.run(&mut comm, vec![2i64; 5]).wait().unwrap(), [4; 5]);
            let sum = comm.using(Algorithm::Ring).bulk().broadcast(vec![0u8; 9], Rank(0));
            assert!(sum.wait().is_err(), "a ring broadcasts nothing");
            comm.bulk().barrier().wait().unwrap();
            let after = moves(comm.scheduler_stats());
            assert!(after[0] > before[0], "{before:?} {after:?}");
        });
    }
}

#[cfg(feature = "testing")]
mod simulated {
    use hcomm::testing::World;

    use super::*;

    /// Calls large ones first and a smaller one last, on the same communicator or on another; how many of the large ones
    /// have ended when the last one has, all ranks together; and for how many turns one that was ready has waited at most.
    fn overtaken(seed: u64, count: usize, urgent: bool, same: bool) -> (usize, u64) {
        let ended = World::new(4).seed(seed).run(|mut comm, _| async move {
            let mut twin = comm.dup().await.unwrap();
            let first = large(&mut comm, 6);
            let at = if same { &mut comm } else { &mut twin };
            let last = if urgent { at.urgent() } else { at.using(Algorithm::MeshTwoShot) };
            let sum = last.using(Algorithm::MeshTwoShot).all_reduce(vec![1u32; count], ReduceOp::Sum).await;
            assert!(sum.unwrap() == vec![4; count], "seed {seed}");
            let ended = first.iter().filter(|sum| has_ended(sum)).count();
            (ended, comm.scheduler_stats().waited_max)
        });
        let add = |(ended, waited), (more, longer): (_, u64)| (ended + more, longer.max(waited));
        ended.into_iter().flatten().fold((0, 0), add)
    }

    #[test]
    fn an_urgent_one_ends_before_large_ones_that_were_called_before() {
        let mut waited_max = 0;
        for seed in 0..8 {
            for count in [8, 100_000] {
                let (ended, waited) = overtaken(seed, count, true, seed % 2 == 0);
                assert_eq!(ended, 0, "seed {seed}, {count} elements");
                // Six others, and itself.
                assert!(waited <= 8 + 7, "seed {seed}: {waited} turns");
                waited_max = waited.max(waited_max);
            }
        }
        // The others have waited for it. A normal one of that size makes nobody wait, and comes last.
        assert!(waited_max > 0);
        for seed in 0..4 {
            let (ended, waited) = overtaken(seed, 100_000, false, seed % 2 == 0);
            assert!(ended > 0 && waited == 0, "seed {seed}: {ended} ended, {waited} turns");
        }
    }
}
