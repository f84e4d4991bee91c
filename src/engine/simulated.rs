//! What the service thread does, on simulated time: called by whoever runs the world, whenever that is due.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::call::lock;
use super::keeper::Keeper;
use super::room::{MEMORY, Memory};
use super::service::{GRACE, IDLE, NAP, Watched};
use super::shared::{Engine, Shared};
use super::wires::PeerLink;
use crate::link::sim::Fabric;
use crate::runtime::spin::SpinPolicy;

/// Looks after the engines of one simulated world.
pub(crate) struct Attendant {
    fabric: Arc<Fabric>,
    watched: Mutex<Vec<(usize, Watched)>>,
    newcomers: Mutex<Vec<(usize, Watched)>>,
    called: AtomicBool,
    resting: AtomicBool,
}

impl std::fmt::Debug for Attendant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attendant").field("called", &self.called).finish_non_exhaustive()
    }
}

impl Engine {
    /// A rank's engine on a simulated network.
    pub(crate) fn simulated(
        me: usize,
        ranks: usize,
        attendant: &Arc<Attendant>,
    ) -> std::io::Result<Arc<Engine>> {
        let fabric = &attendant.fabric;
        let link = |peer| if peer == me { PeerLink::Myself } else { PeerLink::Sim(fabric.clone()) };
        let labels = (0..ranks).map(|peer| format!("simulated host {peer}")).collect();
        let keeper = Keeper::Simulated { attendant: attendant.clone(), rank: me };
        // Each rank is a process of its own.
        let memory = Memory { limit: MEMORY };
        let peers = (0..ranks).map(link).collect();
        let engine = Engine::kept(me, peers, labels, None, SpinPolicy::Never, memory, keeper)?;
        engine.set_hosts((0..ranks as u32).collect());
        Ok(engine)
    }
}

impl Attendant {
    pub(crate) fn new(fabric: Arc<Fabric>) -> Arc<Self> {
        Arc::new(Attendant {
            fabric,
            watched: Mutex::default(),
            newcomers: Mutex::default(),
            called: AtomicBool::new(true),
            resting: AtomicBool::new(false),
        })
    }

    pub(super) fn register(&self, rank: usize, engine: Arc<Shared>) {
        self.fabric.attach(rank, engine.bell());
        lock(&self.newcomers).push((rank, Watched::new(engine)));
        self.kick();
    }

    pub(super) fn attend(&self) {
        if self.resting.load(Ordering::Relaxed) {
            self.kick();
        }
    }

    pub(super) fn kick(&self) {
        self.called.store(true, Ordering::Release);
    }

    pub(super) fn has_news(&self, rank: usize) -> bool {
        self.fabric.has_news(rank)
    }

    /// Whether it is to look now, whatever it said before.
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    /// Looks after all engines whose process runs; says when to look again.
    pub(crate) fn look(&self, now: Instant) -> Instant {
        self.called.store(false, Ordering::Release);
        let mut next = now + IDLE;
        let mut watched = lock(&self.watched);
        watched.append(&mut lock(&self.newcomers));
        watched.retain_mut(|(rank, watched)| {
            // With its process goes its service thread.
            if !self.fabric.is_alive(*rank) {
                return false;
            }
            if let Some(resumes) = self.fabric.paused(*rank, now) {
                next = next.min(resumes);
                return true;
            }
            let (keep, mut due) = watched.look(now);
            if watched.watching && (watched.has_news(false) || watched.engine.is_called()) {
                due = due.min(now + GRACE);
            }
            watched.engine.watch().set(watched.watching);
            next = next.min(due);
            keep
        });
        self.resting.store(next > now + NAP, Ordering::Relaxed);
        next
    }

    /// Engines that have not ended, and whether all of them are about to.
    pub(crate) fn engines(&self) -> (usize, bool) {
        let watched = lock(&self.watched);
        (watched.len(), watched.iter().all(|(_, watched)| watched.engine.is_closing()))
    }
}
