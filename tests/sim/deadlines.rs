//! When a deadline comes, in simulated time, and when the others learn of it.

use std::cell::Cell;
use std::time::Duration;

use hcomm::testing::World;
use hcomm::{Error, Rank};

use crate::program::{Call, Random};
use crate::{SIZES, collective, schedules};

/// How much later than its limit a deadline may come: simulated time passes in steps of a millisecond, and the service,
/// which looks after deadlines, lets users go first.
const LATE_MAX: Duration = Duration::from_millis(2);

/// Datagrams until a rank knows that another one has given up, where none is lost.
const HOPS: u32 = 2;

/// A call of a rank: when it began and ended, by the world's time, and how.
struct Ended {
    begun: Duration,
    at: Duration,
    error: Option<Error>,
}

/// What all but one rank call, each with a limit of its own.
struct Missed {
    call: Call,
    late: Rank,
    limits: Vec<Duration>,
    /// Whether the limit is that of this call alone, or the communicator's.
    single: bool,
}

impl Missed {
    fn draw(random: &mut Random, n: usize) -> Missed {
        let single = random.below(2) == 0;
        let limit = |random: &mut Random| Duration::from_millis(20) + random.millis(400);
        Missed {
            call: collective(random, n),
            late: Rank(random.below(n) as u32),
            limits: (0..n).map(|_| limit(random)).collect(),
            single,
        }
    }

    fn run(&self, world: World) -> Vec<Ended> {
        let ended = world.run(|mut comm, net| async move {
            comm.barrier().await.unwrap();
            let (me, begun) = (comm.rank(), net.now());
            if me == self.late {
                tokio::time::sleep(Duration::from_secs(5)).await;
                return Ended { begun, at: begun, error: None };
            }
            let limit = self.limits[me.index()];
            if !self.single {
                comm.set_deadline(limit);
            }
            let mut call = self.call.begin(&mut comm);
            if self.single {
                call.operation = call.operation.timeout(limit);
            }
            let error = call.end().await.err().map(|error| error.error);
            let at = net.now();
            // Nobody leaves before all have given up.
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ended { begun, at, error }
        });
        ended.into_iter().flatten().collect()
    }
}

/// Not early, not late, and told at once: who reaches his own limit first gives up for all.
#[test]
fn a_deadline_comes_when_its_time_is_over_and_the_others_are_told_at_once() {
    let (expired, told) = (Cell::new(0), Cell::new(0));
    let all = schedules(0..60, |seed| {
        let mut random = Random(seed);
        let n = random.one_of(&SIZES);
        let hop_max = Duration::from_millis(1 + random.below(30) as u64);
        let missed = Missed::draw(&mut random, n);
        let ended = missed.run(World::new(n).seed(seed).delay(Duration::ZERO..hop_max));
        let own = |rank: usize| match &ended[rank].error {
            Some(Error::Deadline(report)) => report.rank.index() == rank,
            _ => false,
        };
        let first = (0..n).filter(|rank| own(*rank)).map(|rank| ended[rank].at).min();
        for (rank, Ended { begun, at, error }) in ended.iter().enumerate() {
            // Who needs nothing of the late one can end.
            let Some(error) = error else { continue };
            let (limit, single) = (missed.limits[rank], missed.single);
            let says = format!(
                "seed {seed}: {:?}, rank {rank} of {n}, from {begun:?} to {at:?}, limit {limit:?} ({single}): {error}",
                missed.call
            );
            if own(rank) {
                assert!(*at >= *begun + limit && *at <= *begun + limit + LATE_MAX, "{says}");
                expired.set(expired.get() + 1);
            } else {
                let first = first.unwrap_or_else(|| panic!("{says}: nobody has given up"));
                assert!(
                    *at >= first && *at <= first + HOPS * hop_max + LATE_MAX,
                    "{says}; first at {first:?}"
                );
                told.set(told.get() + 1);
            }
        }
    });
    if all {
        // Half of those that there are.
        assert!(expired.get() >= 30 && told.get() >= 80, "{expired:?} expired, {told:?} were told");
    }
}

/// What is left of it, wherever it is called and whatever it is given; and no more once it is over.
#[test]
fn a_limit_around_calls_holds_for_each_of_them() {
    /// How a call waits for a rank that does not come: within limits around each other, with one of its own, after a pause.
    #[derive(Clone, Copy)]
    struct Case {
        around: [u64; 2],
        own: Option<u64>,
        pause: u64,
        over: u64,
    }
    schedules(0..8, |seed| {
        let mut random = Random(seed);
        let own = [None, Some(10_000), Some(30)][random.below(3)];
        let (outer, inner, pause) = (100 + random.below(200), 100 + random.below(200), random.below(60));
        let shortest = outer.min(inner) as u64;
        let over = own.map_or(shortest, |own| shortest.min(own + pause as u64));
        let case = Case { around: [outer as u64, inner as u64], own, pause: pause as u64, over };
        let ms = Duration::from_millis;
        let world = World::new(2).seed(seed);
        world.run(|mut comm, net| async move {
            comm.barrier().await.unwrap();
            if comm.rank() == Rank(1) {
                tokio::time::sleep(Duration::from_secs(5)).await;
                return;
            }
            let begun = net.now();
            let waits = async {
                tokio::time::sleep(ms(case.pause)).await;
                let receive = comm.recv(1, 0, vec![0u8]);
                match case.own {
                    Some(own) => receive.timeout(ms(own)).await,
                    None => receive.await,
                }
            };
            let failed = hcomm::within(ms(case.around[0]), hcomm::within(ms(case.around[1]), waits)).await;
            assert!(failed.unwrap_err().error.is_deadline());
            let took = net.now() - begun;
            assert!(took >= ms(case.over) && took <= ms(case.over) + LATE_MAX, "seed {seed}: {took:?}");
            let begun = net.now();
            comm.recv(1, 0, vec![0u8]).timeout(ms(400)).await.unwrap_err();
            assert!(net.now() - begun >= ms(400), "seed {seed}: it is over");
        });
    });
}

/// Whoever is far away is not waited for, and is late; whoever is killed is named.
#[test]
fn a_server_goes_on_without_stragglers_until_a_worker_is_killed() {
    const ROUNDS: u32 = 10;
    let all = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>();
    schedules(0..12, |seed| {
        let ms = Duration::from_millis;
        let count = [1, 40_000][seed as usize % 2];
        let world = World::new(4).seed(seed).delay(ms(0)..ms(5)).edge(3, 0, ms(400)..ms(500));
        world.run(|mut comm, net| async move {
            let me = comm.rank().0;
            comm.barrier().await.unwrap();
            if me > 0 {
                for round in 0..ROUNDS {
                    let sent = comm.contribute(0, 7, round, vec![f32::from(me as u8); count]).await;
                    assert!(sent.is_ok() || me == 3, "seed {seed}: {sent:?}");
                }
                tokio::time::sleep(Duration::from_secs(60)).await;
                return;
            }
            let mut first = comm.contributions::<f32>(1..4, 7, count);
            for round in 0..ROUNDS {
                let reduced = first.reduce_first(2, round, hcomm::ReduceOp::Sum).await.unwrap();
                assert_eq!((reduced.contributors, reduced.missing), (all(&[1, 2]), all(&[3])), "seed {seed}");
                assert_eq!(reduced.buffer, vec![3.0; count]);
            }
            net.kill(2);
            let failed = first.reduce_first(2, ROUNDS, hcomm::ReduceOp::Sum).await.unwrap_err();
            assert!(failed.is_fatal() && failed.blamed() == all(&[2]), "seed {seed}: {failed}");
        });
    });
}
