//! Processes that may not read each other's memory where it is not mapped: they share memory all the same, and copy what is in
//! no segment. Each direction of a pair is by itself.

#![allow(unsafe_code)]

use std::process::Command;

use hcomm::{Communicator, LinkKind, LinkReport, LinkState};

use super::common::assert_usable;
use super::common::processes::{own, say};
use super::strangers::{as_nobody, can_be_nobody};
use super::world::World;
use super::{all_kinds_waiting, join, say_links};

/// What keeps a process from reading, or from being read: not set where nothing does.
const HOW: &str = "HCOMM_TEST_REFUSED";
const BY_FILTER: &str = "it may not call";
const BY_HIDING: &str = "nobody may read it";
/// The ranks that are kept from it only once they have read.
const LATER: &str = "HCOMM_TEST_REFUSED_LATER";

/// Says what it may read of the others, works with what is too large to be copied where it can be read, and says how it has
/// reached them.
pub fn work_and_read() {
    match std::env::var(HOW).as_deref() {
        Ok(BY_FILTER) => deny_reading(),
        Ok(BY_HIDING) => hide(),
        _ => {}
    }
    let mut comm = join().unwrap();
    say_links(&comm);
    say_what_is_read(&mut comm);
    all_kinds_waiting(&mut comm);
    assert_usable(&mut comm);
    if let Ok(ranks) = std::env::var(LATER) {
        let me = comm.rank().0.to_string();
        work_refused(&mut comm, ranks.split(',').any(|rank| rank == me));
    }
    say(&format!("afterwards {}", serde_json::to_string(&comm.links()).unwrap()));
    comm.close().wait().unwrap();
    say("done");
}

/// Goes on when the system has begun to refuse some of them.
fn work_refused(comm: &mut Communicator, is_refused: bool) {
    let pulled = |comm: &Communicator| comm.links().iter().map(|link| link.pulled_bytes).sum::<u64>();
    if is_refused {
        deny_reading();
    }
    let before = pulled(comm);
    comm.barrier().wait().unwrap();
    all_kinds_waiting(comm);
    assert_usable(comm);
    assert_eq!(pulled(comm) == before, is_refused, "who may read reads, and nobody else");
}

/// For each other rank, whether this process can read a number there: asked of the system itself.
fn say_what_is_read(comm: &mut Communicator) {
    let (me, n) = (comm.rank().index(), comm.size());
    let number = Box::new(0x5eed_0000 + me as u64);
    let mut places = vec![0u64; 2 * n];
    places[2 * me..][..2].copy_from_slice(&[u64::from(std::process::id()), &raw const *number as u64]);
    let places = comm.all_gather(places).wait().unwrap();
    for peer in (0..n).filter(|peer| *peer != me) {
        let read = read(places[2 * peer] as libc::pid_t, places[2 * peer + 1]);
        assert!(read.is_none_or(|read| read == 0x5eed_0000 + peer as u64), "{read:?}");
        say(&format!("reads {peer}: {}", read.is_some()));
    }
    // Until all have read.
    comm.barrier().wait().unwrap();
    drop(number);
}

fn read(process: libc::pid_t, address: u64) -> Option<u64> {
    let mut number = 0u64;
    let here = libc::iovec { iov_base: (&raw mut number).cast(), iov_len: size_of::<u64>() };
    let there = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: size_of::<u64>() };
    // SAFETY: writes to `number` only; the other address is not used in this process.
    let bytes = unsafe { libc::process_vm_readv(process, &raw const here, 1, &raw const there, 1, 0) };
    (bytes == size_of::<u64>() as isize).then_some(number)
}

/// From here on the system refuses all threads of this process to read another one, as containers have it refuse.
fn deny_reading() {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let is_equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let give = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        // The number of the call is what it is first told.
        step(load, 0, 0, 0),
        step(is_equal, 0, 1, libc::SYS_process_vm_readv as u32),
        step(give, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(give, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: a flag of this process.
    let flagged = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let (set, all) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: the program and its steps live until the call returns.
    let filtered = unsafe { libc::syscall(libc::SYS_seccomp, set, all, &raw const program) };
    if flagged != 0 || filtered != 0 {
        say(&format!("reads nobody: no filter can be set here: {}", std::io::Error::last_os_error()));
        std::process::exit(0);
    }
}

/// From here on only who may read all processes may read this one.
fn hide() {
    // SAFETY: a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, 0);
}

/// All share memory and compute; who may read has read, and who may not has been sent a copy. Returns who reads whom.
fn assert_all_work(n: usize, command: impl Fn(usize) -> Command) -> Vec<Vec<bool>> {
    let mut world = World::new("refused", n).start(command);
    world.assert_all_linked(LinkKind::SharedMemory, Some(""));
    let all_read = |rank: usize| {
        let links: Vec<LinkReport> = serde_json::from_str(&world.says(rank, "afterwards ")).unwrap();
        let others = links.into_iter().filter(|link| link.rank.index() != rank);
        let reads = others.map(|link| {
            assert_eq!(
                (link.kind, link.state),
                (LinkKind::SharedMemory, LinkState::Ready),
                "{rank}: {link:?}"
            );
            let reads = world.says(rank, &format!("reads {}: ", link.rank)) == "true";
            assert_eq!(link.pulled_bytes > 0, reads, "rank {rank} reads {reads}: {link:?}");
            reads
        });
        reads.collect()
    };
    let reads = (0..n).map(all_read).collect();
    (0..n).for_each(|rank| drop(world.says(rank, "done")));
    world.end(None);
    reads
}

/// Whether processes like these may read each other, and be kept from that by a filter.
fn can_be_refused() -> bool {
    let mut world = World::new("refused", 1).start(|_| refused(true));
    world.end(None);
    let has_filter = world.said[0].iter().any(|line| line == "done");
    has_filter && assert_all_work(2, |_| own()).concat() == [true; 2]
}

fn refused(is_refused: bool) -> Command {
    let mut command = own();
    if is_refused {
        command.env(HOW, BY_FILTER);
    }
    command
}

#[test]
fn who_may_not_read_is_sent_copies() {
    if !can_be_refused() {
        return say("skipped: the system lets nobody read, or keeps nobody from it");
    }
    for (n, unhappy) in [(2, &[0][..]), (2, &[1]), (2, &[0, 1]), (3, &[1])] {
        let reads = assert_all_work(n, |rank| refused(unhappy.contains(&rank)));
        for (rank, reads) in reads.iter().enumerate() {
            assert!(
                reads.iter().all(|reads| *reads != unhappy.contains(&rank)),
                "{unhappy:?}: {rank} {reads:?}"
            );
        }
    }
}

/// A program may drop what it may do when it has begun: nothing waits for what is refused from then on.
#[test]
fn who_may_not_read_any_more_is_sent_copies() {
    if !can_be_refused() {
        return say("skipped: the system lets nobody read, or keeps nobody from it");
    }
    for (n, unhappy) in [(2, &[0_usize][..]), (2, &[0, 1]), (3, &[1])] {
        let ranks = unhappy.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let later = |_: usize| {
            let mut command = own();
            command.env(LATER, &ranks);
            command
        };
        assert!(assert_all_work(n, later).concat().iter().all(|reads| *reads), "all have read");
    }
}

/// The other side of the same: a process that may be read by nobody reads the others.
#[test]
fn who_may_not_be_read_sends_copies() {
    if !can_be_nobody() {
        return say("skipped: this user can't start this program as another one");
    }
    let command = |is_hidden: bool| {
        let mut command = as_nobody();
        if is_hidden {
            command.env(HOW, BY_HIDING);
        }
        command
    };
    if assert_all_work(2, |_| command(false)).concat() != [true; 2] {
        return say("skipped: the system lets nobody read");
    }
    for hidden in [0, 1] {
        let reads = assert_all_work(2, |rank| command(rank == hidden));
        assert_eq!([reads[0][0], reads[1][0]], [hidden == 0, hidden == 1], "{hidden} is hidden");
    }
    assert_eq!(assert_all_work(2, |_| command(true)).concat(), [false; 2]);
}

/// Yama lets no process read one that it has not started.
#[test]
fn where_yama_lets_nobody_read_all_are_sent_copies() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    match scope.as_deref().map(str::trim) {
        Err(_) => return say("skipped: this system has no Yama"),
        Ok("0") => return say("skipped: Yama refuses nothing here (kernel.yama.ptrace_scope)"),
        Ok(_) => {}
    }
    let is_root = rustix::process::geteuid().is_root();
    if is_root && !can_be_nobody() {
        return say("skipped: root may read, and can't start this program as another user");
    }
    let reads = assert_all_work(2, |_| if is_root { as_nobody() } else { own() });
    assert_eq!(reads.concat(), [false; 2]);
}
