//! Exchanges with neighbors.

use std::sync::{Arc, Barrier};

use crate::common::{LINKS, assert_usable, class, world};
use hcomm::{Buffer, Communicator, Error, Neighborhood, Rank};

fn value(from: usize, to: usize, index: usize) -> u32 {
    (from * 1_000_003 + to * 10_007 + index) as u32
}

fn ranks(ranks: &[usize]) -> Vec<Rank> {
    ranks.iter().map(|rank| Rank(*rank as u32)).collect()
}

/// Whom each rank of a graph sends to, in the order in which it names them.
fn graph(kind: usize, n: usize, rank: usize) -> Vec<usize> {
    match kind {
        // A line, the far neighbor first.
        0 => [rank.checked_add(1).filter(|next| *next < n), rank.checked_sub(1)]
            .into_iter()
            .flatten()
            .collect(),
        // A ring, to the next one.
        1 => vec![(rank + 1) % n],
        // A star, with its middle in it.
        2 if rank == 0 => (0..n).rev().collect(),
        2 => vec![0],
        // Some, backwards.
        3 => (0..n).rev().filter(|to| (rank * 5 + to * 3).is_multiple_of(4)).collect(),
        _ => Vec::new(),
    }
}

const KINDS: usize = 5;

fn sources(kind: usize, n: usize, rank: usize) -> Vec<usize> {
    (0..n).filter(|from| graph(kind, n, *from).contains(&rank)).collect()
}

fn agree(comm: &mut Communicator, kind: usize) -> Neighborhood {
    let (me, n) = (comm.rank().index(), comm.size());
    comm.neighborhood(ranks(&graph(kind, n, me)), ranks(&sources(kind, n, me))).wait().unwrap()
}

fn exchange(
    comm: &mut Communicator,
    kind: usize,
    len: impl Fn(usize, usize) -> usize,
    alloc: bool,
    context: &str,
) {
    let (me, n) = (comm.rank().index(), comm.size());
    let (to, from) = (graph(kind, n, me), sources(kind, n, me));
    let graph = agree(comm, kind);
    assert_eq!((graph.destinations(), graph.sources()), (&ranks(&to)[..], &ranks(&from)[..]));
    let sent: Vec<usize> = to.iter().map(|to| len(me, *to)).collect();
    let got: Vec<usize> = from.iter().map(|from| len(*from, me)).collect();
    let memory = |len| if alloc { comm.alloc::<u32>(len) } else { Buffer::zeroed(len) };
    let mut input = memory(sent.iter().sum());
    let each = to.iter().zip(&sent).flat_map(|(to, len)| (0..*len).map(|index| value(me, *to, index)));
    input.iter_mut().zip(each).for_each(|(element, value)| *element = value);
    let output = memory(got.iter().sum());
    // All of one length, or of any.
    let call = match context.ends_with("equal") {
        true => graph.exchange(comm, input, output),
        false => graph.exchange_v(comm, input, &sent, output, &got),
    };
    let (_, output) = call.wait().unwrap();
    let each = from.iter().zip(&got).flat_map(|(from, len)| (0..*len).map(|index| value(*from, me, index)));
    assert!(output.iter().copied().eq(each), "{context} kind {kind} rank {me}");
}

#[test]
fn parts_go_to_neighbors_in_the_order_in_which_they_are_named() {
    for link in LINKS {
        for n in [1, 2, 3, 5, 8] {
            world(link, n, move |mut comm| {
                for kind in 0..KINDS {
                    let context = format!("{link:?} {n}");
                    exchange(&mut comm, kind, |_, _| 17, false, &format!("{context} equal"));
                    exchange(&mut comm, kind, |from, to| from * 3 + to, false, &context);
                    exchange(&mut comm, kind, |from, to| (from + to) % 2 * 50_001, true, &context);
                }
                assert_usable(&mut comm);
            });
        }
    }
}

#[test]
fn who_has_no_neighbors_waits_for_nobody() {
    for link in LINKS {
        let done = Arc::new(Barrier::new(3));
        world(link, 3, move |mut comm| {
            let me = comm.rank().0;
            let pair: &[u32] = if me == 2 { &[] } else { &[1 - me] };
            let graph = comm.neighborhood(pair.iter().copied(), pair.iter().copied()).wait().unwrap();
            let call = |comm: &mut Communicator| {
                let part = vec![me; pair.len()];
                graph.exchange(comm, part, vec![9; pair.len()]).wait().unwrap().1
            };
            // The others call once this one is done.
            if me == 2 {
                assert!(call(&mut comm).is_empty());
            }
            done.wait();
            if me != 2 {
                assert_eq!(call(&mut comm), [1 - me]);
            }
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn who_names_somebody_that_does_not_name_it_is_told_everywhere() {
    type Lists = fn(u32) -> (Vec<u32>, Vec<u32>);
    let sends: Lists = |me| (if me == 2 { vec![0] } else { vec![] }, vec![]);
    let receives: Lists = |me| (vec![], if me == 1 { vec![2] } else { vec![] });
    let lists = [
        (sends, "rank 2 sends to rank 0, which does not receive from it"),
        (receives, "rank 1 receives from rank 2, which does not send to it"),
    ];
    for link in LINKS {
        for (lists, said) in lists {
            world(link, 3, move |mut comm| {
                let (to, from) = lists(comm.rank().0);
                let error = comm.neighborhood(to, from).wait().unwrap_err();
                assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
                assert!(error.to_string().contains(said), "{error}");
                assert_usable(&mut comm);
            });
        }
    }
}

#[test]
fn a_list_that_makes_no_sense_is_refused_and_the_others_are_told() {
    for link in LINKS {
        for (wrong, said) in [(vec![1, 1], "rank 1 is named twice"), (vec![3], "there is no rank 3 among 3")]
        {
            world(link, 3, move |mut comm| {
                let list = if comm.rank().0 == 0 { wrong.clone() } else { Vec::new() };
                let error = comm.neighborhood(list, [0u32; 0]).wait().unwrap_err();
                let expected = if comm.rank().0 == 0 { "invalid argument" } else { "aborted" };
                assert_eq!(class(&error), expected, "{link:?}: {error}");
                assert!(error.to_string().contains(said), "{link:?}: {error}");
                assert_usable(&mut comm);
            });
        }
    }
}

#[test]
fn a_pair_that_does_not_agree_is_named() {
    for link in LINKS {
        for len in [3, 100_000] {
            world(link, 2, move |mut comm| {
                let me = comm.rank().0;
                let graph = comm.neighborhood([1 - me], [1 - me]).wait().unwrap();
                let (sent, room) = (vec![0u64; len + me as usize], vec![0u64; len]);
                let failed = graph.exchange(&mut comm, sent, room).wait().err().map(|failed| failed.error);
                // Who has got what was for it is told by a later call, which is given up.
                let late = [comm.barrier().wait().err(), comm.barrier().wait().err()];
                let late = late.into_iter().flatten().map(|failed| failed.error).next();
                let said = format!("rank 1 sends {} × u64 to rank 0, which takes {len}", len + 1);
                let told = failed.or(late).map(|error| error.to_string()).unwrap_or_default();
                assert!(told.contains(&said), "{link:?} {me}: {told}");
                assert_usable(&mut comm);
            });
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_told_what_would() {
    let mut comm = Communicator::local(1).remove(0);
    let graph = comm.neighborhood([0], [0]).wait().unwrap();
    let alone = comm.neighborhood([0u32; 0], [0u32; 0]).wait().unwrap();
    let told = |comm: &mut Communicator, graph: &Neighborhood, counts: Option<&[usize]>| {
        let (input, output) = (vec![0u8; 3], vec![0u8; 3]);
        let call = match counts {
            Some(counts) => graph.exchange_v(comm, input, counts, output, counts),
            None => graph.exchange(comm, input, output),
        };
        let failed = call.wait().unwrap_err();
        assert_eq!(class(&failed.error), "invalid argument");
        assert_eq!(failed.buffer.unwrap(), (vec![0u8; 3], vec![0u8; 3]));
        failed.error.to_string()
    };
    let text = told(&mut comm, &alone, None);
    assert!(text.contains("the input has 3 elements, but there are no destinations: give it none"), "{text}");
    let text = told(&mut comm, &graph, Some(&[1, 2]));
    assert!(text.contains("2 counts for 1 destinations: give one for each"), "{text}");
    let text = told(&mut comm, &graph, Some(&[2]));
    assert!(text.contains("the input has 3 elements: give it 2, the sum of the counts"), "{text}");
    let mut pair = Communicator::local(2);
    let error = graph.exchange(&mut pair[0], vec![0u8; 1], vec![0u8; 1]).wait().unwrap_err().error;
    assert!(error.to_string().contains("the plan \"neighbors\" is for all_to_all on 1 ranks"), "{error}");
}
