//! Data connections: two between each pair of ranks, each proved with the session key.
//!
//! The higher rank connects, the lower accepts. Listeners are open before the root knows of a rank, so that a refused
//! connection means trouble in between; it is tried until the link deadline all the same.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::frame::{Hello, Kind, Verdict};
use super::gate::Gate;
use super::handshake::{self, Refusal, describe};
use super::interface::{self, Own};
use super::message::{BLOCKED_MAX, Blocked};
use super::token::{Key, nonce};
use super::{Member, PeerStreams};
use crate::rank::Rank;

/// Connections in the making at one time; a burst of thousands would overflow the listeners' queues.
const DIALS_MAX: usize = 128;
/// Pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How the report of a rank begins that waited in vain for another to connect.
pub(super) const NOT_SEEN: &str = "no connection from it";

const CLASSES: [Kind; 2] = [Kind::Fast, Kind::Bulk];

/// What one rank needs to connect to all others.
pub(super) struct Mesh {
    pub rank: Rank,
    pub members: Arc<Vec<Member>>,
    pub session: Key,
    pub listener: TcpListener,
    pub own: Own,
    pub link: Duration,
}

/// What one attempt came to.
enum Outcome {
    Up { peer: Rank, class: Kind, stream: TcpStream },
    Down(Blocked),
}

/// Streams to one peer, as they come.
#[derive(Default)]
struct Pair {
    fast: Option<TcpStream>,
    bulk: Option<TcpStream>,
}

impl Mesh {
    /// All connections, or those that could not be made.
    pub(super) async fn connect(self) -> Result<Vec<Option<PeerStreams>>, Vec<Blocked>> {
        let Mesh { rank, members, session, listener, own, link } = self;
        let deadline = Instant::now() + link;
        let world = members.len();
        let (sender, mut outcomes) = mpsc::channel(DIALS_MAX);
        let _gate = open_gate(listener, rank, world, &session, link, &sender);
        let _dials = dial_all(rank, &members, &session, own, deadline, &sender);
        let mut pairs: Vec<Pair> = (0..world).map(|_| Pair::default()).collect();
        let mut missing = 2 * (world - 1);
        let mut blocked = Vec::new();
        while missing > blocked.len() {
            match timeout_at(deadline + RETRY_PAUSE, outcomes.recv()).await {
                Ok(Some(Outcome::Up { peer, class, stream })) => {
                    missing -= pairs[peer.index()].put(class, stream)
                }
                Ok(Some(Outcome::Down(pair))) => blocked.push(pair),
                _ => break,
            }
        }
        if missing > 0 {
            return Err(not_seen(rank, &members, &pairs, blocked, link));
        }
        finish(rank, &members, pairs)
    }
}

impl Pair {
    /// How many connections there are more. A peer that connects again did not hear our answer to its first try: its
    /// newest connection is the one that it uses.
    fn put(&mut self, class: Kind, stream: TcpStream) -> usize {
        let slot = if class == Kind::Fast { &mut self.fast } else { &mut self.bulk };
        usize::from(slot.replace(stream).is_none())
    }
}

fn open_gate(
    listener: TcpListener,
    rank: Rank,
    world: usize,
    session: &Key,
    link: Duration,
    sender: &mpsc::Sender<Outcome>,
) -> Gate {
    let (session, sender) = (session.clone(), sender.clone());
    Gate::open(vec![listener], link, move |stream, _| {
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
        let expected = hello.to == rank.0 && hello.from > rank.0 && (hello.from as usize) < world;
        if expected && hello.kind != Kind::Control { Verdict::Welcome } else { Verdict::WrongRank }
    };
    let hello = handshake::accept(&mut stream, ours, &session, judge).await?;
    let _ = sender.send(Outcome::Up { peer: Rank(hello.from), class: hello.kind, stream }).await;
    Ok(())
}

fn dial_all(
    rank: Rank,
    members: &Arc<Vec<Member>>,
    session: &Key,
    own: Own,
    deadline: Instant,
    sender: &mpsc::Sender<Outcome>,
) -> JoinSet<()> {
    let permits = Arc::new(Semaphore::new(DIALS_MAX));
    let mut dials = JoinSet::new();
    for peer in (0..rank.0).map(Rank) {
        for class in CLASSES {
            let address = own.scoped(members[peer.index()].address);
            let dial = Dial { rank, peer, class, address, session: session.clone(), deadline };
            let (permits, sender) = (permits.clone(), sender.clone());
            dials.spawn(async move {
                let _permit = permits.acquire().await;
                let _ = sender.send(dial.run().await).await;
            });
        }
    }
    dials
}

/// One connection in the making.
struct Dial {
    rank: Rank,
    peer: Rank,
    class: Kind,
    address: SocketAddr,
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
                Ok(Ok(stream)) => return Outcome::Up { peer: self.peer, class: self.class, stream },
                Ok(Err(reason)) => last = reason,
                Err(_) => break,
            }
            sleep(RETRY_PAUSE.min(self.deadline - Instant::now())).await;
        }
        let waited = started.elapsed();
        let reason =
            format!("{last}; tried {tries} times in {waited:.1?} (link deadline); is a firewall in between?");
        Outcome::Down(Blocked { from: self.rank, to: self.peer, address: self.address, reason })
    }

    async fn once(&self) -> Result<TcpStream, String> {
        let mut stream = TcpStream::connect(self.address).await.map_err(|error| describe(&error))?;
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

/// Adds the peers that should have connected to this rank and did not.
fn not_seen(
    rank: Rank,
    members: &[Member],
    pairs: &[Pair],
    mut blocked: Vec<Blocked>,
    link: Duration,
) -> Vec<Blocked> {
    let absent = (rank.index() + 1..pairs.len())
        .filter(|peer| pairs[*peer].fast.is_none() || pairs[*peer].bulk.is_none());
    let address = members[rank.index()].address;
    blocked.extend(absent.map(|peer| {
        let reason = format!("{NOT_SEEN} came within {link:.1?} (link deadline); is a firewall in between?");
        Blocked { from: Rank(peer as u32), to: rank, address, reason }
    }));
    blocked.truncate(BLOCKED_MAX);
    blocked
}

fn finish(
    rank: Rank,
    members: &[Member],
    pairs: Vec<Pair>,
) -> Result<Vec<Option<PeerStreams>>, Vec<Blocked>> {
    let local = interface::all();
    let mine = &members[rank.index()];
    let streams = pairs.into_iter().zip(members).zip(0u32..).map(|((pair, member), peer)| {
        let (Some(fast), Some(bulk)) = (pair.fast, pair.bulk) else { return Ok(None) };
        // Ids may be equal on two machines that were copied while running; an address that is also one's own is not.
        let near = fast.peer_addr().is_ok_and(|peer| is_local(peer.ip(), &local));
        let same_host = near && member.shares_host_with(mine);
        let taken =
            fast.into_std().and_then(|fast| Ok(PeerStreams { fast, bulk: bulk.into_std()?, same_host }));
        taken.map(Some).map_err(|error| {
            let (from, to, address) = (rank, Rank(peer), member.address);
            vec![Blocked { from, to, address, reason: error.to_string() }]
        })
    });
    streams.collect()
}

fn is_local(ip: IpAddr, local: &[IpAddr]) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || local.contains(&ip)
}
