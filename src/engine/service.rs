//! The service thread: one per process, asleep when there is nothing to do.
//!
//! It owns deadlines, cancellation and reports, and drives an engine when its user does not. It is never on the hot
//! path: while a user drives, it only counts turns, ever more rarely; when nobody does, it sleeps on the poll set, so
//! that what comes wakes it too. Then it gives the user [`GRACE`], and drives itself if he does not come.
//!
//! Why no operation goes unattended, and nothing that came goes unseen: see [`watch`](super::watch).

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::call::lock;
use super::shared::Shared;
use super::state::STALL;
use super::watch::Rest;
use crate::runtime::fork::Mark;
use crate::runtime::poller::Poller;
use crate::runtime::sync::Mutex;

/// How long a user who was woken has before the service thread drives in his place.
pub(super) const GRACE: Duration = Duration::from_millis(1);
/// While users drive: how rarely that is checked.
const TICK_MAX: Duration = Duration::from_millis(20);
/// After goodbye: how often it is seen whether what was sent gets on.
const LEAVING: Duration = Duration::from_millis(20);
/// When nothing is due, still look this often.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// A sleep longer than this must end when an operation begins: that may fall due earlier.
pub(super) const NAP: Duration = STALL;

#[derive(Debug)]
struct Service {
    home: Mark,
    newcomers: Mutex<Newcomers>,
    /// Ends the thread's sleep.
    alarm: Poller,
    rest: Rest,
}

#[derive(Debug, Default)]
struct Newcomers {
    engines: Vec<Arc<Shared>>,
    running: bool,
}

fn service() -> io::Result<&'static Service> {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    if SERVICE.get().is_none() {
        let service = Service {
            home: Mark::new(),
            newcomers: Mutex::default(),
            alarm: Poller::new()?,
            rest: Rest::default(),
        };
        let _ = SERVICE.set(service);
    }
    SERVICE.get().ok_or_else(|| io::Error::other("service not set"))
}

/// From now on the service thread looks after this engine, until it is closed.
pub(crate) fn register(engine: Arc<Shared>) -> io::Result<()> {
    let service = service()?;
    if service.home.is_away() {
        return Err(io::Error::other(
            "this process was forked from one that has a communicator; fork before the first one is made",
        ));
    }
    let thread = std::thread::Builder::new().name("hcomm-service".into());
    service.register(engine, || thread.spawn(move || service.run()).map(drop))
}

/// An operation has begun: if the thread sleeps long, it looks when that falls due.
pub(crate) fn attend() {
    let Ok(service) = service() else { return };
    if service.rest.must_end() {
        service.alarm.interrupt();
    }
}

/// Something happened that no poll set shows.
pub(crate) fn kick() {
    if let Ok(service) = service() {
        service.alarm.interrupt();
    }
}

/// An engine, as the thread looks after it.
pub(super) struct Watched {
    pub engine: Arc<Shared>,
    drives: u64,
    /// Time until the next look, while its user drives.
    tick: Duration,
    /// Its user does not drive at present: its poll set is slept on.
    pub watching: bool,
    /// The thread drives in the user's place.
    taken_over: bool,
    due: Option<Instant>,
    /// When it last saw what falls due.
    served: Instant,
    /// After goodbye: since when nothing that was sent has got on, and how far it had.
    stuck_since: Option<Instant>,
    delivered: u64,
}

impl Service {
    /// `start` starts the thread, which looks for newcomers first.
    fn register(&self, engine: Arc<Shared>, start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut newcomers = lock(&self.newcomers);
        if !newcomers.running {
            // Without it nobody would ever let go of the engine, and its peers would not see that it is gone.
            start()?;
            newcomers.running = true;
        }
        newcomers.engines.push(engine);
        drop(newcomers);
        self.alarm.interrupt();
        Ok(())
    }

    fn run(&self) {
        let mut all: Vec<Watched> = Vec::new();
        loop {
            // A call is forgotten before it is looked what for: one that comes later ends the next sleep.
            self.alarm.collect(|_, _, _, _| {});
            {
                let mut newcomers = lock(&self.newcomers);
                all.extend(newcomers.engines.drain(..).map(Watched::new));
                if all.is_empty() {
                    newcomers.running = false;
                    return;
                }
            }
            let now = Instant::now();
            let mut next = now + IDLE;
            all.retain_mut(|watched| {
                // What one engine does wrong is not to leave all others of the process without deadlines.
                let looked = catch_unwind(AssertUnwindSafe(|| watched.look(now)));
                let (keep, due) = looked.unwrap_or((true, now + IDLE));
                next = next.min(due);
                keep
            });
            self.sleep(&all, next.saturating_duration_since(Instant::now()));
        }
    }

    /// Sleeps until the time is up or a watched engine has news.
    fn sleep(&self, all: &[Watched], timeout: Duration) {
        for watched in all {
            watched.engine.watch().set(watched.watching);
        }
        // Published after the flag was set: seen here. Before: seen by the look above.
        let long = timeout > NAP;
        let news =
            self.rest.begin(long, || all.iter().any(|watched| watched.watching && watched.has_news(long)));
        let timeout = if news { GRACE.min(timeout) } else { timeout };
        let sets =
            all.iter().filter(|watched| watched.watching && !news).map(|watched| &watched.engine.poller);
        self.alarm.wait_any(sets, timeout);
        self.rest.end();
        for watched in all {
            watched.engine.watch().set(false);
        }
    }
}

impl Watched {
    pub(super) fn new(engine: Arc<Shared>) -> Self {
        Watched {
            drives: engine.watch().drives(),
            served: engine.clock.now(),
            engine,
            tick: GRACE,
            watching: false,
            taken_over: false,
            due: None,
            stuck_since: None,
            delivered: 0,
        }
    }

    /// Does what is to be done; says whether to go on, and when to look again.
    pub(super) fn look(&mut self, now: Instant) -> (bool, Instant) {
        if self.engine.is_closing() {
            return self.wind_down(now);
        }
        let drives = self.engine.watch().drives();
        if drives != self.drives {
            self.drives = drives;
            self.taken_over = false;
            self.watching = false;
            self.tick = (self.tick * 2).min(TICK_MAX);
            // What was called since may fall due before what was known then.
            if self.due.is_none_or(|due| now >= due.min(self.served + STALL)) {
                self.served = now;
                self.due = self.engine.serve(now, false).flatten();
            }
            return (true, now + self.tick);
        }
        self.tick = GRACE;
        let news = self.has_news(false) || self.watching && self.engine.is_called();
        if news && self.watching && !self.taken_over {
            // Woken together with the user: he first.
            self.taken_over = true;
            return (true, now + GRACE);
        }
        self.watching = true;
        self.engine.await_call();
        match self.engine.serve(now, news) {
            None => (true, now + GRACE),
            Some(_) if self.engine.was_called() => (true, now + GRACE),
            Some(due) => {
                self.due = due;
                (true, due.unwrap_or(now + IDLE))
            }
        }
    }

    /// Whether anything has come that nobody has looked at, or, asked for `turns`, a user has taken one. The queue is
    /// looked at first: a call that is not there any more was counted before.
    pub(super) fn has_news(&self, turns: bool) -> bool {
        let engine = &self.engine;
        engine.has_calls()
            || self.watching && (engine.was_called() || turns && engine.watch().drives() != self.drives)
    }

    fn wind_down(&mut self, now: Instant) -> (bool, Instant) {
        self.watching = true;
        // Before the look, as ever, so that what is seen in it is no news afterwards, and what comes later is.
        self.drives = self.engine.watch().drives();
        self.engine.await_call();
        self.engine.serve(now, true);
        // Before goodbye the operations' own deadlines bound the wait. After it nothing more is sent, so that what was can't
        // get on for ever.
        let delivered = self.engine.delivered();
        if !self.engine.said_bye() || delivered != self.delivered {
            self.delivered = delivered;
            self.stuck_since = None;
        }
        let since = *self.stuck_since.get_or_insert(now);
        let over = self.engine.wind_down(now - since > Shared::LINGER);
        // What ends operations shows: in the poll set, by calls, or on time. What got on after goodbye does not.
        let next = now + if self.engine.said_bye() { LEAVING } else { IDLE };
        // Asked last: also whether that turn left something to do.
        let due = match self.engine.serve(now, false) {
            None => now,
            Some(due) => due.map_or(next, |due| due.min(next)),
        };
        (!over, due.max(now + GRACE))
    }
}

#[cfg(all(test, not(hcomm_loom)))]
mod tests {
    use super::super::Engine;
    use super::super::room::{MEMORY, Memory};
    use super::super::tests::{Call, Scene};
    use super::super::wires::PeerLink;
    use super::*;
    use crate::runtime::spin::SpinPolicy;

    #[test]
    fn an_engine_that_nobody_can_look_after_is_let_go_of() {
        let labels = vec!["here".to_string()];
        let memory = Memory { limit: MEMORY };
        let engine = Engine::new(0, vec![PeerLink::Myself], labels, None, SpinPolicy::Yield, memory)
            .unwrap()
            .shared
            .clone();
        let service = Service {
            home: Mark::new(),
            newcomers: Mutex::default(),
            alarm: Poller::new().unwrap(),
            rest: Rest::default(),
        };
        let held = Arc::strong_count(&engine);
        for _ in 0..3 {
            // As where a process may have no more threads.
            let denied = service.register(engine.clone(), || Err(io::ErrorKind::WouldBlock.into()));
            assert!(denied.is_err());
            assert_eq!(Arc::strong_count(&engine), held, "with its last owner its connections are closed");
        }
        service.register(engine.clone(), || Ok(())).unwrap();
        assert_eq!(lock(&service.newcomers).engines.len(), 1, "the thread finds this one only");
    }

    /// While users drive, nobody asks what is due before what was due first when it was last seen.
    #[test]
    fn what_is_called_while_users_drive_is_looked_at_in_time() {
        let mut scene = Scene::new();
        scene.set_deadline(Duration::from_secs(3600));
        let engine = scene.engine.shared.clone();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut watched = Watched::new(engine.clone());
        let _old = scene.begin(Call::Receive(1));
        // It has told where it is several times, and will do so again after as long as it has waited.
        let mut seconds = 20;
        while watched.due.is_none_or(|due| due < at(seconds + 8)) {
            assert!(seconds < 200, "nothing is due");
            seconds += 1;
            engine.drive();
            watched.look(at(seconds));
        }
        let new = scene.begin(Call::Receive(1));
        new.op.limit(Duration::from_secs(1));
        // Once may be while somebody else is at it.
        for later in 1..=3 {
            engine.drive();
            watched.look(at(seconds + later));
        }
        assert!(new.op.is_done(), "its time is up");
    }
}
