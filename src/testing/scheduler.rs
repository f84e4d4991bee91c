//! Who does the next step in a simulated world: a rank that can go on, the network, or the service that looks after
//! deadlines. Drawn from the seed wherever several can.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::engine::simulated::Attendant;
use crate::link::sim::Fabric;
use crate::link::sim::random::Random;
use crate::runtime::clock::Clock;

/// Steps before tasks that ranks have spawned get their turn.
const BURST: usize = 32;

/// All ranks of a world, as one future.
pub(super) struct Scheduler<Fut: Future> {
    seed: u64,
    fabric: Arc<Fabric>,
    attendant: Arc<Attendant>,
    random: Random,
    ranks: Vec<Option<Pin<Box<Fut>>>>,
    outputs: Vec<Option<Fut::Output>>,
    woken: Arc<Woken>,
    wakers: Vec<Waker>,
    /// When the service looks again.
    service_due: Instant,
    sleep: Pin<Box<Sleep>>,
    begun: Instant,
    limit: Duration,
    /// Who can do the next step; kept for its memory.
    choices: Vec<Choice>,
}

#[derive(Clone, Copy)]
enum Choice {
    Rank(usize),
    Network,
    Service,
}

/// Which ranks can go on.
struct Woken {
    ranks: Vec<AtomicBool>,
    /// The scheduler runs and will look at all of them.
    looking: AtomicBool,
    scheduler: Mutex<Option<Waker>>,
}

struct RankWaker {
    woken: Arc<Woken>,
    rank: usize,
}

impl Wake for RankWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.ranks[self.rank].store(true, Ordering::SeqCst);
        if !self.woken.looking.load(Ordering::SeqCst) {
            let waker = self.woken.scheduler.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<Fut: Future> Scheduler<Fut> {
    pub(super) fn new(
        seed: u64,
        limit: Duration,
        fabric: Arc<Fabric>,
        attendant: Arc<Attendant>,
        ranks: Vec<Option<Pin<Box<Fut>>>>,
    ) -> Self {
        let woken = Arc::new(Woken {
            ranks: ranks.iter().map(|_| AtomicBool::new(true)).collect(),
            looking: AtomicBool::new(false),
            scheduler: Mutex::new(None),
        });
        let waker = |rank| Waker::from(Arc::new(RankWaker { woken: woken.clone(), rank }));
        let now = Clock::SIMULATED.now();
        Scheduler {
            seed,
            fabric,
            attendant,
            // Not the numbers that the network draws.
            random: Random::new(!seed),
            outputs: ranks.iter().map(|_| None).collect(),
            wakers: (0..ranks.len()).map(waker).collect(),
            ranks,
            woken,
            service_due: now,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            begun: now,
            limit,
            choices: Vec::new(),
        }
    }

    /// Ranks whose process has ended are not asked again.
    fn bury(&mut self, killed: Vec<usize>) {
        for rank in killed {
            self.ranks[rank] = None;
        }
    }

    fn choose(&mut self, due: Option<Instant>, now: Instant) -> Option<Choice> {
        self.choices.clear();
        for rank in 0..self.ranks.len() {
            let woken = self.ranks[rank].is_some() && self.woken.ranks[rank].load(Ordering::SeqCst);
            if woken && self.fabric.paused(rank, now).is_none() {
                self.choices.push(Choice::Rank(rank));
            }
        }
        if due.is_some_and(|due| due <= now) {
            self.choices.push(Choice::Network);
        }
        if self.service_due <= now || self.attendant.is_called() {
            self.choices.push(Choice::Service);
        }
        match self.choices.len() {
            0 => None,
            1 => self.choices.first().copied(),
            several => Some(self.choices[self.random.below(several)]),
        }
    }

    fn act(&mut self, choice: Choice, now: Instant) {
        match choice {
            Choice::Network => self.fabric.step(now),
            Choice::Service => self.service_due = self.attendant.look(now),
            Choice::Rank(rank) => {
                self.fabric.note(1 << 32 | rank as u64);
                self.poll_rank(rank);
            }
        }
    }

    fn poll_rank(&mut self, rank: usize) {
        self.woken.ranks[rank].store(false, Ordering::SeqCst);
        let Some(future) = self.ranks[rank].as_mut() else { return };
        let mut cx = Context::from_waker(&self.wakers[rank]);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(output)) => {
                // One that has killed itself has no result.
                self.outputs[rank] = self.fabric.is_alive(rank).then_some(output);
                self.ranks[rank] = None;
            }
            Err(panic) => {
                let seed = self.seed;
                panic!("rank {rank} of a simulated world, seed {seed}, panicked: {}", message(&panic))
            }
        }
    }

    /// When anything can go on again, if nothing can now.
    fn next(&self, due: Option<Instant>, now: Instant) -> Instant {
        let resumes = (0..self.ranks.len()).filter_map(|rank| self.fabric.paused(rank, now));
        let limit = self.begun + self.limit;
        resumes.chain(due).fold(self.service_due.min(limit), Instant::min)
    }

    /// Whether nothing will happen any more that matters.
    fn is_over(&self) -> bool {
        let (engines, closing) = self.attendant.engines();
        // One that is not closing belongs to a communicator that a rank has given away.
        self.ranks.iter().all(Option::is_none) && (engines == 0 || !closing)
    }

    fn out_of_time(&self) -> ! {
        let (seed, limit) = (self.seed, self.limit);
        let left: Vec<usize> = (0..self.ranks.len()).filter(|rank| self.ranks[*rank].is_some()).collect();
        let what = if left.is_empty() {
            "engines of ranks that have ended are still winding down".to_string()
        } else {
            format!("ranks {left:?} have not ended")
        };
        panic!("a simulated world, seed {seed}, is not over after {limit:?}: {what}")
    }
}

fn message(panic: &Box<dyn Any + Send>) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

/// Nothing in it is pinned by being in it.
impl<Fut: Future> Unpin for Scheduler<Fut> {}

impl<Fut: Future> Future for Scheduler<Fut> {
    type Output = Vec<Option<Fut::Output>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        *this.woken.scheduler.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        this.woken.looking.store(true, Ordering::SeqCst);
        for _ in 0..BURST {
            let now = Clock::SIMULATED.now();
            let agenda = this.fabric.agenda();
            this.bury(agenda.killed);
            if this.is_over() {
                return Poll::Ready(std::mem::take(&mut this.outputs));
            }
            if now - this.begun >= this.limit {
                this.out_of_time();
            }
            if let Some(choice) = this.choose(agenda.due, now) {
                this.act(choice, now);
                continue;
            }
            this.woken.looking.store(false, Ordering::SeqCst);
            let next = this.next(agenda.due, now);
            this.sleep.as_mut().reset(tokio::time::Instant::from_std(next));
            if this.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.woken.looking.store(true, Ordering::SeqCst);
        }
        this.woken.looking.store(false, Ordering::SeqCst);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
