//! What the flight recorder is told of: each call, as it begins, is over at once, ends, or never begins.
//!
//! Times are those that the engine has at hand. A call that is over before it returns may have asked for none: then it is the
//! system's coarse clock that is asked, which is a tick old at most and costs a few nanoseconds.

use std::sync::Arc;
use std::time::Instant;

use super::call::{Arrival, CallDesc, Request, Work};
use super::head::Head;
use super::shared::Engine;
use super::state::{Flight, State};
use crate::error::Error;
use crate::observe::{Call, OperationRecord, Outcome, Priority};
use crate::rank::{Rank, Tag};
use crate::runtime::clock::coarse_ns;

impl CallDesc {
    #[inline]
    fn recorded(&self, channel: u64, seq: u64, priority: Priority) -> Call {
        let CallDesc { operation, algorithm, dtype, op, root, .. } = *self;
        let (is_message, tag) = (self.tag.is_some(), self.known_tag());
        let count = self.count as u64;
        Call { operation, algorithm, channel, seq, count, root, tag, is_message, dtype, op, priority }
    }
}

impl Head {
    fn recorded(&self) -> Call {
        self.desc.recorded(self.channel_id, self.seq, self.priority)
    }
}

impl State {
    /// A call begins: its number in the recorder.
    pub(super) fn record_begun(&mut self, channel: u64, request: &Request) -> u64 {
        self.recorder.begin(request.desc.recorded(channel, request.seq, request.priority), self.now)
    }

    /// A call was over before it returned.
    #[inline]
    pub(super) fn record_over(&mut self, request: &Request) {
        let Some(channel) = &self.channels[request.channel] else { return };
        let call = request.desc.recorded(channel.id, request.seq, request.priority);
        let at = match self.polled_since {
            true => coarse_ns().saturating_sub(self.coarse_origin),
            false => self.recorder.since(self.now),
        };
        self.recorder.over(call, at);
    }

    /// An operation that had begun has ended.
    pub(super) fn record_end(&mut self, number: u64, result: &Result<(), Error>, arrival: Option<Arrival>) {
        let outcome = result.as_ref().err().map_or(Outcome::Ok, Outcome::from);
        let call = self.recorder.end(number, self.now, outcome);
        if let (Some(call), Some(arrival)) = (call, arrival) {
            call.root = Some(Rank(arrival.from as u32));
            call.tag = Some(Tag(arrival.tag));
            call.count = call.dtype.elements(arrival.bytes) as u64;
        }
    }

    /// A call has ended that never began.
    pub(super) fn record_unbegun(
        &mut self,
        (index, seq): (usize, u64),
        (desc, priority): (&CallDesc, Priority),
        called: Instant,
        error: &Error,
    ) {
        let Some(channel) = &self.channels[index] else { return };
        let call = desc.recorded(channel.id, seq, priority);
        self.recorder.never_began(call, called, self.now, Outcome::from(error));
    }

    /// What was called last, in flight or over, and all that is in flight or waits to begin.
    pub(super) fn recent_operations(&self) -> Vec<OperationRecord> {
        let old = self.flights().map(Flight::head).filter(|head| !self.recorder.has(head.record));
        let old = old.map(|head| (head.recorded(), head.started, Some(head.started)));
        let delayed = self.channels.iter().flatten().flat_map(|channel| {
            let waiting =
                channel.delayed.iter().filter(|(_, request, _)| !matches!(request.work, Work::GivenUp));
            waiting.map(|(_, request, since)| {
                (request.desc.recorded(channel.id, request.seq, request.priority), *since, None)
            })
        });
        self.recorder.told(old.chain(delayed), self.now)
    }

    /// The last of these, for a report: as many as explain a failure, and no more than a file may get with each.
    pub(super) fn last_operations(&self) -> Vec<OperationRecord> {
        /// Of the last ones, and of older ones that are still in flight: a report has 32 KiB of them at most.
        const TOLD: usize = 64;
        let mut all = self.recent_operations();
        let last = all.split_off(all.len().saturating_sub(TOLD));
        all.retain(|record| record.outcome == Outcome::InFlight);
        all.truncate(TOLD);
        all.extend(last);
        all
    }

    /// A communicator that operations will be told of.
    pub(super) fn record_open(&mut self, index: usize) {
        if let Some(channel) = &self.channels[index] {
            let rank = Rank(channel.rank as u32);
            self.recorder.open(channel.id, Arc::clone(&channel.name), rank);
        }
    }
}

impl Engine {
    /// What was called last on this rank.
    pub(crate) fn recent_operations(&self) -> Vec<OperationRecord> {
        let recent = self.shared.with_core(|core| {
            core.state.now = self.shared.clock.now();
            self.shared.begin_submitted(core);
            core.state.recent_operations()
        });
        self.shared.drive();
        recent
    }
}
