//! WHO takes part, and where are they: rendezvous, identity, handshake, consistency (control plane).

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::rank::Rank;

/// What rendezvous gives to a rank: who is there, and connections to each of them.
#[derive(Debug)]
pub(crate) struct Membership {
    pub rank: Rank,
    /// Equal on all members, secret to others; new for every rendezvous.
    pub session: [u8; 32],
    /// Indexed by rank; one's own entry included.
    pub members: Vec<Member>,
    /// Indexed by rank; `None` at one's own. Non-blocking, authenticated, nothing sent on them yet.
    pub streams: Vec<Option<PeerStreams>>,
    /// How long each phase of set-up took, in order.
    pub phases: Vec<(Phase, Duration)>,
}

/// One member, as the root told all.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub address: SocketAddr,
    pub hostname: String,
    pub pid: u32,
    /// Boot id and network namespace: equal on one host only.
    pub host: String,
}

/// Two connections between a pair of ranks: small and urgent messages must not queue behind large ones.
#[derive(Debug)]
pub(crate) struct PeerStreams {
    pub fast: TcpStream,
    pub bulk: TcpStream,
    /// Both ends are on one host (same boot id and network namespace).
    pub same_host: bool,
}

/// Phases of set-up, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
