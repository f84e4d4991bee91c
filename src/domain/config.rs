//! What a process must know to join: settings, checked before anything is opened.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::beside::SharedMemory;
use super::launcher::Launcher;
use super::token::Token;
use crate::error::InitError;
use crate::rank::Rank;

/// Most ranks of one rendezvous: tables and messages are bounded by it.
pub(super) const WORLD_MAX: u32 = 1 << 16;
/// Longest communicator name in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Most agreed facts, and the longest key or value in bytes: together they fit a control message.
const FACTS_MAX: usize = 64;
/// The longest key or value of a fact, in bytes.
const FACT_BYTES_MAX: usize = 256;

/// The fact that is the version of this crate: that of the protocol says only whether two can understand each other.
pub(crate) const VERSION_FACT: &str = "the version of hcomm";

/// Settings of one rendezvous.
#[derive(Clone, Debug)]
pub(crate) struct JoinConfig {
    /// Who this process is.
    pub rank: Rank,
    /// How many there are.
    pub world: u32,
    /// Who started this process: in errors, for what to do about them.
    pub launcher: Launcher,
    /// Where they meet. Not used if there is one rank only.
    pub rendezvous: Rendezvous,
    /// The job's secret, equal on all.
    pub token: Option<Token>,
    /// Allows addresses other than loopback without a token.
    pub allow_unauthenticated: bool,
    /// How long to wait.
    pub deadlines: Deadlines,
    /// Interface whose address the others are told: its exact name, or an address. The one that routes to the root
    /// if not given.
    pub interface: Option<String>,
    /// Ports where ranks listen, the root at a file included; the system's choice if not given.
    pub port_range: Option<RangeInclusive<u16>>,
    /// Device this rank uses; two ranks of a host must not name the same.
    pub device: Option<u32>,
    /// Name of the communicator; groups of different names don't mix.
    pub name: String,
    /// Whether ranks of one host share memory, and how much of it this process may use for that.
    pub shared_memory: SharedMemory,
    pub lanes_memory: usize,
    /// What plans are chosen from: must be equal on all ranks.
    pub facts: Vec<(String, String)>,
}

/// Where processes meet.
#[derive(Clone, Debug)]
pub(crate) enum Rendezvous {
    /// Rank 0 listens here: `host:port` or `[v6]:port`.
    Root {
        /// Host and port.
        address: String,
    },
    /// Rank 0 writes its address to this file, which all ranks can read.
    File {
        /// Path of the file.
        path: PathBuf,
    },
}

/// How long set-up may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// Until all ranks have come.
    pub rendezvous: Duration,
    /// Until a connection between two of them stands.
    pub link: Duration,
}

impl Deadlines {
    /// Longest that set-up waits for anything, whatever is asked for: a day. What is longer can't be added to every time.
    pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);

    /// The same, within what can be waited for.
    pub(super) fn bounded(self) -> Self {
        Deadlines { rendezvous: self.rendezvous.min(Self::MAX), link: self.link.min(Self::MAX) }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines { rendezvous: Duration::from_secs(60), link: Duration::from_secs(10) }
    }
}

impl Default for JoinConfig {
    /// A world of one rank.
    fn default() -> Self {
        JoinConfig {
            rank: Rank(0),
            world: 1,
            launcher: Launcher::Other,
            rendezvous: Rendezvous::Root { address: String::new() },
            token: None,
            allow_unauthenticated: false,
            deadlines: Deadlines::default(),
            interface: None,
            port_range: None,
            device: None,
            name: "world".into(),
            shared_memory: SharedMemory::default(),
            lanes_memory: 0,
            facts: Vec::new(),
        }
    }
}

impl JoinConfig {
    /// Finds what can't work before anybody is bothered.
    pub(super) fn validate(&self) -> Result<(), InitError> {
        let JoinConfig { rank, world, .. } = self;
        if *world == 0 || *world > WORLD_MAX {
            return config(format!("a world has 1 to {WORLD_MAX} ranks, not {world}"));
        }
        if rank.0 >= *world {
            return config(format!(
                "rank {rank} doesn't exist: a world of {world} has ranks 0 to {}",
                world - 1
            ));
        }
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return config(format!(
                "a communicator's name has 1 to {NAME_BYTES_MAX} bytes, not {}",
                self.name.len()
            ));
        }
        if self.port_range.as_ref().is_some_and(|range| range.is_empty() || *range.start() == 0) {
            return config("the range of ports is empty or contains port 0: give FIRST-LAST".into());
        }
        self.validate_facts()?;
        match &self.rendezvous {
            Rendezvous::Root { address } if *world > 1 => split_host_port(address).map(drop),
            _ => Ok(()),
        }
    }

    fn validate_facts(&self) -> Result<(), InitError> {
        if self.facts.len() > FACTS_MAX {
            return config(format!("at most {FACTS_MAX} facts can be agreed, not {}", self.facts.len()));
        }
        for (index, (key, value)) in self.facts.iter().enumerate() {
            if key.len().max(value.len()) > FACT_BYTES_MAX {
                return config(format!("fact {key:.40}: more than {FACT_BYTES_MAX} bytes"));
            }
            if self.facts[..index].iter().any(|(other, _)| other == key) {
                return config(format!("fact {key} is given twice"));
            }
        }
        Ok(())
    }

    /// Without a token only loopback is safe: whoever reaches the port could join.
    pub(super) fn check_exposure(&self, address: SocketAddr, what: &str) -> Result<(), InitError> {
        if address.ip().to_canonical().is_loopback() || self.token.is_some() {
            return Ok(());
        }
        if self.allow_unauthenticated {
            tracing::warn!(%address, "{what} is open to everybody who reaches it: there is no token");
            return Ok(());
        }
        config(format!(
            "{what} {address} is not a loopback address and there is no token: give all ranks one \
             ({}), or call .allow_unauthenticated()",
            self.launcher.how_to_share_a_token()
        ))
    }
}

/// Splits `host:port` or `[v6]:port`.
pub(super) fn split_host_port(address: &str) -> Result<(&str, u16), InitError> {
    let bad = || InitError::Config(format!("\"{address}\" is not an address: give host:port, or [v6]:port"));
    let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = inner.unwrap_or(host);
    let port: u16 = port.parse().map_err(|_| bad())?;
    if host.is_empty() || port == 0 || (inner.is_none() && host.contains(':')) {
        return Err(bad());
    }
    Ok((host, port))
}

fn config<T>(problem: String) -> Result<T, InitError> {
    Err(InitError::Config(problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_split() {
        assert_eq!(split_host_port("node0:29500").unwrap(), ("node0", 29500));
        assert_eq!(split_host_port("[::1]:1").unwrap(), ("::1", 1));
        for bad in ["", "node0", "node0:", ":1", "node0:0", "node0:70000", "::1:29500", "node0:x"] {
            assert!(split_host_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let good = JoinConfig { world: 2, rendezvous: root("a:1"), ..JoinConfig::default() };
        good.validate().unwrap();
        let twice = vec![("a".into(), "1".into()), ("a".into(), "2".into())];
        let bad = [
            JoinConfig { world: 0, ..good.clone() },
            JoinConfig { rank: Rank(2), ..good.clone() },
            JoinConfig { world: WORLD_MAX + 1, ..good.clone() },
            JoinConfig { name: String::new(), ..good.clone() },
            JoinConfig { port_range: Some(0..=5), ..good.clone() },
            JoinConfig { port_range: Some(RangeInclusive::new(6, 5)), ..good.clone() },
            JoinConfig { facts: twice, ..good.clone() },
            JoinConfig { rendezvous: root("a"), ..good.clone() },
        ];
        for config in bad {
            assert!(matches!(config.validate(), Err(InitError::Config(_))), "{config:?}");
        }
    }

    fn root(address: &str) -> Rendezvous {
        Rendezvous::Root { address: address.into() }
    }
}
