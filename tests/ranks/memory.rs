//! Ranks of one process: every operation on the memory link.

use crate::common::Link;
use hcomm::{Buffer, Communicator, Rank, ReduceOp};

fn world<R: Send + 'static>(n: usize, act: impl Fn(Communicator) -> R + Send + Clone + 'static) -> Vec<R> {
    crate::common::world(Link::Memory, n, act)
}

#[test]
fn all_reduce_sums_every_element_for_odd_worlds_and_counts() {
    for n in [1usize, 2, 3, 4, 5, 8] {
        world(n, move |mut comm| {
            let rank = comm.rank().0 as f32;
            for count in [0usize, 1, n - 1, n, n + 1, 1000, 4099, 300_001] {
                let input: Vec<f32> = (0..count).map(|index| rank + (index % 7) as f32).collect();
                let sum = comm.all_reduce(input, ReduceOp::Sum).wait().unwrap();
                let ranks = (n * (n - 1) / 2) as f32;
                for (index, value) in sum.iter().enumerate() {
                    assert_eq!(*value, ranks + (n * (index % 7)) as f32, "n {n} count {count} index {index}");
                }
            }
        });
    }
}

#[test]
fn other_collectives_and_messages() {
    for n in [1usize, 2, 3, 5] {
        world(n, move |mut comm| {
            let rank = comm.rank().0;
            let mut parts = vec![0u32; 3 * n];
            parts[3 * rank as usize..][..3].fill(rank + 1);
            let all = comm.all_gather(parts).wait().unwrap();
            assert!(all.iter().enumerate().all(|(index, value)| *value == index as u32 / 3 + 1));
            let part = comm.reduce_scatter(vec![rank as u64; 2 * n], ReduceOp::Max).wait().unwrap();
            assert_eq!(part[2 * rank as usize..][..2], [n as u64 - 1; 2]);
            let mut from_last = Buffer::<i16>::zeroed(70_000);
            if rank as usize == n - 1 {
                from_last.fill(-3);
            }
            let from_last = comm.broadcast(from_last, Rank(n as u32 - 1)).wait().unwrap();
            assert!(from_last.iter().all(|value| *value == -3));
            comm.barrier().wait().unwrap();
            let next = Rank((rank + 1) % n as u32);
            let before = Rank((rank + n as u32 - 1) % n as u32);
            let sent = comm.send(next, 5, vec![rank; 50_000]);
            let got = comm.recv(before, 5, vec![0u32; 50_000]).wait().unwrap();
            sent.wait().unwrap();
            assert!(got.iter().all(|value| *value == before.0));
        });
    }
}

/// The same numbers on every rank.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// Calls of all sizes, several in flight at once, awaited in another order on each rank, and now and then one given up.
#[test]
fn calls_in_flight_together_are_right_or_given_up() {
    const ROUNDS: usize = 60;
    for n in [2usize, 3, 4, 5, 8] {
        world(n, move |mut comm| {
            comm.set_deadline(std::time::Duration::from_secs(60));
            let rank = comm.rank().0;
            let (mut shared, mut own) = (Numbers(n as u64), Numbers(u64::from(rank) + 99));
            for round in 0..ROUNDS {
                let mut flying = Vec::new();
                for _ in 0..=shared.below(3) {
                    let count = [0, 1, 2, 3, 1000, 16_384, 70_001][shared.below(7)];
                    let given_up = shared.below(10) == 0;
                    let input: Vec<i64> = (0..count).map(|at| i64::from(rank) + at as i64).collect();
                    let call = comm.all_reduce(input, ReduceOp::Sum);
                    if given_up && rank as usize == round % n {
                        call.cancel();
                    }
                    flying.push((call, count, given_up));
                }
                while !flying.is_empty() {
                    let (call, count, given_up) = flying.swap_remove(own.below(flying.len()));
                    match call.wait() {
                        Ok(sum) => {
                            let ranks = (n * (n - 1) / 2) as i64;
                            assert_eq!(sum.len(), count);
                            let is_right = |(at, value): (usize, &i64)| *value == ranks + (n * at) as i64;
                            assert!(
                                sum.iter().enumerate().all(is_right),
                                "n {n} round {round} count {count}"
                            );
                        }
                        Err(failed) => assert!(given_up, "n {n} round {round}: {}", failed.error),
                    }
                }
            }
        });
    }
}

/// A contradiction is told although nobody sends anything: what is lent stands, and is only looked at.
#[test]
fn calls_that_differ_after_many_that_agree_are_told() {
    for n in [2usize, 3, 5] {
        world(n, move |mut comm| {
            comm.set_deadline(std::time::Duration::from_secs(60));
            for _ in 0..20 {
                let _ = comm.all_reduce(vec![1.0f32; 300], ReduceOp::Sum).wait().unwrap();
            }
            let op = if comm.rank() == Rank(n as u32 - 1) { ReduceOp::Max } else { ReduceOp::Sum };
            let failed = comm.all_reduce(vec![1.0f32; 300], op).wait().unwrap_err();
            assert!(matches!(failed.error, hcomm::Error::Mismatch { .. }), "{}", failed.error);
            assert_eq!(failed.buffer.map(|buffer| buffer.len()), Some(300), "the buffer comes back");
            let again = comm.all_reduce(vec![1.0f32; 300], ReduceOp::Sum).wait().unwrap();
            assert!(again.iter().all(|value| *value == n as f32));
            // Another operation altogether.
            let failed = match comm.rank() {
                Rank(0) => comm.broadcast(vec![1.0f32; 300], Rank(1)).wait().unwrap_err(),
                _ => comm.all_reduce(vec![1.0f32; 300], ReduceOp::Sum).wait().unwrap_err(),
            };
            assert!(matches!(failed.error, hcomm::Error::Mismatch { .. }), "{}", failed.error);
        });
    }
}
