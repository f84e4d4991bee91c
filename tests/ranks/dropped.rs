//! Every future dropped after any number of polls: the operation goes on to its end, peers and siblings have their
//! results, and nothing stays behind.

mod worlds;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::common::{GENEROUS, LINKS, Link, assert_usable, class, connect, meeting_place, run};
use futures_util::future::join;
use hcomm::{Buffer, Communicator, Error, Operation, Rank, ReduceOp, Token};

/// Polls after which a future is dropped at most; one that is ready before ends the row.
const POLLS_MAX: usize = 12;
/// Eager, several frames, and more than credit is given for at once.
const COUNTS: [usize; 3] = [7, 50_000, 300_000];

/// Polls at most so often; says whether it was ready.
fn poll(future: &mut (impl Future + Unpin), polls: usize) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    (0..polls).any(|_| Pin::new(&mut *future).poll(&mut cx).is_ready())
}

/// Lets the other rank know, and waits for its word.
struct Line(Sender<()>, Receiver<()>);

impl Line {
    fn pair() -> (Line, Line) {
        let ((to_one, from_zero), (to_zero, from_one)) = (channel(), channel());
        (Line(to_one, from_one), Line(to_zero, from_zero))
    }

    fn tell(&self) {
        self.0.send(()).unwrap();
    }

    fn hear(&self) {
        self.1.recv_timeout(GENEROUS).unwrap();
    }
}

/// Runs rank 0 and rank 1 of a world of two.
fn two(
    link: Link,
    zero: impl FnOnce(Communicator, Line) + Send + 'static,
    one: impl FnOnce(Communicator, Line) + Send + 'static,
) {
    let lines = Line::pair();
    let acts = std::sync::Mutex::new((Some((zero, lines.0)), Some((one, lines.1))));
    let acts = std::sync::Arc::new(acts);
    run(connect(link, 2), move |comm| {
        let mut both = acts.lock().unwrap();
        if comm.rank() == Rank(0) {
            let (act, line) = both.0.take().unwrap();
            drop(both);
            act(comm, line);
        } else {
            let (act, line) = both.1.take().unwrap();
            drop(both);
            act(comm, line);
        }
    });
}

/// All staging memory goes back once nobody uses it.
fn assert_nothing_staged(comm: &Communicator) {
    let until = Instant::now() + Duration::from_secs(10);
    while comm.resources().in_use > 0 {
        assert!(Instant::now() < until, "{} bytes stay", comm.resources().in_use);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Rank 0 drops what `begin` began after 0, 1, 2, … polls; rank 1 does its part before or afterwards, with `check`.
fn drop_collective<O: Future + Unpin>(
    link: Link,
    begin: impl Fn(&mut Communicator, usize) -> O + Send + Copy + 'static,
    check: impl Fn(&mut Communicator, usize) + Send + Copy + 'static,
) {
    for count in COUNTS {
        let zero = move |mut comm: Communicator, line: Line| {
            for polls in 0..POLLS_MAX {
                for peer_first in [false, true] {
                    if peer_first {
                        line.hear();
                    }
                    let mut operation = begin(&mut comm, count);
                    poll(&mut operation, polls);
                    drop(operation);
                    if !peer_first {
                        line.tell();
                    }
                }
                assert_usable(&mut comm);
            }
            assert_nothing_staged(&comm);
        };
        let one = move |mut comm: Communicator, line: Line| {
            for _ in 0..POLLS_MAX {
                for peer_first in [false, true] {
                    if peer_first {
                        line.tell();
                    } else {
                        line.hear();
                    }
                    check(&mut comm, count);
                }
                assert_usable(&mut comm);
            }
            assert_nothing_staged(&comm);
        };
        two(link, zero, one);
    }
}

#[test]
fn a_dropped_collective_goes_on() {
    for link in LINKS {
        drop_collective(
            link,
            |comm, count| comm.all_reduce(vec![3u32; count], ReduceOp::Sum),
            |comm, count| {
                let sum = comm.all_reduce(vec![4u32; count], ReduceOp::Sum).wait().unwrap();
                assert!(sum.iter().all(|value| *value == 7));
            },
        );
        drop_collective(
            link,
            |comm, count| comm.broadcast(Buffer::copy_of(&vec![3u64; count]), Rank(0)),
            |comm, count| {
                let got = comm.broadcast(vec![0u64; count], Rank(0)).wait().unwrap();
                assert!(got.iter().all(|value| *value == 3));
            },
        );
        drop_collective(
            link,
            |comm, count| comm.broadcast(vec![0u64; count], Rank(1)),
            |comm, count| drop(comm.broadcast(vec![5u64; count], Rank(1)).wait().unwrap()),
        );
        drop_collective(
            link,
            |comm, count| comm.all_gather(vec![3u16; 2 * count]),
            |comm, count| {
                let all = comm.all_gather(vec![4u16; 2 * count]).wait().unwrap();
                assert!(all[..count].iter().all(|value| *value == 3));
                assert!(all[count..].iter().all(|value| *value == 4));
            },
        );
        drop_collective(
            link,
            |comm, count| comm.reduce_scatter(vec![3i64; 2 * count], ReduceOp::Max),
            |comm, count| {
                let part = comm.reduce_scatter(vec![4i64; 2 * count], ReduceOp::Max).wait().unwrap();
                assert!(part[count..].iter().all(|value| *value == 4));
            },
        );
        drop_collective(link, |comm, _| comm.barrier(), |comm, _| comm.barrier().wait().unwrap());
        drop_collective(
            link,
            |comm, count| {
                let sum = comm.prepare_all_reduce::<f32>(count, ReduceOp::Sum).unwrap();
                sum.run(comm, vec![1.0; count])
            },
            |comm, count| {
                let sum = comm.prepare_all_reduce::<f32>(count, ReduceOp::Sum).unwrap();
                assert!(sum.run(comm, vec![2.0; count]).wait().unwrap().iter().all(|value| *value == 3.0));
            },
        );
    }
}

/// The borrowed memory is as it was, and may be used at once.
#[test]
fn a_dropped_borrow_leaves_its_memory_alone() {
    for link in LINKS {
        let zero = |mut comm: Communicator, line: Line| {
            for polls in 0..POLLS_MAX {
                let mut data = vec![3u32; 100_000];
                let mut operation = comm.all_reduce(&mut data[..], ReduceOp::Sum);
                let ready = poll(&mut operation, polls);
                drop(operation);
                assert!(data.iter().all(|value| *value == if ready { 7 } else { 3 }), "{polls} polls");
                data.fill(0);
                line.tell();
                assert_usable(&mut comm);
                assert!(data.iter().all(|value| *value == 0));
            }
            assert_nothing_staged(&comm);
        };
        let one = |mut comm: Communicator, line: Line| {
            for _ in 0..POLLS_MAX {
                line.hear();
                let sum = comm.all_reduce(vec![4u32; 100_000], ReduceOp::Sum).wait().unwrap();
                assert!(sum.iter().all(|value| *value == 7));
                assert_usable(&mut comm);
            }
        };
        two(link, zero, one);
    }
}

#[test]
fn a_dropped_send_arrives_and_a_dropped_receive_takes_its_message() {
    for link in LINKS {
        for count in COUNTS {
            let zero = move |mut comm: Communicator, line: Line| {
                for polls in 0..POLLS_MAX {
                    let mut sent = comm.send(Rank(1), 1, vec![polls as u32; count]);
                    poll(&mut sent, polls);
                    drop(sent);
                    let mut taken = comm.recv(Rank(1), 2, vec![0u32; count]);
                    poll(&mut taken, polls);
                    drop(taken);
                    line.tell();
                    // The first message is taken; this is the second.
                    let got = comm.recv(Rank(1), 2, vec![0u32; count]).wait().unwrap();
                    assert!(got.iter().all(|value| *value == 22));
                    assert_usable(&mut comm);
                }
            };
            let one = move |mut comm: Communicator, line: Line| {
                for polls in 0..POLLS_MAX {
                    line.hear();
                    comm.send(Rank(0), 2, vec![11u32; count]).wait().unwrap();
                    comm.send(Rank(0), 2, vec![22u32; count]).wait().unwrap();
                    let got = comm.recv(Rank(0), 1, vec![0u32; count]).wait().unwrap();
                    assert!(got.iter().all(|value| *value == polls as u32));
                    assert_usable(&mut comm);
                }
            };
            two(link, zero, one);
        }
    }
}

/// Whoever slept while another one drove is not left asleep.
#[test]
fn siblings_of_a_dropped_future_go_on() {
    for link in LINKS {
        let zero = |mut comm: Communicator, line: Line| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            for polls in 0..POLLS_MAX {
                let mut first = comm.all_reduce(vec![1u32; 100_000], ReduceOp::Sum);
                let mut second = comm.all_reduce(vec![2u32; 100_000], ReduceOp::Sum);
                let message = comm.recv(Rank(1), 9, vec![0u8; 10]);
                runtime.block_on(async {
                    let both = async {
                        let pair = join(Pin::new(&mut first), Pin::new(&mut second));
                        poll(&mut pin!(pair), polls);
                        // Long enough to sleep.
                        let _ = tokio::time::timeout(Duration::from_millis(2), &mut first).await;
                    };
                    both.await;
                    drop(first);
                    line.tell();
                    assert_eq!(message.await.unwrap(), [7; 10]);
                    assert_eq!(second.await.unwrap()[99_999], 4);
                });
                assert_usable(&mut comm);
            }
        };
        let one = |mut comm: Communicator, line: Line| {
            for _ in 0..POLLS_MAX {
                line.hear();
                comm.send(Rank(0), 9, vec![7u8; 10]).wait().unwrap();
                let first = comm.all_reduce(vec![1u32; 100_000], ReduceOp::Sum);
                let second = comm.all_reduce(vec![2u32; 100_000], ReduceOp::Sum);
                assert_eq!(first.wait().unwrap()[0], 2);
                assert_eq!(second.wait().unwrap()[0], 4);
                assert_usable(&mut comm);
            }
        };
        two(link, zero, one);
    }
}

/// The rank is missing in the new communicator: whoever needs it there is told that it is late, or has left.
#[test]
fn a_dropped_split_leaves_the_parent_usable() {
    for link in LINKS {
        let zero = |mut comm: Communicator, line: Line| {
            for polls in 0..POLLS_MAX {
                let mut split = Box::pin(comm.split(Some(1), 0));
                poll(&mut split, polls);
                drop(split);
                let mut copy = Box::pin(comm.dup());
                poll(&mut copy, polls);
                drop(copy);
                line.tell();
                line.hear();
                assert_usable(&mut comm);
            }
            assert_nothing_staged(&comm);
        };
        let one = |mut comm: Communicator, line: Line| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            for _ in 0..POLLS_MAX {
                let parts = comm.split(Some(1), 0);
                let copy = comm.dup();
                line.hear();
                let (child, copy) = runtime.block_on(join(parts, copy));
                for mut child in [child.unwrap().unwrap(), copy.unwrap()] {
                    assert_eq!(child.size(), 2);
                    child.set_deadline(Duration::from_millis(100));
                    let error = child.barrier().wait().unwrap_err().error;
                    assert!(matches!(error, Error::Deadline(_) | Error::Left { .. }), "{error}");
                    assert_eq!(error.blamed(), [Rank(0)], "{error}");
                }
                line.tell();
                assert_usable(&mut comm);
            }
        };
        two(link, zero, one);
    }
}

#[test]
fn a_dropped_close_waits_for_nobody() {
    for link in LINKS {
        for polls in 0..POLLS_MAX {
            let zero = move |comm: Communicator, line: Line| {
                let mut close = Box::pin(comm.close());
                poll(&mut close, polls);
                drop(close);
                line.tell();
            };
            let one = |comm: Communicator, line: Line| {
                line.hear();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(comm.close()).unwrap();
            };
            two(link, zero, one);
        }
    }
}

/// An operation that nobody waits for any more can't be cancelled, but its peers can cancel it.
#[test]
fn a_dropped_operation_can_be_given_up_by_its_peer() {
    for link in LINKS {
        let zero = |mut comm: Communicator, line: Line| {
            for polls in 0..POLLS_MAX {
                let mut operation: Operation<Vec<u32>> = comm.all_reduce(vec![1; 50_000], ReduceOp::Sum);
                poll(&mut operation, polls);
                drop(operation);
                line.tell();
                line.hear();
                assert_usable(&mut comm);
            }
            assert_nothing_staged(&comm);
        };
        let one = |mut comm: Communicator, line: Line| {
            for _ in 0..POLLS_MAX {
                line.hear();
                let operation = comm.all_reduce(vec![1u32; 50_000], ReduceOp::Sum);
                operation.cancel();
                if let Err(error) = operation.wait() {
                    assert_eq!(class(&error.error), "cancelled");
                }
                line.tell();
                assert_usable(&mut comm);
            }
        };
        two(link, zero, one);
    }
}

/// The others are told, or find nobody and say so: in no case do they wait for ever.
#[test]
fn a_dropped_connect_ends_set_up() {
    let mut cases = Vec::new();
    for dropped in [0, 1u32, 2] {
        for pause_ms in [0, 1, 3, 10, 30, 100] {
            for polls in [0, 1, 2, 4, 8] {
                cases.push(std::thread::spawn(move || drop_connect(dropped, pause_ms, polls)));
            }
        }
    }
    let until = Instant::now() + GENEROUS;
    for case in cases {
        while !case.is_finished() {
            assert!(Instant::now() < until, "ranks hang");
            std::thread::sleep(Duration::from_millis(5));
        }
        case.join().unwrap();
    }
}

/// One of three ranks drops its set-up after some polls, with pauses between them.
fn drop_connect(dropped: u32, pause_ms: u64, polls: usize) {
    let (place, token) = (meeting_place(), Token::random().unwrap());
    let builder = |rank: u32| {
        Communicator::builder()
            .rank(rank)
            .world(3)
            .file(&place)
            .token(token.clone())
            .rendezvous_deadline(Duration::from_secs(3))
            .operation_deadline(GENEROUS)
    };
    let others: Vec<_> = (0..3)
        .filter(|rank| *rank != dropped)
        .map(builder)
        .map(|other| {
            std::thread::spawn(move || match other.connect_blocking() {
                Ok(mut comm) => comm.barrier().wait().map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            })
        })
        .collect();
    let mut connect = Box::pin(builder(dropped).connect());
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if let Poll::Ready(joined) = connect.as_mut().poll(&mut cx) {
            drop(joined);
            break;
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    drop(connect);
    for other in others {
        other.join().unwrap().expect_err("there is nobody to do it with");
    }
    let _ = std::fs::remove_file(&place);
}
