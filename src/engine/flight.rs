//! What all operations in flight have in common.

use super::call::Arrival;
use super::head::Head;
use super::state::Flight;
use crate::error::{CallInfo, Counts};
use crate::link::frame::Header;

/// The same with counts, where they are known.
pub(super) fn with_counts(call: CallInfo, counts: Option<Counts>) -> CallInfo {
    CallInfo { counts: counts.or(call.counts), ..call }
}

impl Flight {
    pub(crate) fn head(&self) -> &Head {
        match self {
            Flight::Collective(run) => &run.head,
            Flight::Exchange(exchange) => &exchange.head,
            Flight::Direct(direct) => &direct.head,
            Flight::Point(point) => &point.head,
            Flight::Rebuild(waiting) => &waiting.head,
        }
    }

    pub(crate) fn head_mut(&mut self) -> &mut Head {
        match self {
            Flight::Collective(run) => &mut run.head,
            Flight::Exchange(exchange) => &mut exchange.head,
            Flight::Direct(direct) => &mut direct.head,
            Flight::Point(point) => &mut point.head,
            Flight::Rebuild(waiting) => &mut waiting.head,
        }
    }

    /// Whether a frame is for this very call, and what it is of as long as it may be.
    pub(crate) fn agrees(&mut self, from: usize, header: &Header) -> bool {
        self.head().digest == header.digest
            && match self {
                Flight::Collective(run) => run.takes(from, header),
                _ => true,
            }
    }

    /// What was called, as others are told where ranks disagree.
    pub(crate) fn info(&self) -> CallInfo {
        let counts = match self {
            Flight::Collective(run) => run.counts(),
            _ => None,
        };
        with_counts(self.head().desc.info(), counts)
    }

    /// The message that it got, of which it did not know everything before.
    pub(super) fn arrival(&self) -> Option<Arrival> {
        match self {
            Flight::Point(point) => point.arrival,
            Flight::Collective(run) => run.arrival(),
            _ => None,
        }
    }

    pub(crate) fn is_collective(&self) -> bool {
        matches!(self, Flight::Collective(_) | Flight::Exchange(_) | Flight::Direct(_))
    }

    /// Ranks of the communicator that it waits for.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        match self {
            Flight::Collective(run) => run.waits_for(),
            Flight::Exchange(exchange) => exchange.waits_for(),
            Flight::Direct(direct) => direct.part.waits_for(),
            Flight::Point(point) => point.waits_for(),
            Flight::Rebuild(waiting) => waiting.open.clone(),
        }
    }

    /// Whether one of those that it waits for will do.
    pub(crate) fn waits_for_any(&self) -> bool {
        matches!(self, Flight::Point(point) if point.peer.is_none())
    }

    /// Ranks without each of which it does not end, as others are told.
    pub(crate) fn needs(&self) -> Vec<usize> {
        if self.waits_for_any() { Vec::new() } else { self.waits_for() }
    }
}
