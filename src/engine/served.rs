//! What the service thread does with an engine.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::shared::Shared;
use super::state::STALL;
use super::watch::Watch;

impl Shared {
    /// Whether something has come that nobody has collected.
    pub(crate) fn is_called(&self) -> bool {
        self.keeper.is_called(&self.poller)
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Looks after deadlines and takes a turn, if nobody else is at it. `None`: somebody is; else when something
    /// falls due next.
    pub(crate) fn serve(&self, now: Instant, mut drive: bool) -> Option<Option<Instant>> {
        let mut due = None;
        let mut asked = false;
        let last = self.core.drive(self.core.offer(), |mut core| {
            if std::mem::replace(&mut asked, true) {
                // A further turn is one that a user asked for, and need not take himself.
                core.state.polled_at = core.state.polled_at.max(now);
                drive = true;
            }
            // Who makes only calls that are over at once asks it rarely.
            if drive || now.saturating_duration_since(core.asked_at) >= STALL {
                core.state.now = now;
                core.collect();
                self.begin_submitted(&mut core);
            }
            due = core.tick(now);
            if core.is_ready() {
                due = Some(now);
            }
            self.note_unfinished(&core);
            self.unlock_and_wake(core);
        });
        last.then_some(due)
    }

    /// Whether calls or messages wait that nobody has looked at.
    pub(crate) fn has_calls(&self) -> bool {
        self.unfinished.load(Ordering::Acquire)
            || !self.submissions.is_empty()
            || self.hub.as_ref().is_some_and(|hub| !hub.inbox_is_empty(self.me))
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Ends the engine in order: first what is in flight, then goodbye, then silence. Says whether it is over.
    pub(crate) fn wind_down(&self, give_up: bool) -> bool {
        let mut core = self.core.wait();
        core.state.now = self.clock.now();
        self.begin_submitted(&mut core);
        core.state.tick();
        core.turn(true);
        if (core.state.live == 0 || give_up) && !self.said_bye.swap(true, Ordering::AcqRel) {
            core.say_bye();
        }
        let said_bye = self.said_bye();
        if said_bye && !core.has_outgoing() {
            core.shut_writing();
        }
        let over = said_bye && (give_up || !core.has_outgoing() && core.all_left());
        let me = self.me;
        self.unlock_and_wake(core);
        if over && let Some(hub) = &self.hub {
            hub.detach(me);
        }
        over
    }

    pub(crate) fn said_bye(&self) -> bool {
        self.said_bye.load(Ordering::Acquire)
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.core.wait().delivered()
    }

    /// How long peers are waited for after goodbye, which they answer once all that was sent to them has come, while none
    /// of that gets on: as long as a connection is given.
    pub(crate) const LINGER: Duration = Duration::from_secs(20);
}
