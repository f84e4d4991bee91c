//! Faults of ranks and hosts, and ranks that give up what they have called.

use std::time::Duration;

use hcomm::testing::Net;
use hcomm::{Communicator, Error, Rank};

use crate::SIZES;
use crate::program::{Call, InFlight, Random, What, blamed, call, world};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Kill,
    Vanish,
    Partition,
    /// A partition that ends before anybody gives up.
    Healed,
    Pause,
}

/// Sums in a loop until something fails, or all is done.
async fn sums(mut comm: Communicator, mut random: Random, rounds: usize) -> Result<(), Error> {
    comm.set_deadline(Duration::from_secs(90));
    for _ in 0..rounds {
        let call = call(&mut random, comm.size());
        call.begin(&mut comm).end().await.map_err(|error| error.error)?;
    }
    Ok(())
}

pub fn errors_name_who_is_at_fault(seed: u64) {
    let mut random = Random(seed);
    let n = random.one_of(&SIZES);
    let fault = random.one_of(&[Fault::Kill, Fault::Vanish, Fault::Partition, Fault::Healed, Fault::Pause]);
    let victims = if matches!(fault, Fault::Partition | Fault::Healed) { 1 + random.below(n - 1) } else { 1 };
    let first = random.below(n);
    let victims: Vec<Rank> = (0..victims).map(|index| Rank(((first + index) % n) as u32)).collect();
    let (when, lasts) = (random.millis(60), Duration::from_millis(10) + random.millis(8000));
    let programs = random.clone();
    let net = |net: Net, victims: Vec<Rank>| async move {
        tokio::time::sleep(when).await;
        match fault {
            Fault::Kill => net.kill(victims[0]),
            Fault::Vanish => net.vanish(victims[0]),
            Fault::Partition => net.partition(&victims),
            Fault::Healed => {
                net.partition(&victims);
                tokio::time::sleep(lasts).await;
                net.heal();
            }
            Fault::Pause => net.pause(victims[0], lasts),
        }
    };
    let results = world(seed, n, &mut random).run(|comm, of| {
        if comm.rank() == Rank(0) {
            tokio::spawn(net(of, victims.clone()));
        }
        sums(comm, programs.clone(), 12)
    });
    for (rank, result) in results.iter().enumerate() {
        let me = Rank(rank as u32);
        let Some(Err(error)) = result else { continue };
        assert!(
            !matches!(fault, Fault::Healed | Fault::Pause),
            "seed {seed}: {fault:?} of {victims:?}: rank {rank}: {error}"
        );
        let cut_off = |of: &Rank| fault == Fault::Partition && victims.contains(of) != victims.contains(&me);
        let at_fault = |of: &Rank| cut_off(of) || fault != Fault::Partition && victims.contains(of);
        let blamed = blamed(error);
        assert!(
            !blamed.is_empty() && blamed.iter().all(at_fault),
            "seed {seed}: {fault:?} of {victims:?} of {n}: rank {rank}: {error}"
        );
    }
}

/// Ranks cancel and drop what they have called; who did not gets the result, or is told who did.
pub fn others_survive_cancelling(seed: u64) {
    let mut random = Random(seed);
    let n = random.one_of(&SIZES);
    let calls: Vec<Call> = (0..8).map(|_| call(&mut random, n)).collect();
    // Per rank and call: after how long it is cancelled or dropped, if it is.
    let fates: Vec<Vec<Fate>> =
        (0..n).map(|_| calls.iter().map(|call| Fate::draw(&mut random, call)).collect()).collect();
    let cancelled = |index: usize, by: Rank| matches!(fates[by.index()][index], Fate::Cancel(_));
    let results = world(seed, n, &mut random).run(|mut comm, _| {
        let (calls, fates) = (calls.clone(), fates[comm.rank().index()].clone());
        async move {
            comm.set_deadline(Duration::from_secs(60));
            let mut errors = Vec::new();
            for (call, fate) in calls.iter().zip(fates) {
                let flying = call.begin(&mut comm);
                errors.push(fate.befall(flying).await);
            }
            comm.barrier().await.map_err(|error| error.error).map(|_| errors)
        }
    });
    for (rank, result) in results.iter().enumerate() {
        let errors = result.as_ref().unwrap().as_ref();
        let errors = errors.unwrap_or_else(|error| panic!("seed {seed}: rank {rank}: barrier: {error}"));
        for (index, error) in errors.iter().enumerate() {
            let fine = match error {
                None => true,
                Some(Error::Cancelled { .. }) => cancelled(index, Rank(rank as u32)),
                Some(Error::Aborted { by, .. }) => cancelled(index, *by),
                Some(_) => false,
            };
            assert!(fine, "seed {seed}: rank {rank} in {:?}: {error:?}", calls[index]);
        }
    }
}

/// What a rank does with a call of its own.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Await,
    Cancel(Duration),
    Drop(Duration),
}

impl Fate {
    fn draw(random: &mut Random, call: &Call) -> Fate {
        match (random.below(8), call.what) {
            // A message that one side gives up before the other has called leaves that waiting.
            (0, What::AllReduce(_) | What::Broadcast(_) | What::AllGather | What::ReduceScatter(_)) => {
                Fate::Cancel(random.millis(20))
            }
            (1, _) => Fate::Drop(random.millis(20)),
            _ => Fate::Await,
        }
    }

    async fn befall(self, flying: InFlight) -> Option<Error> {
        match self {
            Fate::Await => flying.end().await.err().map(|error| error.error),
            Fate::Cancel(after) => {
                tokio::time::sleep(after).await;
                flying.operation.cancel();
                flying.end().await.err().map(|error| error.error)
            }
            Fate::Drop(after) => {
                let _ = tokio::time::timeout(after, flying.end()).await;
                None
            }
        }
    }
}
