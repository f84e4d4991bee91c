//! The engine as everybody sees it: submit, drive, sleep, wake.
//!
//! *Who drives.* Whoever polls an operation asks for a turn ([`Turns`]). Nobody waits for one: who does not get it is
//! seen to by who has it. A turn lasts over system calls and the reductions of one turn, which is bounded; wakers are
//! called after it.
//!
//! *Who sleeps.* A sleeping operation is among the [`Sleepers`]. The poll set is registered with the runtime of whoever
//! slept last, and wakes the engine, which wakes the first sleeper that is still waited for: the leader. It drives for
//! all. One that was woken and does not come is noticed by the service thread, which then drives itself. What a wait does
//! is in [`wait`](super::wait).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::call::{Op, Records, Request, wake};
use super::channel::Channel;
use super::core::Core;
use super::forked::{end_forked, forked};
use super::keeper::Keeper;
use super::log::Log;
use super::near::Terms;
use super::neighbours::Neighbours;
use super::room::Memory;
use super::sleepers::Sleepers;
use super::turns::{Turn, Turns};
use super::wait::Wait;
use super::watch::Watch;
use super::wires::PeerLink;
use crate::buffer::arena::Arena;
use crate::buffer::parts::Parts;
use crate::buffer::pool::Pool;
use crate::link::memory::Hub;
use crate::runtime::clock::Clock;
use crate::runtime::fork::Mark;
use crate::runtime::park::Park;
use crate::runtime::poller::Poller;
use crate::runtime::spin::{Patience, SpinPolicy};
use crate::runtime::sync::ArrayQueue;

/// Calls that wait for whoever drives; more delay their caller.
const SUBMISSIONS: usize = 1024;

/// A handle; when the last one goes, the engine finishes what is in flight and says goodbye.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The process that this belongs to. In a child that was forked from it, nothing is driven, and calls fail.
    pub(super) home: Mark,
    pub(super) core: Turns<Core>,
    pub(super) submissions: ArrayQueue<Arc<Op>>,
    cancelled: AtomicBool,
    /// Somebody is about to sleep: the next turn asks the poll set, whatever is quiet.
    pub(super) ask_poll_set: AtomicBool,
    /// The last hint that a turn has seen.
    pub(super) seen: AtomicUsize,
    /// The last turn could have gone on.
    pub(super) unfinished: AtomicBool,
    pub(super) watch: Watch,
    pub(super) sleepers: Sleepers,
    pub poller: Poller,
    pub(super) park: Park,
    pool: Arc<Pool>,
    pub(super) arena: Option<Arc<Arena>>,
    pub(super) sharing: OnceLock<Vec<u64>>,
    pub(super) hosts: OnceLock<Vec<u32>>,
    pub(super) hub: Option<Arc<Hub>>,
    pub(super) neighbours: Arc<Neighbours>,
    pub(super) me: usize,
    pub(super) has_links: bool,
    pub(super) policy: SpinPolicy,
    pub(super) clock: Clock,
    pub(super) keeper: Keeper,
    pub(super) patience: Patience,
    records: Records,
    pub(super) closing: AtomicBool,
    pub(super) said_bye: AtomicBool,
    log: Log,
}

impl Engine {
    pub(crate) fn new(
        me: usize,
        peers: Vec<PeerLink>,
        labels: Vec<String>,
        hub: Option<Arc<Hub>>,
        policy: SpinPolicy,
        memory: Memory,
    ) -> std::io::Result<Arc<Self>> {
        Self::kept(me, peers, labels, hub, policy, memory, Keeper::Thread)
    }

    /// With somebody who looks after it.
    pub(super) fn kept(
        me: usize,
        peers: Vec<PeerLink>,
        labels: Vec<String>,
        hub: Option<Arc<Hub>>,
        policy: SpinPolicy,
        memory: Memory,
        keeper: Keeper,
    ) -> std::io::Result<Arc<Self>> {
        let poller = Poller::new()?;
        let pool = Pool::new(memory.limit, memory.pooled());
        let clock = keeper.clock();
        let core = Core::new(me, peers, labels, pool.clone(), hub.clone(), poller.clone(), clock.now())?;
        let arena = core.state.io.arena.clone();
        if let Some(arena) = &arena {
            arena.call(Waker::from(Arc::new(Kick { keeper: keeper.clone(), _place: 0 })));
        }
        let shared = Arc::new(Shared {
            home: Mark::new(),
            has_links: core.has_links() && keeper.is_woken_by_descriptors(),
            neighbours: core.neighbours.clone(),
            core: Turns::new(core),
            submissions: ArrayQueue::new(SUBMISSIONS),
            cancelled: AtomicBool::new(false),
            ask_poll_set: AtomicBool::new(false),
            seen: AtomicUsize::new(0),
            unfinished: AtomicBool::new(false),
            watch: Watch::default(),
            sleepers: Sleepers::default(),
            poller,
            park: Park::default(),
            pool,
            arena,
            sharing: OnceLock::new(),
            hosts: OnceLock::new(),
            hub: hub.clone(),
            me,
            policy,
            clock,
            keeper,
            patience: Patience::default(),
            records: Records::new(),
            closing: AtomicBool::new(false),
            said_bye: AtomicBool::new(false),
            log: Log::default(),
        });
        if let Some(hub) = hub {
            hub.attach(me, shared.bell());
        }
        shared.keeper.register(shared.clone())?;
        Ok(Arc::new(Engine { shared }))
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    pub(crate) fn open(&self, channel: Channel) -> usize {
        let index = self.shared.with_core(|core| core.state.open(channel));
        self.shared.drive();
        index
    }

    pub(crate) fn close(&self, channel: usize) {
        self.after_calls(|core| core.close_channel(channel));
    }

    /// Acts after what was called before, which may still wait for whoever drove then.
    pub(super) fn after_calls(&self, act: impl FnOnce(&mut Core)) {
        if self.shared.home.is_away() {
            return;
        }
        self.shared.with_core(|core| {
            core.state.now = self.shared.clock.now();
            self.shared.begin_submitted(core);
            act(core);
        });
        self.shared.drive();
    }

    /// The thread that has a communicator or a key of one panics: the others are told of a lost rank.
    pub(crate) fn abandon(&self, channel: usize) {
        self.after_calls(|core| core.state.abandon(channel));
    }

    /// Begins a call now: what can leave leaves, and it may be over already.
    pub(crate) fn submit(&self, mut request: Request) -> Submitted {
        let shared = &self.shared;
        if shared.home.is_away() {
            return Submitted::Flying(forked(request));
        }
        let mut call = None;
        if let Some(turn) = shared.core.offer() {
            shared.take_turns(Some(turn), Some((&mut request, &mut call)));
        }
        let call = call.unwrap_or_else(|| {
            let op = shared.record();
            shared.queue(&op, request);
            Submitted::Flying(op)
        });
        if let Submitted::Flying(op) = &call
            && !op.is_done()
        {
            shared.keeper.attend();
        }
        call
    }

    /// Waits for the end of a call inside a future.
    pub(crate) fn poll(&self, op: &Arc<Op>, wait: &mut Wait, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.home.is_away() {
            end_forked(op);
        }
        self.shared.poll(op, wait, cx)
    }

    /// Panics where a thread that waits would stop all ranks.
    pub(crate) fn allow_blocking(&self) {
        self.shared.keeper.allow_blocking();
    }

    /// Waits for the end of a call on a thread that has no runtime, or blocks it.
    pub(crate) fn block_on(&self, op: &Arc<Op>) {
        if self.shared.home.is_away() {
            end_forked(op);
        }
        self.shared.block_on(op);
    }

    /// The future of this call is gone; the call goes on.
    pub(crate) fn detach(&self, op: &Arc<Op>) {
        if self.shared.home.is_away() {
            return;
        }
        self.shared.sleepers.leave(op);
        self.shared.interrupt_service();
    }

    pub(crate) fn cancel(&self, op: &Arc<Op>) {
        op.cancel();
        self.shared.cancelled.store(true, Ordering::Release);
        self.shared.drive();
    }

    /// From now on reports are appended to this file.
    pub(crate) fn report_to(&self, path: PathBuf) -> std::io::Result<()> {
        self.shared.log.write_to(path)
    }

    /// What tells the world from others, on all its ranks: reports call it so.
    pub(crate) fn name_run(&self, run: impl Into<Arc<str>>) {
        self.shared.log.name_run(run.into());
    }

    pub(crate) fn run(&self) -> Arc<str> {
        self.shared.log.run()
    }

    /// Gives a call its own limit, from its beginning on.
    pub(crate) fn limit(&self, op: &Arc<Op>, limit: Duration) {
        op.limit(limit);
        self.shared.cancelled.store(true, Ordering::Release);
        self.shared.drive();
        self.shared.keeper.kick();
    }

    /// The record of an ended call, for reuse.
    pub(crate) fn recycle(&self, op: Arc<Op>) {
        self.shared.records.give(op);
    }
}

impl Drop for Engine {
    /// Says goodbye at once if nothing is in flight, since the process may end before any other thread runs. What can't
    /// be done without waiting is left to the service thread.
    fn drop(&mut self) {
        if self.shared.home.is_away() {
            return;
        }
        self.shared.wind_down(false);
        self.shared.closing.store(true, Ordering::Release);
        self.shared.keeper.kick();
    }
}

/// A call to be begun, and where it is put once it is.
type Beginning<'a> = (&'a mut Request, &'a mut Option<Submitted>);

/// A call that has begun.
#[derive(Debug)]
pub(crate) enum Submitted {
    Flying(Arc<Op>),
    /// It went well, and this is its memory.
    Over(Parts),
}

thread_local! {
    pub(super) static THREAD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

impl Shared {
    /// For rare acts that must not fail for the lock. The caller drives afterwards.
    pub(super) fn with_core<R>(&self, act: impl FnOnce(&mut Core) -> R) -> R {
        act(&mut self.core.wait())
    }

    /// Leaves a call to whoever drives.
    #[cold]
    pub(super) fn queue(&self, op: &Arc<Op>, request: Request) {
        op.hold(request);
        let mut waiting = op.clone();
        while let Err(back) = self.submissions.push(waiting) {
            waiting = back;
            self.drive();
            std::thread::yield_now();
        }
        self.drive();
    }

    pub(super) fn begin_submitted(&self, core: &mut Core) {
        // Who has queued a call asks for a turn after that: a look costs less than trying to take one.
        while !self.submissions.is_empty()
            && let Some(op) = self.submissions.pop()
        {
            if let Some(mut request) = op.take_request() {
                core.state.start(op, &mut request);
            }
        }
    }

    /// Takes turns for a user until nobody asks for more. Says whether anything moved.
    pub(crate) fn drive(&self) -> bool {
        self.take_turns(self.core.ask(), None).0
    }

    /// The same; says when as well.
    pub(super) fn drive_at(&self) -> (bool, Instant) {
        let (moved, at) = self.take_turns(self.core.ask(), None);
        (moved, at.unwrap_or_else(|| self.clock.now()))
    }

    /// The same, with the first turn; begins a call in it, after those that wait already.
    fn take_turns<'a>(
        &'a self,
        first: Option<Turn<'a, Core>>,
        mut call: Option<Beginning<'_>>,
    ) -> (bool, Option<Instant>) {
        let mut at = None;
        let mut moved = false;
        let mut ready = false;
        if self.home.is_away() {
            return (false, None);
        }
        let last = self.core.drive(first, |mut core| {
            self.watch.count();
            if let Some(hub) = &self.hub {
                hub.set_driver(self.me, THREAD.with(|thread| *thread));
            }
            if self.meet(&mut core, &mut call) {
                moved = true;
                return self.unlock_and_wake(core);
            }
            let now = self.clock.now();
            at = Some(now);
            core.state.now = now;
            (core.state.polled_at, core.state.polled_since) = (now, false);
            if let Some(hub) = &self.hub {
                self.seen.store(hub.news(self.me), Ordering::Relaxed);
            }
            self.begin_submitted(&mut core);
            if let Some((request, call)) = call.take() {
                let op = self.record();
                core.state.start(op.clone(), request);
                let over = op.is_done();
                *call = Some(Submitted::Flying(op));
                // What it waited for had come before. What has come since is left where it is: kept for later, it would have to be
                // copied, and the next call could not take it from there.
                if over && !self.is_asked() && core.may_rest() {
                    moved = true;
                    return self.unlock_and_wake(core);
                }
            }
            if self.cancelled.load(Ordering::Relaxed) && self.cancelled.swap(false, Ordering::AcqRel) {
                core.state.review_again();
                core.state.tick();
            }
            if self.ask_poll_set.load(Ordering::Relaxed) && self.ask_poll_set.swap(false, Ordering::AcqRel) {
                core.ask_poll_set();
            }
            moved |= core.turn(true);
            ready = core.is_ready();
            self.note_unfinished(&core);
            self.unlock_and_wake(core);
        });
        (moved || last && ready, at)
    }

    /// Begins a call that its peers may be at, too, unless others wait to begin. Says whether it is over already, so that
    /// nothing else needs to be looked at.
    fn meet(&self, core: &mut Core, call: &mut Option<Beginning<'_>>) -> bool {
        let Some((request, submitted)) = call else { return false };
        if !self.submissions.is_empty() {
            return false;
        }
        let begun = if self.hub.is_some() { self.meet_here(core, request) } else { self.swap(core, request) };
        let Some(begun) = begun else { return false };
        let over = matches!(begun, Submitted::Over(_));
        if over {
            core.state.record_over(request);
        }
        **submitted = Some(begun);
        *call = None;
        over && core.may_rest()
    }

    /// With ranks of this process.
    fn meet_here(&self, core: &mut Core, request: &mut Request) -> Option<Submitted> {
        if !self.may_meet() {
            return None;
        }
        Some(match core.state.meet(request, &self.clock)? {
            Ok(parts) => Submitted::Over(parts),
            Err(part) => {
                let op = self.record();
                core.state.launch_part(op.clone(), request, part);
                Submitted::Flying(op)
            }
        })
    }

    /// With ranks at the other ends of byte links.
    fn swap(&self, core: &mut Core, request: &mut Request) -> Option<Submitted> {
        if self.is_asked() {
            return None;
        }
        if core.only_shares() {
            let record = || self.record();
            return core.near(request, Terms { policy: self.policy, clock: &self.clock, record });
        }
        core.swap(request, self.policy == SpinPolicy::Look, &self.clock, || self.record())
    }

    /// Whether something is to be done that only an ordinary turn does.
    fn is_asked(&self) -> bool {
        self.ask_poll_set.load(Ordering::Relaxed) || self.cancelled.load(Ordering::Relaxed)
    }

    /// A record for a call.
    fn record(&self) -> Arc<Op> {
        let op = self.records.take();
        op.renew();
        op
    }

    pub(super) fn note_unfinished(&self, core: &Core) {
        let unfinished = core.state.has_unfinished();
        if unfinished != self.unfinished.load(Ordering::Relaxed) {
            self.unfinished.store(unfinished, Ordering::Release);
        }
    }

    /// Wakers and whoever sleeps for what was published are called without the lock.
    pub(super) fn unlock_and_wake(&self, mut core: Turn<'_, Core>) {
        /// More than this many at once allocate.
        const INLINE: usize = 8;
        if core.state.woken.len() <= 1 && core.state.io.published.len() <= 1 && core.failed.is_empty() {
            let (op, peer) = (core.state.woken.pop(), core.state.io.published.pop());
            drop(core);
            if let Some(peer) = peer {
                self.notify(peer);
            }
            if let Some(op) = op {
                wake(op);
            }
            return;
        }
        let mut woken: [Option<Arc<Op>>; INLINE] = [const { None }; INLINE];
        let mut peers = [usize::MAX; INLINE];
        let mut more = Vec::new();
        let mut more_peers = Vec::new();
        let mut reports = if core.state.reports.is_empty() { Vec::new() } else { core.take_reports() };
        // Once for all that fail together.
        if let Some(last) = reports.last_mut().filter(|_| self.log.is_open()) {
            last.recent = core.state.last_operations();
        }
        for (index, op) in core.state.woken.drain(..).enumerate() {
            match woken.get_mut(index) {
                Some(slot) => *slot = Some(op),
                None => more.push(op),
            }
        }
        for (index, peer) in core.state.io.published.drain(..).enumerate() {
            match peers.get_mut(index) {
                Some(slot) => *slot = peer,
                None => more_peers.push(peer),
            }
        }
        let failed = std::mem::take(&mut core.failed);
        drop(core);
        for report in reports {
            self.log.write(report);
        }
        for (op, outcome) in failed {
            op.finish(outcome);
            wake(op);
        }
        for peer in peers.into_iter().take_while(|peer| *peer != usize::MAX).chain(more_peers) {
            self.notify(peer);
        }
        woken.into_iter().flatten().chain(more).for_each(wake);
    }

    /// Something was published for a peer of this host: it is called if it sleeps.
    fn notify(&self, peer: usize) {
        match &self.hub {
            Some(hub) => hub.notify(peer),
            None => self.neighbours.notify(peer),
        }
    }

    /// Nobody drives from here on: peers of this host call when they publish something.
    pub(crate) fn await_call(&self) {
        match &self.hub {
            Some(hub) => hub.park(self.me),
            None => self.neighbours.await_call(),
        }
    }

    fn interrupt_service(&self) {
        if self.watch.is_set() {
            self.keeper.interrupt(&self.poller);
        }
    }

    /// Wakes whoever sleeps here, without keeping this alive.
    pub(super) fn bell(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::new(Bell(Arc::downgrade(self))))
    }
}

/// How memory that is gone calls, whoever drops it: by nobody's waker, since its owner may hold what that needs.
struct Kick {
    keeper: Keeper,
    /// A keeper may be of no size: a pointer behind an allocation would be none to it, for a checker of leaks.
    _place: u8,
}

impl Wake for Kick {
    fn wake(self: Arc<Self>) {
        self.keeper.kick();
    }
}

/// How ranks of this process call: without keeping what they call alive.
struct Bell(Weak<Shared>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.wake_by_ref();
        }
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.sleepers.call_leader();
        self.interrupt_service();
    }
}
