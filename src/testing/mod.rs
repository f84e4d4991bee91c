//! Ranks on a simulated network, for tests of programs that use this crate.
//!
//! A [`World`] runs all ranks of a program on one thread, with the real engine on a network that delays, loses, doubles
//! and reorders what is sent, and on time that jumps: a test of a 300 s deadline takes no time. A [`Net`] kills ranks,
//! cuts the network and heals it. Everything is drawn from one seed: the same seed gives the same schedule, so what
//! fails once fails again.
//!
//! ```
//! use std::time::Duration;
//! use hcomm::ReduceOp;
//! use hcomm::testing::World;
//!
//! let sums = World::new(3)
//!     .seed(7)
//!     .delay(Duration::from_millis(1)..Duration::from_millis(5))
//!     .loss(0.01)
//!     .run(|mut comm, _net| async move {
//!         let mine = vec![comm.rank().0 as f32; 1000];
//!         comm.all_reduce(mine, ReduceOp::Sum).await.unwrap()
//!     });
//! assert!(sums.into_iter().all(|sum| sum.unwrap() == [3.0; 1000]));
//! ```
//!
//! # What holds in such a world
//!
//! - Time is that of a paused tokio runtime, for users' timers and for the engine. It passes only when no rank can go on,
//!   and in steps of a millisecond; what is shorter decides the order of events.
//! - Ranks must not wait, blocked: [`Operation::wait`](crate::Operation::wait) and [`blocking`](crate::blocking) panic,
//!   and a lock held across an `await` can stop the world.
//! - What depends on something else than the seed does not repeat: random numbers, threads, `tokio::select!` without
//!   `biased`.
//!
//! This module is for tests and comes with the feature `testing`:
//!
//! ```toml
//! [dev-dependencies]
//! hcomm = { path = "../hcomm", features = ["testing"] }
//! ```

mod net;
mod scheduler;

use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::communicator::{Communicator, run};
use crate::engine::Engine;
use crate::engine::simulated::Attendant;
use crate::link::sim::{Fabric, Weather};
use crate::path::{PlanCache, RANKS_MAX};
use crate::rank::Rank;

pub use net::Net;
use scheduler::Scheduler;

/// Ranks, and how the network between them behaves.
///
/// Without further calls nothing is lost and datagrams take 1 ms at most.
#[derive(Clone, Debug)]
#[must_use = "a world does nothing before run()"]
pub struct World {
    ranks: usize,
    seed: u64,
    weather: Weather,
    limit: Duration,
}

impl World {
    /// A world of `n` ranks.
    ///
    /// # Panics
    ///
    /// Unless `n` is from 1 to 64.
    pub fn new(n: usize) -> Self {
        assert!((1..=RANKS_MAX).contains(&n), "a world has 1 to {RANKS_MAX} ranks, not {n}");
        let weather = Weather {
            delay: Duration::ZERO..Duration::from_millis(1),
            edges: Vec::new(),
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
        };
        World { ranks: n, seed: 0, weather, limit: Duration::from_secs(60 * 60) }
    }

    /// What everything that happens by chance is drawn from; 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long a datagram takes from one rank to another.
    pub fn delay(mut self, range: Range<Duration>) -> Self {
        self.weather.delay = range;
        self
    }

    /// How long a datagram takes from `from` to `to`, where that differs from [`delay`](Self::delay).
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    pub fn edge(mut self, from: impl Into<Rank>, to: impl Into<Rank>, range: Range<Duration>) -> Self {
        let (from, to) = (from.into(), to.into());
        assert!(from.index() < self.ranks && to.index() < self.ranks, "there is no such rank");
        self.weather.edges.push((from.index(), to.index(), range));
        self
    }

    /// The probability that a datagram is lost. It is sent again; above 0.2 or so, connections time out by chance.
    ///
    /// # Panics
    ///
    /// Unless it is from 0 to 1.
    pub fn loss(mut self, probability: f64) -> Self {
        self.weather.loss = checked(probability);
        self
    }

    /// The probability that a datagram arrives twice.
    ///
    /// # Panics
    ///
    /// Unless it is from 0 to 1.
    pub fn duplicate(mut self, probability: f64) -> Self {
        self.weather.duplicate = checked(probability);
        self
    }

    /// The probability that a datagram is late by up to four times the longest delay, so that others overtake it.
    ///
    /// # Panics
    ///
    /// Unless it is from 0 to 1.
    pub fn reorder(mut self, probability: f64) -> Self {
        self.weather.reorder = checked(probability);
        self
    }

    /// How long the world may take, in simulated time; an hour by default.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs `program` as every rank, until all have ended; gives their results in rank order, `None` for a rank that was
    /// killed.
    ///
    /// To be called outside of a tokio runtime. What ranks [spawn](tokio::spawn) runs on the world's own runtime, and ends
    /// with the world.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hcomm::{Error, Rank, ReduceOp};
    /// use hcomm::testing::World;
    ///
    /// let results = World::new(3).run(|mut comm, net| async move {
    ///     if comm.rank() == Rank(2) {
    ///         tokio::time::sleep(Duration::from_millis(10)).await;
    ///         net.kill(Rank(2));
    ///     }
    ///     comm.all_reduce(vec![1u32], ReduceOp::Sum).await
    /// });
    /// for result in &results[..2] {
    ///     let error = &result.as_ref().unwrap().as_ref().unwrap_err().error;
    ///     assert!(matches!(error, Error::PeerLost { rank: Rank(2), .. }));
    /// }
    /// assert!(results[2].is_none());
    /// ```
    ///
    /// # Panics
    ///
    /// With the seed in the message: if a rank panics, or the world's [`limit`](Self::limit) is over before all ranks have
    /// ended. And if it is called inside a runtime, or the system grants no descriptors.
    pub fn run<F, Fut>(self, program: F) -> Vec<Option<Fut::Output>>
    where
        F: Fn(Communicator, Net) -> Fut,
        Fut: Future,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without descriptors");
        runtime.block_on(async {
            let fabric = Fabric::new(self.ranks, self.seed, self.weather.clone());
            let attendant = Attendant::new(fabric.clone());
            let net = Net::new(fabric.clone(), self.ranks);
            let ranks = self.communicators(&attendant);
            let ranks = ranks.into_iter().map(|comm| program(comm, net.clone()));
            let ranks = ranks.map(|rank| Some(Box::pin(rank))).collect();
            let scheduler = Scheduler::new(self.seed, self.limit, fabric, attendant, ranks);
            tokio::task::unconstrained(scheduler).await
        })
    }

    fn communicators(&self, attendant: &Arc<Attendant>) -> Vec<Communicator> {
        let members: Arc<[u32]> = (0..self.ranks as u32).collect();
        let run: Arc<str> = run().into();
        (0..self.ranks)
            .map(|rank| {
                let engine =
                    Engine::simulated(rank, self.ranks, attendant).expect("descriptors for a poll set");
                engine.name_run(run.clone());
                Communicator::simulated(engine, members.clone(), rank, plans())
            })
            .collect()
    }
}

fn checked(probability: f64) -> f64 {
    assert!((0.0..=1.0).contains(&probability), "a probability is from 0 to 1, not {probability}");
    probability
}

/// Plans are the same in all worlds, and proved once.
fn plans() -> Arc<Mutex<PlanCache>> {
    static PLANS: OnceLock<Arc<Mutex<PlanCache>>> = OnceLock::new();
    PLANS.get_or_init(Arc::default).clone()
}
