//! Communicators made anew by the ranks that are left: all end with the same members, and old frames are discarded.

use std::future::Future;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::processes::{Processes, Role, say};
use crate::common::{
    LINKS, Link, Random, WATCHDOG, assert_usable, class, connect, meeting_place, run, world,
};
use hcomm::{Communicator, Error, Rank, ReduceOp, State};
use rustix::process::Signal;

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn is_failed(comm: &Communicator) -> bool {
    matches!(comm.state(), State::Failed { .. })
}

// --- processes that are killed

/// What a process of a world does.
pub fn child(Role { scenario, count, joined, .. }: Role) {
    let comm = joined.unwrap();
    match scenario.as_str() {
        "survive" => survive(comm, None),
        "hesitate" => survive(comm, Some(count as u32)),
        "groups" => groups(comm),
        other => panic!("no scenario {other}"),
    }
    std::process::exit(0);
}

/// Says who is in, reduces until somebody is lost, rebuilds, and so on until it is killed. The rank that hesitates says
/// so before it rebuilds.
fn survive(mut comm: Communicator, hesitant: Option<u32>) {
    let me = comm.rank().0;
    loop {
        let mut all = vec![0u32; comm.size()];
        all[comm.rank().index()] = me;
        let error = match comm.all_gather(all).wait() {
            Ok(ids) => {
                assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "the old order is kept: {ids:?}");
                say(&format!("in {ids:?}"));
                reduce_until_told(&mut comm, me, &ids)
            }
            Err(error) => error.into(),
        };
        assert!(
            matches!(class(&error), "peer lost" | "aborted" | "failed" | "cancelled"),
            "rank {me}: {error}"
        );
        if hesitant == Some(me) {
            say("hesitating");
        }
        let next = block_on(comm.rebuild()).unwrap_or_else(|error| panic!("rank {me}: {error}"));
        assert!(matches!(comm.state(), State::Closed), "rank {me}: {:?}", comm.state());
        comm = next;
    }
}

/// Sums that differ from round to round and between memberships.
fn reduce_until_told(comm: &mut Communicator, me: u32, ids: &[u32]) -> Error {
    for round in 1u32.. {
        let count = [3usize, 1000, 50_000][round as usize % 3];
        match comm.all_reduce(vec![(me + 1) * round; count], ReduceOp::Sum).wait() {
            Ok(sum) => {
                let all: u32 = ids.iter().map(|id| (id + 1) * round).sum();
                assert!(sum.iter().all(|value| *value == all), "rank {me} round {round}");
            }
            Err(error) => {
                assert_eq!(
                    error.buffer.as_ref().map(Vec::len),
                    Some(count),
                    "rank {me}: the buffer comes back"
                );
                return error.into();
            }
        }
    }
    unreachable!("somebody is lost some day")
}

/// Waits until all of these ranks have said last that these are in.
fn wait_until_in(world: &Processes, ids: &[usize], context: &str) {
    let wanted = format!("in {ids:?}");
    let mut open = ids.to_vec();
    while !open.is_empty() {
        let (rank, said) = world.next();
        if !ids.contains(&rank) {
            continue;
        }
        let said = said.unwrap_or_else(|| panic!("{context}: rank {rank} has ended"));
        if said == wanted {
            open.retain(|of| *of != rank);
        } else {
            assert!(said.starts_with("in [") || said == "hesitating", "{context}: rank {rank} says: {said}");
        }
    }
}

#[test]
fn survivors_of_a_killed_process_go_on_without_it() {
    for n in [3usize, 4, 5, 8] {
        let context = format!("n {n}");
        let world = Processes::start("rebuild: survive", n, 0, &meeting_place(), 30);
        let mut ids: Vec<usize> = (0..n).collect();
        wait_until_in(&world, &ids, &context);
        for victim in [n / 2, 0] {
            world.signal(victim, Signal::KILL);
            ids.retain(|id| *id != victim);
            wait_until_in(&world, &ids, &context);
        }
    }
}

fn kill_two(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut random = Random(seed);
        let n = [3usize, 4, 5][random.below(3)];
        let mut ids: Vec<usize> = (0..n).collect();
        random.shuffle(&mut ids);
        let victims = ids.split_off(n - 2);
        ids.sort_unstable();
        let delay = Duration::from_micros(random.below(4000) as u64);
        let context = format!("seed {seed} n {n} victims {victims:?} {delay:?} apart");
        let world = Processes::start("rebuild: survive", n, 0, &meeting_place(), 30);
        wait_until_in(&world, &(0..n).collect::<Vec<_>>(), &context);
        world.signal(victims[0], Signal::KILL);
        std::thread::sleep(delay);
        world.signal(victims[1], Signal::KILL);
        wait_until_in(&world, &ids, &context);
    }
}

#[test]
fn a_second_process_killed_while_the_others_rebuild_is_given_up_too() {
    kill_two(0..4);
}

#[test]
#[ignore = "takes a minute"]
fn a_second_process_killed_at_any_of_sixty_points_is_given_up_too() {
    kill_two(0..60);
}

/// The second victim is killed when it is about to agree, or has just done so.
#[test]
fn a_process_killed_in_the_middle_of_an_agreement_divides_nobody() {
    for seed in 0..4u64 {
        let n = [3usize, 4, 5, 8][seed as usize];
        let (first, second) = (n - 1, n - 2);
        let world = Processes::start("rebuild: hesitate", n, second, &meeting_place(), 30);
        let context = format!("n {n}");
        wait_until_in(&world, &(0..n).collect::<Vec<_>>(), &context);
        world.signal(first, Signal::KILL);
        while world.next() != (second, Some("hesitating".into())) {}
        std::thread::sleep(Duration::from_micros(seed * 150));
        world.signal(second, Signal::KILL);
        let ids: Vec<usize> = (0..n - 2).collect();
        wait_until_in(&world, &ids, &context);
    }
}

/// Two groups and a sibling of the world. The last rank is killed: whatever contains it fails, and is rebuilt; the other
/// group does not notice.
fn groups(mut comm: Communicator) {
    let me = comm.rank().0;
    let mut group = block_on(comm.split(Some(me / 2), 0)).unwrap().unwrap();
    let mut sibling = block_on(comm.dup()).unwrap();
    assert_usable(&mut group);
    assert_usable(&mut sibling);
    say("ready");
    if me == 3 {
        std::thread::sleep(crate::common::WATCHDOG);
    }
    let error = sibling.all_reduce(vec![0u8; 5], ReduceOp::Max).wait().unwrap_err();
    assert_eq!(class(&error.error), "peer lost", "{error}");
    assert!(is_failed(&sibling));
    while !is_failed(&comm) {
        std::thread::sleep(Duration::from_millis(1));
    }
    if me < 2 {
        assert!(matches!(group.state(), State::Ready));
        (0..10).for_each(|_| assert_usable(&mut group));
    } else {
        // Others may have told of the loss before it shows here.
        while !is_failed(&group) {
            std::thread::sleep(Duration::from_millis(1));
        }
        group = block_on(group.rebuild()).unwrap();
        assert_eq!((group.size(), group.former_ranks()), (1, &[Rank(0)][..]));
    }
    let mut comm = block_on(comm.rebuild()).unwrap();
    assert_eq!((comm.size(), comm.epoch(), comm.name()), (3, 1, "world@1"));
    assert_eq!(comm.former_ranks(), [0, 1, 2].map(Rank));
    assert_usable(&mut comm);
    // One communicator made anew does nothing for another.
    assert!(is_failed(&sibling));
    let mut sibling = block_on(sibling.rebuild()).unwrap();
    for comm in [&mut sibling, &mut group, &mut comm] {
        assert_usable(comm);
    }
    let mut half = block_on(comm.split(Some(me % 2), 0)).unwrap().unwrap();
    assert_usable(&mut half);
    comm.barrier().wait().unwrap();
    say("done");
}

#[test]
fn what_does_not_contain_the_lost_rank_works_on() {
    let mut world = Processes::start("rebuild: groups", 4, 0, &meeting_place(), 30);
    world.all_say("ready", None);
    world.signal(3, Signal::KILL);
    world.all_say("done", Some(3));
    world.end(Some(3));
}

// --- ranks that leave, or call in vain

#[test]
fn ranks_that_have_left_are_left_out() {
    for link in LINKS {
        for n in [3usize, 4, 5, 8] {
            world(link, n, move |mut comm| {
                let me = comm.rank();
                assert_usable(&mut comm);
                let quitters = [Rank(0), Rank(n as u32 - 2)];
                if quitters.contains(&me) {
                    return;
                }
                let error = comm.all_reduce(vec![1u32; 10], ReduceOp::Sum).wait().unwrap_err();
                assert_eq!(class(&error.error), "left", "{link:?} n {n} rank {me}: {error}");
                assert!(quitters.contains(&error.error.blamed()[0]), "{link:?} n {n} rank {me}: {error}");
                let mut comm = block_on(comm.rebuild()).unwrap();
                assert_eq!(comm.size(), n - 2);
                assert_eq!(comm.rank().0, if me.0 == n as u32 - 1 { n as u32 - 3 } else { me.0 - 1 });
                assert_usable(&mut comm);
            });
        }
    }
}

#[test]
fn epochs_follow_each_other_and_nothing_of_an_old_one_is_seen() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let others = |me: Rank| (0..3).map(Rank).filter(move |rank| *rank != me);
            for epoch in 1..=20u32 {
                let me = comm.rank();
                // Nobody receives these; what is still in flight is over.
                let lost: Vec<_> = others(me).map(|to| comm.send(to, 7, vec![0u32; 20])).collect();
                let unmet = comm.recv(Rank((me.0 + 1) % 3), 8, vec![0u8]);
                let mut next = block_on(comm.rebuild()).unwrap();
                assert_eq!(class(&unmet.wait().unwrap_err().error), "cancelled", "{link:?}");
                lost.into_iter().for_each(|sent| drop(sent.wait()));
                assert!(matches!(comm.state(), State::Closed));
                let again = block_on(comm.rebuild()).unwrap_err();
                assert_eq!(class(&again), "closed", "{link:?}: {again}");
                let refused = comm.all_reduce(vec![1u8], ReduceOp::Sum).wait().unwrap_err();
                assert_eq!(class(&refused.error), "closed", "{link:?}: {refused}");
                assert_eq!((next.epoch(), next.name()), (epoch.into(), format!("world@{epoch}").as_str()));
                let sent: Vec<_> = others(me).map(|to| next.send(to, 7, vec![epoch; 20])).collect();
                for from in others(me) {
                    assert_eq!(next.recv(from, 7, vec![0u32; 20]).wait().unwrap(), [epoch; 20], "{link:?}");
                }
                sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
                assert_usable(&mut next);
                comm = next;
            }
        });
    }
}

/// Messages that nobody received are gone with their communicator, and the room that they took is free again.
#[test]
fn what_an_old_epoch_has_kept_takes_no_room() {
    for link in LINKS {
        let step = Arc::new(Barrier::new(2));
        world(link, 2, move |mut comm| {
            for _ in 0..3 {
                if comm.rank() == Rank(0) {
                    let sent: Vec<_> = (0..300).map(|_| comm.send(Rank(1), 1, vec![0u8; 4000])).collect();
                    comm = block_on(comm.rebuild()).unwrap();
                    drop(sent);
                    assert_usable(&mut comm);
                    // It is received only after it was sent.
                    comm.send(Rank(1), 1, vec![1u8; 4000]).wait().unwrap();
                    step.wait();
                } else {
                    comm = block_on(comm.rebuild()).unwrap();
                    assert_usable(&mut comm);
                    step.wait();
                    assert_eq!(comm.recv(Rank(0), 1, vec![0u8; 4000]).wait().unwrap(), [1; 4000]);
                }
                assert_usable(&mut comm);
            }
        });
    }
}

#[test]
fn a_rank_that_does_not_call_is_named_and_waited_for_again() {
    for link in LINKS {
        let step = Arc::new(Barrier::new(4));
        world(link, 4, move |mut comm| {
            let me = comm.rank();
            if me == Rank(2) {
                step.wait();
            } else {
                comm.set_deadline(Duration::from_millis(300));
                let error = block_on(comm.rebuild()).unwrap_err();
                let Error::Deadline(report) = &error else { panic!("{link:?}: {} {error}", class(&error)) };
                assert_eq!(report.late, [Rank(2)], "{link:?} rank {me}: {report}");
                assert!(
                    report.states[0].1.contains("has not called rebuild"),
                    "{link:?} rank {me}: {report}"
                );
                assert_eq!(report.operation, "rebuild");
                comm.set_deadline(crate::common::GENEROUS);
                step.wait();
            }
            let mut next = block_on(comm.rebuild()).unwrap();
            assert_eq!(next.size(), 4);
            drop(comm);
            assert_usable(&mut next);
        });
    }
}

#[test]
fn a_dropped_call_is_taken_up_by_the_next() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            for _ in 0..10 {
                if comm.rank() == Rank(1) {
                    drop(comm.rebuild());
                }
                comm = block_on(comm.rebuild()).unwrap();
                assert_eq!(comm.size(), 3, "{link:?}");
                assert_usable(&mut comm);
            }
        });
    }
}

/// Giving it up gives up the waiting here, and nothing that was agreed.
#[test]
fn a_cancelled_call_is_taken_up_by_the_next() {
    for link in LINKS {
        let cancelled = Arc::new(Barrier::new(3));
        world(link, 3, move |mut comm| {
            assert_usable(&mut comm);
            if comm.rank() == Rank(2) {
                cancelled.wait();
            } else {
                let agreed = comm.rebuild();
                agreed.cancel();
                assert_eq!(class(&agreed.wait().unwrap_err()), "cancelled", "{link:?}");
                cancelled.wait();
            }
            let mut comm = block_on(comm.rebuild()).unwrap();
            assert_eq!((comm.size(), comm.epoch()), (3, 1), "{link:?}");
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_world_of_one_is_rebuilt_alone() {
    for link in [Link::Memory, Link::Tcp] {
        run(connect(link, 1), |mut comm| {
            comm = block_on(comm.rebuild()).unwrap();
            assert_usable(&mut comm);
        });
    }
}

/// Who has agreed, and then lets go of the old one and of the future, has left the new one, and no other.
#[test]
fn a_successor_that_a_rank_does_not_take_is_left_by_it() {
    for link in LINKS {
        for variant in 0..3 {
            let step = Arc::new(Barrier::new(2));
            run(connect(link, 3), move |mut comm| {
                let mut twin = comm.dup().wait().unwrap();
                match comm.rank() {
                    Rank(0) => {
                        let mut rebuilt = comm.rebuild().wait().unwrap();
                        if variant == 0 && rebuilt.size() == 1 {
                            // It has left before anything was agreed.
                            assert_eq!(rebuilt.former_ranks(), [Rank(0)]);
                            assert_usable(&mut rebuilt);
                            assert_usable(&mut twin);
                            return;
                        }
                        assert_eq!(rebuilt.former_ranks(), [Rank(0), Rank(1)]);
                        drop(rebuilt.send(Rank(1), 1, vec![1u8; 10_000]));
                        if variant > 0 {
                            step.wait();
                        }
                        let error = rebuilt.all_reduce(vec![1u32], ReduceOp::Sum).wait().unwrap_err().error;
                        let is_told = matches!(error, Error::Left { rank: Rank(1), .. });
                        assert!(is_told, "{link:?} {variant}: {error}");
                    }
                    Rank(1) if variant == 0 => {
                        // Perhaps before anything is agreed.
                        drop(comm.rebuild());
                        drop(comm);
                    }
                    Rank(1) => {
                        let rebuild = comm.rebuild();
                        step.wait();
                        if variant == 1 {
                            drop(rebuild);
                            drop(comm);
                        } else {
                            drop(comm);
                            drop(rebuild);
                        }
                    }
                    _ => drop(comm),
                }
                assert_usable(&mut twin);
                assert_eq!(twin.resources().kept, 0, "{link:?} {variant}");
            });
        }
    }
}

/// A task that ends in the middle of rebuilding leaves, for those who have not begun to rebuild.
#[test]
fn who_drops_a_rebuild_and_the_communicator_has_left_at_once() {
    for link in LINKS {
        for future_first in [true, false] {
            run(connect(link, 3), move |mut comm| {
                // It would be that of the rebuild, too.
                comm.set_deadline(2 * WATCHDOG);
                if comm.rank() == Rank(1) {
                    let rebuild = comm.rebuild();
                    if future_first {
                        drop(rebuild);
                        drop(comm);
                    } else {
                        drop(comm);
                        drop(rebuild);
                    }
                    return;
                }
                let error = comm.barrier().wait().unwrap_err().error;
                assert!(matches!(error, Error::Left { rank: Rank(1), .. }), "{link:?}: {error}");
                let mut rebuilt = comm.rebuild().wait().unwrap();
                assert_eq!(rebuilt.former_ranks(), [Rank(0), Rank(2)]);
                assert_usable(&mut rebuilt);
            });
        }
    }
}

/// The old one may go first.
#[test]
fn a_successor_comes_though_the_old_one_is_dropped() {
    for link in LINKS {
        run(connect(link, 3), |mut comm| {
            if comm.rank() == Rank(2) {
                return;
            }
            let rebuild = comm.rebuild();
            drop(comm);
            std::thread::sleep(Duration::from_millis(20));
            let mut rebuilt = rebuild.wait().unwrap();
            for _ in 0..10 {
                assert_eq!(rebuilt.all_reduce(vec![1u32], ReduceOp::Sum).wait().unwrap(), [2]);
            }
            assert_usable(&mut rebuilt);
        });
    }
}
