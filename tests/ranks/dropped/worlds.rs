//! Futures dropped in worlds of several ranks that call at will, with the wakers of a runtime: whoever drops, the others
//! have their results, and all of them the next.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hcomm::path::{self, Algorithm, Collective, VerifiedPlan};
use hcomm::{Communicator, Error, OpError, Rank, ReduceOp};
use tokio::runtime::Runtime;

use crate::common::{GENEROUS, LINKS, Link, assert_usable, class, connect, run, world};

const WORLDS: [usize; 4] = [3, 4, 5, 8];
/// Eager, and more than one frame; times eight for what is cut by rank.
const COUNTS: [usize; 2] = [7, 20_000];
const FEW_POLLS: [usize; 6] = [0, 1, 2, 3, 5, 9];

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Polls so often at most, as the runtime does, then lets go of it; its result if it was ready.
fn dropped<F: Future>(runtime: &Runtime, future: F, polls: usize) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    let polled = poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match Pin::new(&mut future).poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => {
                // Also if nothing has happened.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    });
    runtime.block_on(polled)
}

/// The rank that drops, or one that waits for its result.
struct Turn<'a> {
    runtime: &'a Runtime,
    drops: bool,
    polls: usize,
    count: usize,
    context: String,
}

impl Turn<'_> {
    /// What came of it, if anybody waited for that long.
    fn of<F: Future>(&self, future: F) -> Option<F::Output> {
        if self.drops {
            return dropped(self.runtime, future, self.polls);
        }
        Some(self.runtime.block_on(future))
    }

    fn all<T: PartialEq>(&self, result: Option<Result<Vec<T>, OpError<Vec<T>>>>, value: T) {
        let Some(result) = result else { return };
        let got = result.unwrap_or_else(|error| panic!("{}: {error}", self.context));
        assert!(got.iter().all(|of| *of == value), "{}", self.context);
    }

    fn done<T>(&self, result: Option<Result<T, OpError<T>>>) -> bool {
        if let Some(Err(error)) = &result {
            panic!("{}: {error}", self.context);
        }
        result.is_some()
    }
}

type Act = fn(&mut Communicator, &Turn);

/// Everything that can be dropped, on a communicator that goes on.
const ACTS: [(&str, Act); 14] = [
    ("all_reduce", |comm, turn| {
        let n = comm.size() as u32;
        turn.all(turn.of(comm.all_reduce(vec![3u32; turn.count], ReduceOp::Sum)), 3 * n);
    }),
    ("all_reduce under a limit", |comm, turn| {
        let n = comm.size() as u32;
        let sum = comm.all_reduce(vec![3u32; turn.count], ReduceOp::Sum).timeout(GENEROUS);
        turn.all(turn.of(sum), 3 * n);
    }),
    ("broadcast", |comm, turn| {
        let (root, last) = (comm.rank().0 + 1 == comm.size() as u32, comm.size() as u32 - 1);
        let got = turn.of(comm.broadcast(vec![if root { 9u16 } else { 0 }; turn.count], Rank(last)));
        turn.all(got, 9);
    }),
    ("all_gather and reduce_scatter", |comm, turn| {
        let n = comm.size();
        turn.all(turn.of(comm.all_gather(vec![5u8; n * turn.count])), 5);
        let mine = comm.rank().index() * turn.count..(comm.rank().index() + 1) * turn.count;
        let part = turn.of(comm.reduce_scatter(vec![2u64; n * turn.count], ReduceOp::Sum));
        turn.all(part.map(|part| part.map(|part| part[mine].to_vec())), 2 * n as u64);
    }),
    ("barrier", |comm, turn| {
        turn.done(turn.of(comm.barrier()));
    }),
    ("under a key", |comm, turn| {
        let n = comm.size() as u32;
        let mut keyed = comm.keyed("weights").unwrap();
        let first = keyed.all_reduce(vec![1u32; turn.count], ReduceOp::Sum);
        let second = keyed.all_reduce(vec![2u32; turn.count], ReduceOp::Sum);
        turn.all(turn.of(first), n);
        turn.all(turn.of(second), 2 * n);
    }),
    ("borrowed all_reduce and broadcast", |comm, turn| {
        let (n, me) = (comm.size() as u32, comm.rank());
        let mut data = vec![3u32; turn.count];
        let ready = turn.done(turn.of(comm.all_reduce(&mut data[..], ReduceOp::Sum)));
        assert!(data.iter().all(|of| *of == if ready { 3 * n } else { 3 }), "{}", turn.context);
        data.fill(me.0 + 10);
        let ready = turn.done(turn.of(comm.broadcast(&mut data, Rank(0))));
        assert!(data.iter().all(|of| *of == if ready { 10 } else { me.0 + 10 }), "{}", turn.context);
        data.fill(77);
        assert_usable(comm);
        assert!(data.iter().all(|of| *of == 77), "{}: written afterwards", turn.context);
    }),
    ("prepared", |comm, turn| {
        let n = comm.size() as u32;
        let sum = comm.prepare_all_reduce(turn.count, ReduceOp::Sum).unwrap();
        turn.all(turn.of(sum.run(comm, vec![3u32; turn.count])), 3 * n);
        turn.all(turn.of(sum.run(comm, vec![4u32; turn.count])), 4 * n);
    }),
    ("urgent and bulk", |comm, turn| {
        let n = comm.size() as u32;
        let bulk = comm.bulk().all_reduce(vec![1u32; turn.count], ReduceOp::Sum);
        let urgent = comm.urgent().all_reduce(vec![2u32; turn.count], ReduceOp::Sum);
        turn.all(turn.of(urgent), 2 * n);
        turn.all(turn.of(bulk), n);
    }),
    ("with a plan", |comm, turn| {
        let n = comm.size() as u32;
        for algorithm in [Algorithm::FlatTree, Algorithm::Ring] {
            let sum = comm.with_plan(&plan(algorithm, n)).all_reduce(vec![3u32; turn.count], ReduceOp::Sum);
            turn.all(turn.of(sum), 3 * n);
        }
    }),
    ("split and dup under a limit", |comm, turn| {
        let (me, n) = (comm.rank().index(), comm.size());
        if let Some(part) = turn.of(comm.split(Some(me as u32 % 2), 0).timeout(GENEROUS)) {
            assert_eq!(part.unwrap().unwrap().size(), (n + 1 - me % 2) / 2, "{}", turn.context);
        }
        if let Some(copy) = turn.of(comm.dup().timeout(GENEROUS)) {
            assert_eq!(copy.unwrap().size(), n, "{}", turn.context);
        }
    }),
    ("messages around", |comm, turn| messages(comm, turn, false)),
    ("borrowed messages around", |comm, turn| messages(comm, turn, true)),
    ("given up", |comm, turn| {
        let sum = comm.all_reduce(vec![1u32; turn.count], ReduceOp::Sum);
        if turn.drops {
            sum.cancel();
        }
        match turn.of(sum) {
            // It was done before.
            None | Some(Ok(_)) => {}
            // Another one may have been first.
            Some(Err(error)) if turn.drops && class(&error.error) == "cancelled" => {}
            Some(Err(error)) => assert_eq!(class(&error.error), "aborted", "{}: {error}", turn.context),
        }
    }),
];

fn plan(algorithm: Algorithm, n: u32) -> Arc<VerifiedPlan> {
    Arc::new(path::verify(path::build(algorithm, Collective::AllReduce, n).unwrap()).unwrap())
}

/// From each to the next: what is dropped arrives, and takes its message.
fn messages(comm: &mut Communicator, turn: &Turn, borrowed: bool) {
    let (me, n) = (comm.rank().0, comm.size() as u32);
    let (next, before) = (Rank((me + 1) % n), Rank((me + n - 1) % n));
    for value in [me + 1, me + 101] {
        let expected = value - me + before.0;
        if borrowed {
            let (mut got, mine) = (vec![0u32; turn.count], vec![value; turn.count]);
            let sent = comm.send(next, 4, &mine[..]);
            let ready = turn.done(turn.of(comm.recv(before, 4, &mut got[..])));
            assert!(got.iter().all(|of| *of == if ready { expected } else { 0 }), "{}", turn.context);
            turn.done(turn.of(sent));
        } else {
            let sent = comm.send(next, 4, vec![value; turn.count]);
            let got = turn.of(comm.recv(before, 4, vec![0u32; turn.count]));
            turn.all(got, expected);
            turn.all(turn.of(sent), value);
        }
    }
}

fn drop_all(link: Link, n: usize, polls: &'static [usize]) {
    world(link, n, move |mut comm| {
        let runtime = runtime();
        for (name, act) in ACTS {
            for (time, polls) in polls.iter().enumerate() {
                for count in COUNTS {
                    // One after the other; now and then all but one.
                    let (me, one) = (comm.rank().index(), time % n);
                    let drops = if time % 5 == 4 { me != one } else { me == one };
                    let context = format!("{link:?} n {n} {name} of {count}, {polls} polls: rank {me}");
                    act(&mut comm, &Turn { runtime: &runtime, drops, polls: *polls, count, context });
                    assert_usable(&mut comm);
                }
            }
        }
        super::assert_nothing_staged(&comm);
    });
}

#[test]
fn others_go_on_whoever_drops() {
    for link in LINKS {
        for n in WORLDS {
            drop_all(link, n, &FEW_POLLS);
        }
    }
}

#[test]
#[ignore = "takes a minute"]
fn others_go_on_whoever_drops_after_any_number_of_polls() {
    const POLLS: [usize; 40] = {
        let mut polls = [0; 40];
        let mut index = 0;
        while index < 40 {
            polls[index] = index;
            index += 1;
        }
        polls
    };
    for link in LINKS {
        for n in WORLDS {
            drop_all(link, n, &POLLS);
        }
    }
}

/// Whoever drops it has agreed nevertheless, and has the new one when he asks again.
#[test]
fn a_dropped_rebuild_goes_on_with_the_next() {
    for link in LINKS {
        for n in WORLDS {
            for polls in FEW_POLLS {
                for gone in [None, Some(n / 2)] {
                    run(connect(link, n), move |mut comm| {
                        let (me, runtime) = (comm.rank().index(), runtime());
                        let context = format!("{link:?} n {n} {polls} polls, {gone:?} gone: rank {me}");
                        if gone == Some(me) {
                            return;
                        }
                        let first = (me % 2 == 0).then(|| match comm.rebuild() {
                            limited if me % 4 == 0 => dropped(&runtime, limited.timeout(GENEROUS), polls),
                            rebuild => dropped(&runtime, rebuild, polls),
                        });
                        let rebuilt = first.flatten().unwrap_or_else(|| runtime.block_on(comm.rebuild()));
                        let mut rebuilt = rebuilt.unwrap_or_else(|error| panic!("{context}: {error}"));
                        assert_eq!(rebuilt.size(), n - usize::from(gone.is_some()), "{context}");
                        assert_usable(&mut rebuilt);
                    });
                }
            }
        }
    }
}

/// Who drops it has no part in the new communicator: the others are told so there, and all go on in the former one.
#[test]
fn a_dropped_split_leaves_the_parent_usable_to_three() {
    /// Long enough to have heard of each other.
    const LIMIT: Duration = Duration::from_millis(300);
    for link in LINKS {
        world(link, 3, move |mut comm| {
            let (me, runtime) = (comm.rank(), runtime());
            for (time, polls) in FEW_POLLS.into_iter().enumerate() {
                let gone = Rank(time as u32 % 3);
                let context = format!("{link:?} {polls} polls, rank {gone} drops: rank {me}");
                let (split, copy) = (comm.split(Some(1), 0).timeout(GENEROUS), comm.dup().timeout(GENEROUS));
                if me == gone {
                    drop((dropped(&runtime, split, polls), dropped(&runtime, copy, polls)));
                } else {
                    let split = runtime.block_on(split).unwrap().unwrap();
                    let mut both = [split, runtime.block_on(copy).unwrap()];
                    let calls = both.each_mut().map(|child| child.barrier().timeout(LIMIT));
                    for call in calls {
                        let error = runtime.block_on(call).unwrap_err().error;
                        assert!(
                            matches!(error, Error::Deadline(_) | Error::Left { .. }),
                            "{context}: {error}"
                        );
                        assert!(error.blamed().contains(&gone), "{context}: {error}");
                    }
                }
                assert_usable(&mut comm);
            }
            super::assert_nothing_staged(&comm);
        });
    }
}

/// Who drops it leaves at once; the others leave in order all the same.
#[test]
fn a_dropped_close_holds_up_none_of_three() {
    for link in LINKS {
        for polls in 0..super::POLLS_MAX {
            for limited in [false, true] {
                world(link, 3, move |mut comm| {
                    assert_usable(&mut comm);
                    let (me, runtime) = (comm.rank().index(), runtime());
                    // Now and then all but one.
                    let drops = (me == polls % 3) != (polls % 4 == 3);
                    let close = comm.close();
                    let close = if limited { close.timeout(GENEROUS) } else { close };
                    let closed =
                        if drops { dropped(&runtime, close, polls) } else { Some(runtime.block_on(close)) };
                    if let Some(Err(error)) = closed {
                        panic!("{link:?} {polls} polls, limited {limited}: rank {me}: {error}");
                    }
                });
            }
        }
    }
}
