//! WHO takes part, and where are they: rendezvous, identity, handshake, consistency (control plane).
//!
//! | File | What |
//! |---|---|
//! | `setup` | the entry: runs all of this on a thread of its own |
//! | `config`, `env` | settings, and how they come from the environment |
//! | `variables`, `launcher`, `nodelist` | an environment; what each launcher sets in it; Slurm's lists of nodes |
//! | `token`, `frame`, `handshake` | the secret, the frozen frames, and the proof in both directions |
//! | `message` | bounded control messages, after the proof |
//! | `meeting`, `publish`, `reach` | where ranks meet: address or file; how the others find it |
//! | `gate` | accepting from whoever comes |
//! | `root`, `roster` | the root's IO, and its book of who has come |
//! | `member`, `mesh` | a rank's way through set-up, and its connections to the others |
//! | `beside` | which pairs share memory |
//! | `identity`, `interface`, `listen`, `limits`, `wait` | this process, its addresses, ports and limits; waiting |
//!
//! Nothing of variable length is read before the token is proved; every wait has a deadline; whatever fails on one
//! rank is told to all that have come.

mod beside;
mod config;
mod env;
mod frame;
mod gate;
mod handshake;
mod identity;
mod interface;
mod launcher;
mod limits;
mod listen;
mod meeting;
mod member;
mod mesh;
mod message;
mod nodelist;
mod processors;
mod publish;
mod reach;
mod root;
mod roster;
mod setup;
mod token;
mod variables;
mod wait;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::rank::Rank;
use sha2::{Digest, Sha256};

pub use beside::SharedMemory;
pub(crate) use beside::{Link, Sharing};
pub(crate) use config::{JoinConfig, Rendezvous, VERSION_FACT};
pub(crate) use env::{from_env, is_launched};
pub(crate) use limits::check_local_limits;
pub(crate) use processors::Processors;
pub(crate) use setup::{JoinFuture, join, join_blocking};
pub use token::Token;

/// What rendezvous gives to a rank: who is there, and connections to each of them.
#[derive(Debug)]
pub(crate) struct Membership {
    pub rank: Rank,
    /// Equal on all members, secret to others; new for every rendezvous.
    pub session: [u8; 32],
    /// Indexed by rank; one's own entry included.
    pub members: Vec<Member>,
    /// Indexed by rank; `None` at one's own. Authenticated, nothing sent on them yet.
    pub links: Vec<Option<Link>>,
    /// By rank: with which ranks it shares memory, a bit each. Equal on all members.
    pub sharing: Vec<u64>,
    /// How long each phase of set-up took, in order.
    pub phases: Vec<(Phase, Duration)>,
}

impl Membership {
    /// By rank: the lowest rank of its host, by what members say of themselves. Equal on all members.
    pub(crate) fn hosts(&self) -> Vec<u32> {
        let lowest = |member: &Member| self.members.iter().position(|other| other.shares_host_with(member));
        self.members.iter().map(|member| lowest(member).unwrap_or_default() as u32).collect()
    }

    /// Equal on all members and new for every rendezvous, as the session is, but no secret.
    pub(crate) fn run(&self) -> String {
        /// Enough to tell runs apart.
        const BYTES: usize = 8;
        Sha256::digest(self.session).iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// One member, as the root told all.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Member {
    pub address: SocketAddr,
    pub hostname: String,
    pub pid: u32,
    /// Boot id and network namespace: equal on one host only.
    pub host: String,
    pub processors: Processors,
    pub sharing: Sharing,
}

/// Two non-blocking connections between a pair of ranks: small and urgent messages must not queue behind large ones.
#[derive(Debug)]
pub(crate) struct PeerStreams {
    pub fast: TcpStream,
    pub bulk: TcpStream,
    /// Both ends are on one host (same boot id and network namespace).
    pub same_host: bool,
}

/// Phases of set-up, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Phase {
    /// Finding the root, proving the token, exchanging identities.
    Handshake,
    /// Who is on which host.
    Topology,
    /// Plans agreed: the facts they are chosen from are equal everywhere.
    Paths,
    /// Connections made and proven.
    Resources,
    /// The communicator may be used.
    Ready,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Handshake => "handshake",
            Phase::Topology => "topology",
            Phase::Paths => "paths",
            Phase::Resources => "resources",
            Phase::Ready => "ready",
        })
    }
}
