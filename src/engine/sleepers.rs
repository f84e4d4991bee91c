//! Operations whose callers sleep, and the leader among them.
//!
//! What happens wakes one sleeper only: the first that somebody still waits for, the leader. He drives for all, and what
//! completes is woken by its own waker.
//!
//! Why nobody is forgotten: whoever stops to lead passes the call on, because he may have been called before. One who is
//! dropped marks his operation first and passes the call on then ([`leave`](Sleepers::leave)); one whose operation has
//! ended does the same ([`call_leader`](Sleepers::call_leader)). The list is under a lock: a call that still finds him
//! in front comes before his mark, and so before his own call, which finds the next one.

use std::collections::VecDeque;
use std::sync::Arc;

use super::call::{Op, lock};
use crate::runtime::sync::{Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    parked: Mutex<VecDeque<Arc<Op>>>,
}

/// What comes of lying down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// The operation has ended.
    Over,
    /// Something has moved: look again.
    Disturbed,
    /// Whatever comes from now on wakes.
    Deep,
}

impl Sleepers {
    /// Puts an operation to sleep whose waker is registered: joins the list, announces sleep, and looks once more.
    /// What came before the announcement is seen by that look; what comes after it calls, which `called` tells, or
    /// wakes.
    pub(crate) fn lie_down(
        &self,
        op: &Arc<Op>,
        announce: impl FnOnce(),
        drive: impl FnOnce() -> bool,
        called: impl FnOnce() -> bool,
    ) -> Sleep {
        self.add(op);
        announce();
        let moved = drive();
        if op.is_done() {
            Sleep::Over
        } else if moved || called() {
            Sleep::Disturbed
        } else {
            Sleep::Deep
        }
    }

    /// Calls the first operation that somebody still waits for.
    pub(crate) fn call_leader(&self) {
        let leader = self.list().front().cloned();
        if let Some(leader) = leader {
            leader.wake();
        }
    }

    /// Nobody waits for this operation any more.
    pub(crate) fn leave(&self, op: &Op) {
        op.abandon();
        self.call_leader();
    }

    fn add(&self, op: &Arc<Op>) {
        let mut parked = self.list();
        if !op.set_listed(true) {
            parked.push_back(op.clone());
        }
    }

    /// The list, with one in front that somebody still waits for.
    fn list(&self) -> MutexGuard<'_, VecDeque<Arc<Op>>> {
        let mut parked = lock(&self.parked);
        while parked.front().is_some_and(|front| !front.is_waited_for()) {
            parked.pop_front().inspect(|op| _ = op.set_listed(false));
        }
        parked
    }
}
