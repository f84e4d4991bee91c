//! Which pairs of ranks share memory: not what names or addresses say, but who proves it.
//!
//! ```text
//! higher rank                         lower rank
//!   Unix socket, by the random name that the lower told the root: found in one network namespace only
//!   hello, proofs           ◀─▶      the session key, as on every connection; both of one user
//!   sizes, lane, bell       ◀─▶      what each writes, and what rings for it (SCM_RIGHTS)
//!   the nonce it reads      ◀─▶      in the other's lane, which its owner compares
//!   where that is, whether  ◀─▶      it can be read there as well, without being mapped
//! on the TCP connection that stands:
//!   how it went             ◀─▶      only if it went well on both sides is memory used
//! ```
//!
//! The name is an abstract one: nothing is left behind, whenever a process is killed. Its mode would be nobody's to check; the
//! user of the other process is, as the system tells it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::frame::{Hello, Kind, Verdict};
use super::handshake::{self, Refusal, describe};
use super::token::{Key, nonce};
use super::wait::{First, first};
use super::{Member, PeerStreams, limits};
use crate::error::InitError;
use crate::link::shm::{Ends, Lane, Process, Sizes, hand_over};
use crate::rank::Rank;

/// Bytes of a name, and of a nonce: nobody guesses it.
const NAME_BYTES: usize = 16;
/// Connections that have not proved the key yet, at most; others wait in the system's queue.
const VISITORS_MAX: usize = 64;
/// Longest that one may take for that.
const PROOF_DEADLINE: Duration = Duration::from_secs(5);
/// Pause before another try where a queue is full, or descriptors are too few.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Longest reason that is told, in bytes.
const REASON_MAX: usize = 512;
/// Descriptors of a pair while it is set up: a socket, and two lanes and two bells.
const DESCRIPTORS: u64 = 5;

/// Whether ranks of one host share memory: what a process wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SharedMemory {
    /// Where two processes prove that they can; else they use TCP, which is told.
    #[default]
    Auto,
    /// Where two processes of one host can't, set-up fails.
    Require,
    /// Not at all.
    Never,
}

/// How others find this process to share memory with it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Sharing {
    By([u8; NAME_BYTES]),
    Unwanted,
    Unable(String),
}

/// A link between two ranks, ready to be used.
#[derive(Debug)]
pub(crate) enum Link {
    Tcp {
        streams: PeerStreams,
        /// Why it is not memory, where both are on one host.
        instead: Option<String>,
    },
    Shm(Ends),
}

/// Where others come to share memory.
pub(super) struct Door {
    listener: Option<unix::UnixListener>,
    pub sharing: Sharing,
}

impl Door {
    /// Open before anybody learns of it.
    pub(super) fn open(wanted: SharedMemory) -> Door {
        if wanted == SharedMemory::Never {
            return Door { listener: None, sharing: Sharing::Unwanted };
        }
        let opened = name().and_then(|name| {
            let listener = unix::UnixListener::bind_addr(&address(&name)?)?;
            listener.set_nonblocking(true)?;
            Ok((listener, name))
        });
        match opened {
            Ok((listener, name)) => Door { listener: Some(listener), sharing: Sharing::By(name) },
            Err(error) => {
                // The text of a system's error, which is short.
                let reason = format!("no local socket: {error}");
                let reason = reason.chars().take(REASON_MAX / 4).collect();
                Door { listener: None, sharing: Sharing::Unable(reason) }
            }
        }
    }
}

fn name() -> io::Result<[u8; NAME_BYTES]> {
    let random = nonce().map_err(io::Error::other)?;
    Ok(std::array::from_fn(|at| random[at]))
}

fn address(name: &[u8; NAME_BYTES]) -> io::Result<unix::SocketAddr> {
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    unix::SocketAddr::from_abstract_name(format!("hcomm-{hex}"))
}

/// Without waiting, which would hold up all that this thread does.
fn connect(name: &[u8; NAME_BYTES]) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = address(name)?;
    let address = SocketAddrUnix::new_abstract_name(address.as_abstract_name().unwrap_or_default())?;
    rustix::net::connect(&socket, &address)?;
    UnixStream::from_std(socket.into())
}

/// What one rank needs to know.
pub(super) struct Terms {
    pub rank: Rank,
    pub members: Arc<Vec<Member>>,
    pub session: Key,
    pub wanted: SharedMemory,
    /// Of what this process may use, for all peers together.
    pub memory: usize,
    pub patience: Duration,
}

/// Why a pair shares no memory, as one side knows it.
enum Hitch {
    /// This side has found what is in the way.
    Found(String),
    /// The other one is gone, or late: if it says why, that is the reason. Empty if it has said so.
    Gone(String),
}

impl Hitch {
    fn reason(&self) -> &str {
        let (Hitch::Found(reason) | Hitch::Gone(reason)) = self;
        reason
    }
}

impl From<String> for Hitch {
    fn from(reason: String) -> Self {
        Hitch::Found(reason)
    }
}

/// One pair's set-up, as its task has it.
struct Attempt {
    rank: Rank,
    peer: Rank,
    session: Key,
    sizes: Sizes,
    deadline: Instant,
    /// How the lower rank is found; `None` where it waits for the other to come.
    name: Option<[u8; NAME_BYTES]>,
    /// What keeps this rank from it.
    hindrance: Option<String>,
}

/// Tries to share memory with all ranks of this host. Fails only where that is required.
pub(super) async fn share(
    terms: Terms,
    door: Door,
    streams: Vec<Option<PeerStreams>>,
) -> Result<Vec<Option<Link>>, InitError> {
    let Terms { rank, members, session, wanted, memory, patience } = terms;
    let mine = &members[rank.index()];
    let beside = |peer: usize| peer != rank.index() && members[peer].shares_host_with(mine);
    let willing = |peer: usize| !matches!(members[peer].sharing, Sharing::Unwanted);
    let tries = |peer: usize| beside(peer) && willing(peer) && willing(rank.index());
    let candidates = (0..members.len()).filter(|peer| tries(*peer)).count();
    let hindrance = hindrance(&members[rank.index()].sharing, candidates);
    let deadline = Instant::now() + patience;
    let (callers, mut awaited) = callers(&members);
    let _gate = door.listener.map(|listener| gate(listener, rank, session.clone(), callers));
    let mut tasks = JoinSet::new();
    let mut links: Vec<Option<Link>> = Vec::new();
    for (peer, streams) in streams.into_iter().enumerate() {
        let untried = !tries(peer);
        let unwanted = || {
            (beside(peer) && wanted != SharedMemory::Never).then(|| "the other rank does not want it".into())
        };
        links.push(match streams {
            Some(streams) if untried => Some(Link::Tcp { streams, instead: unwanted() }),
            Some(streams) => {
                let name = match members[peer].sharing {
                    Sharing::By(name) if peer < rank.index() => Some(name),
                    _ => None,
                };
                let hindrance = hindrance.clone();
                let sizes = Sizes::within(memory, candidates);
                let (session, peer) = (session.clone(), Rank(peer as u32));
                let attempt = Attempt { rank, peer, session, sizes, deadline, name, hindrance };
                let awaited = awaited[peer.index()].take();
                tasks.spawn(async move { (peer, attempt.run(streams, awaited).await) });
                None
            }
            None => None,
        });
    }
    while let Some(Ok((peer, link))) = tasks.join_next().await {
        links[peer.index()] = Some(link.map_err(|reason| lost(peer, reason))?);
    }
    tell(rank, wanted, &links)?;
    Ok(links)
}

/// The ranks that share memory with this one, a bit each, as far as there are bits.
pub(super) fn shared(links: &[Option<Link>]) -> u64 {
    let bits = links.iter().zip(0..u64::BITS);
    bits.filter(|(link, _)| matches!(link, Some(Link::Shm(_)))).map(|(_, bit)| 1 << bit).sum()
}

/// What keeps this rank from sharing memory with anybody.
fn hindrance(sharing: &Sharing, candidates: usize) -> Option<String> {
    match sharing {
        Sharing::Unable(reason) => Some(reason.clone()),
        _ => limits::grant_descriptors(DESCRIPTORS * candidates as u64).err().map(|error| error.to_string()),
    }
}

fn lost(peer: Rank, reason: String) -> InitError {
    InitError::Lost { who: format!("rank {peer}"), phase: "resources".into(), reason }
}

/// Says which ranks of this host are reached by TCP, and fails if that was not to be.
fn tell(rank: Rank, wanted: SharedMemory, links: &[Option<Link>]) -> Result<(), InitError> {
    let mut told: Option<(Vec<String>, &str)> = None;
    for (peer, link) in links.iter().enumerate() {
        let Some(Link::Tcp { instead: Some(reason), .. }) = link else { continue };
        if wanted == SharedMemory::Require {
            let (first, second) = (rank.min(Rank(peer as u32)), rank.max(Rank(peer as u32)));
            return Err(InitError::SharedMemory { first, second, reason: reason.clone() });
        }
        told.get_or_insert((Vec::new(), reason)).0.push(peer.to_string());
    }
    if let Some((ranks, reason)) = told {
        let ranks = ranks.join(", ");
        tracing::warn!(%rank, ranks, reason, "ranks of this host are reached by TCP, not by shared memory");
    }
    Ok(())
}

type Callers = Vec<mpsc::Sender<UnixStream>>;

/// For each rank, where connections from it go, and where they are taken.
fn callers(members: &[Member]) -> (Callers, Vec<Option<mpsc::Receiver<UnixStream>>>) {
    let each = members.iter().map(|_| mpsc::channel(1));
    each.map(|(sender, receiver)| (sender, Some(receiver))).unzip()
}

/// Lets in who proves the key, and is of the same user.
fn gate(listener: unix::UnixListener, rank: Rank, session: Key, callers: Callers) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let Ok(listener) = UnixListener::from_std(listener) else { return };
        let places = Arc::new(Semaphore::new(VISITORS_MAX));
        let mut visitors = JoinSet::new();
        while let Ok(place) = places.clone().acquire_owned().await {
            let mut stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                // For want of descriptors, mostly: others will have ended by then.
                Err(error) => {
                    tracing::debug!(%error, "accepting a connection failed");
                    sleep(RETRY_PAUSE).await;
                    continue;
                }
            };
            while visitors.try_join_next().is_some() {}
            let (session, callers) = (session.clone(), callers.clone());
            visitors.spawn(async move {
                let _place = place;
                let proof = receive(&mut stream, rank, &session);
                match timeout(PROOF_DEADLINE, proof).await {
                    Ok(Ok(hello)) => {
                        if let Some(caller) = callers.get(hello.from as usize) {
                            let _ = caller.send(stream).await;
                        }
                    }
                    Ok(Err(reason)) => tracing::debug!(reason, "turned away who came to share memory"),
                    Err(_) => {}
                }
            });
        }
    });
    tasks
}

async fn receive(stream: &mut UnixStream, rank: Rank, session: &Key) -> Result<Hello, String> {
    check_user(stream)?;
    let judge = |hello: &Hello| {
        let fits = hello.kind == Kind::Memory && hello.to == rank.0 && hello.from > rank.0;
        if fits { Verdict::Welcome } else { Verdict::WrongRank }
    };
    let ours = handshake::hello(Kind::Memory, true, rank.0, 0, fresh()?);
    handshake::accept(stream, ours, session, judge).await.map_err(explain)
}

fn fresh() -> Result<[u8; 32], String> {
    nonce().map_err(|error| error.to_string())
}

fn explain(refusal: Refusal) -> String {
    match refusal {
        Refusal::Stranger(reason) | Refusal::Key(reason) => reason,
        Refusal::Version { theirs, .. } => format!("it speaks protocol version {theirs}"),
    }
}

/// Memory is shared with processes of the same user only, whom the system names.
fn check_user(stream: &UnixStream) -> Result<(), String> {
    let theirs =
        stream.peer_cred().map_err(|error| format!("whose it is can't be found out: {error}"))?.uid();
    let ours = rustix::process::geteuid().as_raw();
    if theirs == ours {
        Ok(())
    } else {
        Err(format!("it is a process of user {theirs}, this is one of {ours}"))
    }
}

impl Attempt {
    /// Sets up a pair, as far as it goes, and agrees with the other side on the result. An error is the loss of the other.
    async fn run(
        self,
        streams: PeerStreams,
        awaited: Option<mpsc::Receiver<UnixStream>>,
    ) -> Result<Link, String> {
        let PeerStreams { fast, bulk, same_host } = streams;
        let broken = |error: io::Error| describe(&error);
        let mut control = TcpStream::from_std(fast).map_err(broken)?;
        let instead = match self.agree(&mut control, awaited).await? {
            Ok(ends) => return Ok(Link::Shm(ends)),
            Err(reason) => reason,
        };
        let fast = control.into_std().map_err(broken)?;
        Ok(Link::Tcp { streams: PeerStreams { fast, bulk, same_host }, instead: Some(instead) })
    }

    /// What both sides have of each other, or why they share no memory.
    async fn agree(
        &self,
        control: &mut TcpStream,
        awaited: Option<mpsc::Receiver<UnixStream>>,
    ) -> Result<Result<Ends, String>, String> {
        let broken = |error: io::Error| describe(&error);
        let (mut reader, mut writer) = control.split();
        let mut verdict = pin!(read_verdict(&mut reader));
        let mut theirs = None;
        let ends = {
            let late = || Err(Hitch::Gone("no answer within half the link deadline".into()));
            let mut exchange = pin!(async {
                timeout_at(self.deadline, self.exchange(awaited)).await.unwrap_or_else(|_| late())
            });
            match first(exchange.as_mut(), verdict.as_mut()).await {
                First::Left(ends) => ends,
                First::Right(said) => {
                    theirs = Some(said.map_err(broken)?);
                    match &theirs {
                        // It has given up, so that there is nothing to wait for.
                        Some(Some(_)) => Err(Hitch::Gone(String::new())),
                        _ => exchange.await,
                    }
                }
            }
        };
        let ours = ends.as_ref().err().map(Hitch::reason);
        write_verdict(&mut writer, ours).await.map_err(broken)?;
        let theirs = match theirs {
            Some(theirs) => theirs,
            None => {
                let read = timeout_at(self.deadline + PROOF_DEADLINE, verdict).await;
                read.map_err(|_| "it does not say whether it shares memory".to_string())?.map_err(broken)?
            }
        };
        let own = |reason| Err(format!("rank {}: {reason}", self.rank));
        Ok(match (ends, theirs) {
            (Ok(ends), None) => Ok(ends),
            (Err(Hitch::Gone(reason)), Some(said)) if said.is_empty() => own(reason),
            (Ok(_) | Err(Hitch::Gone(_)), Some(said)) => Err(format!("rank {}: {said}", self.peer)),
            (Err(Hitch::Found(reason) | Hitch::Gone(reason)), _) => own(reason),
        })
    }

    async fn exchange(&self, awaited: Option<mpsc::Receiver<UnixStream>>) -> Result<Ends, Hitch> {
        if let Some(reason) = &self.hindrance {
            return Err(reason.clone().into());
        }
        let mut stream = if self.peer < self.rank {
            self.call().await?
        } else {
            let mut awaited = awaited.ok_or("it is not awaited".to_string())?;
            awaited.recv().await.ok_or("the local socket is gone".to_string())?
        };
        let Lanes { mine, theirs, my_bell, their_bell } = self.swap_lanes(&mut stream).await?;
        let (reads, is_read) = try_reading(&mut stream, &mine, &theirs).await?;
        let socket = stream.into_std().map_err(|error| Hitch::Found(error.to_string()))?;
        Ok(Ends { mine, theirs, socket: socket.into(), my_bell, their_bell, reads, is_read })
    }

    async fn call(&self) -> Result<UnixStream, Hitch> {
        let name = self.name.ok_or_else(|| Hitch::Gone("it has no local socket".into()))?;
        let not_found = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                Hitch::Gone("its local socket is not to be found here".into())
            }
            _ => Hitch::Found(format!("its local socket: {}", describe(&error))),
        };
        let mut stream = loop {
            match connect(&name) {
                // Its queue is full of others.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RETRY_PAUSE).await,
                connected => break connected.map_err(not_found)?,
            }
        };
        check_user(&stream)?;
        let ours = handshake::hello(Kind::Memory, true, self.rank.0, self.peer.0, fresh()?);
        let theirs = handshake::connect(&mut stream, ours, &self.session).await;
        let theirs = theirs.map_err(|refusal| Hitch::Gone(explain(refusal)))?;
        if theirs.from == self.peer.0 {
            Ok(stream)
        } else {
            Err(Hitch::Found(format!("rank {} answers there", theirs.from)))
        }
    }

    async fn swap_lanes(&self, stream: &mut UnixStream) -> Result<Lanes, Hitch> {
        let broken = |error: io::Error| Hitch::Gone(describe(&error));
        let random = fresh()?;
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| random[at + byte]));
        let nonce = [half(0), half(8)];
        let (mine, lane_fd) = Lane::new(self.sizes, nonce)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let no_bell = |error| format!("no event descriptor: {}", io::Error::from(error));
        let my_bell = bell.map_err(no_bell)?;
        let fds = [lane_fd.as_fd(), my_bell.as_fd()];
        let send = || Ok(hand_over::send(&*stream, self.sizes.tell(), &fds)?);
        stream.async_io(Interest::WRITABLE, send).await.map_err(broken)?;
        let (sizes, [their_lane, their_bell]) = receive_with(stream).await?;
        let sizes = Sizes::told(sizes).ok_or("it tells sizes of rings that can't be".to_string())?;
        let theirs = Lane::foreign(&their_lane, sizes)?;
        let [first, second] = theirs.nonce();
        stream.write_u64_le(first).await.map_err(broken)?;
        stream.write_u64_le(second).await.map_err(broken)?;
        let seen = [stream.read_u64_le().await.map_err(broken)?, stream.read_u64_le().await.map_err(broken)?];
        if seen != nonce {
            return Err(Hitch::Found("it does not see what this process writes".into()));
        }
        Ok(Lanes { mine, theirs, my_bell, their_bell })
    }
}

/// Whether each can read the other's memory where it is not mapped: the nonce once more, by its address. Rules of the system, or a
/// container, may forbid it, and then it is done without.
async fn try_reading(
    stream: &mut UnixStream,
    mine: &Lane,
    theirs: &Lane,
) -> Result<(Option<Process>, bool), Hitch> {
    let broken = |error: io::Error| Hitch::Gone(describe(&error));
    stream.write_u64_le(mine.nonce_address()).await.map_err(broken)?;
    let address = stream.read_u64_le().await.map_err(broken)?;
    let process = stream.peer_cred().ok().and_then(|of| of.pid()).and_then(|pid| Process::try_from(pid).ok());
    let reads = process.filter(|process| theirs.is_at(*process, address));
    stream.write_u8(u8::from(reads.is_some())).await.map_err(broken)?;
    let is_read = stream.read_u8().await.map_err(broken)? == 1;
    Ok((reads, is_read))
}

struct Lanes {
    mine: Lane,
    theirs: Lane,
    my_bell: OwnedFd,
    their_bell: OwnedFd,
}

/// With each lane comes what rings for it.
const LANE_DESCRIPTORS: usize = 2;

/// From the other side: exactly these.
async fn receive_with(stream: &UnixStream) -> Result<([u64; 2], [OwnedFd; LANE_DESCRIPTORS]), Hitch> {
    let odd = || Hitch::Found("it did not hand over what it should".into());
    let received = stream.async_io(Interest::READABLE, || match hand_over::receive(stream) {
        Err(Errno::PROTO) => Ok(Err(odd())),
        // This process may have no more descriptors.
        Ok(Some(message)) if message.is_cut && message.fds.len() < LANE_DESCRIPTORS => {
            Err(Errno::MFILE.into())
        }
        received => Ok(Ok(received?)),
    });
    let message = received.await.map_err(|error| Hitch::Gone(describe(&error)))??;
    let message = message.ok_or_else(|| Hitch::Gone("the other side closed the connection".into()))?;
    let fds = <[OwnedFd; LANE_DESCRIPTORS]>::try_from(message.fds).map_err(|_| odd())?;
    Ok((message.about, fds))
}

/// How it went: nothing if well, else why not.
async fn write_verdict(stream: &mut (impl AsyncWrite + Unpin), reason: Option<&str>) -> io::Result<()> {
    let mut bytes = vec![u8::from(reason.is_none()), 0, 0];
    let reason = reason.unwrap_or_default();
    let reason = &reason.as_bytes()[..reason.len().min(REASON_MAX)];
    bytes[1..].copy_from_slice(&(reason.len() as u16).to_le_bytes());
    bytes.extend_from_slice(reason);
    stream.write_all(&bytes).await
}

async fn read_verdict(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<String>> {
    let went_well = stream.read_u8().await? == 1;
    let length = usize::from(stream.read_u16_le().await?);
    if length > REASON_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a reason that is too long"));
    }
    let mut reason = vec![0; length];
    stream.read_exact(&mut reason).await?;
    let reason = String::from_utf8_lossy(&reason).into_owned();
    Ok((!went_well).then_some(reason))
}
