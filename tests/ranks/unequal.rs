//! Collectives of parts that differ in length.

use crate::common::{LINKS, Link, world};
use hcomm::path::{Algorithm, Collective};
use hcomm::{Buffer, Communicator, Error, ReduceOp};

fn value(rank: usize, index: usize) -> u32 {
    (rank * 1_000_003 + index) as u32
}

/// Each algorithm, in one buffer and in two, checked element by element.
fn all(comm: &mut Communicator, counts: &[usize], context: &str) {
    let (me, n) = (comm.rank().index(), comm.size());
    let total: usize = counts.iter().sum();
    let start = |rank: usize| counts[..rank].iter().sum::<usize>();
    let own = start(me)..start(me) + counts[me];
    let memory = |comm: &Communicator, len: usize| match (me + total).is_multiple_of(2) {
        true => comm.alloc::<u32>(len),
        false => Buffer::zeroed(len),
    };
    let owner = |index: usize| (0..n).find(|rank| (start(*rank)..start(rank + 1)).contains(&index)).unwrap();
    let sum = |index: usize| (0..n).map(|rank| value(rank, index)).fold(0u32, u32::wrapping_add);
    let is_gathered = |got: &[u32]| got.iter().enumerate().all(|(at, got)| *got == value(owner(at), at));
    let is_reduced =
        |got: &[u32]| own.clone().zip(got).all(|(at, got)| *got == sum(at)) && got.len() == own.len();
    for algorithm in Algorithm::ALL.iter().copied() {
        let context = format!("{context} {algorithm} {counts:?} rank {me}");
        if algorithm.supports(Collective::AllGather) {
            let mut parts = memory(comm, total);
            own.clone().for_each(|at| parts[at] = value(me, at));
            let mut part = memory(comm, own.len());
            part.copy_from_slice(&parts[own.clone()]);
            let got = comm.using(algorithm).all_gather_v(parts, counts).wait().unwrap();
            assert!(is_gathered(&got), "{context}: all_gather_v");
            let output = memory(comm, total);
            let (_, got) = comm.using(algorithm).all_gather_v_into(part, output, counts).wait().unwrap();
            assert!(is_gathered(&got), "{context}: all_gather_v_into");
        }
        if algorithm.supports(Collective::ReduceScatter) {
            let mut vector = memory(comm, total);
            vector.iter_mut().enumerate().for_each(|(at, element)| *element = value(me, at));
            let mut same = memory(comm, total);
            same.copy_from_slice(&vector);
            let got = comm.using(algorithm).reduce_scatter_v(vector, counts, ReduceOp::Sum).wait().unwrap();
            assert!(is_reduced(&got[own.clone()]), "{context}: reduce_scatter_v");
            let output = memory(comm, own.len());
            let into = comm.using(algorithm).reduce_scatter_v_into(same, output, counts, ReduceOp::Sum);
            let (same, got) = into.wait().unwrap();
            assert!(is_reduced(&got), "{context}: reduce_scatter_v_into");
            assert!(same.iter().enumerate().all(|(at, element)| *element == value(me, at)), "{context}");
        }
    }
}

#[test]
fn parts_of_any_length_come_where_they_belong() {
    for link in LINKS {
        for n in [1, 2, 3, 5, 8] {
            // None, few, more than is sent without being asked for, and all with one rank.
            let shapes: [fn(usize, usize) -> usize; 4] = [
                |rank, _| rank % 3,
                |rank, n| (n - rank) * 17 + 1,
                |rank, n| if rank == n / 2 { 50_001 } else { 3 * rank },
                |rank, n| if rank + 1 == n { 70_000 } else { 0 },
            ];
            world(link, n, move |mut comm| {
                for shape in shapes {
                    let counts: Vec<usize> = (0..n).map(|rank| shape(rank, n)).collect();
                    all(&mut comm, &counts, &format!("{link:?}"));
                }
            });
        }
    }
}

#[test]
fn counts_are_compared() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            // As many in all, but not of the same ranks.
            let counts = if comm.rank().0 == 1 { [2, 3, 5] } else { [3, 2, 5] };
            let failed = comm.all_gather_v(vec![0u8; 10], &counts).wait().unwrap_err();
            assert!(matches!(failed.error, Error::Mismatch { .. }), "{link:?}: {:?}", failed.error);
            assert_eq!(comm.all_gather_v(vec![0u8; 3], &[1, 1, 1]).wait().unwrap(), [0; 3]);
        });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut comm = Communicator::local(1).remove(0);
    let mut refused = |counts: &[usize], len: usize| {
        let failed = comm.all_gather_v(vec![0u8; len], counts).wait().unwrap_err();
        assert!(matches!(failed.error, Error::InvalidArgument { .. }));
        failed.error.to_string()
    };
    assert!(refused(&[1, 1], 2).contains("2 counts for 1 ranks: give one for each"));
    assert!(refused(&[3], 2).contains("the buffer has 2 elements: give it 3, the sum of all counts"));
    let failed = comm.all_gather_v_into(vec![0u8; 2], vec![0u8; 3], &[3]).wait().unwrap_err();
    assert!(failed.error.to_string().contains("the input has 2 elements: give it 3, this rank's count"));
    let failed = comm.reduce_scatter_v(vec![0u8; 3], &[usize::MAX], ReduceOp::Sum).wait().unwrap_err();
    assert!(matches!(failed.error, Error::InvalidArgument { .. }), "{:?}", failed.error);
}

/// A caller's own plan may rotate parts, which only goes where all are equally long.
#[test]
fn a_plan_that_puts_parts_elsewhere_is_for_equal_parts() {
    use hcomm::Rank;
    use hcomm::path::{PlanBuilder, Range, Space, verify};
    use std::sync::Arc;
    let block = |space, at| Range::new(space, at, 1);
    let mut plan = PlanBuilder::new(Collective::AllGather, "by way of scratch", 2, 2, 1);
    for (me, other) in [(0, 1), (1, 0)] {
        let scratch = plan.scratch(Rank(me), 0, 2);
        let sent = plan.send(Rank(other), Rank(me), block(Space::Output, other), &[]);
        // Where the own part would be.
        let placed = plan.place(sent.message, block(scratch, me), &[]);
        let after = [hcomm::path::After::Whole(placed)];
        plan.copy(Rank(me), block(scratch, me), block(Space::Output, other), &after);
    }
    let plan = Arc::new(verify(plan.build()).unwrap());
    world(Link::Memory, 2, move |mut comm| {
        let own = comm.rank().index();
        let mut parts = vec![0u8; 2];
        parts[own] = 7;
        assert_eq!(comm.with_plan(&plan).all_gather(parts).wait().unwrap(), [7, 7]);
        let failed = comm.with_plan(&plan).all_gather_v(vec![0u8; 3], &[1, 2]).wait().unwrap_err();
        assert!(failed.error.to_string().contains("puts parts where others were"), "{:?}", failed.error);
    });
}

/// One part goes as far as another one has come: half of what?
#[test]
fn a_plan_that_streams_after_another_part_is_for_equal_parts() {
    use std::sync::Arc;

    use hcomm::Rank;
    use hcomm::path::{After, PlanBuilder, Range, Space, verify};
    let block = |first| Range::new(Space::Output, first, 1);
    let mut plan = PlanBuilder::new(Collective::AllGather, "in turn", 2, 2, 1);
    let there = plan.send(Rank(1), Rank(0), block(1), &[]);
    let placed = plan.place(there.message, block(1), &[]);
    let back = plan.send(Rank(0), Rank(1), block(0), &[After::Stream(placed)]);
    plan.place(back.message, block(0), &[]);
    let plan = Arc::new(verify(plan.build()).unwrap());
    for link in LINKS {
        let plan = plan.clone();
        world(link, 2, move |mut comm| {
            for count in [1, 100_000] {
                let mut parts = vec![0u32; 2 * count];
                let me = comm.rank().index();
                parts[me * count..(me + 1) * count].fill(7);
                let got = comm.with_plan(&plan).all_gather(parts).wait().unwrap();
                assert!(got.iter().all(|part| *part == 7), "{link:?}");
            }
            let failed = comm.with_plan(&plan).all_gather_v(vec![0u8; 4], &[1, 3]).wait().unwrap_err();
            assert!(matches!(failed.error, Error::InvalidArgument { .. }), "{:?}", failed.error);
        });
    }
}
