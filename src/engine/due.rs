//! What falls due, and deadlines that do not run.
//!
//! A rank that *holds* the deadlines of a communicator tells all its members (`Hold`), and tells them again when it lets go.
//! Each rank keeps who holds; as long as anybody does, no deadline runs there on that communicator, under its keys, and on
//! whatever was made from it. An operation's time goes on where it was: what it was suspended for is added to its deadline.
//!
//! Nobody who is gone holds: with a rank's `Close`, its goodbye or its loss goes what it held. A rank that lives may hold for
//! ever, which is what it was asked for; that is said as often as a long wait is.
//!
//! A peer hears every second change only if it does not read: it is told the last state once there is room.

use std::time::{Duration, Instant};

use super::peer::Standing;
use super::shared::Engine;
use super::state::{STALL, State};
use crate::link::frame::{HELD, Header, Kind, Outgoing};

/// How often what is due without an hour of its own is looked at: deadlines that don't run, in case nobody saw that they do
/// again; and receives that may have been let go of.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Who holds the deadlines of a communicator.
#[derive(Debug)]
pub(crate) struct Holds {
    /// Guards of this rank.
    own: usize,
    /// By rank, whether it has told that it holds, and whether it was told that this one does.
    by: Vec<bool>,
    told: Vec<bool>,
    /// Since when deadlines don't run here, for whosever sake.
    since: Option<Instant>,
}

impl Holds {
    pub(crate) fn new(ranks: usize) -> Self {
        Holds { own: 0, by: vec![false; ranks], told: vec![false; ranks], since: None }
    }

    fn any(&self) -> bool {
        self.own > 0 || self.by.contains(&true)
    }

    /// How much of the time since `begun` counts for a deadline that was not suspended before.
    pub(super) fn counted(&self, begun: Instant, now: Instant) -> Duration {
        self.since.map_or(now, |since| since.min(now)).saturating_duration_since(begun)
    }
}

impl Engine {
    /// No deadline runs on a communicator, on any of its ranks, until [`release`](Self::release) is called as often.
    pub(crate) fn hold(&self, channel: usize, id: u64) {
        self.change_hold(|state| state.hold(channel, id));
    }

    pub(crate) fn release(&self, channel: usize, id: u64) {
        self.change_hold(|state| state.release(channel, id));
    }

    fn change_hold(&self, change: impl FnOnce(&mut State)) {
        let shared = &self.shared;
        shared.with_core(|core| {
            core.state.now = shared.clock.now();
            // What was called before began before.
            shared.begin_submitted(core);
            change(&mut core.state);
        });
        shared.drive();
    }
}

impl State {
    /// What fell due; returns when to look again.
    pub(crate) fn tick(&mut self) -> Option<Instant> {
        let mut next = self.tell_holds().into_iter().chain(self.review_delayed()).min();
        // However many operations wait on a communicator, its members are told once.
        let mut waiting = Vec::new();
        for slot in 0..self.slots() {
            let Some(key) = self.key_at(slot) else { continue };
            let now = self.now;
            let Some(flight) = self.flight(key) else { continue };
            let head = flight.head_mut();
            if let Some(limit) = head.op.take_limit() {
                head.deadline = head.started.checked_add(limit).unwrap_or(head.deadline);
            }
            let (index, deadline) = (head.channel, head.deadline_with_pauses());
            let (is_cancelled, remark) = (head.op.is_cancelled(), head.remark);
            let verdict = head.verdict_due();
            let (runs, left_over) = (self.suspended_since(index).is_none(), self.is_left_over(key));
            if is_cancelled || left_over && !self.is_awaited(key) {
                self.cancel(key);
            } else if verdict.is_some_and(|at| now >= at) {
                self.decide(key);
            } else if runs && now >= deadline {
                self.expire(key);
            } else {
                if now >= remark {
                    self.put_off_remark(key);
                    if !waiting.contains(&index) {
                        waiting.push(index);
                        self.remark(key);
                    }
                }
                let Some(flight) = self.flight(key) else { continue };
                let deadline = if runs && !left_over { deadline } else { now + LOOK };
                let due = deadline.min(flight.head().remark).min(verdict.unwrap_or(deadline));
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        next
    }

    fn holds(&mut self, index: usize, id: u64) -> Option<&mut Holds> {
        let channel = self.channels.get_mut(index)?.as_mut().filter(|channel| channel.id == id)?;
        // The others have heard that this rank is no part of it any more.
        if channel.parted { None } else { Some(&mut channel.holds) }
    }

    fn hold(&mut self, index: usize, id: u64) {
        if let Some(holds) = self.holds(index, id) {
            holds.own += 1;
            self.held_anew();
        }
    }

    fn release(&mut self, index: usize, id: u64) {
        if let Some(holds) = self.holds(index, id) {
            holds.own = holds.own.saturating_sub(1);
            self.held_anew();
        }
    }

    /// Another rank holds deadlines, or holds them no longer.
    pub(super) fn on_hold(&mut self, index: usize, from: usize, header: &Header) -> Result<(), String> {
        let Some(channel) = self.channels[index].as_mut() else { return Ok(()) };
        let held = header.flags & HELD != 0;
        if channel.closed[from].is_some() {
            return Err("tells of deadlines of a communicator that it has closed".into());
        }
        if std::mem::replace(&mut channel.holds.by[from], held) == held {
            return Err(twice(held));
        }
        self.review_holds();
        Ok(())
    }

    /// A rank has told of deadlines of a communicator that is not open here, and tells the contrary. Says whether it does.
    pub(super) fn takes_hold_back(&mut self, peer: usize, header: &Header) -> Result<bool, String> {
        let is_it = |of: usize, told: &Header| {
            of == peer && told.kind == Kind::Hold && told.channel == header.channel
        };
        let Some(at) = self.orphans.iter().position(|(of, stashed)| is_it(*of, &stashed.header)) else {
            return Ok(false);
        };
        let (_, before) = self.orphans.remove(at);
        self.uncount_orphan(peer, &before);
        if before.header.flags == header.flags { Err(twice(header.flags & HELD != 0)) } else { Ok(true) }
    }

    /// A rank is no part of a communicator any more, and holds nothing there.
    pub(super) fn forget_hold(&mut self, index: usize, rank: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        if std::mem::take(&mut channel.holds.by[rank]) {
            self.review_holds();
        }
    }

    /// This rank tells that it is no part of a communicator any more.
    pub(super) fn forget_own_hold(&mut self, index: usize) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        if std::mem::take(&mut channel.holds.own) > 0 {
            self.review_holds();
        }
    }

    fn held_anew(&mut self) {
        self.untold_holds = true;
        self.tell_holds();
        self.review_holds();
    }

    /// Tells whoever does not know it what this rank holds; says when to try again if there was no room for that.
    fn tell_holds(&mut self) -> Option<Instant> {
        if !std::mem::take(&mut self.untold_holds) {
            return None;
        }
        for index in 0..self.channels.len() {
            let Some(channel) = self.channels[index].as_ref().filter(|channel| !channel.parted) else {
                continue;
            };
            let (me, held) = (channel.rank, channel.holds.own > 0);
            let unaware = |rank: &usize| *rank != me && channel.holds.told[*rank] != held;
            for rank in (0..channel.members.len()).filter(unaware).collect::<Vec<_>>() {
                self.tell_hold(index, rank, held);
            }
        }
        self.untold_holds.then(|| self.now + STALL)
    }

    fn tell_hold(&mut self, index: usize, rank: usize, held: bool) {
        let Some(channel) = self.channels[index].as_mut() else { return };
        let world = channel.members[rank] as usize;
        if self.peers[world].standing != Standing::Here {
            return;
        }
        if !self.io.may_answer(world) {
            self.untold_holds = true;
            return;
        }
        channel.holds.told[rank] = held;
        let mut header = Header::new(Kind::Hold, channel.id, 0);
        header.flags = if held { HELD } else { 0 };
        self.io.control(world, Outgoing::control(header));
    }

    /// Who holds, or which communicators there are, has changed: deadlines stop, or run again.
    pub(super) fn review_holds(&mut self) {
        let now = self.now;
        let holders = self.channels.iter().flatten().filter(|channel| channel.holds.any());
        let holders: Vec<u64> = holders.map(|channel| channel.id).collect();
        for index in 0..self.channels.len() {
            let Some(channel) = self.channels[index].as_mut() else { continue };
            let held = channel.line().any(|id| holders.contains(&id));
            match channel.holds.since {
                None if held => channel.holds.since = Some(now),
                Some(since) if !held => self.resume(index, since),
                _ => {}
            }
        }
    }

    /// Deadlines run again, which did not since then: what they did not run for is added.
    fn resume(&mut self, index: usize, since: Instant) {
        let now = self.now;
        let missed = |begun: Instant| now.saturating_duration_since(begun.max(since));
        let Some(channel) = self.channels[index].as_mut() else { return };
        channel.holds.since = None;
        for (_, _, called) in &mut channel.delayed {
            *called += missed(*called);
        }
        for key in self.keys_on(index) {
            if let Some(flight) = self.flight(key) {
                let head = flight.head_mut();
                head.paused += missed(head.started);
            }
        }
    }

    pub(super) fn suspended_since(&self, index: usize) -> Option<Instant> {
        self.channels[index].as_ref()?.holds.since
    }

    /// Who holds the deadlines of a communicator, in words.
    pub(super) fn held_by(&self, index: usize) -> Option<String> {
        let channel = self.channels[index].as_ref()?;
        channel.holds.since?;
        let known = |id| self.channel_of(id).and_then(|index| self.channels[index].as_ref());
        let of = channel.line().filter_map(known).find(|of| of.holds.any())?;
        let rank = of.holds.by.iter().position(|held| *held).unwrap_or(of.rank);
        Some(format!("rank {rank} of \"{}\"", of.name))
    }
}

fn twice(held: bool) -> String {
    let what =
        if held { "holds deadlines that it holds" } else { "lets go of deadlines that it does not hold" };
    what.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_until_deadlines_are_held() {
        let begun = Instant::now();
        let [early, held, late] = [1, 5, 9].map(|seconds| begun + Duration::from_secs(seconds));
        let mut holds = Holds::new(3);
        assert_eq!(holds.counted(begun, late), Duration::from_secs(9));
        holds.since = Some(held);
        assert_eq!(holds.counted(begun, late), Duration::from_secs(5));
        assert_eq!(holds.counted(late, late), Duration::ZERO);
        assert_eq!(holds.counted(begun, early), Duration::from_secs(1));
    }
}
