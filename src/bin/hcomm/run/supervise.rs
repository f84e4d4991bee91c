//! From the start of the ranks until the last has ended.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::guard::Guard;
use super::output::Stream;
use super::world::{Meeting, World};
use crate::failure::{Failure, say};
use crate::names::ranks;

/// How long the others may go on when a rank has failed: long enough to notice and to report.
const GRACE: Duration = Duration::from_secs(2);
/// How long they may go on when the user has asked them to end: long enough to save what they have.
const GRACE_ASKED: Duration = Duration::from_secs(30);
/// From SIGTERM to SIGKILL.
const GRACE_TERM: Duration = Duration::from_secs(3);
/// A rank that was killed takes others with it; their exits, with whatever code, may be seen before its own by as much.
const TOGETHER: Duration = Duration::from_millis(200);
/// What a program gives that returns an error from `main`, as ranks do that see another fail.
const ERROR: i32 = 1;
/// What a program gives whose main thread panicked.
const PANICKED: i32 = 101;
/// What a command that can't be started gives, as in a shell.
const NOT_STARTED: u8 = 127;
/// Room for events: every rank ends once, and signals come one by one.
const EVENTS_MAX: usize = 16;

/// Signals that are passed on.
const PASSED_ON: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

enum Event {
    Ended(usize, io::Result<ExitStatus>),
    Asked(Signal),
}

/// Runs the world; gives its exit code.
pub async fn supervise(world: &World) -> Result<u8, Failure> {
    let (events, mut queue) = mpsc::channel(EVENTS_MAX);
    // Before the first rank starts, so that no signal ends this process and leaves ranks behind.
    for signal in PASSED_ON {
        listen(signal, events.clone())?;
    }
    let meeting = Meeting::new()?;
    let guard = Guard::start(meeting.directory()).inspect_err(|_| meeting.remove())?;
    let (all_ended, ended) = watch::channel(false);
    let (stdout, stderr) = (Stream::to(io::stdout()), Stream::to(io::stderr()));
    let mut job = Job::new(world, guard);
    for rank in 0..world.ranks {
        let mut child = match world.rank(rank, &meeting).spawn() {
            Ok(child) => child,
            Err(error) => {
                say(format!("can't start rank {rank}, {}: {error}{}", world.name(), world.hint(&error)));
                job.signal_all(Signal::KILL);
                job.stage = Stage::NotStarted;
                break;
            }
        };
        job.add(child.id());
        child.stdout.take().into_iter().for_each(|pipe| stdout.take(rank, pipe, ended.clone()));
        child.stderr.take().into_iter().for_each(|pipe| stderr.take(rank, pipe, ended.clone()));
        let events = events.clone();
        tokio::spawn(async move {
            let status = child.wait().await;
            // Nobody listens when the job is over.
            let _ = events.send(Event::Ended(rank as usize, status)).await;
        });
    }
    job.watch(&mut queue).await;
    let _ = all_ended.send(true);
    flush([stdout, stderr], queue).await;
    Ok(job.code())
}

fn listen(which: Signal, events: mpsc::Sender<Event>) -> Result<(), Failure> {
    let failed = |error| Failure::other(format!("can't receive signals: {error}"));
    let mut stream = signal(SignalKind::from_raw(which.as_raw())).map_err(failed)?;
    tokio::spawn(async move {
        while stream.recv().await.is_some() && events.send(Event::Asked(which)).await.is_ok() {}
    });
    Ok(())
}

/// Writes what is left, unless the user is tired of waiting for the terminal.
async fn flush(streams: [Stream; 2], mut queue: mpsc::Receiver<Event>) {
    let written = tokio::spawn(async move {
        for stream in streams {
            stream.finish().await;
        }
    });
    let abort = written.abort_handle();
    let asked = tokio::spawn(async move {
        while let Some(event) = queue.recv().await {
            if matches!(event, Event::Asked(Signal::INT | Signal::TERM | Signal::HUP)) {
                abort.abort();
            }
        }
    });
    // An abort is an answer, too.
    let _ = written.await;
    asked.abort();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// As it should be.
    Running,
    /// A rank failed, and the others have some time.
    Failed,
    /// The user has sent a signal that ends.
    Asked,
    /// All have SIGTERM.
    Terminated,
    /// All have SIGKILL.
    Killed,
    /// Not all could be started; those that were have SIGKILL.
    NotStarted,
}

/// A rank that failed by itself.
struct Fallen {
    at: Instant,
    status: ExitStatus,
    /// A signal of the user's ended it.
    by_request: bool,
}

struct Job {
    /// The process group of each rank that runs.
    groups: Vec<Option<Pid>>,
    /// Those that failed, in the order in which it was seen; a rank that a signal killed counts as such.
    failed: Vec<Fallen>,
    /// Those that ended well before any failed.
    done: Vec<usize>,
    /// Whether the others go on when a rank fails.
    keep_going: bool,
    stage: Stage,
    deadline: Option<Instant>,
    guard: Guard,
}

impl Job {
    fn new(world: &World, guard: Guard) -> Self {
        let keep_going = world.keep_going;
        let (groups, failed, done) = (Vec::new(), Vec::new(), Vec::new());
        Job { groups, failed, done, keep_going, stage: Stage::Running, deadline: None, guard }
    }

    fn add(&mut self, id: Option<u32>) {
        let group = id.and_then(|id| Pid::from_raw(id as i32));
        group.into_iter().for_each(|group| self.guard.watch(group));
        self.groups.push(group);
    }

    async fn watch(&mut self, queue: &mut mpsc::Receiver<Event>) {
        while self.groups.iter().any(Option::is_some) {
            let event = match self.deadline {
                None => queue.recv().await,
                Some(deadline) => match timeout_at(deadline, queue.recv()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.escalate();
                        continue;
                    }
                },
            };
            match event {
                Some(Event::Ended(rank, status)) => self.ended(rank, status),
                Some(Event::Asked(signal)) => self.asked(signal),
                None => return,
            }
        }
    }

    fn ended(&mut self, rank: usize, status: io::Result<ExitStatus>) {
        if let Some(group) = self.groups[rank].take() {
            // What the rank has started ends with it. At once, while its number can't yet be another's.
            let _ = kill_process_group(group, Signal::KILL);
            self.guard.forget(group);
        }
        match status {
            Ok(status) if status.success() && self.failed.is_empty() => self.done.push(rank),
            Ok(status) if status.success() => {}
            Ok(status) => self.failure(rank, status),
            Err(error) => say(format!("rank {rank}: its end can't be waited for: {error}")),
        }
    }

    fn failure(&mut self, rank: usize, status: ExitStatus) {
        if !matches!(self.stage, Stage::Running | Stage::Failed | Stage::Asked) {
            return;
        }
        let by_request = self.stage == Stage::Asked && status.signal().is_some();
        if !by_request {
            say(format!("rank {rank} {}", describe(status)));
            self.tell_done(status);
        }
        self.failed.push(Fallen { at: Instant::now(), status, by_request });
        if self.stage == Stage::Running && !self.keep_going {
            self.stage = Stage::Failed;
            self.deadline = Some(Instant::now() + GRACE);
        }
    }

    /// Who ends well, but too early, lets those down that fail then, and nothing else tells of it. Whoever is killed by a
    /// signal has another reason.
    fn tell_done(&mut self, first: ExitStatus) {
        let mut done = std::mem::take(&mut self.done);
        if !done.is_empty() && self.stage == Stage::Running && first.signal().is_none() {
            done.sort_unstable();
            say(format!("{} had exited with code 0 before", ranks(&done)));
        }
    }

    /// The time for an end by themselves is over.
    fn escalate(&mut self) {
        let (stage, signal, deadline) = match self.stage {
            Stage::Terminated => (Stage::Killed, Signal::KILL, None),
            _ => (Stage::Terminated, Signal::TERM, Some(Instant::now() + GRACE_TERM)),
        };
        say(format!("{} still running: {}", self.running(), signal_name(signal.as_raw())));
        self.signal_all(signal);
        (self.stage, self.deadline) = (stage, deadline);
    }

    fn asked(&mut self, signal: Signal) {
        let ends = matches!(signal, Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT);
        let again = matches!(self.stage, Stage::Asked | Stage::Terminated | Stage::Killed);
        if ends && again && matches!(signal, Signal::INT | Signal::TERM) {
            say(format!("{} again: SIGKILL to {}", signal_name(signal.as_raw()), self.running()));
            self.signal_all(Signal::KILL);
            (self.stage, self.deadline) = (Stage::Killed, None);
            return;
        }
        self.signal_all(signal);
        if ends && !again {
            say(format!("{}: passed on to {}", signal_name(signal.as_raw()), self.running()));
            (self.stage, self.deadline) = (Stage::Asked, Some(Instant::now() + GRACE_ASKED));
        }
    }

    fn signal_all(&self, signal: Signal) {
        for group in self.groups.iter().flatten() {
            // One that has just ended needs no signal.
            let _ = kill_process_group(*group, signal);
        }
    }

    fn running(&self) -> String {
        let running = self.groups.iter().enumerate().filter(|(_, group)| group.is_some());
        ranks(&running.map(|(rank, _)| rank).collect::<Vec<_>>())
    }

    fn code(&self) -> u8 {
        match first_to_fail(&self.failed) {
            _ if self.stage == Stage::NotStarted => NOT_STARTED,
            None => u8::from(matches!(self.stage, Stage::Terminated | Stage::Killed)),
            Some(status) => code(status),
        }
    }
}

/// How the rank ended that failed first. Its end may be seen after those of its victims: one that a signal killed goes
/// before others at about the same time, and before one that says no more than that there was an error go, as long as
/// that may be its victim, those that crashed.
fn first_to_fail(failed: &[Fallen]) -> Option<ExitStatus> {
    let first = failed.first()?;
    let within = |limit| {
        let close = failed.iter().take_while(move |next| next.at <= first.at + limit);
        close.filter(|next| !next.by_request)
    };
    let killed = within(TOGETHER).find(|next| next.status.signal().is_some());
    if killed.is_some() || first.status.code() != Some(ERROR) {
        return Some(killed.unwrap_or(first).status);
    }
    let crashed = |next: &&Fallen| next.status.code().is_none_or(|code| code == PANICKED);
    Some(within(GRACE).find(crashed).unwrap_or(first).status)
}

fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128 + signal as u8,
        (None, None) => 1,
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal} ({})", signal_name(signal)),
        (None, None) => "ended in an unknown way".into(),
    }
}

fn signal_name(number: i32) -> String {
    let names = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
    ];
    let known = names.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each rank failed, in ms, and how, as `wait` has it.
    fn code_of<const N: usize>(ends: [(u64, i32); N]) -> Option<u8> {
        let start = Instant::now();
        let fallen = |(at, raw)| Fallen {
            at: start + Duration::from_millis(at),
            status: ExitStatus::from_raw(raw),
            by_request: false,
        };
        first_to_fail(&ends.map(fallen)).map(code)
    }

    const fn exit(code: i32) -> i32 {
        code << 8
    }

    #[test]
    fn who_crashed_goes_before_who_saw_an_error() {
        assert_eq!(code_of([]), None);
        assert_eq!(code_of([(0, exit(1)), (5, exit(1)), (900, exit(101))]), Some(101));
        assert_eq!(code_of([(0, exit(1)), (5, exit(101)), (900, Signal::ABORT.as_raw())]), Some(101));
        assert_eq!(code_of([(0, exit(1)), (5, exit(3)), (900, Signal::ABORT.as_raw())]), Some(134));
        assert_eq!(code_of([(0, exit(1)), (2500, exit(101))]), Some(1));
        assert_eq!(code_of([(0, exit(1)), (5, exit(3))]), Some(1));
    }

    #[test]
    fn the_first_to_fail_is_believed_unless_another_was_killed_just_then() {
        assert_eq!(code_of([(0, exit(3)), (5, exit(101))]), Some(3));
        assert_eq!(code_of([(0, exit(101)), (900, Signal::ABORT.as_raw())]), Some(101));
        assert_eq!(code_of([(0, exit(101)), (5, Signal::KILL.as_raw()), (6, exit(1))]), Some(137));
    }

    #[test]
    fn who_ends_by_a_signal_of_the_user_has_not_crashed() {
        let fallen = |raw, by_request| {
            let status = ExitStatus::from_raw(raw);
            Fallen { at: Instant::now(), status, by_request }
        };
        for code in [1, 7] {
            let failed = [fallen(exit(code), false), fallen(Signal::INT.as_raw(), true)];
            assert_eq!(first_to_fail(&failed).and_then(|status| status.code()), Some(code));
        }
        let asked = [fallen(Signal::INT.as_raw(), true), fallen(Signal::TERM.as_raw(), true)];
        assert_eq!(first_to_fail(&asked).map(code), Some(130));
    }
}
