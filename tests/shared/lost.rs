//! A process that is killed while both work in the memory that they share.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hcomm::{Error, LinkKind, Rank, ReduceOp};

use super::common::processes::{own, say};
use super::common::{Random, assert_usable, class, meeting_place};
use super::world::World;
use super::{join, say_links};

/// Which kind of operation.
const KIND: &str = "HCOMM_TEST_KIND";
/// More than all rings hold.
const COUNT: usize = 4 << 20;

/// Computes until another rank is lost, and says which.
pub fn reduce_until_told() {
    let mut comm = join().unwrap();
    say_links(&comm);
    assert_usable(&mut comm);
    let (me, n) = (comm.rank().0, comm.size() as u32);
    let mut buffer = vec![0u32; COUNT];
    for round in 0u32.. {
        buffer.fill(round + me);
        match comm.all_reduce(buffer, ReduceOp::Sum).wait() {
            Ok(sums) => {
                assert!(
                    sums.iter().all(|sum| *sum == n * round + n * (n - 1) / 2),
                    "rank {me} round {round}"
                );
                if round == 0 {
                    say("running");
                }
                buffer = sums;
            }
            Err(failed) => {
                let error = Error::from(failed);
                let blamed: Vec<String> = error.blamed().iter().map(Rank::to_string).collect();
                return say(&format!("told: {} {}", class(&error), blamed.join(" ")));
            }
        }
    }
}

/// One kind of operation, until another rank is lost: who that is, and whether buffer and communicator can be used after it.
pub fn one_kind_until_told() {
    let kind = std::env::var(KIND).unwrap();
    let mut comm = join().unwrap();
    let (me, n) = (comm.rank().index(), comm.size());
    let root = Rank(n as u32 - 1);
    let part = COUNT / n;
    let value = |rank: usize, round: usize| (rank * 1000 + round) as u32;
    let is = |got: &[u32], expected: u32| got.iter().all(|value| *value == expected);
    for round in 0.. {
        let own = |len: usize| vec![value(me, round); len];
        let sum_to = |end: usize| (0..end).map(|rank| value(rank, round)).sum::<u32>();
        let is_root = comm.rank() == root;
        let operation = match kind.as_str() {
            "reduce" => comm.reduce(own(COUNT), ReduceOp::Sum, root),
            "gather" => comm.gather(own(if is_root { n * part } else { part }), root),
            "scatter" => comm.scatter(own(if is_root { n * part } else { part }), root),
            "all_to_all" => comm.all_to_all(own(n * part)),
            _ => comm.scan(own(COUNT), ReduceOp::Sum),
        };
        let failed = match operation.wait() {
            Ok(got) => {
                let right = match kind.as_str() {
                    "reduce" => !is_root || is(&got, sum_to(n)),
                    "scatter" => is_root || is(&got, value(root.index(), round)),
                    "gather" if !is_root => true,
                    "scan" => is(&got, sum_to(me + 1)),
                    _ => got.chunks(part).zip(0..).all(|(part, rank)| is(part, value(rank, round))),
                };
                assert!(right, "rank {me}: {kind}, round {round}");
                if round == 0 {
                    say("running");
                }
                continue;
            }
            Err(failed) => failed,
        };
        // Between two calls it has failed already when the next one is made.
        let error = failed.error;
        let known = matches!(error, Error::PeerLost { .. } | Error::Failed { .. });
        assert!(known && error.to_string().contains("is lost"), "{error}");
        let blamed: Vec<String> = error.blamed().iter().map(Rank::to_string).collect();
        let len = failed.buffer.map(|buffer| buffer.len());
        assert!(len == Some(COUNT) || len == Some(n * part) || len == Some(part), "{kind}: {len:?}");
        say(&format!("told: {}", blamed.join(" ")));
        let mut left = comm.rebuild().wait().unwrap();
        assert_usable(&mut left);
        return say(&format!("rebuilt: {}", left.size()));
    }
}

/// Names that processes of this library, whichever they are, have at this time.
fn names() -> BTreeSet<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let sockets = sockets.lines().filter_map(|line| Some(format!("@{}", line.split_once('@')?.1)));
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let files = files.map(|entry| entry.path().to_string_lossy().into_owned());
    sockets.chain(files).filter(|name| name.contains("hcomm")).collect()
}

/// Others may be at work here, whose names go as well.
fn assert_gone(before: &BTreeSet<String>) {
    let until = Instant::now() + Duration::from_secs(20);
    let mut suspects: Vec<String> = names().difference(before).cloned().collect();
    while !suspects.is_empty() {
        assert!(Instant::now() < until, "left behind: {suspects:?}");
        std::thread::sleep(Duration::from_millis(20));
        let now = names();
        suspects.retain(|name| now.contains(name));
    }
}

/// Files with names that this process has open, beside the input and output that it was given.
fn named(pid: u32) -> Vec<PathBuf> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let open = open.filter(|entry| !["0", "1", "2"].iter().any(|given| entry.file_name() == *given));
    let open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    open.filter(|path| path.starts_with("/tmp") || path.starts_with("/dev/shm")).collect()
}

/// Memory that this process has mapped, by the names that it has, if it is the library's.
fn mapped(pid: u32) -> BTreeSet<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let names =
        maps.lines().filter_map(|line| line.splitn(6, ' ').nth(5)).map(|name| name.trim().to_string());
    names
        .filter(|name| name.contains("hcomm") && !name.contains("/deps/") || name.contains("/dev/shm"))
        .collect()
}

fn kill(seeds: std::ops::Range<u64>) {
    let before = names();
    let temporary = meeting_place();
    std::fs::create_dir(&temporary).unwrap();
    let child = |_| {
        let mut command = own();
        command.env("TMPDIR", &temporary);
        command
    };
    for seed in seeds {
        let mut random = Random(seed);
        let n = 2 + random.below(2);
        let (victim, delay) = (random.below(n), random.millis(150));
        let mut world = World::new("reduce", n).start(child);
        (0..n).for_each(|rank| drop(world.says(rank, "running")));
        world.assert_all_linked(LinkKind::SharedMemory, Some(""));
        let mapped = mapped(world.pid(victim));
        assert!(
            mapped.len() == 1 && mapped.iter().all(|name| name.starts_with("/memfd:hcomm")),
            "{mapped:?}"
        );
        assert_eq!(named(world.pid(victim)), Vec::<PathBuf>::new());
        std::thread::sleep(delay);
        world.kill(victim);
        for rank in (0..n).filter(|rank| *rank != victim) {
            let told = world.says(rank, "told: ");
            assert_eq!(
                told,
                format!("peer lost {victim}"),
                "seed {seed}: rank {rank}, killed after {delay:?}"
            );
        }
        // A signal to a survivor would show here.
        world.end(Some(victim));
    }
    assert_gone(&before);
    // It is empty, or this fails.
    std::fs::remove_dir(&temporary).unwrap();
    let mut world = World::new("work", 2).start(|_| own());
    world.assert_all_linked(LinkKind::SharedMemory, Some(""));
    world.end(None);
}

#[test]
fn survivors_of_a_kill_at_any_time_are_told_and_nothing_is_left() {
    kill(0..8);
}

#[test]
#[ignore = "takes minutes"]
fn survivors_of_100_kills_are_told_and_nothing_is_left() {
    kill(100..200);
}

#[test]
fn a_rank_killed_in_any_kind_of_operation_is_named_by_all_and_the_others_go_on() {
    let n = 3;
    let kinds = ["reduce", "gather", "scatter", "all_to_all", "scan"];
    for (wanted, seed) in [("require", 1), ("never", 2)] {
        let mut random = Random(seed);
        for (kind, victim) in kinds.into_iter().zip([0, 1, 2, 1, 0]) {
            let mut world = World::new("one kind", n).start(|_| {
                let mut command = own();
                command.env(KIND, kind).env("HCOMM_SHARED_MEMORY", wanted);
                command
            });
            (0..n).for_each(|rank| drop(world.says(rank, "running")));
            std::thread::sleep(random.millis(50));
            world.kill(victim);
            for rank in (0..n).filter(|rank| *rank != victim) {
                assert_eq!(world.says(rank, "told: "), victim.to_string(), "{kind}, {wanted}, rank {rank}");
                assert_eq!(world.says(rank, "rebuilt: "), "2", "{kind}, {wanted}, rank {rank}");
            }
            world.end(Some(victim));
        }
    }
}
