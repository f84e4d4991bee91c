//! Who does not belong to the job, or is another user, gets no memory and is in nobody's way.

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hcomm::LinkKind;
use rustix::net::{RecvAncillaryBuffer, RecvFlags};

use super::common::processes::{own, say};
use super::common::{GENEROUS, Random};
use super::world::World;

/// A user who is nobody else here.
const NOBODY: u32 = 65_534;
/// How each connection of the library begins, one that is for memory: version 1, with a token, from rank 1 to rank 0.
const HELLO: &[u8; 24] = b"\x89hcomm\r\n\x01\0\x01\0\x04\0\0\0\x01\0\0\0\0\0\0\0";
const HELLO_BYTES: usize = 64;
const PROOF_BYTES: usize = 32;
/// Whether the proof was right, and then one in return.
const ANSWER_BYTES: usize = 40;

/// The local socket of a process that waits for others.
fn socket_of(pid: u32) -> SocketAddr {
    let until = Instant::now() + GENEROUS;
    loop {
        let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok()?.to_str().map(str::to_string))
            .filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
            .collect();
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let name = sockets.lines().find_map(|line| {
            let (inode, name) = line.split_once(" @")?;
            let inode = inode.rsplit(' ').next()?;
            inodes.iter().any(|own| own == inode).then_some(name)
        });
        if let Some(name) = name {
            assert!(name.starts_with("hcomm-"), "{name}");
            return SocketAddr::from_abstract_name(name).unwrap();
        }
        assert!(Instant::now() < until, "process {pid} has no local socket");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What strangers say.
fn words(random: &mut Random) -> Vec<Vec<u8>> {
    let mut noise = |bytes: usize| (0..bytes).map(|_| random.next() as u8).collect::<Vec<u8>>();
    let hello = [&HELLO[..], &[0; 8], &noise(32)].concat();
    assert_eq!(hello.len(), HELLO_BYTES);
    let to_another = [&hello[..20], &7u32.to_le_bytes(), &hello[24..]].concat();
    vec![
        Vec::new(),
        noise(1),
        noise(HELLO_BYTES),
        noise(5000),
        hello[..40].to_vec(),
        hello.clone(),
        [&hello[..], &noise(PROOF_BYTES)].concat(),
        [&to_another[..], &noise(PROOF_BYTES + 1000)].concat(),
    ]
}

/// Reads to the end: no descriptor comes, and nothing but a greeting and a refusal.
fn assert_gets_nothing(stream: &UnixStream, said: &[u8]) {
    stream.set_read_timeout(Some(GENEROUS)).unwrap();
    let (mut heard, mut bytes) = (Vec::new(), [0; 256]);
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [std::io::IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        assert_eq!(control.drain().count(), 0, "something came beside bytes");
        match received {
            Ok(message) if message.bytes > 0 => heard.extend_from_slice(&bytes[..message.bytes]),
            Ok(_) | Err(rustix::io::Errno::CONNRESET) => break,
            Err(error) => panic!("it is not sent away: {error}"),
        }
    }
    let is_greeted = said.len() >= HELLO_BYTES && said.starts_with(&HELLO[..20]);
    assert!(heard.len() <= HELLO_BYTES + ANSWER_BYTES && (is_greeted || heard.is_empty()), "{heard:?}");
    if let Some(answer) = heard.get(HELLO_BYTES..).filter(|answer| !answer.is_empty()) {
        assert!(answer[0] != 0 && answer[1..].iter().all(|byte| *byte == 0), "{answer:?}");
    }
}

#[test]
fn strangers_at_the_local_socket_delay_nothing_and_get_nothing() {
    for seed in 0..3 {
        let mut random = Random(seed);
        let mut world = World::new("work", 2);
        world.start_rank(0, own());
        let address = socket_of(world.pid(0));
        let words = words(&mut random);
        // As many as there are kinds of them, some times: fewer than may be there at one time.
        let visits: Vec<(UnixStream, &[u8])> = (0..words.len() * 5)
            .map(|index| {
                let (mut stream, said) =
                    (UnixStream::connect_addr(&address).unwrap(), &words[index % words.len()][..]);
                stream.write_all(said).unwrap();
                (stream, said)
            })
            .collect();
        world.start_rank(1, own());
        // Who is delayed for half the link deadline uses TCP.
        world.assert_all_linked(LinkKind::SharedMemory, Some(""));
        visits.iter().for_each(|(stream, said)| assert_gets_nothing(stream, said));
        (0..2).for_each(|rank| drop(world.says(rank, "done")));
        world.end(None);
        assert!(UnixStream::connect_addr(&address).is_err());
    }
}

/// More than a process lets in at one time: they may cost shared memory, but nothing else.
#[test]
fn a_crowd_of_silent_strangers_breaks_nothing() {
    let mut world = World::new("work", 2);
    world.start_rank(0, own());
    let address = socket_of(world.pid(0));
    let crowd: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
    world.start_rank(1, own());
    world.assert_all_linked(LinkKind::Tcp, None);
    for (rank, peer) in [(0, 1), (1, 0)] {
        let reason = &world.links(rank)[peer].reason;
        assert!(reason.contains("no answer within half the link deadline"), "rank {rank}: {reason}");
        world.says(rank, "done");
    }
    world.end(None);
    for mut stream in crowd {
        match stream.read(&mut [0]) {
            Ok(read) => assert_eq!(read, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

/// This test binary, started as nobody.
pub fn as_nobody() -> Command {
    let mut command = own();
    command.uid(NOBODY).gid(NOBODY);
    command
}

/// Whether it can be.
pub fn can_be_nobody() -> bool {
    let mut probe = as_nobody();
    probe.args(["--exact", "child"]).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// With the same token they are of one job, but a user's memory is his own.
#[test]
fn processes_of_two_users_use_tcp_and_say_why() {
    if !can_be_nobody() {
        return say("skipped: this user can't start this program as another one");
    }
    for other in 0..3 {
        let mut world =
            World::new("limited", 3).start(|rank| if rank == other { as_nobody() } else { own() });
        for rank in 0..3 {
            for link in world.links(rank) {
                let peer = link.rank.index();
                let kind = match (peer == rank, (peer == other) == (rank == other)) {
                    (true, _) => LinkKind::Myself,
                    (_, true) => LinkKind::SharedMemory,
                    _ => LinkKind::Tcp,
                };
                assert_eq!(link.kind, kind, "rank {rank}: {link:?}");
                let users = [format!("user {NOBODY}"), "user 0".into(), "one of ".into()];
                let named = users.iter().filter(|user| link.reason.contains(&***user)).count() >= 2;
                assert_eq!(named, kind == LinkKind::Tcp, "rank {rank}: {link:?}");
            }
            assert!(world.says(rank, "warned of ").contains("user"));
            world.says(rank, "done");
        }
        world.end(None);
    }
}
