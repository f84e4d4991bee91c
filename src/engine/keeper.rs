//! Who keeps an engine's deadlines and drives when its user does not: the service thread, or a simulated one.

use std::io;
use std::sync::Arc;

use super::service;
use super::shared::Shared;
#[cfg(feature = "testing")]
use super::simulated::Attendant;
use crate::runtime::clock::Clock;
use crate::runtime::poller::Poller;

#[derive(Clone, Debug)]
pub(crate) enum Keeper {
    /// The service thread of the process.
    Thread,
    /// Whoever runs a simulated world.
    #[cfg(feature = "testing")]
    Simulated { attendant: Arc<Attendant>, rank: usize },
}

impl Keeper {
    pub(crate) fn clock(&self) -> Clock {
        match self {
            Keeper::Thread => Clock::REAL,
            #[cfg(feature = "testing")]
            Keeper::Simulated { .. } => Clock::SIMULATED,
        }
    }

    /// From now on it looks after this engine, until that is closed.
    pub(crate) fn register(&self, engine: Arc<Shared>) -> io::Result<()> {
        match self {
            Keeper::Thread => service::register(engine),
            #[cfg(feature = "testing")]
            Keeper::Simulated { attendant, rank } => {
                attendant.register(*rank, engine);
                Ok(())
            }
        }
    }

    /// An operation has begun that may fall due earlier than anything else.
    #[inline]
    pub(crate) fn attend(&self) {
        match self {
            Keeper::Thread => service::attend(),
            #[cfg(feature = "testing")]
            Keeper::Simulated { attendant, .. } => attendant.attend(),
        }
    }

    /// Something happened that no poll set shows.
    pub(crate) fn kick(&self) {
        match self {
            Keeper::Thread => service::kick(),
            #[cfg(feature = "testing")]
            Keeper::Simulated { attendant, .. } => attendant.kick(),
        }
    }

    /// Something happened to an engine whose poll set is slept on.
    pub(crate) fn interrupt(&self, poller: &Poller) {
        match self {
            Keeper::Thread => poller.interrupt(),
            #[cfg(feature = "testing")]
            Keeper::Simulated { attendant, .. } => attendant.kick(),
        }
    }

    /// Whether something has come for the engine that nobody has collected.
    pub(crate) fn is_called(&self, poller: &Poller) -> bool {
        match self {
            Keeper::Thread => poller.is_ready(),
            #[cfg(feature = "testing")]
            Keeper::Simulated { attendant, rank } => attendant.has_news(*rank),
        }
    }

    /// Whether what comes shows in a poll set, which whoever sleeps must wait for.
    pub(crate) fn is_woken_by_descriptors(&self) -> bool {
        matches!(self, Keeper::Thread)
    }

    /// Only one thread moves a simulated world; while it waits, nothing does.
    pub(crate) fn allow_blocking(&self) {
        assert!(
            matches!(self, Keeper::Thread),
            "a rank of a simulated world must await its operations: whoever waits, blocked, stops the world"
        );
    }
}
