//! How many collectives of a communicator are in flight at once, where its user has set a limit, and who waits to call the next.
//!
//! What is called beyond the limit takes its number and waits as where there is no room in memory ([`room`](super::room)): it
//! begins in its turn, and at least one is always in flight, so that ranks with different limits do not wait for each other. Who
//! waits to call has an operation in flight that is no message: it has a deadline, drives, and ends with the communicator like any
//! other, and nothing waits for it.

use super::head::Head;
use super::point::{Point, Side};
use super::shared::Engine;
use super::state::{Flight, State};
use crate::buffer::parts::Parts;
use crate::link::RunKey;

impl Engine {
    /// From now on so many collectives are in flight at once, at least one.
    pub(crate) fn set_admission(&self, channel: usize, limit: usize) {
        self.after_calls(|core| {
            if let Some(of) = core.state.channels[channel].as_mut() {
                of.admission = limit.max(1);
            }
            core.state.admit_callers(channel);
        });
    }
}

impl State {
    pub(super) fn launch_admit(&mut self, head: Head, parts: Parts) {
        let (key, channel) = (head.key, head.channel);
        let mut point = Point::new(head, None, 0, parts, Side::receive());
        if let Some(of) = self.channels[channel].as_mut() {
            point.me = of.rank;
            of.awaiting_admission.push(key);
        }
        self.place_flight(key, Flight::Point(point));
        self.admit_callers(channel);
    }

    /// Lets those call who wait to, if a collective would begin at once.
    pub(super) fn admit_callers(&mut self, channel: usize) {
        let Some(of) = self.channels[channel].as_mut() else { return };
        if of.awaiting_admission.is_empty() || !of.admits() {
            return;
        }
        for key in std::mem::take(&mut of.awaiting_admission) {
            // One that has ended otherwise is known no more.
            self.finish(key, Ok(()));
        }
    }

    /// Whom a caller waits for who waits to call: whoever the first waits for that is in flight, which has this number. None where
    /// this is none of them.
    pub(super) fn awaited_for_admission(&self, channel: usize, key: RunKey) -> Option<(u64, Vec<usize>)> {
        let of = self.channels[channel].as_ref()?;
        if !of.awaiting_admission.contains(&key) {
            return None;
        }
        let (seq, first) = of.inflight.front()?;
        self.look_up(*first).map(|flight| (*seq, flight.waits_for()))
    }
}
