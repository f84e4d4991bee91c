//! Worlds of processes of this test binary, each started in its own way; and what they say.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hcomm::{LinkKind, LinkReport, Rank, Token};

use super::common::WATCHDOG;

/// What a process of a world does; not set in the test run itself.
pub const SCENARIO: &str = "HCOMM_TEST_SCENARIO";

/// A loopback address that belongs to this process alone.
pub fn own_ip() -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{}", 128 + (pid >> 16 & 0x3f), pid >> 8 & 0xff, pid & 0xff)
}

/// A port there that no other world of this process uses.
pub fn own_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
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
pub struct World {
    pub children: Vec<Option<Child>>,
    scenario: String,
    token: String,
    address: (String, u16),
    sender: mpsc::Sender<(usize, Option<String>)>,
    lines: mpsc::Receiver<(usize, Option<String>)>,
    /// What each has said so far.
    pub said: Vec<Vec<String>>,
    ended: Vec<bool>,
}

impl World {
    /// Of `n` ranks, none of which is started yet; they meet at an address of loopback.
    pub fn new(scenario: &str, n: usize) -> World {
        World::at((own_ip(), own_port()), scenario, n)
    }

    pub fn at(address: (String, u16), scenario: &str, n: usize) -> World {
        let (sender, lines) = mpsc::channel();
        World {
            children: (0..n).map(|_| None).collect(),
            scenario: scenario.into(),
            token: Token::random().unwrap().to_hex(),
            address,
            sender,
            lines,
            said: vec![Vec::new(); n],
            ended: vec![false; n],
        }
    }

    /// All ranks at once, by these commands.
    pub fn start(mut self, command: impl Fn(usize) -> Command) -> World {
        (0..self.children.len()).for_each(|rank| self.start_rank(rank, command(rank)));
        self
    }

    pub fn start_rank(&mut self, rank: usize, mut command: Command) {
        let (host, port) = &self.address;
        let numbers =
            [("RANK", rank), ("WORLD_SIZE", self.children.len()), ("MASTER_PORT", usize::from(*port))];
        let mut child = command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .envs(numbers.map(|(name, number)| (name, number.to_string())))
            .envs([("MASTER_ADDR", host), (SCENARIO, &self.scenario), ("HCOMM_TOKEN", &self.token)])
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

    pub fn pid(&self, rank: usize) -> u32 {
        self.children[rank].as_ref().unwrap().id()
    }

    fn hear(&mut self) {
        let heard = self.lines.recv_timeout(WATCHDOG);
        let (rank, line) = heard.unwrap_or_else(|_| panic!("processes hang, having said {:?}", self.said));
        match line {
            Some(line) => self.said[rank].push(line),
            None => self.ended[rank] = true,
        }
    }

    /// Waits until this rank has said something that begins so, and gives the rest of it.
    pub fn says(&mut self, rank: usize, begin: &str) -> String {
        loop {
            if let Some(rest) = self.said[rank].iter().find_map(|line| line.strip_prefix(begin)) {
                return rest.to_string();
            }
            assert!(!self.ended[rank], "rank {rank} ended without \"{begin}\": {:?}", self.said[rank]);
            self.hear();
        }
    }

    /// Waits until all have ended, in order but for this one.
    pub fn end(&mut self, but: Option<usize>) {
        while self.ended.contains(&false) {
            self.hear();
        }
        let until = Instant::now() + WATCHDOG;
        for (rank, child) in self.children.iter_mut().enumerate() {
            let status = loop {
                if let Some(status) = child.as_mut().unwrap().try_wait().unwrap() {
                    break status;
                }
                assert!(Instant::now() < until, "process of rank {rank} does not end");
                std::thread::sleep(Duration::from_millis(2));
            };
            assert!(status.success() || Some(rank) == but, "rank {rank}: {status}, said {:?}", self.said);
        }
    }

    /// How this rank reaches the others.
    pub fn links(&mut self, rank: usize) -> Vec<LinkReport> {
        serde_json::from_str(&self.says(rank, "links ")).unwrap()
    }

    /// Each reaches each other one so, for this reason; `None` if it is any.
    pub fn assert_all_linked(&mut self, kind: LinkKind, reason: Option<&str>) {
        for rank in 0..self.children.len() {
            for link in self.links(rank) {
                let myself = link.rank == Rank(rank as u32);
                assert_eq!(link.kind, if myself { LinkKind::Myself } else { kind }, "{rank}: {link:?}");
                assert!(myself || reason.is_none_or(|reason| link.reason == reason), "{rank}: {link:?}");
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
