//! Pairs that set up shared memory, one side of which does what it should not: both end with TCP and a reason.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::super::Member;
use super::super::beside::{self, Door, Terms};
use super::super::frame::Verdict;
use super::*;
use crate::link::shm::{Lane, Sizes};

/// Long enough to be noticed where it is waited for in vain.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
/// "It went well", as it is told.
const YES: [u8; 3] = [1, 0, 0];

/// Two ranks whose connections by TCP stand: rank 0 waits for rank 1 at its local socket.
struct Pair {
    members: Arc<Vec<Member>>,
    session: Key,
    streams: [Option<PeerStreams>; 2],
}

impl Pair {
    fn new(sharing: Sharing) -> Pair {
        let address = "127.0.0.1:9".parse().unwrap();
        let member = |sharing| identity::this_process(address, sharing);
        // Nobody looks for the higher one.
        let members = vec![member(sharing), member(Sharing::By([0; 16]))];
        let connection = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let other = listener.accept().unwrap().0;
            [one, other].map(|stream| {
                stream.set_nonblocking(true).unwrap();
                stream
            })
        };
        let ([fast, other_fast], [bulk, other_bulk]) = (connection(), connection());
        let streams = [
            Some(PeerStreams { fast, bulk, same_host: true }),
            Some(PeerStreams { fast: other_fast, bulk: other_bulk, same_host: true }),
        ];
        Pair { members: Arc::new(members), session: Key::new([7; 32]), streams }
    }

    /// What this rank does.
    fn real(
        &mut self,
        rank: usize,
        door: Door,
        (wanted, patience): (SharedMemory, Duration),
    ) -> impl Future<Output = Result<Link, InitError>> + use<> {
        let mut streams = vec![None, None];
        streams[1 - rank] = self.streams[rank].take();
        let terms = Terms {
            rank: Rank(rank as u32),
            members: self.members.clone(),
            session: self.session.clone(),
            wanted,
            memory: 0,
            patience,
        };
        async move {
            let links = beside::share(terms, door, streams).await?;
            Ok(links.into_iter().flatten().next().unwrap())
        }
    }

    /// The connection on which this rank says how it went.
    fn control(&mut self, rank: usize) -> tokio::net::TcpStream {
        tokio::net::TcpStream::from_std(self.streams[rank].take().unwrap().fast).unwrap()
    }
}

fn local(sharing: &Sharing) -> unix::SocketAddr {
    let Sharing::By(name) = sharing else { panic!("{sharing:?}") };
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    unix::SocketAddr::from_abstract_name(format!("hcomm-{hex}")).unwrap()
}

fn own_name() -> Sharing {
    let random = nonce().unwrap();
    Sharing::By(std::array::from_fn(|at| random[at]))
}

/// What a side hands over that has proved the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    Nothing,
    NoDescriptor,
    OneDescriptor,
    HalfAWord,
    Unsealed,
    NoFile,
    SizesThatCantBe,
    AnotherSize,
    AnotherNonce,
    Silence,
}

const HANDS: [(Hand, &str); 10] = [
    (Hand::Nothing, "the other side closed the connection"),
    (Hand::NoDescriptor, "it did not hand over what it should"),
    (Hand::OneDescriptor, "it did not hand over what it should"),
    (Hand::HalfAWord, "it did not hand over what it should"),
    (Hand::Unsealed, "its segment is not sealed"),
    (Hand::NoFile, "it is no segment"),
    (Hand::SizesThatCantBe, "it tells sizes of rings that can't be"),
    (Hand::AnotherSize, "its segment has "),
    (Hand::AnotherNonce, "it does not see what this process writes"),
    (Hand::Silence, "no answer within half the link deadline"),
];

fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Says nothing more than that; who is silent keeps the connection.
async fn hand_over(mut stream: UnixStream, hand: Hand) -> Option<UnixStream> {
    let sizes = Sizes::within(0, 1);
    let (_lane, lane) = Lane::new(sizes, [1, 2]).unwrap();
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let told = |numbers: [u64; 2]| numbers.map(u64::to_le_bytes).concat();
    let right = told(sizes.tell());
    let (lane, bell) = (lane.as_fd(), bell.as_fd());
    match hand {
        Hand::Nothing => {}
        Hand::NoDescriptor => send(&stream, &right, &[]),
        Hand::OneDescriptor => send(&stream, &right, &[lane]),
        Hand::HalfAWord => send(&stream, &right[..4], &[lane, bell]),
        Hand::Unsealed => {
            let file = rustix::fs::memfd_create("hcomm-test", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&file, sizes.bytes() as u64).unwrap();
            send(&stream, &right, &[file.as_fd(), bell]);
        }
        Hand::NoFile => send(&stream, &right, &[bell, bell]),
        Hand::SizesThatCantBe => send(&stream, &told([1 << 40, 3]), &[lane, bell]),
        Hand::AnotherSize => {
            let [fast, bulk] = sizes.tell();
            send(&stream, &told([fast, 2 * bulk]), &[lane, bell]);
        }
        Hand::AnotherNonce => {
            send(&stream, &right, &[lane, bell]);
            stream.write_all(&told([1, 2])).await.unwrap();
        }
        Hand::Silence => return Some(stream),
    }
    // It ends once the other side has seen that.
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
    None
}

/// What the other side says of how it went: why it did not.
async fn refused(control: &mut tokio::net::TcpStream) -> String {
    assert_eq!(control.read_u8().await.unwrap(), 0, "it went well");
    let mut reason = vec![0; usize::from(control.read_u16_le().await.unwrap())];
    control.read_exact(&mut reason).await.unwrap();
    String::from_utf8(reason).unwrap()
}

/// Why the other side is reached by TCP. Nothing is left on that connection: it is used for other things.
async fn reason(link: Link, control: &mut tokio::net::TcpStream) -> String {
    let Link::Tcp { streams, instead: Some(reason) } = link else { panic!("{link:?}") };
    let mut fast = tokio::net::TcpStream::from_std(streams.fast).unwrap();
    control.write_all(b"next").await.unwrap();
    fast.write_all(b"next").await.unwrap();
    for stream in [&mut fast, control] {
        let mut next = [0; 4];
        stream.read_exact(&mut next).await.unwrap();
        assert_eq!(&next, b"next");
    }
    reason
}

/// Rank 1 proves the key at the local socket of rank 0.
async fn call(pair: &Pair) -> UnixStream {
    let mut stream = visit(&local(&pair.members[0].sharing));
    let hello = handshake::hello(Kind::Memory, true, 1, 0, nonce().unwrap());
    handshake::connect(&mut stream, hello, &pair.session).await.unwrap();
    stream
}

fn visit(address: &unix::SocketAddr) -> UnixStream {
    let stream = unix::UnixStream::connect_addr(address).unwrap();
    stream.set_nonblocking(true).unwrap();
    UnixStream::from_std(stream).unwrap()
}

fn listen(pair: &Pair) -> tokio::net::UnixListener {
    let listener = unix::UnixListener::bind_addr(&local(&pair.members[0].sharing)).unwrap();
    listener.set_nonblocking(true).unwrap();
    tokio::net::UnixListener::from_std(listener).unwrap()
}

/// Rank `from` lets in who comes, with this key.
async fn take(listener: &tokio::net::UnixListener, from: u32, key: &Key) -> UnixStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let hello = handshake::hello(Kind::Memory, true, from, 1, nonce().unwrap());
    let _ = handshake::accept(&mut stream, hello, key, |_| Verdict::Welcome).await;
    stream
}

/// One rank is real, and the other hands over something else than it should, and says before or after that it went well.
fn check_hands(real: usize) {
    for ((hand, expected), says_first) in HANDS.into_iter().flat_map(|hand| [(hand, false), (hand, true)]) {
        let context = format!("{hand:?}, {says_first}");
        block_on(async {
            let door = Door::open(if real == 0 { SharedMemory::Auto } else { SharedMemory::Never });
            let mut pair = Pair::new(if real == 0 { door.sharing.clone() } else { own_name() });
            let listener = (real == 1).then(|| listen(&pair));
            let patience = if hand == Hand::Silence { SHORT } else { LONG };
            let link = pair.real(real, door, (SharedMemory::Auto, patience));
            let mut control = pair.control(1 - real);
            let begun = Instant::now();
            let other = async {
                let stream = match &listener {
                    Some(listener) => take(listener, 0, &pair.session).await,
                    None => call(&pair).await,
                };
                if says_first {
                    control.write_all(&YES).await.unwrap();
                }
                let _kept = hand_over(stream, hand).await;
                if !says_first {
                    control.write_all(&YES).await.unwrap();
                }
                refused(&mut control).await
            };
            let (link, told) = tokio::join!(link, other);
            assert!(begun.elapsed() < LONG / 2, "{context}");
            let reason = reason(link.unwrap(), &mut control).await;
            assert!(told.starts_with(expected), "{context}: {told}");
            assert_eq!(reason, format!("rank {real}: {told}"), "{context}");
        });
    }
}

#[test]
fn what_a_higher_rank_hands_over_is_checked() {
    check_hands(0);
}

#[test]
fn what_a_lower_rank_hands_over_is_checked() {
    check_hands(1);
}

#[test]
fn who_does_not_come_is_awaited_until_the_deadline() {
    for visits in [false, true] {
        block_on(async {
            let door = Door::open(SharedMemory::Auto);
            let mut pair = Pair::new(door.sharing.clone());
            let link = pair.real(0, door, (SharedMemory::Auto, SHORT));
            let mut control = pair.control(1);
            // It proves nothing.
            let _visit = visits.then(|| visit(&local(&pair.members[0].sharing)));
            control.write_all(&YES).await.unwrap();
            let begun = Instant::now();
            let (link, told) = tokio::join!(link, refused(&mut control));
            assert!((SHORT..LONG / 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
            assert_eq!(told, "no answer within half the link deadline");
            assert_eq!(reason(link.unwrap(), &mut control).await, format!("rank 0: {told}"));
        });
    }
}

/// What a rank finds that looks for the socket of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nobody,
    Silence,
    AFullQueue,
    AnotherKey,
    AnotherRank,
}

#[test]
fn a_socket_that_is_not_the_other_ranks_is_told() {
    for (found, expected) in [
        (Found::Nobody, "its local socket is not to be found here"),
        (Found::Silence, "no answer within half the link deadline"),
        (Found::AFullQueue, "no answer within half the link deadline"),
        (Found::AnotherKey, "it has another token, or belongs to another rendezvous"),
        (Found::AnotherRank, "rank 5 answers there"),
    ] {
        block_on(async {
            let mut pair = Pair::new(own_name());
            let address = local(&pair.members[0].sharing);
            let listener = (found != Found::Nobody && found != Found::AFullQueue).then(|| listen(&pair));
            let _full = (found == Found::AFullQueue).then(|| full_queue(&address));
            let waits = [Found::Silence, Found::AFullQueue].contains(&found);
            let terms = (SharedMemory::Auto, if waits { SHORT } else { LONG });
            let link = pair.real(1, Door::open(SharedMemory::Never), terms);
            let mut control = pair.control(0);
            control.write_all(&YES).await.unwrap();
            let other = async {
                let (from, key) = match found {
                    Found::AnotherKey => (0, Key::new([8; 32])),
                    _ => (5, pair.session.clone()),
                };
                let _taken = match &listener {
                    Some(listener) if !waits => Some(take(listener, from, &key).await),
                    _ => None,
                };
                refused(&mut control).await
            };
            let begun = Instant::now();
            let (link, told) = tokio::join!(link, other);
            assert!(begun.elapsed() < LONG / 2, "{found:?}");
            assert_eq!(told, expected);
            assert_eq!(reason(link.unwrap(), &mut control).await, format!("rank 1: {expected}"));
        });
    }
}

/// A socket there at which nobody can wait any more, and who does.
fn full_queue(address: &unix::SocketAddr) -> Vec<OwnedFd> {
    let name = SocketAddrUnix::new_abstract_name(address.as_abstract_name().unwrap()).unwrap();
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let mut all = vec![socket()];
    rustix::net::bind(&all[0], &name).unwrap();
    rustix::net::listen(&all[0], 1).unwrap();
    loop {
        let visitor = socket();
        match rustix::net::connect(&visitor, &name) {
            Ok(()) => all.push(visitor),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN);
                return all;
            }
        }
    }
}

/// What the other rank says on the connection by TCP, after which it may end that.
fn after(words: &[u8], ends: bool, patience: Duration) -> (Result<Link, InitError>, TcpStream) {
    let door = Door::open(SharedMemory::Auto);
    let mut pair = Pair::new(door.sharing.clone());
    block_on(async {
        let link = pair.real(0, door, (SharedMemory::Auto, patience));
        let mut control = pair.control(1);
        control.write_all(words).await.unwrap();
        if ends {
            control.shutdown().await.unwrap();
        }
        (link.await, control.into_std().unwrap())
    })
}

#[test]
fn who_gives_up_says_why() {
    let no = [&[0, 7, 0][..], b"because"].concat();
    let (link, mut control) = after(&no, false, LONG);
    let Link::Tcp { instead, .. } = link.unwrap() else { panic!("memory is shared") };
    assert_eq!(instead.as_deref(), Some("rank 1: because"));
    // It is not told another reason in return.
    let mut answer = [9; 3];
    std::io::Read::read_exact(&mut control, &mut answer).unwrap();
    assert_eq!(answer, [0; 3]);
}

#[test]
fn who_goes_away_or_talks_nonsense_is_lost() {
    let too_long = [&[0, 1, 16][..], &[b'x'; 4097]].concat();
    let half = [0u8, 9, 0, b'x'];
    for (words, ends) in [(&[][..], true), (&half[..], true), (&too_long[..], false)] {
        let lost = after(words, ends, LONG).0.unwrap_err();
        assert!(matches!(&lost, InitError::Lost { who, .. } if who == "rank 1"), "{lost}");
    }
    let silent = after(&[], false, SHORT).0.unwrap_err().to_string();
    assert!(silent.contains("it does not say whether it shares memory"), "{silent}");
}

#[test]
fn who_can_not_share_memory_tells_the_other() {
    for wanted in [SharedMemory::Auto, SharedMemory::Require] {
        let hindered = Sharing::Unable("no local socket: of no use".into());
        let mut pair = Pair::new(hindered);
        let (one, other) = block_on(async {
            // Whoever opens no door has none.
            let doors = [SharedMemory::Never, SharedMemory::Auto].map(Door::open);
            let [one, other] = doors;
            tokio::join!(pair.real(0, one, (wanted, LONG)), pair.real(1, other, (wanted, LONG)))
        });
        for outcome in [one, other] {
            match outcome {
                Ok(Link::Tcp { instead, .. }) => {
                    assert_eq!(wanted, SharedMemory::Auto);
                    assert_eq!(instead.as_deref(), Some("rank 0: no local socket: of no use"));
                }
                Err(InitError::SharedMemory { first: Rank(0), second: Rank(1), reason }) => {
                    assert_eq!(wanted, SharedMemory::Require);
                    assert_eq!(reason, "rank 0: no local socket: of no use");
                }
                outcome => panic!("{outcome:?}"),
            }
        }
    }
}

#[test]
fn two_that_can_share_memory_do() {
    let door = Door::open(SharedMemory::Auto);
    let mut pair = Pair::new(door.sharing.clone());
    let terms = (SharedMemory::Require, LONG);
    let both = block_on(async {
        let other = Door::open(SharedMemory::Never);
        tokio::join!(pair.real(0, door, terms), pair.real(1, other, terms))
    });
    assert!(matches!(both, (Ok(Link::Shm(_)), Ok(Link::Shm(_)))), "{both:?}");
}
