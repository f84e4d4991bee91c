//! What a process does while all its ranks wait.

#![allow(dead_code, reason = "each target uses a part of it")]

use std::thread::sleep;
use std::time::{Duration, Instant};

/// What all threads of this process, those of the library among them, did in a while.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// How often any of them went to sleep: each time it was awake for something.
    pub sleeps: u64,
    pub cpu: Duration,
    pub wall: Duration,
}

impl Spent {
    /// Processor time, in percent of one processor.
    pub fn percent(&self) -> f64 {
        self.cpu.as_secs_f64() / self.wall.as_secs_f64() * 100.0
    }
}

/// What goes on during the next `wall`. Whoever asks sleeps meanwhile.
pub fn during(wall: Duration) -> Spent {
    let (began, sleeps, cpu) = (Instant::now(), sleeps(), cpu());
    sleep(wall);
    Spent { sleeps: self::sleeps().saturating_sub(sleeps), cpu: self::cpu() - cpu, wall: began.elapsed() }
}

/// How often a rank that has nothing to do may wake up within a second, for reasons of the system or its runtime. A timer
/// of 250 ms is found.
pub const QUIET: u64 = 3;

/// Waiting costs nothing: in the quietest of some seconds no rank wakes up more often than this, and no thread looks for
/// news all the time. Whatever does so, by a timer or in a loop, does so in every second, on a loaded machine as well; what
/// ranks tell each other now and then falls into one of them at most.
pub fn assert_nothing_goes_on(what: &str, ranks: usize, wakes_per_rank: u64) -> Spent {
    const WINDOWS: usize = 3;
    /// A thread that looks all the time takes what it can get: a tenth of a processor beside a dozen that are busy.
    const PERCENT: f64 = 10.0;
    let windows: Vec<Spent> = (0..WINDOWS).map(|_| during(Duration::from_secs(1))).collect();
    let least = |of: fn(&Spent) -> f64| windows.iter().map(of).fold(f64::INFINITY, f64::min);
    let (sleeps, percent) = (least(|spent| spent.sleeps as f64), least(Spent::percent));
    assert!(sleeps <= (wakes_per_rank * ranks as u64) as f64, "{what}, {ranks} ranks: {windows:?}");
    assert!(percent <= PERCENT, "{what}, {ranks} ranks: {windows:?}");
    *windows.iter().min_by_key(|spent| spent.sleeps).unwrap_or(&windows[0])
}

/// Voluntary switches of all threads. Ends of threads are not seen: none may end meanwhile.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs").flatten();
    let of_one = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    tasks.filter_map(of_one).sum()
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
