//! Limits of the system that leave no room for shared memory: what is needed and what there is is told, and TCP used, or set-up
//! fails where that is not to be.

use std::process::Command;
use std::time::{Duration, Instant};

use hcomm::{Builder, InitError, LinkKind, SharedMemory};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::common::GENEROUS;
use super::common::processes::{own, own_by, say};
use super::events::Events;
use super::world::World;
use super::{all_kinds_waiting, say_links};

/// Limits that a process sets itself: the size of files, and the addresses that it may take more.
const FILES: &str = "HCOMM_TEST_FSIZE";
const ADDRESSES: &str = "HCOMM_TEST_AS";
const REQUIRE: &str = "HCOMM_TEST_REQUIRE";
/// So long that who waits for it shows.
const LINK: Duration = Duration::from_secs(60);
const PROMPT: Duration = Duration::from_secs(15);

/// Says how it reaches the others, what it was warned of, and computes with them.
pub fn work_within_limits() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let limit = |resource, current| setrlimit(resource, Rlimit { current, maximum: None }).unwrap();
    let events = Events::of_all_threads();
    let mut builder = Builder::from_env().unwrap().operation_deadline(GENEROUS).link_deadline(LINK);
    if number(REQUIRE).is_some() {
        builder = builder.shared_memory(SharedMemory::Require);
    }
    if let Some(bytes) = number(FILES) {
        limit(Resource::Fsize, Some(bytes));
    }
    if let Some(bytes) = number(ADDRESSES) {
        limit(Resource::As, Some(addresses() + bytes));
    }
    let begun = Instant::now();
    let joined = builder.connect_blocking();
    let told = events.with("reached by TCP");
    told.iter()
        .for_each(|event| say(&format!("warned of {}: {}", event.field("ranks"), event.field("reason"))));
    match joined {
        Ok(mut comm) => {
            say_links(&comm);
            // Results take more.
            limit(Resource::As, None);
            all_kinds_waiting(&mut comm);
            comm.close().wait().unwrap();
            say("done");
        }
        Err(error @ InitError::SharedMemory { .. }) if begun.elapsed() < PROMPT => {
            say(&format!("refused: {error}"))
        }
        Err(error) => panic!("after {:?}: {error}", begun.elapsed()),
    }
}

/// Bytes of addresses that this process has taken.
fn addresses() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

/// Of three ranks, rank 1 is started by this command: it shares no memory, the others do, and all know why.
fn assert_falls_back(limited: impl Fn() -> Command, of: &str) {
    let mut world = World::new("limited", 3).start(|rank| if rank == 1 { limited() } else { own() });
    for rank in 0..3 {
        for link in world.links(rank) {
            let peer = link.rank.0 as usize;
            let (kind, is_limited) = match (rank == peer, rank == 1 || peer == 1) {
                (true, _) => (LinkKind::Myself, false),
                (_, true) => (LinkKind::Tcp, true),
                _ => (LinkKind::SharedMemory, false),
            };
            assert_eq!(link.kind, kind, "rank {rank}: {link:?}");
            let told =
                ["bytes are needed and", "available of", of].iter().all(|part| link.reason.contains(part));
            assert_eq!(told, is_limited, "rank {rank}: {link:?}");
        }
        let ranks = if rank == 1 { "0, 2" } else { "1" };
        let warned = world.says(rank, "warned of ");
        assert!(warned.starts_with(&format!("{ranks}: ")) && warned.contains(of), "rank {rank}: {warned}");
        world.says(rank, "done");
    }
    world.end(None);
    let warnings = |rank: usize| world.said[rank].iter().filter(|line| line.starts_with("warned")).count();
    assert!((0..3).all(|rank| warnings(rank) == 1), "{:?}", world.said);
}

/// All are told, soon, that rank 1 can't share memory, although it must.
fn assert_refused(limited: impl Fn() -> Command, of: &str) {
    let mut world = World::new("limited", 3).start(|rank| {
        let mut command = if rank == 1 { limited() } else { own() };
        command.env(REQUIRE, "1");
        command
    });
    for rank in 0..3 {
        let refused = world.says(rank, "refused: ");
        let parts = ["ranks ", " of one host can't share memory: ", "bytes are needed", of];
        assert!(parts.iter().all(|part| refused.contains(part)), "rank {rank}: {refused}");
        let pair = ["ranks 0 and 1 of", "ranks 1 and 2 of"];
        assert!(pair.iter().any(|pair| refused.starts_with(pair)), "rank {rank}: {refused}");
    }
    world.end(None);
}

fn limited(name: &str, bytes: u64) -> Command {
    let mut command = own();
    command.env(name, bytes.to_string());
    command
}

/// To pass this limit is a signal, which must not come.
#[test]
fn a_limit_of_file_sizes_is_told_and_tcp_used() {
    for bytes in [0, 4096, 512 << 10] {
        assert_falls_back(|| limited(FILES, bytes), &format!("{bytes} available of a file (RLIMIT_FSIZE"));
    }
    assert_refused(|| limited(FILES, 4096), "a file (RLIMIT_FSIZE");
}

#[test]
fn a_limit_of_addresses_is_told_and_tcp_used() {
    // The stack of the thread that sets up fits; with more, so does the lane that this rank writes, and not the other one.
    for bytes in [4 << 20, 5 << 20] {
        assert_falls_back(|| limited(ADDRESSES, bytes), "addresses (RLIMIT_AS");
    }
    assert_refused(|| limited(ADDRESSES, 4 << 20), "addresses (RLIMIT_AS");
}

/// Files of control groups, as a process sees them that has a file system of its own: real groups are not everybody's to make.
#[test]
fn a_limit_of_a_control_group_is_told_and_tcp_used() {
    let groups = std::env::temp_dir().join(format!("hcomm-test-groups-{}", std::process::id()));
    for (folder, [max, current]) in [
        ("", ["memory.max", "memory.current"]),
        ("memory", ["memory.limit_in_bytes", "memory.usage_in_bytes"]),
    ] {
        std::fs::create_dir_all(groups.join(folder)).unwrap();
        std::fs::write(groups.join(folder).join(max), "5000000\n").unwrap();
        std::fs::write(groups.join(folder).join(current), "4990000\n").unwrap();
    }
    let mount = format!("mount --bind {} /sys/fs/cgroup && exec \"$@\"", groups.display());
    let launcher = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
    let probe = Command::new(launcher[0]).args(&launcher[1..]).arg("true").output();
    if probe.is_ok_and(|output| output.status.success()) {
        let of = "10000 available of memory of the control group";
        assert_falls_back(|| own_by(&launcher), of);
        assert_refused(|| own_by(&launcher), of);
    } else {
        say("skipped: no file system of one's own can be mounted here");
    }
    std::fs::remove_dir_all(groups).unwrap();
}
