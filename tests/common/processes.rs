//! Worlds of processes: this test binary again, with a role that the environment tells.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hcomm::{Communicator, InitError, Token};
use rustix::process::{Pid, Signal, kill_process};

use super::{GENEROUS, WATCHDOG};

/// What a process of a world does; not set in the test run itself.
pub const SCENARIO: &str = "HCOMM_TEST_SCENARIO";

/// Where processes meet.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    File(&'a Path),
    /// Rank 0 listens at the first of these ports; data connections have the others.
    Ports(u16),
}

/// How many ports a world of processes has.
pub const PORTS: u16 = 8;

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for Place<'a> {
    fn from(path: &'a P) -> Self {
        Place::File(path.as_ref())
    }
}

/// What a process of a world does.
pub struct Role {
    pub scenario: String,
    pub count: usize,
    /// Descriptors and threads before it joined.
    pub before: (usize, usize),
    pub joined: Result<Communicator, InitError>,
}

/// Descriptors and threads of this process.
pub fn taken() -> (usize, usize) {
    let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

/// What a process opens once, whatever for, and keeps.
pub fn open_what_stays() {
    drop(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let threads = taken().1;
    let ranks = Communicator::local(2);
    // Long enough to fall asleep over, which opens an alarm.
    let never = ranks[0].recv(hcomm::Rank(1), 1, vec![0u8]).timeout(Duration::from_millis(40)).wait();
    assert!(never.is_err());
    drop(ranks);
    let until = Instant::now() + WATCHDOG;
    while taken().1 > threads && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Role {
    /// Told by the environment; nothing in the test run itself. The test that asks is named "child".
    pub fn of_this_process() -> Option<Role> {
        let scenario = std::env::var(SCENARIO).ok()?;
        let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
        let token = Token::from_hex(&std::env::var("HCOMM_TEST_TOKEN").unwrap()).unwrap();
        open_what_stays();
        let before = taken();
        let builder = Communicator::builder()
            .rank(number("HCOMM_TEST_RANK") as u32)
            .world(number("HCOMM_TEST_WORLD") as u32);
        let place = std::env::var("HCOMM_TEST_PLACE").unwrap();
        let builder = match place.parse::<u16>() {
            Ok(first) => builder.root(format!("127.0.0.1:{first}")).ports(first + 1..=first + PORTS - 1),
            Err(_) => builder.file(place),
        };
        let joined = builder
            .token(token)
            .rendezvous_deadline(Duration::from_secs(number("HCOMM_TEST_RENDEZVOUS_S") as u64))
            .operation_deadline(GENEROUS)
            .connect_blocking();
        Some(Role { scenario, count: number("HCOMM_TEST_COUNT"), before, joined })
    }
}

/// Past the capture of test output, in one piece.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("\n> {line}\n").as_bytes());
    let _ = out.flush();
}

/// This test binary.
pub fn own() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// This test binary, started by another program.
pub fn own_by(launcher: &[&str]) -> Command {
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).arg(std::env::current_exe().unwrap());
    command
}

/// Processes of one world, killed with it.
pub struct Processes {
    children: Vec<Option<Child>>,
    sender: mpsc::Sender<(usize, Option<String>)>,
    lines: mpsc::Receiver<(usize, Option<String>)>,
}

impl Processes {
    /// Of `n` ranks, none of which is started yet.
    pub fn new(n: usize) -> Processes {
        let (sender, lines) = mpsc::channel();
        Processes { children: (0..n).map(|_| None).collect(), sender, lines }
    }

    pub fn start<'a>(
        scenario: &str,
        n: usize,
        count: usize,
        place: impl Into<Place<'a>>,
        rendezvous_s: u64,
    ) -> Processes {
        let place = match place.into() {
            Place::File(path) => path.as_os_str().to_owned(),
            Place::Ports(first) => first.to_string().into(),
        };
        let token = Token::random().unwrap().to_hex();
        let mut world = Processes::new(n);
        for rank in 0..n {
            let mut child = own();
            child
                .env(SCENARIO, scenario)
                .env("HCOMM_TEST_RANK", rank.to_string())
                .env("HCOMM_TEST_WORLD", n.to_string())
                .env("HCOMM_TEST_PLACE", &place)
                .env("HCOMM_TEST_TOKEN", &token)
                .env("HCOMM_TEST_COUNT", count.to_string())
                .env("HCOMM_TEST_RENDEZVOUS_S", rendezvous_s.to_string());
            world.start_rank(rank, child);
        }
        world
    }

    /// Starts one by this command, to which is added what runs the test named "child".
    pub fn start_rank(&mut self, rank: usize, mut command: Command) {
        let mut child = command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        self.children[rank] = Some(child);
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix("> ") {
                    let _ = sender.send((rank, Some(said.to_string())));
                }
            }
            let _ = sender.send((rank, None));
        });
    }

    pub fn len(&self) -> usize {
        self.children.len()
    }

    pub fn pid(&self, rank: usize) -> u32 {
        self.children[rank].as_ref().unwrap().id()
    }

    /// What comes next, unless they hang: a rank and what it says, or that its output has ended.
    pub fn hear(&self) -> Option<(usize, Option<String>)> {
        self.lines.recv_timeout(WATCHDOG).ok()
    }

    /// The same, where they don't.
    pub fn next(&self) -> (usize, Option<String>) {
        self.hear().expect("processes hang")
    }

    /// Waits until all but `but` have said this.
    pub fn all_say(&self, what: &str, but: Option<usize>) {
        let mut open: Vec<usize> = (0..self.children.len()).filter(|rank| Some(*rank) != but).collect();
        while !open.is_empty() {
            let (rank, said) = self.next();
            let Some(said) = said else {
                assert!(!open.contains(&rank), "rank {rank} ended and has not said \"{what}\"");
                continue;
            };
            if said == what {
                open.retain(|of| *of != rank);
            } else {
                let besides = ["in full", "running", "gave back"].iter().any(|word| said.starts_with(word));
                assert!(besides, "rank {rank} says: {said}");
            }
        }
    }

    pub fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_raw(self.pid(rank) as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until all have ended; every process but `but` in order.
    pub fn end(&mut self, but: Option<usize>) {
        let until = Instant::now() + WATCHDOG;
        for (rank, child) in self.children.iter_mut().enumerate() {
            let status = loop {
                if let Some(status) = child.as_mut().unwrap().try_wait().unwrap() {
                    break status;
                }
                assert!(Instant::now() < until, "process of rank {rank} does not end");
                std::thread::sleep(Duration::from_millis(2));
            };
            assert!(status.success() || Some(rank) == but, "rank {rank}: {status}");
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A test of this file passes in a process of its own, which has the variable `mark`; `launcher` starts that, if it is not
/// to be started directly.
pub fn passes_alone(launcher: &[&str], test: &str, mark: &str) {
    let mut command = if launcher.is_empty() { own() } else { own_by(launcher) };
    let output = command.args(["--exact", test, "--nocapture"]).env(mark, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
}
