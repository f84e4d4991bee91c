//! Communicators that this rank has closed, or will never open: what still comes for them is dropped.
//!
//! Who never opens one, because whoever would have had it gave up before it was made, is still a member to the others. He
//! can't tell them, since he does not know who they are; but he knows its identifier, and tells whoever sends something
//! for it, as if he had opened and closed it.

use std::collections::{HashMap, VecDeque};

use super::shared::Engine;
use super::state::State;
use crate::link::frame::{Header, Kind, Outgoing, PANICKED};

/// Remembered at most: more than others keep open of what this rank has closed, at a thousand bytes and more for each.
const CLOSED_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Closed {
    ids: HashMap<u64, Option<Box<Renounced>>>,
    /// Of those that were to be rebuilt, and whose successor somebody may still have: the ranks that it is without.
    agreed: HashMap<u64, Vec<bool>>,
    order: VecDeque<u64>,
}

/// One that was never opened.
#[derive(Debug)]
struct Renounced {
    flags: u16,
    /// Ranks of the world that have been told.
    told: Vec<usize>,
}

impl Closed {
    fn insert(&mut self, id: u64, renounced: Option<Box<Renounced>>) {
        if self.ids.contains_key(&id) {
            return;
        }
        if self.order.len() == CLOSED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
            self.agreed.remove(&oldest);
        }
        self.order.push_back(id);
        self.ids.insert(id, renounced);
    }

    pub(super) fn agree(&mut self, id: u64, gone: Vec<bool>) {
        if self.ids.contains_key(&id) {
            self.agreed.insert(id, gone);
        }
    }

    /// Once: whoever asks will have no successor.
    pub(super) fn agreed(&mut self, id: u64) -> Option<Vec<bool>> {
        self.agreed.remove(&id)
    }
}

impl Engine {
    /// This rank will never open a communicator that others may have made with it.
    pub(crate) fn renounce(&self, id: u64) {
        let flags = if std::thread::panicking() { PANICKED } else { 0 };
        self.shared.with_core(|core| core.state.renounce(id, flags));
        self.shared.drive();
    }
}

impl State {
    /// What still comes for this channel is dropped.
    pub(super) fn remember_closed(&mut self, id: u64) {
        self.closed.insert(id, None);
    }

    pub(crate) fn is_closed(&self, id: u64) -> bool {
        self.closed.ids.contains_key(&id)
    }

    pub(super) fn renounce(&mut self, id: u64, flags: u16) {
        if self.channel_of(id).is_some() {
            return;
        }
        self.closed.insert(id, Some(Box::new(Renounced { flags, told: Vec::new() })));
        for (peer, stashed) in std::mem::take(&mut self.orphans) {
            let header = stashed.header;
            if header.channel == id {
                self.uncount_orphan(peer, &stashed);
                stashed.discard(peer, &mut self.io);
                self.dropped(peer, &header);
            } else {
                if header.kind == Kind::Key && header.offset == id {
                    self.decline(peer, id);
                }
                self.orphans.push((peer, stashed));
            }
        }
        self.discard_unused_keys(id);
    }

    /// A frame for a communicator that is closed here was dropped.
    pub(super) fn dropped(&mut self, peer: usize, header: &Header) {
        // Who closes it himself needs nothing.
        if header.kind != Kind::Close {
            self.decline(peer, header.channel);
        }
    }

    /// Tells a rank, once, that this one will not use a communicator that it has never opened.
    pub(super) fn decline(&mut self, peer: usize, id: u64) {
        let Some(Some(renounced)) = self.closed.ids.get_mut(&id) else { return };
        if renounced.told.contains(&peer) {
            return;
        }
        renounced.told.push(peer);
        let mut header = Header::new(Kind::Close, id, 0);
        header.flags = renounced.flags;
        self.io.control(peer, Outgoing::control(header));
        self.io.control_bulk(peer, Outgoing::control(header));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered() {
        let mut closed = Closed::default();
        let count = CLOSED_MAX as u64 + 10;
        // What is remembered already is so once.
        (0..count).chain(10..count).for_each(|id| closed.insert(id, None));
        assert_eq!((closed.ids.len(), closed.order.len()), (CLOSED_MAX, CLOSED_MAX));
        assert!(!closed.ids.contains_key(&9) && closed.ids.contains_key(&10));
    }
}
