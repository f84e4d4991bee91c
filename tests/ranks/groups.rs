//! Groups, and communicators made of them: nested, many at a time, and where ranks do not agree on the group.

use std::sync::{Arc, Barrier, Mutex};

use crate::common::{GENEROUS, LINKS, Link, Random, assert_usable, class, connect, world};
use hcomm::{Communicator, Error, Group, Rank, ReduceOp, blocking};

/// The members of a group, as the world numbers them.
fn members(group: &Group) -> Vec<u32> {
    group.world_ranks().map(|rank| rank.0).collect()
}

/// What each rank of a communicator is in the world, told by the ranks themselves.
fn told(comm: &mut Communicator, me: u32) -> Vec<u32> {
    let mut all = vec![0; comm.size()];
    all[comm.rank().index()] = me;
    comm.all_gather(all).wait().unwrap()
}

#[test]
fn members_have_the_ranks_of_the_group() {
    for link in LINKS {
        world(link, 4, move |mut comm| {
            let (all, me) = (comm.group(), comm.rank().0);
            assert_eq!((members(&all), all.rank()), (vec![0, 1, 2, 3], Some(Rank(me))));
            for (number, ranks) in
                [vec![0, 1, 2, 3], vec![3, 2, 1, 0], vec![2, 0], vec![1], vec![]].iter().enumerate()
            {
                let group = all.include(ranks.iter().copied()).unwrap();
                let made = comm.create(&group).wait().unwrap();
                assert_eq!(
                    made.as_ref().map(Communicator::rank),
                    group.rank(),
                    "{link:?} {ranks:?} rank {me}"
                );
                let Some(mut made) = made else { continue };
                assert_eq!(made.name(), format!("world/{number}:0"));
                assert_eq!((made.group(), made.group().rank()), (group.clone(), group.rank()));
                assert_eq!(told(&mut made, me), *ranks);
                assert_usable(&mut made);
            }
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn groups_are_made_of_what_was_made_of_groups() {
    for link in LINKS {
        world(link, 5, move |mut comm| {
            let me = comm.rank().0;
            let all = comm.group();
            let outer = all.include([4, 2, 0, 3]).unwrap();
            let Some(mut of_group) = blocking::create(&mut comm, &outer).unwrap() else {
                assert_eq!(me, 1);
                assert_usable(&mut comm);
                return;
            };
            // A group of a group's communicator, a split of that, and a group of the split.
            let inner = of_group.group().exclude([1]).unwrap();
            if let Some(mut inner) = of_group.create(&inner).wait().unwrap() {
                assert_eq!(told(&mut inner, me), [4, 0, 3]);
                let mut half = inner.split(Some(me % 2), -i64::from(me)).wait().unwrap().unwrap();
                let expected = if me == 3 { vec![3] } else { vec![4, 0] };
                assert_eq!((told(&mut half, me), members(&half.group())), (expected.clone(), expected));
                let backwards = half.group().include((0..half.size() as u32).rev()).unwrap();
                let mut turned = half.create(&backwards).wait().unwrap().unwrap();
                assert_eq!(told(&mut turned, me), members(&backwards));
                assert!(turned.group().is_similar(&half.group()));
                // The same processes by way of the world's group.
                let same = inner.group().intersection(&all.include([0, 4]).unwrap()).unwrap();
                let same = inner.create(&same).wait().unwrap();
                assert_eq!(same.map(|mut same| told(&mut same, me)), (me != 3).then(|| vec![4, 0]));
                for mut comm in [half, turned, inner] {
                    assert_usable(&mut comm);
                }
            } else {
                assert_eq!(me, 2);
            }
            let mut twin = of_group.dup().wait().unwrap();
            assert_eq!(twin.group(), outer);
            assert_usable(&mut twin);
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_world_of_one_has_two_groups() {
    for link in LINKS {
        world(link, 1, |mut comm| {
            let all = comm.group();
            assert_usable(&mut comm.create(&all).wait().unwrap().unwrap());
            assert!(comm.create(&all.exclude([0]).unwrap()).wait().unwrap().is_none());
            assert_usable(&mut comm);
        });
    }
}

/// Ranks that are threads may hand each other their groups: they are of one world.
#[test]
fn a_group_is_of_use_to_other_ranks_of_its_world() {
    for link in LINKS {
        let (slot, step) = (Arc::new(Mutex::new(None)), Arc::new(Barrier::new(3)));
        world(link, 3, move |mut comm| {
            let me = comm.rank();
            if me == Rank(2) {
                *slot.lock().unwrap() = Some(comm.group().include([1, 2]).unwrap());
            }
            step.wait();
            let group = slot.lock().unwrap().clone().unwrap();
            assert_eq!(group.rank(), Some(Rank(1)), "of the rank that made it");
            assert_eq!(group, comm.group().include([1, 2]).unwrap());
            let made = comm.create(&group).wait().unwrap();
            assert_eq!(made.map(|made| made.rank()), me.0.checked_sub(1).map(Rank));
        });
    }
}

/// In a world of three; rank `odd` gives the second group.
fn differ(link: Link, first: &'static [u32], second: &'static [u32]) {
    for odd in 0..3 {
        world(link, 3, move |mut comm| {
            let me = comm.rank().0;
            let ranks = if me == odd { second } else { first };
            let group = comm.group().include(ranks.iter().copied()).unwrap();
            let error = comm.create(&group).wait().unwrap_err();
            let context = format!("{link:?} {first:?} {second:?}, odd {odd}, rank {me}: {error}");
            let Error::Mismatch { operation, calls, .. } = &error else { panic!("{context}") };
            assert_eq!(&**operation, "create", "{context}");
            assert!(calls.iter().any(|(rank, _)| rank.0 == odd) && calls.len() >= 2, "{context}");
            assert!(error.to_string().contains(&format!("rank {odd} calls create(group ")), "{context}");
            assert_usable(&mut comm);
            // Nothing stays of it, and the next one is made.
            let mut made = comm.create(&comm.group()).wait().unwrap().unwrap();
            assert_usable(&mut made);
        });
    }
}

#[test]
fn ranks_with_different_groups_are_told_all() {
    for link in LINKS {
        for (first, second) in [
            (&[0, 1, 2][..], &[0, 2, 1][..]),
            (&[0, 1], &[1, 2]),
            (&[0, 1], &[0, 1, 2]),
            (&[], &[1]),
            (&[0, 1, 2], &[]),
        ] {
            differ(link, first, second);
        }
    }
}

#[test]
fn create_is_not_split() {
    for link in LINKS {
        world(link, 3, |mut comm| {
            let all = comm.group();
            let call = if comm.rank() == Rank(1) { comm.split(Some(0), 1) } else { comm.create(&all) };
            assert_eq!(class(&call.wait().unwrap_err()), "mismatch");
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn groups_of_another_world_or_with_strangers_are_refused() {
    for link in LINKS {
        let others = Arc::new(connect(link, 3).iter().map(Communicator::group).collect::<Vec<_>>());
        world(link, 3, move |mut comm| {
            let (all, me) = (comm.group(), comm.rank());
            let other = &others[me.index()];
            // Its processes have the same numbers.
            assert_eq!(members(other), members(&all));
            assert!(*other != all && !other.is_similar(&all));
            assert_eq!(class(&all.union(other).unwrap_err()), "invalid argument");
            // Given by all, and by one.
            let error = comm.create(other).wait().unwrap_err();
            assert!(
                class(&error) == "invalid argument" && error.to_string().contains("two worlds"),
                "{error}"
            );
            let error = comm.create(if me == Rank(1) { other } else { &all }).wait().unwrap_err();
            let expected = if me == Rank(1) { "invalid argument" } else { "aborted" };
            assert_eq!(class(&error), expected, "{link:?} rank {me}: {error}");
            assert_usable(&mut comm);
            // The world's group has a process that its part has not.
            let part = comm.split((me != Rank(0)).then_some(1), 0).wait().unwrap();
            if let Some(mut part) = part {
                let error = part.create(&all).wait().unwrap_err();
                assert_eq!(class(&error), "invalid argument");
                assert!(error.to_string().contains("leave {0} out"), "{error}");
                let both = all.intersection(&part.group()).unwrap();
                assert_eq!(part.create(&both).wait().unwrap().unwrap().size(), 2);
            }
        });
    }
}

#[test]
fn a_rank_that_does_not_take_its_communicator_has_left_it() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let all = comm.group();
            // Who is not in it harms nobody.
            let pair = comm.create(&all.include([2, 0]).unwrap());
            if comm.rank() == Rank(1) {
                drop(pair);
            } else {
                assert_usable(&mut pair.wait().unwrap().unwrap());
            }
            let whole = comm.create(&all).timeout(GENEROUS);
            if comm.rank() == Rank(1) {
                drop(whole);
            } else {
                let failed = whole.wait().unwrap().unwrap().barrier().wait().unwrap_err();
                assert!(
                    matches!(failed.error, Error::Left { rank: Rank(1), .. }),
                    "{link:?}: {}",
                    failed.error
                );
            }
            if comm.rank() == Rank(0) {
                let given_up = comm.create(&all);
                given_up.cancel();
                assert_eq!(class(&given_up.wait().unwrap_err()), "cancelled");
                (1..3).for_each(|rank| blocking::send(&comm, rank, 1, &[1u8]).unwrap());
            } else {
                // Before that it may be done.
                blocking::recv(&comm, 0, 1, &mut [0u8]).unwrap();
                assert_eq!(class(&comm.create(&all).wait().unwrap_err()), "aborted");
            }
            assert_usable(&mut comm);
        });
    }
}

/// A group outlives its communicator, and says who is who in what was rebuilt.
#[test]
fn groups_tell_who_is_left_after_a_loss() {
    for link in LINKS {
        world(link, 4, move |mut comm| {
            let (before, me) = (comm.group(), comm.rank());
            if me == Rank(1) {
                return;
            }
            comm.barrier().wait().unwrap_err();
            let mut comm = comm.rebuild().wait().unwrap();
            let left = comm.group();
            assert_eq!(members(&left), [0, 2, 3]);
            for (rank, former) in (0..).map(Rank).zip(comm.former_ranks()) {
                assert_eq!(before.translate(former, &left).unwrap(), Some(rank));
            }
            assert_eq!(before.translate(1, &left).unwrap(), None);
            assert_eq!(before.difference(&left).unwrap(), before.include([1]).unwrap());
            assert_eq!(class(&comm.create(&before).wait().unwrap_err()), "invalid argument");
            let last = before.include([3, 1, 2]).unwrap().intersection(&left).unwrap();
            let made = comm.create(&last).wait().unwrap();
            assert_eq!(made.map(|mut made| told(&mut made, me.0)), (me != Rank(0)).then(|| vec![3, 2]));
        });
    }
}

/// Communicators of one world at a time.
const MANY: usize = 100;

/// What they do, they do at the same time, and begin and await in another order on each rank.
#[test]
fn a_hundred_communicators_share_the_connections() {
    for link in LINKS {
        world(link, 4, move |mut comm| {
            let me = comm.rank().0;
            let (before, links) = (comm.resources(), comm.links());
            let mut made = many(&mut comm);
            let mut order: Vec<usize> = (0..made.len()).collect();
            let mut random = Random(me.into());
            for round in 0..3 {
                random.shuffle(&mut order);
                let mut begun: Vec<_> = order
                    .iter()
                    .map(|at| {
                        let (number, comm) = &mut made[*at];
                        let count = [10, 3000, 40_000][(*number + round) % 3];
                        let sum = comm.all_reduce(vec![*number as u32 * 100 + me; count], ReduceOp::Sum);
                        (*at, count, sum)
                    })
                    .collect();
                random.shuffle(&mut begun);
                for (at, count, sum) in begun {
                    let (number, comm) = &made[at];
                    let expected: u32 =
                        comm.group().world_ranks().map(|rank| *number as u32 * 100 + rank.0).sum();
                    assert_eq!(sum.wait().unwrap(), vec![expected; count], "{link:?} {number} rank {me}");
                }
            }
            let after = comm.resources();
            let fixed = |used: &hcomm::Resources| (used.descriptors, used.lanes, used.threads);
            assert_eq!(fixed(&after), fixed(&before), "{link:?}");
            let ways = |links: &[hcomm::LinkReport]| -> Vec<_> {
                links.iter().map(|link| (link.rank, link.kind, link.address.clone())).collect()
            };
            assert_eq!(ways(&comm.links()), ways(&links), "{link:?}");
            // Each goes by itself, in whatever order.
            random.shuffle(&mut made);
            made.truncate(made.len() / 2);
            drop(made);
            assert_usable(&mut comm);
        });
    }
}

/// Those that this rank is in, of many that are made of a world: by group, by color, and of one another.
fn many(comm: &mut Communicator) -> Vec<(usize, Communicator)> {
    let mut alike = Random(7);
    let all = comm.group();
    let mut made: Vec<(usize, Communicator)> = Vec::new();
    for number in 0..MANY {
        let mut ranks = [0, 1, 2, 3];
        alike.shuffle(&mut ranks);
        let group = all.include(ranks[..2 + alike.below(3)].iter().copied()).unwrap();
        let key = group.rank().map_or(0, |rank| rank.0.into());
        let part = match number % 3 {
            0 => comm.split(group.rank().map(|_| 9), key).wait().unwrap(),
            1 => comm.create(&group).wait().unwrap(),
            _ => {
                let twin = comm.create(&group).wait().unwrap();
                twin.map(|mut twin| twin.dup().wait().unwrap())
            }
        };
        assert_eq!(part.as_ref().map(Communicator::group), group.rank().map(|_| group.clone()));
        made.extend(part.map(|part| (number, part)));
    }
    made
}
