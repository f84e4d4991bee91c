//! Check, warm-up, iterations: one size.

use std::time::{Duration, Instant};

use hcomm::{Communicator, DType, Element, Rank};
use rustix::time::{ClockId, clock_gettime};

use super::Failed;
use super::call::{Buffers, Call};
use super::settings::Settings;
use crate::names::{Kind, Link};
use crate::progress::Progress;

/// How many calls show what one may take.
const TRIALS: usize = 3;
/// What ranks tell each other about their part: wrong elements, CPU time, bytes beyond the user's buffers.
const FIGURES: usize = 3;

/// What was measured at one size, over all ranks.
pub struct Point {
    pub count: usize,
    pub algorithm: &'static str,
    /// The time of each call at rank 0, or where that is done first, at the slowest rank; in order of size.
    pub times: Vec<Duration>,
    /// Elements that were wrong.
    pub wrong: u64,
    /// CPU time in all calls.
    pub cpu: Duration,
    /// Most bytes beyond the user's buffers, of the rank that has most.
    pub beyond: u64,
}

impl Point {
    /// The mean time of a call.
    pub fn mean(&self) -> Duration {
        mean(&self.times)
    }

    /// The time that `percent` of the calls don't exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let at = (self.times.len() * percent).div_ceil(100).saturating_sub(1);
        self.times.get(at).copied().unwrap_or_default()
    }
}

/// Measures vectors of `count` elements.
pub async fn point<T: Element>(
    settings: &Settings,
    comm: &mut Communicator,
    count: usize,
    progress: &mut Progress,
) -> Result<Point, Failed> {
    let algorithm = algorithm(settings, comm, count)?;
    let call = Call::<T>::new(settings, comm, count)?;
    let (cpu, times) = (Duration::ZERO, Vec::new());
    let buffers = call.buffers(comm);
    let mut run = Run { settings, comm, call: &call, wrong: 0, cpu, times, expected: None, progress };
    let buffers = run.check(buffers).await?;
    let buffers = run.warm_up(buffers).await?;
    run.timed(buffers).await?;
    run.finish(algorithm, count).await
}

/// The name of the algorithm that all calls of a size use.
fn algorithm(settings: &Settings, comm: &mut Communicator, count: usize) -> Result<&'static str, Failed> {
    let (count, dtype) =
        if settings.kind == Kind::Barrier { (1, DType::U8) } else { (count, settings.dtype) };
    match (settings.algorithm, settings.kind.collective(Rank(0))) {
        (Some(algorithm), _) => Ok(algorithm.name()),
        (None, Some(collective)) => Ok(comm.explain(collective, count, dtype)?.choice.algorithm.name()),
        (None, None) => Ok("direct"),
    }
}

/// One rank's part in a point.
struct Run<'a, T: Element> {
    settings: &'a Settings,
    comm: &'a mut Communicator,
    call: &'a Call<'a, T>,
    times: Vec<Duration>,
    wrong: u64,
    cpu: Duration,
    /// About how many calls are to be timed; not known before it is warm.
    expected: Option<usize>,
    progress: &'a mut Progress,
}

impl<T: Element> Run<'_, T> {
    async fn check(&mut self, mut buffers: Buffers<T>) -> Result<Buffers<T>, Failed> {
        self.progress.show(|| "a call that is checked");
        self.call.fill(&mut buffers);
        if self.settings.kind == Kind::Barrier && self.on_one_host() {
            self.wrong += self.check_barrier().await?;
            return Ok(buffers);
        }
        let buffers = self.call.run(self.comm, buffers).await?;
        self.wrong += self.call.wrong(&buffers);
        Ok(buffers)
    }

    /// Whether clocks of different ranks can be compared.
    fn on_one_host(&self) -> bool {
        self.comm.host_group().size() == self.comm.size()
    }

    /// No rank may leave a barrier before the last has come: whoever did is counted.
    async fn check_barrier(&mut self) -> Result<u64, Failed> {
        let rank = self.comm.rank().index();
        // Late ranks: each in turn would be left behind by a barrier that does not wait for it.
        std::thread::sleep(Duration::from_millis(rank as u64 % 4));
        let called = nanos(now(ClockId::Monotonic));
        self.comm.barrier().await?;
        let clocks = self.gather(&[called, nanos(now(ClockId::Monotonic))]).await?;
        let last = clocks.iter().step_by(2).max();
        Ok(u64::from(Some(&clocks[2 * rank + 1]) < last))
    }

    /// Timed calls, back to back, or with a new input each.
    async fn iterate(&mut self, mut buffers: Buffers<T>, count: usize) -> Result<Buffers<T>, Failed> {
        self.times.reserve(count);
        if !self.settings.touch {
            return self.calls(buffers, count).await;
        }
        for _ in 0..count {
            self.call.fill(&mut buffers);
            self.comm.barrier().await?;
            buffers = self.calls(buffers, 1).await?;
        }
        Ok(buffers)
    }

    async fn calls(&mut self, mut buffers: Buffers<T>, count: usize) -> Result<Buffers<T>, Failed> {
        let before = now(ClockId::ProcessCPUTime);
        for _ in 0..count {
            let start = Instant::now();
            buffers = self.call.run(self.comm, buffers).await?;
            self.times.push(start.elapsed());
            self.tell();
        }
        self.cpu += now(ClockId::ProcessCPUTime) - before;
        Ok(buffers)
    }

    /// Calls that don't count, twice as many each time.
    async fn warm_up(&mut self, mut buffers: Buffers<T>) -> Result<Buffers<T>, Failed> {
        let mut batch = TRIALS;
        while batch > 0 {
            buffers = self.iterate(buffers, batch).await?;
            let done = self.times.len();
            let enough = self.settings.is_warm(done, self.times.iter().sum());
            batch = self.agree(if enough { 0 } else { done }).await?;
        }
        Ok(buffers)
    }

    /// Calls that count. How long they take together is seen while they go on: the first ones may have been lucky.
    async fn timed(&mut self, mut buffers: Buffers<T>) -> Result<(), Failed> {
        let mut each = mean(&self.times);
        (self.times, self.cpu) = (Vec::new(), Duration::ZERO);
        loop {
            let done = self.times.len();
            self.expected = Some(self.settings.iterations(each));
            let batch = self.settings.batch(done, self.times.iter().sum(), each);
            let batch = self.agree(batch).await?;
            if batch == 0 {
                return Ok(());
            }
            self.comm.barrier().await?;
            buffers = self.iterate(buffers, batch).await?;
            // One call that took very long does not end it early.
            each = mean(&self.times[done..]).min(mean(&self.times));
            if self.settings.check {
                buffers = self.check(buffers).await?;
            }
        }
    }

    fn tell(&mut self) {
        let (done, expected) = (self.times.len(), self.expected);
        self.progress.show(|| match expected {
            None => format!("warm-up, call {done}"),
            Some(all) if done <= all => format!("call {done} of {all}"),
            Some(_) => format!("call {done}"),
        });
    }

    /// Rank 0's number, at all ranks.
    async fn agree(&mut self, number: usize) -> Result<usize, Failed> {
        let agreed = self.comm.broadcast(vec![number as u64], Rank(0)).await?;
        Ok(agreed[0] as usize)
    }

    /// As many numbers of each rank, at all ranks.
    async fn gather(&mut self, mine: &[u64]) -> Result<Vec<u64>, Failed> {
        let mut all = vec![0u64; mine.len() * self.comm.size()];
        all[mine.len() * self.comm.rank().index()..][..mine.len()].copy_from_slice(mine);
        // It takes no memory beside, which would be told as that of the next size.
        Ok(self.comm.all_gather(all).await?)
    }

    async fn finish(mut self, algorithm: &'static str, count: usize) -> Result<Point, Failed> {
        let beyond = self.comm.resources().in_use_max as u64;
        let mine: [u64; FIGURES] = [self.wrong, nanos(self.cpu), beyond];
        let figures = self.gather(&mine).await?;
        let of = |figure: usize| figures.iter().skip(figure).step_by(FIGURES).copied();
        // Ranks that are threads have one CPU clock between them.
        let cpu = if self.settings.link == Link::Memory { figures[1] } else { of(1).sum() };
        if matches!(self.settings.kind, Kind::Broadcast | Kind::Scatter | Kind::Scan | Kind::ExScan) {
            // Rank 0 is done when all of it is on its way.
            let mine: Vec<u64> = self.times.iter().map(|time| nanos(*time)).collect();
            let (calls, all) = (mine.len(), self.gather(&mine).await?);
            let slowest = |call: usize| all.iter().skip(call).step_by(calls).copied().max();
            let times = (0..calls).map(|call| Duration::from_nanos(slowest(call).unwrap_or_default()));
            self.times = times.collect();
        }
        self.times.sort_unstable();
        Ok(Point {
            count,
            algorithm,
            times: self.times,
            wrong: of(0).sum(),
            cpu: Duration::from_nanos(cpu),
            beyond: of(2).max().unwrap_or(0),
        })
    }
}

fn mean(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / times.len().max(1) as u32
}

fn now(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}
