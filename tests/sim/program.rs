//! Programs drawn from a seed, and what must come out of them.

use std::time::Duration;

pub use crate::common::Random;
use hcomm::path::Algorithm;
use hcomm::testing::World;
use hcomm::{Communicator, Error, OpError, Operation, Rank, ReduceOp};

/// A call of all ranks.
#[derive(Clone, Debug)]
pub struct Call {
    pub what: What,
    /// Elements of the whole vector, or of the message.
    pub count: usize,
    pub algorithm: Option<Algorithm>,
    /// Makes its values.
    pub salt: u64,
    /// With values whose sums round.
    pub rounds: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    AllReduce(ReduceOp),
    Broadcast(usize),
    AllGather,
    ReduceScatter(ReduceOp),
    /// Each rank sends to the one so many further, and receives from the one so many before.
    Shift(usize),
}

/// Below the eager limit mostly; beyond it, and beyond a frame, now and then.
const COUNTS: [usize; 10] = [0, 1, 2, 3, 10, 100, 300, 1000, 2000, 4000];
const LARGE: [usize; 3] = [17_000, 20_000, 40_000];

pub fn calls(random: &mut Random, n: usize, count: usize) -> Vec<Call> {
    (0..count).map(|_| call(random, n)).collect()
}

pub fn call(random: &mut Random, n: usize) -> Call {
    let op = random.one_of(&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min]);
    let (what, algorithms): (What, &[Algorithm]) = match random.below(6) {
        0 | 1 => (
            What::AllReduce(op),
            &[
                Algorithm::MeshOneShot,
                Algorithm::MeshTwoShot,
                Algorithm::FlatTree,
                Algorithm::RecursiveDoubling,
                Algorithm::HalvingDoubling,
                Algorithm::Ring,
            ],
        ),
        2 => (What::Broadcast(random.below(n)), &[Algorithm::BinomialTree]),
        3 => (What::AllGather, &[Algorithm::Ring]),
        4 => (What::ReduceScatter(op), &[Algorithm::Ring]),
        _ => (What::Shift(random.below(n)), &[]),
    };
    let chosen = random.below(2) == 1 && !algorithms.is_empty();
    let algorithm = chosen.then(|| random.one_of(algorithms));
    let large = random.below(12) == 0;
    let count = if large { random.one_of(&LARGE) } else { random.one_of(&COUNTS) };
    let count = match what {
        What::AllGather | What::ReduceScatter(_) => count / n * n,
        _ => count,
    };
    Call { what, count, algorithm, salt: random.next(), rounds: random.below(3) == 0 }
}

impl Call {
    fn value(&self, rank: usize, index: usize) -> f32 {
        let word = (self.salt as u32 ^ (rank as u32).wrapping_mul(0x9e37_79b9))
            .wrapping_add((index as u32).wrapping_mul(0x85eb_ca6b));
        let whole = (word >> 12) as u16 as f32;
        if self.rounds { whole * 0.1 } else { whole }
    }

    fn part(&self, rank: usize, count: usize) -> Vec<f32> {
        (0..count).map(|index| self.value(rank, index)).collect()
    }

    /// Begins it on this rank.
    pub fn begin(&self, comm: &mut Communicator) -> InFlight {
        let (rank, n) = (comm.rank().index(), comm.size());
        let mut all = Vec::new();
        if self.what == What::AllGather {
            let own = self.count / n;
            all = vec![0.0; self.count];
            all[rank * own..(rank + 1) * own].copy_from_slice(&self.part(rank, own));
        } else if !matches!(self.what, What::Broadcast(root) if root != rank) {
            all = self.part(rank, self.count);
        }
        all.resize(self.count, 0.0);
        let mut sent = None;
        let operation = match (self.what, self.algorithm) {
            (What::AllReduce(op), None) => comm.all_reduce(all, op),
            (What::AllReduce(op), Some(algorithm)) => comm.using(algorithm).all_reduce(all, op),
            (What::Broadcast(root), None) => comm.broadcast(all, Rank(root as u32)),
            (What::Broadcast(root), Some(algorithm)) => {
                comm.using(algorithm).broadcast(all, Rank(root as u32))
            }
            (What::AllGather, None) => comm.all_gather(all),
            (What::AllGather, Some(algorithm)) => comm.using(algorithm).all_gather(all),
            (What::ReduceScatter(op), None) => comm.reduce_scatter(all, op),
            (What::ReduceScatter(op), Some(algorithm)) => comm.using(algorithm).reduce_scatter(all, op),
            (What::Shift(by), _) => {
                let tag = self.salt as u32;
                sent = Some(comm.send(Rank(((rank + by) % n) as u32), tag, all));
                comm.recv(Rank(((rank + n - by) % n) as u32), tag, vec![0.0f32; self.count])
            }
        };
        InFlight { call: self.clone(), rank, n, operation, sent }
    }

    /// What a rank must get; `None` where sums round.
    fn expected(&self, rank: usize, n: usize) -> Option<Vec<f32>> {
        let combine = |op: ReduceOp, range: std::ops::Range<usize>| {
            let one = |index| {
                let values = (0..n).map(|rank| self.value(rank, index));
                match op {
                    ReduceOp::Max => values.fold(f32::MIN, f32::max),
                    ReduceOp::Min => values.fold(f32::MAX, f32::min),
                    _ => values.sum(),
                }
            };
            let exact = op != ReduceOp::Sum || !self.rounds;
            exact.then(|| range.map(one).collect::<Vec<f32>>())
        };
        let own = self.count / n;
        match self.what {
            What::AllReduce(op) => combine(op, 0..self.count),
            What::Broadcast(root) => Some(self.part(root, self.count)),
            What::AllGather => Some((0..n).flat_map(|rank| self.part(rank, own)).collect()),
            What::ReduceScatter(op) => combine(op, rank * own..(rank + 1) * own),
            What::Shift(by) => Some(self.part((rank + n - by) % n, self.count)),
        }
    }
}

/// A call that has begun on one rank.
pub struct InFlight {
    call: Call,
    rank: usize,
    n: usize,
    pub operation: Operation<Vec<f32>>,
    pub sent: Option<Operation<Vec<f32>>>,
}

impl InFlight {
    /// Its result as bits. Panics if that is not what it must be.
    pub async fn end(self) -> Result<Vec<u32>, OpError<Vec<f32>>> {
        let InFlight { call, rank, n, operation, sent } = self;
        let mut got = operation.await?;
        if let Some(sent) = sent {
            sent.await?;
        }
        if let What::ReduceScatter(_) = call.what {
            let own = call.count / n;
            got = got[rank * own..(rank + 1) * own].to_vec();
        }
        if let Some(expected) = call.expected(rank, n) {
            assert!(got == expected, "rank {rank} of {n}: wrong result of {call:?}");
        }
        Ok(got.iter().map(|value| value.to_bits()).collect())
    }
}

/// The network of a schedule: mostly bad.
pub fn world(seed: u64, n: usize, random: &mut Random) -> World {
    let micros = |from, to| Duration::from_micros(from)..Duration::from_micros(to);
    let delay = random.one_of(&[micros(0, 1), micros(50, 900), micros(100, 5000), micros(1000, 30_000)]);
    let mut world = World::new(n)
        .seed(seed)
        .delay(delay)
        .loss(random.one_of(&[0.0, 0.01, 0.05, 0.1]))
        .duplicate(random.one_of(&[0.0, 0.02, 0.2]))
        .reorder(random.one_of(&[0.0, 0.05, 0.3]))
        .limit(Duration::from_secs(600));
    if random.below(3) == 0 {
        // One direction of one pair is slow.
        let (from, to) = (random.below(n) as u32, random.below(n) as u32);
        world = world.edge(Rank(from), Rank(to), micros(20_000, 60_000));
    }
    world
}

/// The ranks that an error blames, unless it only names who gave up.
pub fn blamed(error: &Error) -> &[Rank] {
    if let Error::Aborted { .. } = error { &[] } else { error.blamed() }
}
