//! Rendezvous as a whole, with threads as ranks. Addresses are this process's own within 127.0.0.0/8, so that tests
//! of several processes don't meet.

mod beside;
mod ends;
mod faults;
mod launchers;
mod meet;
mod networks;
mod strangers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use super::config::Deadlines;
use super::frame::{Kind, VERSION};
use super::message::{self, Join, TO_ROOT_BYTES_MAX, ToMember, ToRoot, to_member_bytes_max};
use super::token::{Key, nonce};
use super::{
    JoinConfig, Link, Membership, PeerStreams, Rendezvous, SharedMemory, Sharing, Token, handshake, identity,
    join_blocking,
};
use crate::error::InitError;
use crate::rank::Rank;

type Outcome = Result<Membership, InitError>;

/// A loopback address that belongs to this process alone.
fn own_ip() -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{}", 64 + (pid >> 16 & 0x3f), pid >> 8 & 0xff, pid & 0xff)
}

/// First of `count` ports that no other test of this process uses, below those that the system gives out.
fn own_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(count, Ordering::Relaxed)
}

/// Settings of one job by TCP; short deadlines.
fn job(world: u32) -> JoinConfig {
    JoinConfig {
        world,
        rendezvous: Rendezvous::Root { address: format!("{}:{}", own_ip(), own_ports(2)) },
        token: Some(Token::random().unwrap()),
        deadlines: Deadlines { rendezvous: Duration::from_secs(20), link: Duration::from_secs(10) },
        shared_memory: SharedMemory::Never,
        ..JoinConfig::default()
    }
}

/// For jobs that can't succeed: the time is what the test takes.
fn hurried(world: u32) -> JoinConfig {
    let deadlines = Deadlines { rendezvous: Duration::from_secs(1), link: Duration::from_millis(700) };
    JoinConfig { deadlines, ..job(world) }
}

fn as_rank(config: &JoinConfig, rank: u32) -> JoinConfig {
    JoinConfig { rank: Rank(rank), ..config.clone() }
}

/// All of them at once, each on its own thread; results in the order of the settings.
fn run(configs: Vec<JoinConfig>) -> Vec<Outcome> {
    let threads: Vec<_> = configs.into_iter().map(|config| thread::spawn(|| join_blocking(config))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn run_ranks(config: &JoinConfig, ranks: impl IntoIterator<Item = u32>) -> Vec<Outcome> {
    run(ranks.into_iter().map(|rank| as_rank(config, rank)).collect())
}

fn address_of(config: &JoinConfig) -> SocketAddr {
    match &config.rendezvous {
        Rendezvous::Root { address } => address.parse().unwrap(),
        Rendezvous::File { .. } => panic!("meets at a file"),
    }
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("hcomm-{}-{}-{name}", std::process::id(), own_ports(1)))
}

/// Of links that are all TCP.
fn streams(membership: &Membership) -> Vec<Option<&PeerStreams>> {
    let of = |link: &Link| matches!(link, Link::Tcp { instead: None, .. });
    assert!(membership.links.iter().flatten().all(of), "{:?}", membership.links);
    let streams = |link| match link {
        &Some(Link::Tcp { ref streams, .. }) => Some(streams),
        _ => None,
    };
    membership.links.iter().map(streams).collect()
}

/// Every stream carries a pattern that names its two ends, both ways.
fn check_streams(members: Vec<Membership>) {
    let world = members.len() as u32;
    let threads: Vec<_> = members
        .into_iter()
        .map(|membership| {
            thread::spawn(move || {
                let all = streams(&membership);
                assert_eq!(all.len(), world as usize);
                let me = membership.rank.0;
                for (peer, streams) in (0..world).zip(&all) {
                    let Some(streams) = streams else {
                        assert_eq!(peer, me);
                        continue;
                    };
                    assert!(streams.same_host);
                    say(&streams.fast, [me as u8, peer as u8, 1]);
                    say(&streams.bulk, [me as u8, peer as u8, 2]);
                }
                for (peer, streams) in (0..world).zip(&all) {
                    let Some(streams) = streams else { continue };
                    assert_eq!(hear(&streams.fast), [peer as u8, me as u8, 1]);
                    assert_eq!(hear(&streams.bulk), [peer as u8, me as u8, 2]);
                }
                membership
            })
        })
        .collect();
    let all: Vec<Membership> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(all.iter().all(|one| one.session == all[0].session && one.phases.len() == 5));
}

fn say(mut stream: &TcpStream, bytes: [u8; 3]) {
    assert!(stream.nodelay().unwrap());
    stream.write_all(&bytes).unwrap();
}

fn hear(mut stream: &TcpStream) -> [u8; 3] {
    let mut bytes = [0; 3];
    // It was handed over in non-blocking mode.
    assert!(rustix::fs::fcntl_getfl(stream).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    assert!(rustix::io::fcntl_getfd(stream).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    stream.set_nonblocking(false).unwrap();
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn errors(outcomes: Vec<Outcome>) -> Vec<InitError> {
    outcomes.into_iter().map(|outcome| outcome.expect_err("should have failed")).collect()
}

/// A member whose steps the test decides.
struct Puppet {
    stream: tokio::net::TcpStream,
    world: u32,
}

impl Puppet {
    /// Connects and proves the token, as soon as the root listens.
    async fn reach(config: &JoinConfig, version: u16) -> (Puppet, Result<(), handshake::Refusal>) {
        let mut stream = loop {
            match tokio::net::TcpStream::connect(address_of(config)).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let mut hello = handshake::hello(Kind::Control, true, config.rank.0, 0, nonce().unwrap());
        hello.version = version;
        let key = Key::control(config.token.as_ref(), b"");
        let outcome = handshake::connect(&mut stream, hello, &key).await.map(drop);
        (Puppet { stream, world: config.world }, outcome)
    }

    /// Comes so far that the root counts it as present; says that it listens at `listens`.
    async fn seated(config: &JoinConfig, listens: SocketAddr) -> Puppet {
        let (mut puppet, outcome) = Puppet::reach(config, VERSION).await;
        outcome.unwrap();
        let JoinConfig { rank, world, name, device, facts, .. } = config.clone();
        let member = identity::this_process(listens, Sharing::Unwanted);
        puppet.say(&ToRoot::Join(Join { rank, world, name, device, member, facts })).await;
        assert!(matches!(puppet.hear().await, ToMember::Accepted { .. }));
        puppet
    }

    /// All are connected: shares nothing, and may begin.
    async fn share(&mut self) {
        self.shares().await;
        self.may_begin().await;
    }

    async fn shares(&mut self) {
        assert!(matches!(self.hear().await, ToMember::Share));
        self.say(&ToRoot::Shared { with: 0 }).await;
    }

    async fn may_begin(&mut self) {
        assert!(matches!(self.hear().await, ToMember::Ready { .. }));
    }

    async fn say(&mut self, message: &ToRoot) {
        use tokio::io::AsyncWriteExt;
        let bytes = message::encode(message, TO_ROOT_BYTES_MAX).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn hear(&mut self) -> ToMember {
        message::receive(&mut self.stream, to_member_bytes_max(self.world)).await.unwrap()
    }
}

/// A data connection, as rank `from` would make it.
async fn dial(
    member: &super::Member,
    key: &Key,
    kind: Kind,
    (from, to): (u32, u32),
) -> Result<tokio::net::TcpStream, handshake::Refusal> {
    let mut stream = tokio::net::TcpStream::connect(member.address).await.unwrap();
    let hello = handshake::hello(kind, true, from, to, nonce().unwrap());
    handshake::connect(&mut stream, hello, key).await.map(|_| stream)
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
