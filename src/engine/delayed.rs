//! Collectives that are over before they have begun: given up, here or elsewhere, or of no use any more, while they wait
//! for room or for what was called before them.
//!
//! Their callers are told at once, and so are the others. Their numbers are taken when those before them have begun, so that
//! numbers begin in order; what still comes for them is dropped, as it is for numbers that are over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::{Op, Outcome, Request, Work};
use super::due::LOOK;
use super::reports::culprits;
use super::state::{Ended, Flight, State};
use crate::buffer::parts::Parts;
use crate::error::{Error, Report};
use crate::rank::{Rank, Seq};

/// Where all that wait have ended: when to look again.
const NONE_DUE: Duration = Duration::from_secs(60);

impl State {
    /// Callers have cancelled or limited something: all that wait are looked at, once.
    pub(super) fn review_again(&mut self) {
        self.room.due = None;
    }

    /// Ends those that are due, cancelled or of no use. Says when the next is due.
    pub(super) fn review_delayed(&mut self) -> Option<Instant> {
        if !self.room.is_short() {
            return None;
        }
        // There may be very many, and this is asked often.
        if self.room.due.is_none_or(|due| self.now >= due) {
            let next = (0..self.channels.len()).filter_map(|index| self.review_delayed_on(index)).min();
            self.room.due = next.or(self.now.checked_add(NONE_DUE));
        }
        self.room.due
    }

    pub(super) fn review_delayed_on(&mut self, index: usize) -> Option<Instant> {
        let count = self.channels[index].as_ref().map_or(0, |channel| channel.delayed.len());
        (0..count).filter_map(|at| self.review(index, at)).min()
    }

    /// One has just come to those that wait: its outcome may be known.
    pub(super) fn review_last(&mut self, index: usize) {
        let last = self.channels[index].as_ref().and_then(|channel| channel.delayed.back());
        if let Some(seq) = last.map(|(_, request, _)| request.seq) {
            self.heed_abort(index, seq);
            let at = self.channels[index].as_ref().and_then(|channel| channel.delayed_at(seq));
            let due = at.and_then(|at| self.review(index, at));
            self.room.due = self.room.due.map(|known| due.map_or(known, |due| due.min(known)));
        }
    }

    /// A number was given up elsewhere.
    pub(super) fn heed_abort(&mut self, index: usize, seq: u64) {
        let Some(channel) = &self.channels[index] else { return };
        let Some(at) = channel.delayed_at(seq) else { return };
        let Some((by, cause)) = channel.tombs.given_up_by(seq) else { return };
        let error = channel.aborted(&channel.delayed[at].1, by, cause);
        self.end_delayed(index, at, error, false);
    }

    /// Ends one if it need not wait any more, or else says when it is due.
    fn review(&mut self, index: usize, at: usize) -> Option<Instant> {
        let channel = self.channels[index].as_ref()?;
        let (op, request, since) = channel.delayed.get(at)?;
        if matches!(request.work, Work::GivenUp) {
            return None;
        }
        let waited = channel.holds.counted(*since, self.now);
        let left = op.limit_or(request.deadline).saturating_sub(waited);
        let error = if op.is_cancelled() {
            let (operation, communicator) = (request.desc.operation.into(), channel.name.clone());
            Some(Error::Cancelled { operation, seq: Seq(request.seq), communicator })
        } else if left.is_zero() {
            self.delayed_report(index, request, *since).map(|report| Error::Deadline(Box::new(report)))
        } else if channel.failed.is_none() {
            self.departed(request)
        } else {
            // It begins soon, and fails.
            None
        };
        if let Some(error) = error {
            self.end_delayed(index, at, error, true);
            return None;
        }
        let is_suspended = self.suspended_since(index).is_some();
        self.now.checked_add(if is_suspended { LOOK } else { left })
    }

    /// Tells the caller, and the others if they are to be told.
    fn end_delayed(&mut self, index: usize, at: usize, error: Error, tell: bool) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        let members = channel.members.clone();
        let Some((waiting, request, since)) = channel.delayed.get_mut(at) else { return };
        if matches!(request.work, Work::GivenUp) {
            return;
        }
        let op: Arc<Op> = std::mem::take(waiting);
        let parts = Some(std::mem::replace(&mut request.parts, Parts::NONE));
        request.work = Work::GivenUp;
        let (seq, desc, priority, since) = (request.seq, request.desc, request.priority, *since);
        self.drop_kept(index, seq);
        self.record_unbegun((index, seq), (&desc, priority), since, &error);
        if tell {
            self.publish_failure(index, seq, &error);
        }
        if let Error::Deadline(report) = &error {
            self.reports.push((members, (**report).clone()));
        }
        let outcome = Outcome { result: Err(error), parts, arrival: None };
        self.ended.push(Ended { op, key: None, outcome, blocks: Vec::new(), windows: None });
    }

    /// Why one has not begun: what is not over before it, and whom that waits for.
    fn delayed_report(&self, index: usize, request: &Request, since: Instant) -> Option<Report> {
        /// Calls named: more would explain no more.
        const NAMED: usize = 3;
        let channel = self.channels[index].as_ref()?;
        let settles = channel.is_to_settle(request.seq);
        let before = |flight: &&Flight| settles || flight.head().channel == index && flight.is_collective();
        let (mut calls, mut late) = (Vec::new(), Vec::new());
        for (at, flight) in self.unsettling(index).filter(before).enumerate() {
            let (head, waits) = (flight.head(), flight.waits_for());
            if at < NAMED {
                calls.push(format!("{} #{}", head.desc.info(), head.seq));
            }
            let point = matches!(flight, Flight::Point(_));
            late.extend(culprits(channel.rank, &waits, head.seq, point, &channel.statuses).0);
        }
        late.sort_unstable();
        late.dedup();
        Some(Report {
            operation: request.desc.operation.into(),
            seq: Seq(request.seq),
            waited: self.now.saturating_duration_since(since),
            late: late.iter().map(|rank| Rank(*rank as u32)).collect(),
            cause: format!("not over before it: {}", calls.join(", ")),
            ..self.about(index, &late)?
        })
    }
}
