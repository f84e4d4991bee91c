//! Data connections: two between each pair of ranks, each proved with the session key.
//!
//! The higher rank connects, the lower accepts. Listeners are open before the root knows of a rank, so that a refused
//! connection means trouble in between; it is tried again all the same, for half the link deadline. Where a firewall
//! lets only one direction pass, the root then has those pairs try the other one. In each round a pair has one
//! direction, and what arrives the other way is left over and dropped: so both ends always take the same connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::frame::{Hello, Kind, Verdict};
use super::gate::{Gate, Room};
use super::handshake::{self, Refusal, describe};
use super::interface::{self, Own};
use super::message::{BLOCKED_MAX, Blocked};
use super::token::{Key, nonce};
use super::{Member, PeerStreams};
use crate::rank::Rank;
use crate::runtime::congestion;

/// Connections in the making at one time; a burst of thousands would overflow the listeners' queues.
const DIALS_MAX: usize = 128;
/// Pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How the report of a rank begins that waited in vain for another to connect.
pub(super) const NOT_SEEN: &str = "no connection from it";

const CLASSES: [Kind; 2] = [Kind::Fast, Kind::Bulk];

/// One rank's connections, as they come.
pub(super) struct Mesh {
    config: MeshConfig,
    pairs: Vec<Pair>,
    sender: mpsc::Sender<Outcome>,
    outcomes: mpsc::Receiver<Outcome>,
    _gate: Gate,
}

/// What one rank needs to connect to all others.
#[derive(Clone)]
pub(super) struct MeshConfig {
    pub rank: Rank,
    pub members: Arc<Vec<Member>>,
    pub session: Key,
    pub own: Own,
    /// How long each direction is tried.
    pub patience: Duration,
    /// How many connections that are not the job's there may be meanwhile.
    pub visitors: usize,
}

/// Which peers a rank connects to, and which connect to it.
pub(super) struct Round {
    dials: Vec<Rank>,
    awaits: Vec<Rank>,
}

/// What one attempt came to.
enum Outcome {
    Up { peer: Rank, class: Kind, dialed: bool, stream: TcpStream },
    Down(Blocked),
}

/// Streams to one peer, as they come.
#[derive(Default)]
struct Pair {
    fast: Option<TcpStream>,
    bulk: Option<TcpStream>,
}

impl Mesh {
    pub(super) fn open(config: MeshConfig, listener: TcpListener) -> Mesh {
        let (sender, outcomes) = mpsc::channel(DIALS_MAX);
        let _gate = open_gate(listener, &config, &sender);
        let pairs = config.members.iter().map(|_| Pair::default()).collect();
        Mesh { config, pairs, sender, outcomes, _gate }
    }

    /// Every pair: the higher rank connects.
    pub(super) fn all(&self) -> Round {
        let Rank(rank) = self.config.rank;
        let world = self.pairs.len() as u32;
        Round { dials: (0..rank).map(Rank).collect(), awaits: (rank + 1..world).map(Rank).collect() }
    }

    /// The pairs of an earlier round that failed, the other way round. `failed` is (who connected, to whom).
    pub(super) fn reversed(&self, failed: &[(Rank, Rank)]) -> Round {
        let (rank, world) = (self.config.rank, self.pairs.len());
        let here = |peer: &Rank| peer.index() < world && *peer != rank;
        let dials = failed.iter().filter(|(_, to)| *to == rank).map(|(from, _)| *from).filter(here);
        let awaits = failed.iter().filter(|(from, _)| *from == rank).map(|(_, to)| *to).filter(here);
        Round { dials: dials.collect(), awaits: awaits.collect() }
    }

    /// Makes the connections of a round. Returns those that could not be made.
    pub(super) async fn connect(&mut self, round: &Round) -> Vec<Blocked> {
        let deadline = Instant::now() + self.config.patience;
        let peers = || round.dials.iter().chain(&round.awaits);
        peers().for_each(|peer| self.pairs[peer.index()] = Pair::default());
        let _dials = dial_all(&self.config, &round.dials, deadline, &self.sender);
        let mut missing = 2 * peers().count();
        let mut blocked = Vec::new();
        while missing > blocked.len() {
            match timeout_at(deadline + RETRY_PAUSE, self.outcomes.recv()).await {
                Ok(Some(Outcome::Down(pair))) => blocked.push(pair),
                Ok(Some(Outcome::Up { peer, class, dialed, stream })) => {
                    let expected = if dialed { &round.dials } else { &round.awaits };
                    if expected.contains(&peer) {
                        missing -= self.pairs[peer.index()].put(class, stream);
                    }
                }
                _ => break,
            }
        }
        blocked.extend(
            round
                .awaits
                .iter()
                .filter(|peer| !self.pairs[peer.index()].is_whole())
                .map(|peer| self.not_seen(*peer)),
        );
        blocked.truncate(BLOCKED_MAX);
        blocked
    }

    /// A peer that should have connected to this rank and did not.
    fn not_seen(&self, peer: Rank) -> Blocked {
        let MeshConfig { rank, members, patience, .. } = &self.config;
        let reason = format!(
            "{NOT_SEEN} came within {patience:.1?} (half the link deadline); is a firewall in between?"
        );
        Blocked { from: peer, to: *rank, address: members[rank.index()].address, reason }
    }

    /// Hands the streams over; an error names a peer without.
    pub(super) fn finish(self) -> Result<Vec<Option<PeerStreams>>, String> {
        let local = interface::all();
        let MeshConfig { rank, members, .. } = &self.config;
        let mine = &members[rank.index()];
        let streams = self.pairs.into_iter().zip(members.iter()).zip(0u32..).map(|((pair, member), peer)| {
            let (fast, bulk) = match (pair.fast, pair.bulk) {
                (Some(fast), Some(bulk)) => (fast, bulk),
                _ if peer == rank.0 => return Ok(None),
                _ => return Err(format!("rank {peer} is not connected")),
            };
            let same_host = fast.peer_addr().is_ok_and(|at| mine.is_beside(member, at.ip(), &local));
            let taken =
                fast.into_std().and_then(|fast| Ok(PeerStreams { fast, bulk: bulk.into_std()?, same_host }));
            taken.map(Some).map_err(|error| format!("taking over the connection to rank {peer}: {error}"))
        });
        streams.collect()
    }
}

impl Pair {
    /// How many connections there are more. A peer that connects again did not hear our answer to its first try: its
    /// newest connection is the one that it uses.
    fn put(&mut self, class: Kind, stream: TcpStream) -> usize {
        let slot = if class == Kind::Fast { &mut self.fast } else { &mut self.bulk };
        usize::from(slot.replace(stream).is_none())
    }

    fn is_whole(&self) -> bool {
        self.fast.is_some() && self.bulk.is_some()
    }
}

fn open_gate(listener: TcpListener, config: &MeshConfig, sender: &mpsc::Sender<Outcome>) -> Gate {
    let (world, rank) = (config.members.len(), config.rank);
    let (session, sender) = (config.session.clone(), sender.clone());
    // Two from each that connects to this rank; where that is tried the other way round, those need a visitor's place.
    let room = Room { expected: 2 * (world - 1 - rank.index()), visitors: config.visitors };
    Gate::open(vec![listener], config.patience, room, move |stream, _| {
        receive_peer(stream, rank, world, session.clone(), sender.clone())
    })
}

async fn receive_peer(
    mut stream: TcpStream,
    rank: Rank,
    world: usize,
    session: Key,
    sender: mpsc::Sender<Outcome>,
) -> Result<(), Refusal> {
    stream.set_nodelay(true)?;
    let fresh = nonce().map_err(|error| Refusal::Stranger(error.to_string()))?;
    let ours = handshake::hello(Kind::Fast, true, rank.0, 0, fresh);
    let judge = |hello: &Hello| {
        let expected = hello.to == rank.0 && hello.from != rank.0 && (hello.from as usize) < world;
        if expected && CLASSES.contains(&hello.kind) { Verdict::Welcome } else { Verdict::WrongRank }
    };
    let hello = handshake::accept(&mut stream, ours, &session, judge).await?;
    let (peer, class) = (Rank(hello.from), hello.kind);
    let _ = sender.send(Outcome::Up { peer, class, dialed: false, stream }).await;
    Ok(())
}

/// Connects to all `peers`; what is still trying ends when the result is dropped.
fn dial_all(
    config: &MeshConfig,
    peers: &[Rank],
    deadline: Instant,
    sender: &mpsc::Sender<Outcome>,
) -> JoinSet<()> {
    let permits = Arc::new(Semaphore::new(DIALS_MAX));
    let local = interface::all();
    let mine = &config.members[config.rank.index()];
    let mut dials = JoinSet::new();
    for (peer, class) in peers.iter().flat_map(|peer| CLASSES.map(|class| (*peer, class))) {
        let address = config.own.scoped(config.members[peer.index()].address);
        let same_host = mine.is_beside(&config.members[peer.index()], address.ip(), &local);
        let (rank, session) = (config.rank, config.session.clone());
        let dial = Dial { rank, peer, class, address, same_host, session, deadline };
        let (permits, sender) = (permits.clone(), sender.clone());
        dials.spawn(async move {
            let _permit = permits.acquire().await;
            let _ = sender.send(dial.run().await).await;
        });
    }
    dials
}

/// One connection in the making.
struct Dial {
    rank: Rank,
    peer: Rank,
    class: Kind,
    address: SocketAddr,
    same_host: bool,
    session: Key,
    deadline: Instant,
}

impl Dial {
    async fn run(self) -> Outcome {
        let started = Instant::now();
        let (mut tries, mut last) = (0u32, String::from("no answer"));
        while Instant::now() < self.deadline {
            tries += 1;
            match timeout_at(self.deadline, self.once()).await {
                Ok(Ok(stream)) => {
                    return Outcome::Up { peer: self.peer, class: self.class, dialed: true, stream };
                }
                Ok(Err(reason)) => last = reason,
                Err(_) => break,
            }
            sleep(RETRY_PAUSE.min(self.deadline - Instant::now())).await;
        }
        let waited = started.elapsed();
        let reason = format!(
            "{last}; tried {tries} times in {waited:.1?} (half the link deadline); is a firewall in between?"
        );
        Outcome::Down(Blocked { from: self.rank, to: self.peer, address: self.address, reason })
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let socket = if self.address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if self.same_host {
            congestion::choose_local(&socket);
        }
        socket.connect(self.address).await
    }

    async fn once(&self) -> Result<TcpStream, String> {
        let mut stream = self.connect().await.map_err(|error| describe(&error))?;
        stream.set_nodelay(true).map_err(|error| describe(&error))?;
        let fresh = nonce().map_err(|error| error.to_string())?;
        let ours = handshake::hello(self.class, true, self.rank.0, self.peer.0, fresh);
        match handshake::connect(&mut stream, ours, &self.session).await {
            Ok(theirs) if theirs.from == self.peer.0 => Ok(stream),
            Ok(theirs) => Err(format!("rank {} answers there", theirs.from)),
            Err(Refusal::Stranger(reason) | Refusal::Key(reason)) => Err(reason),
            Err(Refusal::Version { theirs, .. }) => Err(format!("it speaks protocol version {theirs}")),
        }
    }
}

impl Member {
    /// Whether both are on one host, the other seen at this address. Ids may be equal on two machines that were copied
    /// while running; an address that is also one's own is not.
    fn is_beside(&self, other: &Member, at: IpAddr, local: &[IpAddr]) -> bool {
        is_local(at, local) && other.shares_host_with(self)
    }
}

fn is_local(ip: IpAddr, local: &[IpAddr]) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || local.contains(&ip)
}
