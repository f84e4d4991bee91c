//! Calls that begin once what was called before them is over: the last round of a close.
//!
//! It waits like a call that waits for room: for all collectives on its communicator and under its keys, and for messages that
//! are being received. Those end by themselves, or with a deadline of their own; if its own passes first, it fails.
//! Receives whose message is not known, and sends, are not waited for: the round before has come from every rank, after all
//! that it had sent; so there is no message for the former, and who receives one of the latter waits for it himself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::{Op, Request, Work};
use super::shared::Engine;
use super::state::{Flight, State};
use crate::error::{Error, Report};
use crate::rank::{Rank, Seq};

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
    fn unsettling(&self, index: usize) -> impl Iterator<Item = &Flight> {
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

    /// When the first that waits so waits no longer.
    pub(super) fn settles_by(&self) -> Option<Instant> {
        let first = self.channels.iter().flatten().filter_map(|channel| {
            let (op, request, since) = channel.delayed.front()?;
            let waited = channel.holds.counted(*since, self.now);
            let left = op.limit_or(request.deadline).saturating_sub(waited);
            channel.is_to_settle(request.seq).then(|| self.now.checked_add(left))?
        });
        first.min()
    }

    /// Takes the first call of a communicator, which has waited too long for others: it fails.
    pub(super) fn unsettled(&mut self, index: usize) -> Option<(Arc<Op>, Request)> {
        /// Calls named: more would explain no more.
        const NAMED: usize = 3;
        let call = |flight: &Flight| format!("{} #{}", flight.head().desc.info(), flight.head().seq);
        let calls: Vec<String> = self.unsettling(index).take(NAMED).map(call).collect();
        let mut late: Vec<usize> = self.unsettling(index).flat_map(Flight::waits_for).collect();
        late.sort_unstable();
        late.dedup();
        let about = self.about(index, &late)?;
        let (op, mut request, since) = self.channels[index].as_mut()?.delayed.pop_front()?;
        self.room.undelay();
        let report = Report {
            operation: request.desc.operation.into(),
            seq: Seq(request.seq),
            waited: self.now.saturating_duration_since(since),
            late: late.into_iter().map(|rank| Rank(rank as u32)).collect(),
            cause: format!("not over before it: {}", calls.join(", ")),
            ..about
        };
        request.work = Work::Refuse(Box::new(Error::Deadline(Box::new(report))));
        request.deadline = Duration::ZERO;
        Some((op, request))
    }
}
