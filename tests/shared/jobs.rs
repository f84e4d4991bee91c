//! Jobs of one host at the same time, of one user and of two, and communicators in communicators: each shares memory within
//! itself, and finds nobody else's.

use hcomm::{Communicator, LinkKind, ReduceOp};

use super::common::assert_usable;
use super::common::processes::{own, say};
use super::strangers::{as_nobody, can_be_nobody};
use super::world::World;
use super::{join, say_links};

const RANKS: usize = 3;
/// Of each user.
const JOBS: usize = 2;

/// Computes with all; with who is in the same part; and with those again in another order.
pub fn split_and_split() {
    let mut comm = join().unwrap();
    say_links(&comm);
    assert_usable(&mut comm);
    let me = comm.rank().0;
    let mut part = comm.split(Some(me / 2), 0).wait().unwrap().unwrap();
    let mut turned = part.split(Some(0), -i64::from(me)).wait().unwrap().unwrap();
    let mut whole = comm.dup().wait().unwrap();
    for group in [&mut part, &mut turned, &mut whole] {
        assert_is_shared(group);
        assert_usable(group);
        let ones = group.all_reduce(vec![1u8; 2 << 20], ReduceOp::Sum).wait().unwrap();
        assert!(ones == vec![group.size() as u8; 2 << 20]);
    }
    for group in [part, turned, whole, comm] {
        group.close().wait().unwrap();
    }
    say("done");
}

fn assert_is_shared(group: &Communicator) {
    let others = group.links().into_iter().filter(|link| link.rank != group.rank());
    others.for_each(|link| assert_eq!(link.kind, LinkKind::SharedMemory, "{link:?}"));
}

#[test]
fn jobs_at_the_same_time_share_memory_within_themselves() {
    let users = if can_be_nobody() { 2 } else { 1 };
    if users == 1 {
        say("of one user only: this one can't start this program as another");
    }
    let start = |job: usize| {
        World::new("jobs", RANKS).start(|_| if job.is_multiple_of(users) { own() } else { as_nobody() })
    };
    let mut jobs: Vec<World> = (0..users * JOBS).map(start).collect();
    for job in &mut jobs {
        job.assert_all_linked(LinkKind::SharedMemory, Some(""));
        (0..RANKS).for_each(|rank| drop(job.says(rank, "done")));
        job.end(None);
    }
}
