//! Faults of ranks and hosts, and ranks that give up what they have called.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use hcomm::testing::Net;
use hcomm::{Communicator, Error, Rank};

use crate::program::{Call, InFlight, Random, What, blamed, call, world};
use crate::{SIZES, schedules};

/// Half of the smallest share that there is: 77 to 100 of a hundred schedules of a kind test something.
const FAIR_PERCENT: usize = 40;

/// How many schedules of each kind there were, and in how many of them there was something to test: a fault may come when
/// all have ended, and a test of what others then say would pass with nothing said.
#[derive(Default)]
struct Shares(RefCell<BTreeMap<String, (usize, usize)>>);

impl Shares {
    fn note(&self, kind: impl Into<String>, tested: bool) {
        let mut shares = self.0.borrow_mut();
        let (of, all) = shares.entry(kind.into()).or_default();
        *of += usize::from(tested);
        *all += 1;
    }

    fn assert_fair(&self, kind: &str) {
        let (tested, of) = self.0.borrow().get(kind).copied().unwrap_or_default();
        let fair = of > 0 && tested * 100 >= of * FAIR_PERCENT;
        assert!(fair, "{kind}: only {tested} schedules of {of} tested anything");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Kill,
    Vanish,
    Partition,
    /// A partition that ends before anybody gives up.
    Healed,
    Pause,
}

const FAULTS: [Fault; 5] = [Fault::Kill, Fault::Vanish, Fault::Partition, Fault::Healed, Fault::Pause];

/// Sums in a loop until something fails, or all is done; says when it was done.
async fn sums(
    mut comm: Communicator,
    net: Net,
    mut random: Random,
    rounds: usize,
) -> Result<Duration, Error> {
    comm.set_deadline(Duration::from_secs(90));
    for _ in 0..rounds {
        let call = call(&mut random, comm.size());
        call.begin(&mut comm).end().await.map_err(|error| error.error)?;
    }
    Ok(net.now())
}

pub fn errors_name_who_is_at_fault(seeds: Range<u64>) {
    let shares = Shares::default();
    if schedules(seeds, |seed| errors_name_the_fault(seed, &shares)) {
        for fault in FAULTS {
            shares.assert_fair(&format!("{fault:?}"));
        }
    }
}

fn errors_name_the_fault(seed: u64, shares: &Shares) {
    let mut random = Random(seed);
    let n = random.one_of(&SIZES);
    let fault = random.one_of(&FAULTS);
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
            tokio::spawn(net(of.clone(), victims.clone()));
        }
        sums(comm, of, programs.clone(), 12)
    });
    let tested = |result: &Result<Duration, Error>| match fault {
        Fault::Kill | Fault::Vanish | Fault::Partition => result.is_err(),
        // Nobody may fail; but it must have come while somebody was at work.
        Fault::Healed | Fault::Pause => result.as_ref().is_ok_and(|ended| *ended > when),
    };
    shares.note(format!("{fault:?}"), results.iter().flatten().any(tested));
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
pub fn others_survive_cancelling(seeds: Range<u64>) {
    let shares = Shares::default();
    if schedules(seeds, |seed| others_survive(seed, &shares)) {
        for kind in ["cancelled", "aborted", "dropped"] {
            shares.assert_fair(kind);
        }
    }
}

fn others_survive(seed: u64, shares: &Shares) {
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
            let mut ends = Vec::new();
            for (call, fate) in calls.iter().zip(fates) {
                let flying = call.begin(&mut comm);
                ends.push(fate.befall(flying).await);
            }
            comm.barrier().await.map_err(|error| error.error).map(|_| ends)
        }
    });
    let mut all = Vec::new();
    for (rank, result) in results.iter().enumerate() {
        let ends = result.as_ref().unwrap().as_ref();
        let ends = ends.unwrap_or_else(|error| panic!("seed {seed}: rank {rank}: barrier: {error}"));
        for (index, end) in ends.iter().enumerate() {
            let fine = match end {
                Ok(_) => true,
                Err(Error::Cancelled { .. }) => cancelled(index, Rank(rank as u32)),
                Err(Error::Aborted { by, .. }) => cancelled(index, *by),
                Err(_) => false,
            };
            assert!(fine, "seed {seed}: rank {rank} in {:?}: {end:?}", calls[index]);
            all.push(end);
        }
    }
    let any = |of: fn(&End) -> bool| all.iter().any(|end| of(end));
    shares.note("cancelled", any(|end| matches!(end, Err(Error::Cancelled { .. }))));
    shares.note("aborted", any(|end| matches!(end, Err(Error::Aborted { .. }))));
    shares.note("dropped", any(|end| matches!(end, Ok(Fine::Dropped))));
}

/// How a call ended for who made it.
type End = Result<Fine, Error>;

#[derive(Debug)]
enum Fine {
    Done,
    /// Let go of before it was done.
    Dropped,
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

    async fn befall(self, flying: InFlight) -> End {
        let end = match self {
            Fate::Await => flying.end().await,
            Fate::Cancel(after) => {
                tokio::time::sleep(after).await;
                flying.operation.cancel();
                flying.end().await
            }
            Fate::Drop(after) => {
                let ended = tokio::time::timeout(after, flying.end()).await;
                return Ok(if ended.is_ok() { Fine::Done } else { Fine::Dropped });
            }
        };
        end.map(|_| Fine::Done).map_err(|error| error.error)
    }
}
