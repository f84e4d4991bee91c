//! What an engine is asked beside calls: how its communicators, links and resources are.

use std::sync::Arc;

use super::order::Moves;
use super::room::Usage;
use super::shared::Engine;
use crate::buffer::arena::Arena;
use crate::error::{Error, LinkReport};
use crate::rank::Rank;
use crate::runtime::poller::Poller;

impl Engine {
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

    /// The memory that other processes read where it lies, if there are any.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.shared.arena.as_ref()
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
