//! What all operations in flight have in common.

use super::call::Arrival;
use super::head::Head;
use super::state::Flight;

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

    /// The message that it got.
    pub(crate) fn arrival(&self) -> Option<Arrival> {
        if let Flight::Point(point) = self { point.arrival } else { None }
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
