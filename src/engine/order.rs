//! Which operation moves first, where some are urgent and others can wait.
//!
//! A turn moves first all that is urgent. While something urgent is in flight, one of the others moves in each turn, so
//! that what comes for the urgent ones is looked at before long. Normal operations go before bulk ones; a bulk one moves
//! in turns in which no normal one could.
//!
//! Why nobody starves: who has waited for [`AGE`] turns goes before all that is not urgent, longest wait first. Each turn
//! moves at least one of those that wait, or finds that none can move. So who can move waits for at most `AGE` turns and
//! one more for each other operation in flight, whatever is called meanwhile.
//!
//! It is a matter of one rank alone: no plan, digest or result knows of it. Where everything in flight is normal, none of
//! this is asked ([`State::proceed`]).

use std::collections::VecDeque;

use super::state::State;
use crate::link::RunKey;
pub(crate) use crate::observe::Priority;

/// Turns after which who waits goes first: a few, so that bulk moves at a tenth of the pace where normal operations never
/// pause.
const AGE: u64 = 8;

/// What priorities there are.
const PRIORITIES: usize = 3;

/// What was moved, and who waited for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moves {
    /// Times that operations moved, by priority.
    pub moved: [u64; PRIORITIES],
    /// Times that one went before others of a higher priority because it had waited.
    pub aged: u64,
    /// Turns that one that was ready has waited at most.
    pub waited_max: u64,
}

/// Operations that may be able to move, in the order in which they do.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Operations in flight.
    flying: [usize; PRIORITIES],
    /// Who waits, by priority, and since which turn.
    waiting: [VecDeque<(RunKey, u64)>; PRIORITIES],
    turn: u64,
    /// Urgent ones that have not moved in this turn yet; whether a normal one has moved in it, and whether it is over.
    urgent_left: usize,
    normal_moved: bool,
    over: bool,
    pub moves: Moves,
}

impl Order {
    pub(super) fn begun(&mut self, priority: Priority) {
        self.flying[priority as usize] += 1;
    }

    pub(super) fn ended(&mut self, priority: Priority) {
        self.flying[priority as usize] -= 1;
    }

    pub(super) fn moved(&mut self, priority: Priority) {
        self.moves.moved[priority as usize] += 1;
    }

    /// Whether there is anything to be put in order.
    fn is_needed(&self) -> bool {
        self.has_urgent() || self.flying[Priority::Bulk as usize] > 0
    }

    pub(super) fn has_urgent(&self) -> bool {
        self.flying[Priority::Urgent as usize] > 0
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }

    /// Everybody who waits, no matter since when.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = RunKey> {
        self.waiting.iter_mut().flat_map(|queue| queue.drain(..)).map(|(key, _)| key)
    }

    fn wait(&mut self, key: RunKey, priority: Priority) {
        self.waiting[priority as usize].push_back((key, self.turn));
    }

    fn since(&self, priority: Priority) -> Option<u64> {
        self.waiting[priority as usize].front().map(|(_, since)| *since)
    }

    fn pop(&mut self, priority: Priority) -> Option<RunKey> {
        let (key, since) = self.waiting[priority as usize].pop_front()?;
        self.moves.waited_max = self.moves.waited_max.max(self.turn - since);
        Some(key)
    }

    /// A turn begins, of all who wait now.
    fn begin_turn(&mut self) {
        self.urgent_left = self.waiting[Priority::Urgent as usize].len();
        (self.normal_moved, self.over) = (false, false);
    }

    /// The next of this turn.
    fn pick(&mut self) -> Option<(RunKey, Priority)> {
        if self.urgent_left > 0 {
            self.urgent_left -= 1;
            return self.pop(Priority::Urgent).map(|key| (key, Priority::Urgent));
        }
        if self.over {
            return None;
        }
        let aged = |since: &u64| self.turn - since >= AGE;
        let normal = self.since(Priority::Normal);
        let old = self.since(Priority::Bulk).filter(aged);
        let priority = match (normal, old) {
            (Some(normal), Some(old)) if old < normal || !aged(&normal) => {
                self.moves.aged += 1;
                Priority::Bulk
            }
            (Some(_), _) => Priority::Normal,
            (None, Some(_)) => Priority::Bulk,
            (None, None) if !self.normal_moved => Priority::Bulk,
            (None, None) => return None,
        };
        self.pop(priority).map(|key| (key, priority))
    }

    /// One that was picked has moved.
    fn has_moved(&mut self, priority: Priority) {
        self.normal_moved |= priority == Priority::Normal;
        self.over |= priority != Priority::Urgent && self.has_urgent();
    }
}

impl State {
    /// Moves operations for one turn.
    pub(crate) fn proceed(&mut self) -> bool {
        if self.order.is_needed() { self.advance_in_order() } else { self.advance() }
    }

    /// By priority. Who is left out moves in one of the next turns: see [`has_unfinished`](Self::has_unfinished).
    fn advance_in_order(&mut self) -> bool {
        self.order.turn += 1;
        self.touched.append(&mut self.unfinished);
        self.queue_touched();
        self.queue_polled();
        self.order.begin_turn();
        let mut moved = false;
        while let Some((key, priority)) = self.order.pick() {
            if self.move_one(key) {
                self.order.has_moved(priority);
                moved = true;
            }
        }
        self.queue_touched();
        moved | self.admit_delayed()
    }

    /// From here on, those that waited move in any order.
    pub(super) fn release_waiting(&mut self) {
        self.touched.extend(self.order.drain());
        for index in 0..self.touched.len() {
            let key = self.touched[index];
            if let Some(flight) = self.flight(key) {
                flight.head_mut().queued = false;
            }
        }
    }

    fn move_one(&mut self, key: RunKey) -> bool {
        let Some(flight) = self.flight(key) else { return false };
        flight.head_mut().queued = false;
        self.step(key)
    }

    fn queue_touched(&mut self) {
        while let Some(key) = self.touched.pop() {
            self.queue(key);
        }
    }

    /// Peers of this process move these and do not say so: each may be able to move.
    fn queue_polled(&mut self) {
        let mut index = 0;
        while let Some(key) = self.polled.get(index).copied() {
            if self.queue(key) {
                index += 1;
            } else {
                self.polled.swap_remove(index);
            }
        }
    }

    /// An operation waits for its turn, once. Says whether it is in flight.
    fn queue(&mut self, key: RunKey) -> bool {
        let Some(flight) = self.flight(key) else { return false };
        let head = flight.head_mut();
        let priority = head.priority;
        if !std::mem::replace(&mut head.queued, true) {
            self.order.wait(key, priority);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What turns do with operations that all can move, for ever.
    fn turns(order: &mut Order, count: usize, mut served: impl FnMut(u64, RunKey, Priority)) {
        for _ in 0..count {
            order.turn += 1;
            let turn = order.turn;
            order.begin_turn();
            let mut again = Vec::new();
            while let Some((key, priority)) = order.pick() {
                order.has_moved(priority);
                again.push((key, priority));
            }
            assert!(
                again.is_sorted_by_key(|(_, priority)| *priority != Priority::Urgent),
                "urgent ones first"
            );
            for (key, priority) in again {
                served(turn, key, priority);
                order.wait(key, priority);
            }
        }
    }

    fn order(counts: [u32; PRIORITIES]) -> Order {
        let mut order = Order::default();
        let mut index = 0;
        for (priority, count) in [Priority::Urgent, Priority::Normal, Priority::Bulk].into_iter().zip(counts)
        {
            for _ in 0..count {
                order.begun(priority);
                order.wait(RunKey { index, generation: 0 }, priority);
                index += 1;
            }
        }
        order
    }

    proptest! {
        #[test]
        fn nobody_waits_longer_than_the_age_and_one_turn_for_each_other(
            counts in proptest::array::uniform3(0u32..12),
        ) {
            let mut order = order(counts);
            let all: u32 = counts.iter().sum();
            let mut moved = vec![0u64; all as usize];
            turns(&mut order, 400, |turn, key, _| {
                let last = std::mem::replace(&mut moved[key.index as usize], turn);
                assert!(turn - last <= AGE + u64::from(all), "{key:?} waited from {last} to {turn}");
            });
            prop_assert!(moved.iter().all(|last| 400 - last <= AGE + u64::from(all)));
            prop_assert!(order.moves.waited_max <= AGE + u64::from(all));
        }
    }

    #[test]
    fn urgent_ones_move_in_every_turn_and_one_other_beside_them() {
        let mut order = order([2, 3, 1]);
        let mut moved = [0; PRIORITIES];
        turns(&mut order, 100, |_, _, priority| moved[priority as usize] += 1);
        assert_eq!((moved[0], moved[1] + moved[2]), (200, 100));
        assert!(moved[2] >= 100 / (AGE + 6), "{moved:?}");
        assert_eq!(order.moves.aged, moved[2]);
    }

    #[test]
    fn bulk_moves_freely_only_where_no_normal_one_does() {
        let mut alone = order([0, 0, 3]);
        let mut moved = 0;
        turns(&mut alone, 10, |_, _, _| moved += 1);
        assert_eq!((moved, alone.moves.aged), (30, 0));
        let mut beside = order([0, 1, 3]);
        let mut moved = [0; PRIORITIES];
        turns(&mut beside, 80, |_, _, priority| moved[priority as usize] += 1);
        assert_eq!(moved[1], 80);
        assert!(moved[2] > 0 && moved[2] <= 3 * 80 / AGE, "{moved:?}");
    }
}
