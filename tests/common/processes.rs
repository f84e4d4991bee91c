//! Worlds of processes: this test binary again, with a role that the environment tells.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hcomm::{Communicator, InitError, Token};
use rustix::process::{Pid, Signal, kill_process};

use super::{GENEROUS, WATCHDOG};

const SCENARIO: &str = "HCOMM_TEST_SCENARIO";

/// What a process of a world does.
pub struct Role {
    pub scenario: String,
    pub count: usize,
    pub joined: Result<Communicator, InitError>,
}

impl Role {
    /// Told by the environment; nothing in the test run itself. The test that asks is named "child".
    pub fn of_this_process() -> Option<Role> {
        let scenario = std::env::var(SCENARIO).ok()?;
        let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
        let token = Token::from_hex(&std::env::var("HCOMM_TEST_TOKEN").unwrap()).unwrap();
        let joined = Communicator::builder()
            .rank(number("HCOMM_TEST_RANK") as u32)
            .world(number("HCOMM_TEST_WORLD") as u32)
            .file(std::env::var("HCOMM_TEST_PLACE").unwrap())
            .token(token)
            .rendezvous_deadline(Duration::from_secs(number("HCOMM_TEST_RENDEZVOUS_S") as u64))
            .operation_deadline(GENEROUS)
            .connect_blocking();
        Some(Role { scenario, count: number("HCOMM_TEST_COUNT"), joined })
    }
}

/// Past the capture of test output, in one piece.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("\n> {line}\n").as_bytes());
    let _ = out.flush();
}

/// Processes of one world, killed with it.
pub struct Processes {
    pub children: Vec<Child>,
    lines: mpsc::Receiver<(usize, Option<String>)>,
}

impl Processes {
    pub fn start(scenario: &str, n: usize, count: usize, place: &Path, rendezvous_s: u64) -> Processes {
        let token = Token::random().unwrap().to_hex();
        let (sender, lines) = mpsc::channel();
        let children = (0..n).map(|rank| {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child", "--nocapture", "--test-threads=1"])
                .env(SCENARIO, scenario)
                .env("HCOMM_TEST_RANK", rank.to_string())
                .env("HCOMM_TEST_WORLD", n.to_string())
                .env("HCOMM_TEST_PLACE", place)
                .env("HCOMM_TEST_TOKEN", &token)
                .env("HCOMM_TEST_COUNT", count.to_string())
                .env("HCOMM_TEST_RENDEZVOUS_S", rendezvous_s.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()
                .unwrap();
            let out = BufReader::new(child.stdout.take().unwrap());
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in out.lines().map_while(Result::ok) {
                    if let Some(said) = line.strip_prefix("> ") {
                        let _ = sender.send((rank, Some(said.to_string())));
                    }
                }
                let _ = sender.send((rank, None));
            });
            child
        });
        Processes { children: children.collect(), lines }
    }

    /// What comes next: a rank and what it says, or that its output has ended.
    pub fn next(&self) -> (usize, Option<String>) {
        self.lines.recv_timeout(WATCHDOG).expect("processes hang")
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
                assert!(said.starts_with("in full") || said == "running", "rank {rank} says: {said}");
            }
        }
    }

    pub fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_raw(self.children[rank].id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until all have ended; every process but `but` in order.
    pub fn end(&mut self, but: Option<usize>) {
        let until = Instant::now() + WATCHDOG;
        for (rank, child) in self.children.iter_mut().enumerate() {
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
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
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
