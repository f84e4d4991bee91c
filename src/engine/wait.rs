//! How a call is waited for: look for a while, then sleep.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::call::Op;
use super::shared::{Shared, THREAD};
use super::sleepers::Sleep;
use crate::runtime::park::Armed;
use crate::runtime::poller::Alarm;
use crate::runtime::spin::{self, SpinPolicy};

/// How an operation's future waits.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    /// Since when nothing has moved.
    idle_since: Option<Instant>,
    yields: u32,
    slept: bool,
    /// When it went to sleep, until the sleep is judged.
    slept_at: Option<Instant>,
}

thread_local! {
    /// What wakes this thread while it waits, blocked.
    static ALARM: Option<(Alarm, Waker)> =
        Alarm::new().ok().map(|alarm| (alarm.clone(), Waker::from(Arc::new(alarm))));
}

impl Shared {
    pub(super) fn poll(self: &Arc<Self>, op: &Arc<Op>, wait: &mut Wait, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.poll_once(op, wait, cx);
        if polled.is_ready() && wait.slept {
            // It may have led, and others still sleep.
            self.sleepers.call_leader();
        }
        polled
    }

    fn poll_once(self: &Arc<Self>, op: &Arc<Op>, wait: &mut Wait, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(at) = wait.slept_at.take() {
            self.patience.learn(self.clock.now().saturating_duration_since(at));
        }
        if op.is_done() {
            return Poll::Ready(());
        }
        op.register(cx.waker());
        let again = self.look(op, wait);
        if op.is_done() {
            return Poll::Ready(());
        }
        if again {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        wait.slept = true;
        wait.slept_at = Some(self.clock.now());
        self.sleep(op)
    }

    /// Drives for a short while. Says whether to come back soon instead of sleeping.
    fn look(&self, op: &Op, wait: &mut Wait) -> bool {
        // Not known before it is needed: what has come already needs no clock.
        let mut begun = None;
        loop {
            // The last turn has seen all up to the last hint.
            if self.policy == SpinPolicy::Look {
                self.await_news();
            }
            let (moved, now) = self.drive_at();
            if op.is_done() {
                return false;
            }
            if moved {
                wait.idle_since = None;
                wait.yields = 0;
            }
            if !moved && self.hopeless() {
                return false;
            }
            match self.policy {
                SpinPolicy::Look => {
                    let idle_since = *wait.idle_since.get_or_insert(now);
                    if now - *begun.get_or_insert(now) >= spin::POLL_SPIN {
                        if !moved {
                            self.neighbours.part(self.me, now);
                            // Whoever else wants this processor may be the peer, or keep him from his.
                            spin::yield_processor();
                        }
                        return moved || now - idle_since < self.patience.limit();
                    }
                }
                SpinPolicy::Yield if moved => return true,
                SpinPolicy::Yield => {
                    wait.yields += 1;
                    if wait.yields > spin::YIELDS {
                        return false;
                    }
                    spin::yield_processor();
                }
                #[cfg(feature = "testing")]
                SpinPolicy::Never => return moved,
            }
        }
    }

    /// Waits for a moment, or for a hint that no turn has seen, where only peers of this process can bring news.
    fn await_news(&self) {
        /// About half a microsecond: what comes without a hint is not held up by more.
        const PAUSES: usize = 16;
        let Some(hub) = self.hub.as_ref().filter(|_| !self.has_links) else {
            std::hint::spin_loop();
            return;
        };
        let seen = self.seen.load(Ordering::Relaxed);
        for _ in 0..PAUSES {
            if hub.news(self.me) != seen {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Whether peers can come while this thread looks for them, and nobody else waits for it to drive.
    pub(super) fn may_meet(&self) -> bool {
        self.policy == SpinPolicy::Look && !self.has_links && self.hub.is_some() && !self.hopeless()
    }

    /// Whether a peer of this process that could help is driven by this very thread: looking won't make it move.
    fn hopeless(&self) -> bool {
        let Some(hub) = &self.hub else { return false };
        let thread = THREAD.with(|thread| *thread);
        (0..hub.ranks()).any(|rank| {
            rank != self.me && matches!(hub.driver(rank), driver if driver == thread || driver == 0)
        })
    }

    fn sleep(self: &Arc<Self>, op: &Arc<Op>) -> Poll<()> {
        loop {
            match self.lie_down(op) {
                Sleep::Over => return Poll::Ready(()),
                Sleep::Disturbed => {
                    op.wake();
                    return Poll::Pending;
                }
                Sleep::Deep if !self.has_links => return Poll::Pending,
                Sleep::Deep => {}
            }
            match self.park.arm(&self.poller, &Waker::from(self.clone())) {
                Armed::Yes => return Poll::Pending,
                Armed::Ready => {}
                Armed::No => {
                    self.keeper.kick();
                    return Poll::Pending;
                }
            }
        }
    }

    fn lie_down(&self, op: &Arc<Op>) -> Sleep {
        self.sleepers.lie_down(op, || self.await_call(), || self.last_look(), || self.was_called())
    }

    /// The last turn before sleep, by whoever drives: it asks the poll set, which announces nothing twice.
    fn last_look(&self) -> bool {
        self.ask_poll_set.store(true, Ordering::Release);
        self.drive()
    }

    /// Whether a peer of this process has called since sleep was announced: what it published may have come too late
    /// for the look that followed.
    pub(crate) fn was_called(&self) -> bool {
        self.hub.as_ref().is_some_and(|hub| !hub.is_parked(self.me))
    }

    pub(super) fn block_on(self: &Arc<Self>, op: &Arc<Op>) {
        let mut wait = Wait::default();
        while !op.is_done() {
            if self.look(op, &mut wait) || op.is_done() {
                continue;
            }
            let slept_at = self.clock.now();
            ALARM.with(|alarm| match alarm {
                Some((alarm, waker)) => self.sleep_blocked(op, alarm, waker),
                // No descriptor for an alarm: look on.
                None => spin::yield_processor(),
            });
            self.patience.learn(self.clock.now().saturating_duration_since(slept_at));
        }
        self.sleepers.call_leader();
    }

    fn sleep_blocked(&self, op: &Arc<Op>, alarm: &Alarm, waker: &Waker) {
        alarm.silence();
        op.register(waker);
        if self.lie_down(op) == Sleep::Deep {
            if self.has_links {
                self.poller.wait(alarm);
            } else {
                // Nothing comes by the poll set but calls for the service thread, which this one would not take.
                alarm.wait();
            }
            self.drive();
        }
    }
}
