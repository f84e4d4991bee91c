//! Hosts as networks and containers make them.

use std::process::Command;

use hcomm::{Communicator, LinkKind, Rank, ReduceOp, blocking};

use super::common::assert_usable;
use super::common::hosts::Hosts;
use super::common::processes::{own, own_by, say};
use super::world::World;
use super::{all_kinds_waiting, join, say_links};

/// Ranks of each of two hosts.
const PER_HOST: usize = 2;

/// Computes with all, and with those of its host alone.
pub fn work_by_host() {
    let mut comm = join().unwrap();
    say_links(&comm);
    let me = comm.rank().index();
    all_kinds_waiting(&mut comm);
    let host = me / PER_HOST;
    let mut group = comm.split(Some(host as u32), 0).wait().unwrap().unwrap();
    assert_eq!((group.size(), group.rank().index()), (PER_HOST, me % PER_HOST));
    say(&format!("group {}", serde_json::to_string(&group.links()).unwrap()));
    all_kinds_waiting(&mut group);
    for count in [2, 20_000, 1 << 20] {
        let sums = group.all_reduce(vec![me as u64; count], ReduceOp::Sum).wait().unwrap();
        let here: u64 = (0..PER_HOST).map(|rank| (host * PER_HOST + rank) as u64).sum();
        assert!(sums.iter().all(|sum| *sum == here), "{count} elements");
    }
    assert_usable(&mut comm);
    let mut same = blocking::split_by_host(&mut comm).unwrap();
    let first = host * PER_HOST;
    assert_eq!((same.rank(), same.name()), (group.rank(), &*format!("world/{}:{first}", number(&same))));
    assert!(same.group() == group.group() && same.group() == comm.host_group(), "{:?}", same.group());
    assert_usable(&mut same);
    // Every second rank, backwards: one of each host, or of one host only.
    let pair = comm.split(Some((me % 2) as u32), -(me as i64)).wait().unwrap().unwrap();
    assert_eq!(pair.host_group().world_ranks().collect::<Vec<_>>(), [comm.rank()]);
    group.close().wait().unwrap();
    comm.close().wait().unwrap();
    say("done");
}

/// Of the call that it is from, as its name has it.
fn number(part: &Communicator) -> &str {
    part.name().trim_start_matches("world/").split(':').next().unwrap()
}

#[test]
fn ranks_of_one_host_share_memory_and_those_of_two_use_tcp() {
    let Some(hosts) = Hosts::new() else { return };
    let address = ("10.77.0.1".to_string(), 29_500);
    let mut world = World::at(address, "by host", 2 * PER_HOST).start(|rank| hosts.command(rank / PER_HOST));
    for rank in 0..2 * PER_HOST {
        let expected = |peer: usize| match (peer == rank, peer / PER_HOST == rank / PER_HOST) {
            (true, _) => LinkKind::Myself,
            (_, true) => LinkKind::SharedMemory,
            _ => LinkKind::Tcp,
        };
        for link in world.links(rank) {
            assert_eq!(
                (link.kind, &*link.reason),
                (expected(link.rank.index()), ""),
                "rank {rank}: {link:?}"
            );
        }
        let group: Vec<hcomm::LinkReport> = serde_json::from_str(&world.says(rank, "group ")).unwrap();
        for link in group {
            let myself = link.rank == Rank((rank % PER_HOST) as u32);
            assert_eq!(link.kind == LinkKind::Myself, myself, "rank {rank}: {link:?}");
            assert!(myself || link.kind == LinkKind::SharedMemory, "rank {rank}: {link:?}");
        }
        world.says(rank, "done");
    }
    world.end(None);
}

/// Containers that have one network share memory, whatever else they have of their own: files, queues, names, processes.
#[test]
fn containers_of_one_network_share_memory() {
    let base = ["unshare", "--mount", "--ipc", "--uts"];
    let processes = [&base[..], &["--pid", "--fork", "--kill-child", "--mount-proc"]].concat();
    for launcher in [&base[..], &processes] {
        let probe = Command::new(launcher[0]).args(&launcher[1..]).arg("true").output();
        if !probe.is_ok_and(|output| output.status.success()) {
            let required = std::env::var_os("HCOMM_REQUIRE_NETNS").is_some_and(|value| !value.is_empty());
            assert!(!required, "{launcher:?} is not permitted, and HCOMM_REQUIRE_NETNS is set");
            return say(&format!("skipped: {launcher:?} is not permitted"));
        }
        // One is in none.
        let mut world = World::new("work", 3).start(|rank| if rank == 1 { own() } else { own_by(launcher) });
        world.assert_all_linked(LinkKind::SharedMemory, Some(""));
        (0..3).for_each(|rank| drop(world.says(rank, "done")));
        world.end(None);
    }
}
