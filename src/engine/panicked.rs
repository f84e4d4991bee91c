//! Communicators that go because the thread which has them panics.
//!
//! That is how programs crash, so the others are told of a lost rank, not of one that has left in order. What was called
//! there ends at once: nobody will see to it, and who waits for this rank would wait for that first. The communicator's
//! `Close` says why it comes, after all that was sent before; other communicators of the rank are not concerned.

use super::call::Outcome;
use super::channel::Channel;
use super::peer::Standing;
use super::state::{Ended, State};
use crate::error::Error;
use crate::rank::Seq;

/// What the others are told.
const CAUSE: &str = "its thread panicked";

impl State {
    /// The thread that has a communicator, or one of its keys, panics. What has failed already has another cause, which
    /// the others know. It keeps its place until its handle goes.
    pub(crate) fn abandon(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        if channel.failed.is_some() || channel.panicked[channel.rank] {
            return;
        }
        let me = channel.rank;
        channel.panicked[me] = true;
        let name = channel.name.clone();
        channel.failed = Some(Error::Closed { communicator: name.clone() });
        for key in self.keys_on_index(index) {
            self.abandon(key);
        }
        for (op, request, since) in self.take_delayed(index) {
            let (operation, seq) = (request.desc.operation.into(), Seq(request.seq));
            let error = Error::Cancelled { operation, seq, communicator: name.clone() };
            self.record_unbegun((index, request.seq), (&request.desc, request.priority), since, &error);
            let outcome = Outcome { result: Err(error), parts: Some(request.parts), arrival: None };
            self.ended.push(Ended { op, key: None, outcome, blocks: Vec::new(), windows: None });
        }
        for key in self.keys_on(index) {
            let Some(flight) = self.flight(key) else { continue };
            let (operation, seq) = (flight.head().desc.operation.into(), Seq(flight.head().seq));
            self.finish(key, Err(Error::Cancelled { operation, seq, communicator: name.clone() }));
        }
        if let Some(channel) = self.channels[index].as_mut() {
            channel.winding_up = true;
        }
        self.close_idle(index);
    }

    /// All that a rank sent on a communicator has come, and that it has panicked.
    pub(super) fn fail_panicked(&mut self, index: usize, rank: usize) {
        let Some(channel) = self.channels[index].as_ref().filter(|channel| channel.panicked[rank]) else {
            return;
        };
        let host = self.peers[channel.members[rank] as usize].label.clone();
        self.fail(index, rank, &host, CAUSE);
    }

    /// Whether a rank that is gone has said so, and in order.
    pub(super) fn has_left_in_order(&self, channel: &Channel, rank: usize) -> bool {
        let standing = &self.peers[channel.members[rank] as usize].standing;
        !channel.panicked[rank] && (channel.closed[rank].is_some() || *standing == Standing::Left)
    }
}
