//! What an engine is asked beside calls: how its communicators, links and resources are.

use std::sync::Arc;
use std::time::Instant;

use super::order::Moves;
use super::room::Usage;
use super::shared::Engine;
use crate::buffer::arena::Arena;
use crate::error::{Error, LinkReport};
use crate::rank::Rank;
use crate::runtime::poller::Poller;

impl Engine {
    /// The time that its deadlines go by.
    pub(crate) fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// What this rank uses at present.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = self.shared.with_core(|core| {
            // What was called counts, also if somebody else drove just then.
            self.shared.begin_submitted(core);
            core.state.usage()
        });
        self.shared.drive();
        usage.descriptors += Poller::DESCRIPTORS;
        usage
    }

    /// How often operations moved, and who waited for it.
    pub(crate) fn moves(&self) -> Moves {
        let moves = self.shared.with_core(|core| core.state.order.moves);
        self.shared.drive();
        moves
    }

    /// What is known about the links to these processes, by their rank in the world and in a communicator.
    pub(crate) fn links(&self, peers: impl Iterator<Item = (usize, Rank)>) -> Vec<LinkReport> {
        let now = self.shared.clock.now();
        let links =
            self.shared.with_core(|core| peers.map(|(peer, rank)| core.link(peer, rank, now)).collect());
        self.shared.drive();
        links
    }

    /// By rank of the world: with which ranks it shares memory, a bit each. Equal on all ranks.
    pub(crate) fn set_sharing(&self, sharing: Vec<u64>) {
        // Once, by who has made the engine.
        let _ = self.shared.sharing.set(sharing);
    }

    /// By rank of the world: the lowest rank of its host. Equal on all ranks; without it all are on one.
    pub(crate) fn set_hosts(&self, hosts: Vec<u32>) {
        // Once, by who has made the engine.
        let _ = self.shared.hosts.set(hosts);
    }

    /// The host of this rank of the world, as the lowest rank there.
    pub(crate) fn host_of(&self, rank: u32) -> u32 {
        self.shared.hosts.get().and_then(|hosts| hosts.get(rank as usize)).copied().unwrap_or(0)
    }

    /// Whether these ranks, by their number in the world, share memory with each other across processes.
    pub(crate) fn all_share(&self, members: &[u32]) -> bool {
        let Some(sharing) = self.shared.sharing.get() else { return false };
        let bit = |rank: u32| 1u64.checked_shl(rank).unwrap_or(0);
        let of = |rank: &u32| sharing.get(*rank as usize).copied().unwrap_or(0) | bit(*rank);
        members.iter().all(|rank| members.iter().all(|other| of(rank) & bit(*other) != 0))
    }

    /// The memory that other processes read where it lies, if there are any. It is not there in a process forked from this one.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.shared.arena.as_ref().filter(|_| !self.shared.home.is_away())
    }

    /// Why the link to a process is of its kind, and no better one.
    pub(crate) fn explain_link(&self, peer: usize, reason: String) {
        self.shared.with_core(|core| core.explain_link(peer, reason));
        self.shared.drive();
    }

    /// Why a communicator can't be used any more, if so.
    pub(crate) fn failure(&self, channel: usize) -> Option<Error> {
        let failed = self.shared.with_core(|core| core.state.channels[channel].as_ref()?.failed.clone());
        self.shared.drive();
        failed
    }
}
