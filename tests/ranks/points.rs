//! Messages between two ranks: matching, order, back-pressure.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::{
    GENEROUS, LINKS, Link, Random, WATCHDOG, assert_usable, class, connect, run_within, world,
};
use futures_util::future::join_all;
use hcomm::{Buffer, Communicator, Error, Operation, Rank};

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn tags_are_found_in_any_order() {
    for link in LINKS {
        for count in [1usize, 5_000, 60_000] {
            world(link, 2, move |comm| {
                let message = |tag: u32| vec![tag; count];
                if comm.rank() == Rank(0) {
                    let sent: Vec<_> = (0..5u32).map(|tag| comm.send(Rank(1), tag, message(tag))).collect();
                    sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
                } else {
                    for tag in [3u32, 1, 4, 0, 2] {
                        let got = comm.recv(Rank(0), tag, vec![0u32; count]).wait().unwrap();
                        assert_eq!(got, message(tag), "{link:?} {count} × tag {tag}");
                    }
                }
            });
        }
    }
}

/// Every other future is dropped right away: its message goes all the same, and no other is disturbed.
#[test]
fn dropped_futures_do_not_disturb_others() {
    every_other_dropped(0..60);
}

#[test]
#[ignore = "takes a minute"]
fn dropped_futures_do_not_disturb_others_in_a_thousand_orders() {
    // Worlds that end before their watchdog does.
    (60..1060).step_by(100).for_each(|first| every_other_dropped(first..first + 100));
}

fn every_other_dropped(seeds: std::ops::Range<u64>) {
    for link in LINKS {
        let seeds = seeds.clone();
        world(link, 2, move |mut comm| {
            for seed in seeds.clone() {
                let (me, other) = (comm.rank().0, Rank(1 - comm.rank().0));
                let sizes: Vec<usize> = {
                    let mut random = Random(seed);
                    (0..100).map(|_| [0, 1, 100, 2000, 20_000][random.below(5)]).collect()
                };
                let mut random = Random(seed * 2 + u64::from(me) + 1);
                let mut tags: Vec<u32> = (0..100).collect();
                random.shuffle(&mut tags);
                let keep = |tag: u32| (u64::from(tag) + seed) % 2 == 0;
                let mut sent = Vec::new();
                let mut received = Vec::new();
                for tag in &tags {
                    let size = sizes[*tag as usize];
                    let send = comm.send(other, *tag, vec![*tag + me * 1000; size]);
                    let recv = comm.recv(other, *tag, vec![0u32; size]);
                    if keep(*tag) {
                        sent.push(send);
                        received.push((*tag, recv));
                    }
                }
                random.shuffle(&mut received);
                for (tag, recv) in received {
                    let got = recv.wait().unwrap();
                    assert_eq!(
                        got,
                        vec![tag + other.0 * 1000; sizes[tag as usize]],
                        "{link:?} seed {seed} tag {tag}"
                    );
                }
                sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
            }
            // What was detached has its messages, too: nothing is left over that a later receive could find.
            let (other, me) = (Rank(1 - comm.rank().0), comm.rank().0);
            let sent = comm.send(other, 7, vec![me; 3]);
            assert_eq!(comm.recv(other, 7, vec![9u32; 3]).wait().unwrap(), [other.0; 3]);
            sent.wait().unwrap();
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn messages_with_one_tag_keep_their_order_whatever_their_sizes() {
    const SIZES: [usize; 8] = [0, 1, 0, 100_000, 0, 16_384, 16_385, 0];
    for link in LINKS {
        world(link, 2, move |comm| {
            if comm.rank() == Rank(0) {
                let sent: Vec<_> =
                    (0..400).map(|i| comm.send(Rank(1), 1, vec![i as u32; SIZES[i % 8]])).collect();
                sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
            } else {
                for i in 0..400 {
                    let got = comm.recv(Rank(0), 1, vec![u32::MAX; SIZES[i % 8]]).wait().unwrap();
                    assert_eq!(got, vec![i as u32; SIZES[i % 8]], "{link:?} message {i}");
                }
            }
        });
    }
}

#[test]
fn messages_to_oneself_in_both_orders() {
    for link in LINKS {
        for n in [1, 2] {
            world(link, n, move |mut comm| {
                let me = comm.rank();
                for count in [0usize, 1, 1000, 1 << 20] {
                    let sent = comm.send(me, 1, vec![7u32; count]);
                    assert_eq!(comm.recv(me, 1, vec![0u32; count]).wait().unwrap(), vec![7; count]);
                    sent.wait().unwrap();
                    let received = comm.recv(me, 2, vec![0u32; count]);
                    let sent = comm.send(me, 2, vec![8u32; count]);
                    let (got, sent) = current_thread().block_on(async { tokio::join!(received, sent) });
                    assert_eq!(got.unwrap(), vec![8; count]);
                    sent.unwrap();
                }
                let first = comm.send(me, 1, vec![1u8]);
                let second = comm.send(me, 2, vec![2u8]);
                let third = comm.send(me, 1, vec![3u8]);
                for (tag, expected) in [(2u32, 2u8), (1, 1), (1, 3)] {
                    assert_eq!(comm.recv(me, tag, vec![0u8]).wait().unwrap(), [expected]);
                }
                [first, second, third].into_iter().for_each(|sent| drop(sent.wait().unwrap()));
                assert_usable(&mut comm);
            });
        }
    }
}

#[test]
fn a_message_to_oneself_that_does_not_fit_ends_on_both_sides() {
    for link in LINKS {
        world(link, 2, |mut comm| {
            comm.set_deadline(2 * WATCHDOG);
            let me = comm.rank();
            for count in [0usize, 10, 100_000] {
                let sent = comm.send(me, 1, vec![1u32; count]);
                let received = comm.recv(me, 1, vec![0u32; count + 1]).wait().unwrap_err();
                assert_eq!(class(&received.error), "mismatch", "{count}: {received:?}");
                assert_eq!(class(&sent.wait().unwrap_err().error), "aborted");
                let received = comm.recv(me, 2, vec![0f32; count]);
                let sent = comm.send(me, 2, vec![1u32; count]);
                assert_eq!(class(&received.wait().unwrap_err().error), "mismatch");
                assert_eq!(class(&sent.wait().unwrap_err().error), "aborted");
            }
            assert_usable(&mut comm);
        });
    }
}

/// For thousands of messages that are sent at once: the last has to wait for all, each of which waits for a processor.
const PATIENCE: Duration = Duration::from_secs(600);

/// Futures may be kept: offers wait, not payload, and the receiver takes all of them in order.
#[test]
fn many_sends_in_flight_arrive_in_order() {
    for link in LINKS {
        run_within(PATIENCE, connect(link, 2), move |mut comm| {
            const MESSAGES: usize = 10_000;
            comm.set_deadline(PATIENCE);
            if comm.rank() == Rank(0) {
                let sent: Vec<_> = (0..MESSAGES).map(|i| comm.send(Rank(1), 1, vec![i as u32; 16])).collect();
                sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
            } else {
                std::thread::sleep(Duration::from_millis(200));
                for i in 0..MESSAGES {
                    assert_eq!(
                        comm.recv(Rank(0), 1, vec![0u32; 16]).wait().unwrap(),
                        [i as u32; 16],
                        "{link:?}"
                    );
                }
            }
        });
    }
}

#[test]
fn a_ring_of_large_messages_on_one_thread() {
    const BYTES: usize = 64 << 20;
    for link in LINKS {
        let n = 3;
        let ranks = connect(link, n);
        let ring = ranks.into_iter().map(|comm: Communicator| async move {
            let (me, n) = (comm.rank().0, comm.size() as u32);
            let mut buffer = Buffer::<u8>::zeroed(BYTES);
            buffer[BYTES - 1] = me as u8 + 1;
            let sent = comm.send(Rank((me + 1) % n), 1, buffer);
            let before = Rank((me + n - 1) % n);
            let got = comm.recv(before, 1, Buffer::<u8>::zeroed(BYTES)).await.unwrap();
            drop(sent.await.unwrap());
            assert_eq!((got[0], got[BYTES - 1]), (0, before.0 as u8 + 1));
        });
        current_thread().block_on(async { tokio::time::timeout(WATCHDOG, join_all(ring)).await.unwrap() });
    }
}

#[test]
fn a_message_that_does_not_fit_is_an_error_on_both_sides_and_only_there() {
    for link in LINKS {
        for count in [10usize, 100_000] {
            world(link, 2, move |mut comm| {
                if comm.rank() == Rank(0) {
                    let wrong_count = comm.send(Rank(1), 1, vec![1u32; count]);
                    let wrong_type = comm.send(Rank(1), 2, vec![1u32; count]);
                    let right = comm.send(Rank(1), 3, vec![5u32; count]);
                    right.wait().unwrap();
                    for sent in [wrong_count, wrong_type] {
                        // A small one may have left before anybody could object.
                        if let Err(error) = sent.wait() {
                            assert_eq!(class(&error.error), "aborted", "{link:?} {count}: {error}");
                        } else {
                            assert!(count < 20_000, "{link:?}: a large message that was refused");
                        }
                    }
                } else {
                    let error = Error::from(comm.recv(Rank(0), 1, vec![0u32; count + 1]).wait().unwrap_err());
                    let Error::Mismatch { calls, .. } = &error else { panic!("{link:?} {count}: {error}") };
                    assert_eq!(calls[0].1.count, count as u64, "{error}");
                    assert_eq!(calls[1].1.count, count as u64 + 1, "{error}");
                    let error = Error::from(comm.recv(Rank(0), 2, vec![0f32; count]).wait().unwrap_err());
                    assert_eq!(class(&error), "mismatch", "{link:?} {count}: {error}");
                    let said = format!("rank 0 calls send({count} × u32, tag 2)");
                    assert!(error.to_string().contains(&said), "{link:?} {count}: {error}");
                    assert_eq!(comm.recv(Rank(0), 3, vec![0u32; count]).wait().unwrap(), vec![5; count]);
                }
                assert_usable(&mut comm);
            });
        }
    }
}

/// Who has called need not come back to it.
#[test]
fn a_large_message_arrives_although_its_receiver_does_not_poll() {
    const COUNT: usize = 16 << 20;
    for link in LINKS {
        let step = Arc::new(Barrier::new(2));
        world(link, 2, move |comm| {
            if comm.rank() == Rank(0) {
                step.wait();
                comm.send(Rank(1), 1, vec![1u8; COUNT]).wait().unwrap();
                step.wait();
            } else {
                let received = comm.recv(Rank(0), 1, vec![0u8; COUNT]);
                step.wait();
                step.wait();
                assert!(received.wait().unwrap() == [1u8; COUNT]);
            }
        });
    }
}

/// Its receive, posted before or after that, ends at once; a message before or after it is as good as ever.
#[test]
fn a_message_that_its_sender_gave_up_is_none() {
    const COUNT: usize = 1 << 20;
    for link in LINKS {
        for posted_first in [true, false] {
            let step = Arc::new(Barrier::new(2));
            world(link, 2, move |mut comm| {
                comm.set_deadline(GENEROUS);
                let other = Rank(1 - comm.rank().0);
                let offered = |tag| {
                    if comm.rank() == Rank(0) {
                        comm.send(other, tag, vec![0u8]).wait().unwrap();
                    } else {
                        comm.recv(other, tag, vec![0u8]).wait().unwrap();
                    }
                };
                if comm.rank() == Rank(0) {
                    let before = comm.send(other, 7, vec![1u8; COUNT]);
                    let given_up = comm.send(other, 7, vec![2u8; COUNT]);
                    let after = comm.send(other, 7, vec![3u8; COUNT]);
                    offered(8);
                    given_up.cancel();
                    match given_up.wait() {
                        // It was taken before that.
                        Ok(_) => assert!(posted_first),
                        Err(error) => assert_eq!(class(&error.error), "cancelled", "{link:?}: {error}"),
                    }
                    step.wait();
                    before.wait().unwrap();
                    after.wait().unwrap();
                } else {
                    offered(8);
                    if !posted_first {
                        step.wait();
                    }
                    let before = comm.recv(other, 7, vec![0u8; COUNT]);
                    let given_up = comm.recv(other, 7, vec![0u8; COUNT]);
                    if posted_first {
                        step.wait();
                    }
                    let after = comm.recv(other, 7, vec![0u8; COUNT]);
                    assert_eq!(before.wait().unwrap()[COUNT - 1], 1);
                    match given_up.wait() {
                        // It was here before that.
                        Ok(got) => assert!(posted_first && got == [2u8; COUNT]),
                        Err(error) => {
                            let error = error.error;
                            assert!(matches!(error, Error::Aborted { by: Rank(0), .. }), "{link:?}: {error}");
                            assert!(error.to_string().contains("given it up"), "{error}");
                        }
                    }
                    assert_eq!(after.wait().unwrap()[COUNT - 1], 3);
                }
                assert_usable(&mut comm);
            });
        }
    }
}

/// Either side gives a message up while it moves: the other one is told, or has what it wants; nobody waits for his
/// deadline.
#[test]
fn a_message_that_is_given_up_half_way_ends_on_both_sides() {
    const COUNT: usize = 16 << 20;
    for link in LINKS {
        for by_sender in [true, false] {
            let step = Arc::new(Barrier::new(2));
            let told = world(link, 2, move |mut comm| {
                let sends = comm.rank() == Rank(0);
                let other = Rank(1 - comm.rank().0);
                let mut aborted = 0;
                for round in 0..6 {
                    comm.set_deadline(GENEROUS);
                    let moving = if sends {
                        let sent = comm.send(other, round, vec![1u8; COUNT]);
                        comm.send(other, 100, vec![0u8]).wait().unwrap();
                        sent
                    } else {
                        // Its message is here.
                        comm.recv(other, 100, vec![0u8]).wait().unwrap();
                        comm.recv(other, round, vec![0u8; COUNT])
                    };
                    if sends == by_sender {
                        moving.cancel();
                    }
                    let context = format!("{link:?}: {by_sender} {round}: sends {sends}");
                    let ended = moving.wait();
                    // A message that was not here yet is for the next.
                    let next = (!sends && ended.is_err()).then(|| comm.recv(other, round, vec![0u8; COUNT]));
                    match ended {
                        Ok(got) => assert!(got == [1u8; COUNT], "{context}"),
                        Err(error) if sends == by_sender => {
                            assert_eq!(class(&error.error), "cancelled", "{context}: {error}");
                        }
                        Err(error) => {
                            aborted += 1;
                            assert_eq!(class(&error.error), "aborted", "{context}: {error}");
                        }
                    }
                    step.wait();
                    next.inspect(Operation::cancel);
                    assert_usable(&mut comm);
                }
                aborted
            });
            assert!(told.iter().sum::<u32>() > 0, "{link:?} {by_sender}: never half way");
        }
    }
}

#[test]
fn a_rank_that_does_not_exist_is_an_error_at_once() {
    for mut comm in connect(LINKS[0], 2) {
        let error = comm.send(Rank(2), 1, vec![0u8]).wait().unwrap_err();
        assert_eq!(class(&error.error), "invalid argument");
        assert_eq!(error.buffer, Some(vec![0u8]));
        let error = comm.recv(Rank(7), 1, vec![0u8]).wait().unwrap_err();
        assert_eq!(class(&error.error), "invalid argument");
        let error = comm.all_gather(vec![0u8; 3]).wait().unwrap_err();
        assert_eq!(class(&error.error), "invalid argument");
    }
}

/// Whatever their number, messages and receives are found: sent first or posted first, in any order of tags, given up,
/// and to oneself.
#[test]
fn ten_thousand_messages_in_flight() {
    const MESSAGES: u32 = 10_000;
    for link in LINKS {
        let step = Arc::new(Barrier::new(2));
        run_within(PATIENCE, connect(link, 2), move |mut comm| {
            comm.set_deadline(PATIENCE);
            let me = comm.rank();
            let other = Rank(1 - me.0);
            // Both know where the other is; nothing is received before all is sent.
            if me == Rank(0) {
                let sent: Vec<_> = (0..MESSAGES).map(|tag| comm.send(other, tag, vec![tag; 2])).collect();
                step.wait();
                sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
            } else {
                step.wait();
                for tag in (0..MESSAGES).rev() {
                    assert_eq!(comm.recv(other, tag, vec![0u32; 2]).wait().unwrap(), [tag; 2], "{link:?}");
                }
            }
            assert_usable(&mut comm);
            if me == Rank(0) {
                let post = |tag| comm.recv(other, tag, vec![0u32; 2]);
                let (kept, given_up): (Vec<_>, Vec<_>) =
                    (0..MESSAGES).map(|tag| (tag, post(tag))).partition(|(tag, _)| tag % 20 != 0);
                for (_, received) in &given_up {
                    received.cancel();
                }
                assert!(given_up.into_iter().all(|(_, received)| received.wait().is_err()));
                step.wait();
                for (tag, received) in kept {
                    assert_eq!(received.wait().unwrap(), [tag; 2], "{link:?}");
                }
            } else {
                step.wait();
                let tags = (0..MESSAGES).rev().filter(|tag| tag % 20 != 0);
                let sent: Vec<_> = tags.map(|tag| comm.send(other, tag, vec![tag; 2])).collect();
                sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
            }
            let own: Vec<_> = (0..MESSAGES).map(|tag| comm.send(me, tag, vec![tag])).collect();
            for tag in (0..MESSAGES).rev() {
                assert_eq!(comm.recv(me, tag, vec![0u32]).wait().unwrap(), [tag], "{link:?}");
            }
            own.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
            assert_usable(&mut comm);
        });
    }
}

/// Memory of one rank that another process reads, or both, or none, in any order.
#[test]
fn messages_come_from_and_into_any_memory() {
    const TAGS: u32 = 6;
    let counts = |tag: u32| [8200usize, 100_003, 1, 300_000, 8193, 40_000][tag as usize];
    for link in LINKS {
        world(link, 2, move |mut comm| {
            let other = Rank(1 - comm.rank().0);
            for round in 0..4u32 {
                let memory = |is_shared: bool, count: usize| {
                    if is_shared { comm.alloc::<u64>(count) } else { Buffer::zeroed(count) }
                };
                let value = |rank: Rank, tag: u32, index: usize| {
                    u64::from(rank.0) << 60 | u64::from(round) << 50 | u64::from(tag) << 40 | index as u64
                };
                let sends: Vec<_> = (0..TAGS)
                    .map(|tag| {
                        let mut message = memory((tag + round) % 2 == 0, counts(tag));
                        let fill =
                            |(index, element): (usize, &mut u64)| *element = value(comm.rank(), tag, index);
                        message.iter_mut().enumerate().for_each(fill);
                        comm.send(other, tag, message)
                    })
                    .collect();
                for tag in (0..TAGS).rev() {
                    let place = memory((tag / 2 + round) % 2 == 0, counts(tag));
                    let got = comm.recv(other, tag, place).wait().unwrap();
                    let right = |(index, got): (usize, &u64)| *got == value(other, tag, index);
                    assert!(got.iter().enumerate().all(right), "{link:?} round {round} tag {tag}");
                }
                sends.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
            }
            let pulled: u64 = comm.links().iter().map(|link| link.pulled_bytes).sum();
            assert_eq!(pulled > 1 << 20, link == Link::Shm, "{pulled} bytes");
            assert_usable(&mut comm);
        });
    }
}
