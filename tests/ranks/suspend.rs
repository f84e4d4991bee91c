//! Pauses that are meant: no deadline passes on any rank while one of them suspends deadlines, and time goes on afterwards.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::{GENEROUS, LINKS, assert_usable, connect, meeting_place, run};
use hcomm::{Communicator, Error, Rank, ReduceOp, Token};

/// The deadline that a pause is longer than.
const LIMIT: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(900);

/// Rank 1 tells the others to go on, or hears from them.
fn tell(comm: &Communicator, tag: u32) {
    for to in [0, 2] {
        comm.send(Rank(to), tag, vec![1u8]).wait().unwrap();
    }
}

fn hear(comm: &Communicator, tag: u32) {
    for from in [0, 2] {
        comm.recv(Rank(from), tag, vec![0u8]).wait().unwrap();
    }
}

#[test]
fn a_pause_that_is_told_is_nobody_s_fault_on_any_link() {
    for link in LINKS {
        run(connect(link, 3), |mut comm| {
            if comm.rank() == Rank(1) {
                let pause = comm.suspend_deadlines();
                // What comes after it on a connection says that it has come.
                tell(&comm, 1);
                std::thread::sleep(PAUSE);
                drop(pause);
            } else {
                comm.recv(Rank(1), 1, vec![0u8]).wait().unwrap();
                comm.set_deadline(LIMIT);
            }
            let sum = comm.all_reduce(vec![1u32], ReduceOp::Sum).wait().unwrap();
            assert_eq!(sum, [3]);
            comm.set_deadline(GENEROUS);
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn time_goes_on_where_it_was_once_the_guard_is_dropped() {
    for link in LINKS {
        run(connect(link, 3), move |mut comm| {
            if comm.rank() == Rank(1) {
                let pause = comm.suspend_deadlines();
                tell(&comm, 1);
                hear(&comm, 2);
                std::thread::sleep(PAUSE);
                drop(pause);
                // By then the others have given up.
                hear(&comm, 3);
                let late = comm.all_reduce(vec![1u32], ReduceOp::Sum).wait().unwrap_err().error;
                assert!(matches!(late, Error::Aborted { .. }), "{link:?}: {late}");
            } else {
                comm.recv(Rank(1), 1, vec![0u8]).wait().unwrap();
                let begun = Instant::now();
                let sum = comm.all_reduce(vec![1u32], ReduceOp::Sum).timeout(LIMIT);
                comm.send(Rank(1), 2, vec![2u8]).wait().unwrap();
                let error = sum.wait().unwrap_err().error;
                let Error::Deadline(report) = &error else { panic!("{link:?}: {error}") };
                assert_eq!(report.late, [Rank(1)], "{link:?}: {error}");
                let least = LIMIT + PAUSE;
                assert!(begun.elapsed() >= least, "{link:?}: after {:?}: {error}", begun.elapsed());
                comm.send(Rank(1), 3, vec![3u8]).wait().unwrap();
            }
            assert_usable(&mut comm);
        });
    }
}

/// A call that waits for room to begin has its time besides the pause, like those that have begun.
#[test]
fn calls_that_wait_for_room_are_suspended() {
    /// Enough for one call, and less than the pause.
    const LIMIT: Duration = Duration::from_millis(3000);
    const PAUSE: Duration = Duration::from_millis(3500);
    /// Four calls, of which two at a time find room.
    const COUNT: usize = 400_000;
    let (place, token, n) = (meeting_place(), Token::random().unwrap(), 2);
    let join = |rank| {
        let builder = Communicator::builder().rank(rank).world(n).file(&place).token(token.clone());
        let builder = builder.operation_deadline(GENEROUS).memory(2 << 20);
        std::thread::spawn(move || builder.connect_blocking().unwrap())
    };
    let ranks: Vec<_> = [0, 1].map(join).into_iter().map(|thread| thread.join().unwrap()).collect();
    run(ranks, |mut comm| {
        let delayed = if comm.rank() == Rank(0) {
            comm.recv(Rank(1), 1, vec![0u8]).wait().unwrap();
            comm.set_deadline(LIMIT);
            let sums = [1u32, 2, 3, 4].map(|value| comm.all_reduce(vec![value; COUNT], ReduceOp::Sum));
            let delayed = comm.resources().delayed;
            comm.set_deadline(GENEROUS);
            comm.send(Rank(1), 2, vec![0u8]).wait().unwrap();
            for (sum, value) in sums.into_iter().zip([2, 4, 6, 8]) {
                assert!(sum.wait().unwrap().iter().all(|of| *of == value));
            }
            delayed
        } else {
            let mut pause = Some(comm.suspend_deadlines());
            comm.send(Rank(0), 1, vec![1u8]).wait().unwrap();
            comm.recv(Rank(0), 2, vec![0u8]).wait().unwrap();
            std::thread::sleep(PAUSE);
            for value in 1u32..5 {
                if value == 4 {
                    drop(pause.take());
                }
                comm.all_reduce(vec![value; COUNT], ReduceOp::Sum).wait().unwrap();
            }
            2
        };
        assert_eq!(delayed, 2);
        assert_usable(&mut comm);
    });
}

/// The guard keeps nothing alive, and does no harm to what comes after its communicator.
#[test]
fn a_guard_may_outlive_its_communicator() {
    for link in LINKS {
        let step = Arc::new(Barrier::new(2));
        run(connect(link, 2), move |mut comm| {
            let mut copy = comm.dup().wait().unwrap();
            let guards = [comm.suspend_deadlines(), comm.suspend_deadlines()];
            drop(comm);
            step.wait();
            // In its place may be another one by now.
            let mut anew = copy.dup().wait().unwrap();
            let [first, second] = guards;
            drop(first);
            assert_usable(&mut anew);
            drop(second);
            assert_usable(&mut copy);
            let last = anew.suspend_deadlines();
            drop((copy, anew));
            step.wait();
            drop(last);
        });
    }
}

#[cfg(feature = "testing")]
mod simulated {
    use hcomm::testing::{Net, World};

    use super::*;
    use crate::common::Random;

    const SIZES: [usize; 4] = [3, 4, 5, 8];
    const LIMIT: Duration = Duration::from_secs(10);
    /// Far beyond the limit.
    const PAUSE: Duration = Duration::from_secs(300);
    /// What a note takes to come, on a network that loses some, and an end to be seen.
    const SLACK: Duration = Duration::from_secs(3);

    async fn sleep(time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Runs a program in worlds of each size, some calm and some not, with the holder's rank drawn.
    fn worlds<Fut: Future>(
        program: impl Fn(Communicator, Net, Rank) -> Fut,
    ) -> Vec<(String, Vec<Option<Fut::Output>>)> {
        let mut all = Vec::new();
        for seed in 0..8 {
            let mut random = Random(seed);
            let n = SIZES[seed as usize % SIZES.len()];
            let holder = Rank(random.below(n) as u32);
            let mut world = World::new(n).seed(seed);
            if seed / 4 % 2 == 1 {
                world = world.loss(0.03).duplicate(0.03).reorder(0.1);
            }
            let results = world.run(|comm, net| program(comm, net, holder));
            all.push((format!("seed {seed}: {n} ranks, holder {holder}"), results));
        }
        all
    }

    /// How long an operation took that its deadline has ended.
    fn expired(result: Result<Duration, Error>, context: &str) -> Duration {
        result.unwrap_or_else(|error| panic!("{context}: {error}"))
    }

    async fn until_deadline(comm: &mut Communicator, net: &Net) -> Result<Duration, Error> {
        let begun = net.now();
        match comm.all_reduce(vec![1u32], ReduceOp::Sum).await {
            Ok(_) => panic!("a sum without one of its ranks"),
            Err(error) if error.error.is_deadline() => Ok(net.now() - begun),
            Err(error) => Err(error.error),
        }
    }

    #[test]
    fn nothing_passes_during_a_pause() {
        let results = worlds(async |mut comm, _, holder| {
            comm.set_deadline(LIMIT);
            let mut copy = comm.dup().await.unwrap();
            let mut part = comm.split(Some(0), 0).await.unwrap().unwrap();
            let mut nested = part.split(Some(0), 0).await.unwrap().unwrap();
            if comm.rank() == holder {
                // The others wait already.
                sleep(LIMIT / 2).await;
                let pause = comm.suspend_deadlines();
                sleep(PAUSE).await;
                drop(pause);
            }
            let first = comm.all_reduce(vec![1u32], ReduceOp::Sum);
            if comm.rank() != holder {
                sleep(LIMIT * 3 / 4).await;
            }
            let mut keyed = comm.keyed("that is new during the pause").unwrap();
            let sums = [
                first,
                keyed.all_reduce(vec![1u32; 30_000], ReduceOp::Sum),
                copy.all_reduce(vec![1u32], ReduceOp::Sum).timeout(LIMIT * 2),
                part.all_reduce(vec![1u32], ReduceOp::Sum),
                nested.all_reduce(vec![1u32], ReduceOp::Sum),
            ];
            for sum in sums {
                assert_eq!(sum.await.map_err(|error| error.error)?[0] as usize, comm.size());
            }
            Ok::<_, Error>(())
        });
        for (context, results) in results {
            results
                .into_iter()
                .flatten()
                .for_each(|result| result.unwrap_or_else(|error| panic!("{context}: {error}")));
        }
    }

    #[test]
    fn an_operation_has_its_time_besides_the_pause() {
        let results = worlds(async |mut comm, net, holder| {
            comm.set_deadline(LIMIT);
            comm.barrier().await.unwrap();
            if comm.rank() != holder {
                return until_deadline(&mut comm, &net).await;
            }
            for _ in 0..2 {
                sleep(LIMIT / 4).await;
                let pause = comm.suspend_deadlines();
                sleep(PAUSE).await;
                drop(pause);
            }
            sleep(LIMIT * 2).await;
            Ok(LIMIT + 2 * PAUSE)
        });
        for (context, results) in results {
            for took in results.into_iter().flatten() {
                let took = expired(took, &context);
                let expected = LIMIT + 2 * PAUSE;
                assert!(took + SLACK >= expected && took <= expected + SLACK, "{context}: {took:?}");
            }
        }
    }

    #[test]
    fn deadlines_run_when_the_last_of_several_guards_is_gone() {
        let results = worlds(async |mut comm, net, holder| {
            comm.set_deadline(LIMIT);
            comm.barrier().await.unwrap();
            let other = Rank((holder.0 + 1) % comm.size() as u32);
            if comm.rank() == holder {
                let (first, second) = (comm.suspend_deadlines(), comm.suspend_deadlines());
                sleep(seconds(50)).await;
                drop(first);
                sleep(seconds(50)).await;
                drop(second);
                sleep(seconds(100)).await;
                return Ok(seconds(150) + LIMIT);
            }
            if comm.rank() != other {
                return until_deadline(&mut comm, &net).await;
            }
            sleep(seconds(80)).await;
            let pause = comm.suspend_deadlines();
            sleep(seconds(70)).await;
            drop(pause);
            sleep(seconds(50)).await;
            Ok(seconds(150) + LIMIT)
        });
        for (context, results) in results {
            for took in results.into_iter().flatten() {
                let took = expired(took, &context);
                let expected = seconds(150) + LIMIT;
                assert!(took + SLACK >= expected && took <= expected + SLACK, "{context}: {took:?}");
            }
        }
    }

    #[derive(Clone, Copy, PartialEq)]
    enum End {
        Killed,
        Vanished,
        Left,
        Closed,
    }

    /// The others go on without the holder, in a part of the communicator; there one waits for another, which never comes.
    fn ends_with_its_holder(end: End) {
        /// The system gives a host up that long after it has vanished.
        const GIVEN_UP: Duration = Duration::from_secs(40);
        let results = worlds(async |mut comm, net, holder| {
            comm.set_deadline(LIMIT);
            let me = comm.rank();
            let absent = Rank((holder.0 + 1) % comm.size() as u32);
            let part = comm.split((me != holder).then_some(0), 0).await.unwrap();
            if me == holder {
                let pause = comm.suspend_deadlines();
                sleep(PAUSE).await;
                match end {
                    End::Killed => net.kill(me),
                    End::Vanished => net.vanish(me),
                    End::Left => drop((comm, part)),
                    End::Closed => drop(comm),
                }
                sleep(PAUSE).await;
                drop(pause);
                return None;
            }
            let mut part = part.unwrap();
            if me == absent {
                sleep(PAUSE + GIVEN_UP + 4 * LIMIT).await;
                return None;
            }
            let took = until_deadline(&mut part, &net).await;
            let kept = comm.barrier().await.unwrap_err().error;
            let told = if matches!(end, End::Killed | End::Vanished) {
                matches!(kept, Error::PeerLost { rank, .. } if rank == holder)
            } else {
                matches!(kept, Error::Left { rank, .. } if rank == holder)
            };
            assert!(told, "{kept}");
            Some(took)
        });
        for (context, results) in results {
            for took in results.into_iter().flatten().flatten() {
                let took = expired(took, &context);
                let least = PAUSE + LIMIT;
                let most = least + if end == End::Vanished { GIVEN_UP } else { Duration::ZERO };
                assert!(took + SLACK >= least && took <= most + SLACK, "{context}: {took:?}");
            }
        }
    }

    #[test]
    fn a_pause_ends_when_its_holder_is_killed() {
        ends_with_its_holder(End::Killed);
    }

    #[test]
    fn a_pause_ends_when_its_holder_s_host_vanishes() {
        ends_with_its_holder(End::Vanished);
    }

    #[test]
    fn a_pause_ends_when_its_holder_leaves() {
        ends_with_its_holder(End::Left);
    }

    #[test]
    fn a_pause_ends_when_its_holder_closes_the_communicator() {
        ends_with_its_holder(End::Closed);
    }

    /// The communicator itself fails at once, whoever suspends its deadlines.
    #[test]
    fn a_loss_is_told_during_a_pause() {
        let results = worlds(async |mut comm, net, holder| {
            comm.set_deadline(LIMIT);
            comm.barrier().await.unwrap();
            let me = comm.rank();
            let pause = (me != holder).then(|| comm.suspend_deadlines());
            if me == holder {
                sleep(LIMIT * 2).await;
                net.kill(me);
                std::future::pending::<()>().await;
            }
            let begun = net.now();
            let error = comm.barrier().await.unwrap_err().error;
            drop(pause);
            Some((error, net.now() - begun))
        });
        for (context, results) in results {
            assert!(results.iter().flatten().count() >= 2);
            for (error, took) in results.into_iter().flatten().flatten() {
                assert!(matches!(error, Error::PeerLost { .. }), "{context}: {error}");
                assert!(took <= LIMIT * 2 + SLACK, "{context}: {took:?}");
            }
        }
    }

    /// What a communicator was made from, and what is made of it anew, are others.
    #[test]
    fn other_communicators_have_their_deadlines() {
        let results = worlds(async |mut comm, net, holder| {
            comm.set_deadline(LIMIT);
            let me = comm.rank();
            let copy = comm.dup().await.unwrap();
            let mut sibling = comm.dup().await.unwrap();
            let pause = (me == holder).then(|| copy.suspend_deadlines());
            if me == holder {
                sleep(LIMIT * 4).await;
                drop(pause);
                return Ok(LIMIT);
            }
            let (up, beside) = (net.clone(), net.clone());
            let (took, other) =
                futures_util::join!(until_deadline(&mut comm, &up), until_deadline(&mut sibling, &beside));
            let (took, other) = (took?, other?);
            sleep(LIMIT * 4).await;
            Ok(took.max(other))
        });
        for (context, results) in results {
            for took in results.into_iter().flatten() {
                let took = expired(took, &context);
                assert!(took + SLACK >= LIMIT && took <= LIMIT + SLACK, "{context}: {took:?}");
            }
        }
    }

    #[test]
    fn what_was_rebuilt_is_not_suspended() {
        let results = worlds(async |mut comm, net, holder| {
            comm.set_deadline(LIMIT);
            comm.barrier().await.unwrap();
            let me = comm.rank();
            let absent = Rank((holder.0 + 1) % comm.size() as u32);
            let pause = (me == holder).then(|| comm.suspend_deadlines());
            if me == absent {
                // The others may not have ended the barrier yet.
                sleep(seconds(1)).await;
                net.kill(me);
                std::future::pending::<()>().await;
            }
            comm.barrier().await.unwrap_err();
            let mut anew = comm.rebuild().await?;
            if me == holder {
                sleep(LIMIT * 4).await;
                drop(pause);
                return Ok(LIMIT);
            }
            let took = until_deadline(&mut anew, &net).await;
            sleep(LIMIT * 4).await;
            took
        });
        for (context, results) in results {
            for took in results.into_iter().flatten() {
                let took = expired(took, &context);
                assert!(took + SLACK >= LIMIT && took <= LIMIT + SLACK, "{context}: {took:?}");
            }
        }
    }
}
