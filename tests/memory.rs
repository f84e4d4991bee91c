//! Ranks of one process: every operation on the memory link.

use hcomm::{Buffer, Communicator, Rank, ReduceOp};

/// Runs `act` as every rank of a world of `n`, each on a thread of its own.
fn world<R: Send + 'static>(n: usize, act: impl Fn(Communicator) -> R + Send + Clone + 'static) -> Vec<R> {
    let threads: Vec<_> = Communicator::local(n)
        .into_iter()
        .map(|comm| {
            let act = act.clone();
            let mut comm = comm;
            comm.set_deadline(std::time::Duration::from_secs(3));
            std::thread::spawn(move || act(comm))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
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
