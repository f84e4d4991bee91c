//! Worlds of processes of this test binary, each started in its own way; and what they say.

use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use hcomm::{LinkKind, LinkReport, Rank, Token};
use rustix::process::Signal;

use super::common::processes::{Processes, SCENARIO};

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

/// Processes of one world, killed with it.
pub struct World {
    processes: Processes,
    scenario: String,
    token: String,
    address: (String, u16),
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
        World {
            processes: Processes::new(n),
            scenario: scenario.into(),
            token: Token::random().unwrap().to_hex(),
            address,
            said: vec![Vec::new(); n],
            ended: vec![false; n],
        }
    }

    /// All ranks at once, by these commands.
    pub fn start(mut self, command: impl Fn(usize) -> Command) -> World {
        (0..self.processes.len()).for_each(|rank| self.start_rank(rank, command(rank)));
        self
    }

    pub fn start_rank(&mut self, rank: usize, mut command: Command) {
        let (host, port) = &self.address;
        let numbers =
            [("RANK", rank), ("WORLD_SIZE", self.processes.len()), ("MASTER_PORT", usize::from(*port))];
        command.envs(numbers.map(|(name, number)| (name, number.to_string()))).envs([
            ("MASTER_ADDR", host),
            (SCENARIO, &self.scenario),
            ("HCOMM_TOKEN", &self.token),
        ]);
        self.processes.start_rank(rank, command);
    }

    pub fn pid(&self, rank: usize) -> u32 {
        self.processes.pid(rank)
    }

    pub fn kill(&self, rank: usize) {
        self.processes.signal(rank, Signal::KILL);
    }

    fn hear(&mut self) {
        let heard = self.processes.hear();
        let (rank, line) = heard.unwrap_or_else(|| panic!("processes hang, having said {:?}", self.said));
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
        self.processes.end(but);
    }

    /// How this rank reaches the others.
    pub fn links(&mut self, rank: usize) -> Vec<LinkReport> {
        serde_json::from_str(&self.says(rank, "links ")).unwrap()
    }

    /// Each reaches each other one so, for this reason; `None` if it is any.
    pub fn assert_all_linked(&mut self, kind: LinkKind, reason: Option<&str>) {
        for rank in 0..self.processes.len() {
            for link in self.links(rank) {
                let myself = link.rank == Rank(rank as u32);
                assert_eq!(link.kind, if myself { LinkKind::Myself } else { kind }, "{rank}: {link:?}");
                assert!(myself || reason.is_none_or(|reason| link.reason == reason), "{rank}: {link:?}");
            }
        }
    }
}
