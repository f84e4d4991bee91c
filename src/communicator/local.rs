//! Ranks in one process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::Communicator;
use super::resources::memory;
use crate::domain::check_local_limits;
use crate::engine::{Engine, PeerLink};
use crate::error::InitError;
use crate::link::memory::Hub;
use crate::path::{Facts, PlanCache, RANKS_MAX};
use crate::runtime::spin::SpinPolicy;

#[cfg(feature = "testing")]
impl Communicator {
    /// The communicator of all ranks of a simulated world.
    pub(crate) fn simulated(
        engine: Arc<Engine>,
        members: Arc<[u32]>,
        rank: usize,
        plans: Arc<Mutex<PlanCache>>,
    ) -> Communicator {
        let facts = Facts::new(members.len() as u32);
        Self::open(engine, WORLD, "world".into(), members, rank, facts, plans)
    }
}

/// Channel of the communicator that has all ranks.
pub(super) const WORLD: u64 = 0;

impl Communicator {
    /// `n` ranks in this process, connected by memory: peers' buffers are read where they lie.
    ///
    /// The name is "world", the deadline of operations 300 s: see [`set_deadline`](Self::set_deadline). `HCOMM_REPORT` is
    /// not looked at: see [`report_to`](Self::report_to).
    ///
    /// Fastest is one thread per rank, each with a current-thread runtime, or blocking; several ranks as tasks of one
    /// runtime work too.
    ///
    /// Together they keep to the limit in `HCOMM_MEMORY`; without it, to 64 MiB, or what so many ranks need at least. Each has an
    /// equal part of it: see [`resources`](Self::resources).
    ///
    /// # Panics
    ///
    /// As [`try_local`](Self::try_local) fails.
    pub fn local(n: usize) -> Vec<Communicator> {
        Self::try_local(n).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`local`](Self::local), where what is wrong is an error.
    ///
    /// # Errors
    ///
    /// [`InitError::Config`] unless `n` is from 1 to 64; [`InitError::Environment`] if `HCOMM_MEMORY` can't be read;
    /// [`InitError::Limit`] if it is too little for so many ranks, or if the system grants too few descriptors or no thread,
    /// with need and available; [`InitError::Io`] if it refuses them nevertheless.
    pub fn try_local(n: usize) -> Result<Vec<Communicator>, InitError> {
        if !(1..=RANKS_MAX).contains(&n) {
            return Err(InitError::Config(format!("a world has 1 to {RANKS_MAX} ranks, not {n}")));
        }
        let memory = memory(None, n, n - 1)?;
        check_local_limits(n as u32)?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let policy = SpinPolicy::choose(n, processors);
        let run: Arc<str> = run().into();
        let hub = Hub::new(n);
        let plans = Arc::new(Mutex::new(PlanCache::new()));
        (0..n)
            .map(|rank| {
                let link = |peer| if peer == rank { PeerLink::Myself } else { PeerLink::Memory };
                let peers = (0..n).map(link).collect();
                let labels = (0..n).map(|peer| format!("rank {peer} of this process")).collect();
                let engine = Engine::new(rank, peers, labels, Some(hub.clone()), policy, memory)
                    .map_err(|error| InitError::Io { what: "poll set and service thread".into(), error })?;
                engine.name_run(run.clone());
                let facts = Facts::new(n as u32).within_process();
                // Counted at every call: ranks that shared the count would hold each other up.
                let members: Arc<[u32]> = (0..n as u32).collect();
                Ok(Self::open(engine, WORLD, "world".into(), members, rank, facts, plans.clone()))
            })
            .collect()
    }
}

/// Different for every world of ranks in one process.
pub(crate) fn run() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}-{}", std::process::id(), since.as_millis(), NEXT.fetch_add(1, Ordering::Relaxed))
}
