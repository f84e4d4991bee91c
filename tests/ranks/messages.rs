//! Receives that leave open from whom or with which tag, and looks at messages, on all links.

use std::time::Duration;

use crate::common::{LINKS, Link, world};
use futures_util::stream::FusedStream;
use futures_util::{FutureExt, StreamExt};
use hcomm::{Communicator, DType, Error, Rank, Source, Tag, Tags};

/// Longer than what is sent before it is asked for.
const LARGE: usize = 40_000;

/// Runs both of two ranks.
fn pair(link: Link, zero: fn(&mut Communicator), one: fn(&mut Communicator)) {
    world(link, 2, move |mut comm| if comm.rank().0 == 0 { zero(&mut comm) } else { one(&mut comm) });
}

fn on_all_links(zero: fn(&mut Communicator), one: fn(&mut Communicator)) {
    LINKS.into_iter().for_each(|link| pair(link, zero, one));
}

#[test]
fn from_anybody_with_any_tag_in_the_order_of_each_sender() {
    const EACH: u32 = 50;
    for link in LINKS {
        world(link, 4, move |mut comm| {
            let me = comm.rank().0;
            if me > 0 {
                for number in 0..EACH {
                    // Some are offered, and the rest is sent along.
                    let count = if number % 10 == 9 { LARGE } else { 1 + number as usize };
                    comm.send(0, number % 3, vec![me * 1000 + number; count]).wait().unwrap();
                }
            } else {
                let mut next = [0; 4];
                for _ in 0..3 * EACH {
                    let got = comm.recv_from(Source::Any, Tags::Any, vec![0u32; LARGE]).wait().unwrap();
                    let from = got.status.source;
                    let number = next[from.index()];
                    next[from.index()] += 1;
                    let count = if number % 10 == 9 { LARGE } else { 1 + number as usize };
                    assert_eq!((got.status.tag, got.status.count), (Tag(number % 3), count), "{link:?}");
                    assert_eq!(got.status.dtype, DType::U32);
                    assert!(got.buffer[..count].iter().all(|value| *value == from.0 * 1000 + number));
                    assert!(got.buffer[count..].iter().all(|value| *value == 0));
                }
                assert_eq!(next, [0, EACH, EACH, EACH]);
            }
            comm.barrier().wait().unwrap();
        });
    }
}

/// In whatever order they are posted, and whatever they leave open.
#[test]
fn a_message_goes_to_the_receive_that_was_posted_first() {
    on_all_links(
        |comm| {
            let room = || vec![0u8; 1];
            let first = comm.recv_from(Source::Any, 5, room());
            let second = comm.recv(1, 5, room());
            let third = comm.recv_from(Source::Any, Tags::Any, room());
            let fourth = comm.recv_from(1, Tags::Any, room());
            let fifth = comm.recv_from(1, 5, room());
            comm.barrier().wait().unwrap();
            assert_eq!(first.wait().unwrap().buffer, [1]);
            assert_eq!(second.wait().unwrap(), [2]);
            let third = third.wait().unwrap();
            assert_eq!((third.buffer, third.status.tag), (vec![3], Tag(6)));
            assert_eq!(fourth.wait().unwrap().buffer, [4]);
            assert_eq!(fifth.wait().unwrap().buffer, [5]);
        },
        |comm| {
            comm.barrier().wait().unwrap();
            for (tag, value) in [(5, 1u8), (5, 2), (6, 3), (5, 4), (5, 5)] {
                comm.send(0, tag, vec![value]).wait().unwrap();
            }
        },
    );
}

#[test]
fn a_message_that_came_first_is_taken_first() {
    on_all_links(
        |comm| {
            // All have come before they are asked for.
            comm.barrier().wait().unwrap();
            let tags = [Tags::Any, Tags::Of(Tag(2)), Tags::Any, Tags::Any];
            let got = tags.map(|tag| comm.recv_from(Source::Any, tag, vec![0u8; 8]).wait().unwrap());
            assert_eq!(got.map(|got| got.status.tag.0), [1, 2, 3, 2]);
            assert!(comm.try_probe(Source::Any, Tags::Any).unwrap().is_none());
        },
        |comm| {
            [1, 2, 3, 2].into_iter().for_each(|tag| comm.send(0, tag, vec![1u8]).wait().map(drop).unwrap());
            comm.barrier().wait().unwrap();
        },
    );
}

#[test]
fn a_shorter_message_is_told_its_length_and_a_longer_one_is_refused() {
    on_all_links(
        |comm| {
            for count in [0, 1, 7] {
                let got = comm.recv_from(1, 0, vec![9i16; 7]).wait().unwrap();
                assert_eq!(got.status.count, count);
                assert_eq!(got.buffer, [vec![4; count], vec![9; 7 - count]].concat());
            }
            for count in [8, LARGE] {
                let failed = comm.recv_from(1, 0, vec![9i16; 7]).wait().unwrap_err();
                let Error::Truncated { from, tag, count: told, room: 7, .. } = failed.error else {
                    panic!("{:?}", failed.error)
                };
                assert_eq!((from, tag, told), (Rank(1), Tag(0), count as u64));
                assert_eq!(failed.buffer, Some(vec![9; 7]));
            }
            let failed = comm.recv_from(Source::Any, Tags::Any, vec![0f32; 7]).wait().unwrap_err();
            let text = failed.error.to_string();
            assert!(matches!(failed.error, Error::Mismatch { .. }), "{text}");
            assert!(
                text.contains("recv_from(7 × f32, any tag)") && text.contains("send(3 × u32, tag 4)"),
                "{text}"
            );
            comm.barrier().wait().unwrap();
        },
        |comm| {
            for count in [0, 1, 7, 8] {
                comm.send(0, 0, vec![4i16; count]).wait().unwrap();
            }
            // It was not sent yet when it was refused.
            let failed = comm.send(0, 0, vec![4i16; LARGE]).wait().unwrap_err();
            assert!(matches!(failed.error, Error::Aborted { by: Rank(0), .. }), "{:?}", failed.error);
            comm.send(0, 4, vec![0u32; 3]).wait().unwrap();
            comm.barrier().wait().unwrap();
        },
    );
}

#[test]
fn what_is_probed_stays() {
    on_all_links(
        |comm| {
            assert_eq!(comm.try_probe(1, 3).unwrap(), None);
            comm.barrier().wait().unwrap();
            let seen = comm.probe(Source::Any, 3).wait().unwrap();
            assert_eq!((seen.source, seen.tag, seen.dtype, seen.count), (Rank(1), Tag(3), DType::F64, LARGE));
            assert_eq!(comm.probe(1, Tags::Any).wait().unwrap().tag, Tag(2));
            assert_eq!(comm.try_probe(1, 3).unwrap(), Some(seen));
            let got = comm.recv(1, 3, vec![0f64; seen.count]).wait().unwrap();
            assert!(got.iter().all(|value| *value == 0.5));
            assert_eq!(comm.try_probe(1, 3).unwrap(), None);
            assert!(comm.recv(1, 2, Vec::<u8>::new()).wait().unwrap().is_empty());
            let refused = comm.probe(2, 3).wait().unwrap_err();
            assert!(matches!(refused, Error::InvalidArgument { .. }), "{refused:?}");
            assert!(comm.try_probe(2, 3).is_err());
            comm.barrier().wait().unwrap();
        },
        |comm| {
            comm.barrier().wait().unwrap();
            comm.send(0, 2, Vec::<u8>::new()).wait().unwrap();
            comm.send(0, 3, vec![0.5f64; LARGE]).wait().unwrap();
            comm.barrier().wait().unwrap();
        },
    );
}

#[test]
fn a_matched_message_is_nobody_elses() {
    on_all_links(
        |comm| {
            let small = comm.matched_probe(1, Tags::Any).wait().unwrap();
            let large = comm.matched_probe(Source::Any, Tags::Any).wait().unwrap();
            assert_eq!((small.status().count, large.status().count), (1, LARGE));
            // The next of the same tag, though those before are not received.
            assert_eq!(comm.recv(1, 0, vec![0u32; 1]).wait().unwrap(), [3]);
            let got = large.recv(vec![0u32; LARGE]).wait().unwrap();
            assert!(got.buffer.iter().all(|value| *value == 2));
            assert_eq!(small.recv(vec![0u32; 5]).wait().unwrap().buffer, [1, 0, 0, 0, 0]);
            comm.barrier().wait().unwrap();
        },
        |comm| {
            let sent = [vec![1u32], vec![2; LARGE], vec![3]].map(|message| comm.send(0, 0, message));
            sent.into_iter().for_each(|sent| sent.wait().map(drop).unwrap());
            comm.barrier().wait().unwrap();
        },
    );
}

#[test]
fn a_matched_probe_that_is_dropped_takes_nothing() {
    const GO: u32 = 50;
    on_all_links(
        |comm| {
            // Nothing has come.
            drop(comm.matched_probe(1, 0));
            let mut waits = comm.matched_probe(1, 0);
            assert!((&mut waits).now_or_never().is_none());
            comm.send(1, GO, Vec::<u8>::new()).wait().unwrap();
            // It has claimed the first, which nobody has seen; meanwhile others are asked for.
            assert_eq!(comm.probe(1, 0).wait().unwrap().count, 2);
            let asked = comm.recv_from(1, 7, vec![0u8; 9]);
            drop(waits);
            assert_eq!(comm.probe(1, 0).wait().unwrap().count, 1);
            for count in [1, 2] {
                assert_eq!(comm.recv_from(1, 0, vec![0u8; 9]).wait().unwrap().status.count, count);
            }
            assert_eq!(asked.wait().unwrap().status.count, 3);
        },
        |comm| {
            comm.recv(0, GO, Vec::<u8>::new()).wait().unwrap();
            for (tag, count) in [(0, 1), (0, 2), (7, 3)] {
                comm.send(0, tag, vec![1u8; count]).wait().unwrap();
            }
        },
    );
}

#[test]
fn a_message_that_is_dropped_is_thrown_away() {
    on_all_links(
        |comm| {
            drop(comm.matched_probe(1, 0).wait().unwrap());
            drop(comm.matched_probe(1, 1).wait().unwrap());
            assert_eq!(comm.recv(1, 0, vec![0u8; 1]).wait().unwrap(), [2]);
            comm.barrier().wait().unwrap();
        },
        |comm| {
            comm.send(0, 0, vec![1u8]).wait().unwrap();
            let failed = comm.send(0, 1, vec![1u32; LARGE]).wait().unwrap_err();
            assert!(matches!(failed.error, Error::Aborted { by: Rank(0), .. }), "{:?}", failed.error);
            comm.send(0, 0, vec![2u8]).wait().unwrap();
            comm.barrier().wait().unwrap();
        },
    );
}

#[test]
fn messages_to_oneself_count_as_any() {
    for link in LINKS {
        world(link, 2, move |mut comm| {
            let me = comm.rank();
            let early = comm.recv_from(Source::Any, 4, vec![0u8; 4]);
            let sent = comm.send(me, 4, vec![7u8; 2]);
            let got = early.wait().unwrap();
            assert_eq!((got.status.source, got.status.count), (me, 2));
            sent.wait().unwrap();
            let sent = comm.send(me, 5, vec![8u8; 3]);
            assert_eq!(comm.probe(Source::Any, Tags::Any).wait().unwrap().count, 3);
            let message = comm.matched_probe(me, Tags::Any).wait().unwrap();
            assert_eq!(message.recv(vec![0u8; 3]).wait().unwrap().buffer, [8, 8, 8]);
            sent.wait().unwrap();
            // One that is given up is not there any more.
            let sent = comm.send(me, 6, vec![9u8]);
            sent.cancel();
            sent.wait().unwrap_err();
            assert_eq!(comm.try_probe(Source::Any, Tags::Any).unwrap(), None);
            // Who has left could not be waited for with it.
            comm.barrier().wait().unwrap();
        });
    }
}

#[test]
fn who_waits_for_anybody_is_told_once_all_have_left() {
    for link in LINKS {
        world(link, 3, move |comm| {
            if comm.rank().0 > 0 {
                let last = comm.send(0, 1, vec![comm.rank().0]);
                last.wait().unwrap();
                comm.close().wait().unwrap();
                return;
            }
            let waits = comm.recv_from(Source::Any, 2, vec![0u32; 1]);
            for _ in 0..2 {
                comm.recv_from(Source::Any, 1, vec![0u32; 1]).wait().unwrap();
            }
            let failed = waits.wait().unwrap_err();
            assert!(matches!(failed.error, Error::Left { .. }), "{link:?}: {:?}", failed.error);
            let failed = comm.probe(Source::Any, Tags::Any).wait().unwrap_err();
            assert!(matches!(failed, Error::Left { .. }), "{link:?}: {failed:?}");
            comm.close().wait().unwrap();
        });
    }
}

#[test]
fn a_deadline_names_all_who_could_have_sent() {
    for link in LINKS {
        world(link, 3, move |mut comm| {
            if comm.rank().0 == 0 {
                let waits = comm.recv_from(Source::Any, Tags::Any, vec![0u8; 1]);
                let failed = waits.timeout(Duration::from_millis(50)).wait().unwrap_err();
                let Error::Deadline(report) = &failed.error else { panic!("{:?}", failed.error) };
                assert_eq!(report.late, [Rank(1), Rank(2)], "{link:?}");
                assert_eq!(failed.buffer, Some(vec![0]));
                let failed = comm.probe(1, Tags::Any).timeout(Duration::from_millis(50)).wait().unwrap_err();
                assert!(failed.is_deadline(), "{failed:?}");
            }
            comm.barrier().wait().unwrap();
        });
    }
}

/// Each is found at once, however many there are.
#[test]
fn a_hundred_thousand_receives_wait_at_a_time() {
    const MESSAGES: u32 = 100_000;
    for link in [Link::Memory, Link::Shm] {
        pair(
            link,
            |comm| {
                let post = |tag: u32| match tag % 2 {
                    0 => comm.recv_from(Source::Any, tag, vec![0u32; 1]),
                    _ => comm.recv_from(1, tag, vec![0u32; 2]),
                };
                let posted: Vec<_> = (0..MESSAGES).map(post).collect();
                comm.barrier().wait().unwrap();
                for (tag, receive) in posted.into_iter().enumerate() {
                    let got = receive.wait().unwrap();
                    assert_eq!((got.buffer[0], got.status.count), (tag as u32, 1));
                }
            },
            |comm| {
                comm.barrier().wait().unwrap();
                let sent: Vec<_> = (0..MESSAGES).rev().map(|tag| comm.send(0, tag, vec![tag])).collect();
                sent.into_iter().for_each(|sent| sent.wait().map(drop).unwrap());
            },
        );
    }
}

#[test]
fn a_ring_of_exchanges_holds_nobody_up() {
    for link in LINKS {
        for count in [0, 1, LARGE] {
            world(link, 3, move |comm| {
                let (me, n) = (comm.rank().0, comm.size() as u32);
                let (after, before) = ((me + 1) % n, (me + n - 1) % n);
                let both = comm.send_recv(after, vec![me; count], before, vec![9; count], 3);
                let (sent, got) = both.wait().unwrap();
                assert_eq!((sent, got), (vec![me; count], vec![before; count]), "{link:?}");
                // Of another length it is refused, as a receive is.
                if me == 0 {
                    let failed = comm.send_recv(1, vec![1u8], 1, vec![0u8; 2], 4).wait().unwrap_err();
                    assert!(matches!(failed, Error::Mismatch { .. }), "{failed:?}");
                } else if me == 1 {
                    assert_eq!(comm.send_recv(0, vec![1u8], 0, vec![0u8], 4).wait().unwrap().1, [1]);
                }
            });
        }
    }
}

#[tokio::test]
async fn a_stream_has_the_messages_of_all_until_they_leave() {
    let mut ranks = Communicator::local(3);
    let server = ranks.remove(0);
    let clients = ranks.into_iter().map(|comm| {
        tokio::spawn(async move {
            for count in 1..=20usize {
                let count = if count == 20 { LARGE } else { count };
                comm.send(0, 1, vec![comm.rank().0; count]).await.unwrap();
            }
            // Not what the stream is of.
            comm.send(0, 1, vec![0.5f32]).await.unwrap();
            comm.send(0, 2, vec![1u32]).await.unwrap();
            comm.close().await.unwrap();
        })
    });
    let clients: Vec<_> = clients.collect();
    let (mut counts, mut wrong, mut last) = ([0; 3], 0, None);
    {
        let mut asked = std::pin::pin!(server.incoming::<u32>(1));
        while let Some(asked) = asked.next().await {
            match asked {
                Ok(message) => {
                    let from = message.status.source;
                    assert_eq!(message.buffer, vec![from.0; message.status.count]);
                    counts[from.index()] += 1;
                    let due = if counts[from.index()] == 20 { LARGE } else { counts[from.index()] };
                    assert_eq!(message.status.count, due);
                }
                Err(Error::Mismatch { .. }) => wrong += 1,
                Err(error) => last = Some(error),
            }
        }
        assert!(asked.is_terminated());
    }
    assert_eq!((counts, wrong), ([0, 20, 20], 2));
    assert!(matches!(last, Some(Error::Left { .. })), "{last:?}");
    for client in 1..3 {
        server.recv(client, 2, vec![0u32]).await.unwrap();
    }
    server.close().await.unwrap();
    for client in clients {
        client.await.unwrap();
    }
}
