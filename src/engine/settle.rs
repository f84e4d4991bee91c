//! Calls that begin once what was called before them is over: the last round of a close.
//!
//! It waits like a call that waits for room: for all collectives on its communicator and under its keys, and for messages that
//! are being received. Those end by themselves, or with a deadline of their own; if its own passes first, it fails.
//! Receives whose message is not known, and sends, are not waited for: the round before has come from every rank, after all
//! that it had sent; so there is no message for the former, and who receives one of the latter waits for it himself.

use super::shared::Engine;
use super::state::{Flight, State};

impl Engine {
    /// Collectives from this number on begin once what was called before is over here.
    pub(crate) fn settle(&self, channel: usize, from: u64) {
        self.shared.with_core(|core| {
            if let Some(channel) = core.state.channels[channel].as_mut() {
                channel.settles = Some(from);
            }
        });
        self.shared.drive();
    }
}

impl State {
    /// What a communicator waits for, if this number is one that waits.
    pub(super) fn unsettling(&self, index: usize) -> impl Iterator<Item = &Flight> {
        let keys = self.keys_on_index(index);
        let concerns = move |channel: usize| channel == index || keys.contains(&channel);
        let is_under_way = |flight: &Flight| match flight {
            Flight::Point(point) => point.is_arriving(),
            other => other.is_collective(),
        };
        self.flights().filter(move |flight| concerns(flight.head().channel) && is_under_way(flight))
    }

    /// Whether a collective waits for the end of what was called before it.
    pub(super) fn is_unsettled(&self, index: usize, seq: u64) -> bool {
        if !self.channels[index].as_ref().is_some_and(|channel| channel.is_to_settle(seq)) {
            return false;
        }
        let delayed = |key: &usize| self.channels[*key].as_ref().is_some_and(|key| !key.delayed.is_empty());
        self.keys_on_index(index).iter().any(delayed) || self.unsettling(index).next().is_some()
    }
}
