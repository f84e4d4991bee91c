//! Leaving in order: what was sent has arrived, and what nobody receives holds nobody up.

mod common;

use std::time::Duration;

use common::{GENEROUS, LINKS, connect, run};
use hcomm::{Error, Rank, ReduceOp};

/// More than goes along with a header: it is offered, and moves once it is accepted.
const LARGE: usize = 200_000;

#[test]
fn what_nobody_receives_or_sends_holds_no_close_up() {
    for link in LINKS {
        run(connect(link, 3), move |comm| {
            let me = comm.rank().0;
            let to = Rank((me + 1) % 3);
            let from = Rank((me + 2) % 3);
            // Whether these end is not what the close waits for.
            drop(comm.send(to, 1, vec![me; LARGE]));
            drop(comm.send(to, 2, vec![me; 10]));
            drop(comm.recv(from, 3, vec![0u32; 10]));
            comm.close().wait().unwrap();
        });
    }
}

/// A call under a key that the other one does not make.
#[test]
fn a_close_has_its_limit_while_it_waits_for_what_was_called_before() {
    for link in LINKS {
        let step = std::sync::Arc::new(std::sync::Barrier::new(2));
        run(connect(link, 2), move |mut comm| {
            comm.set_deadline(GENEROUS * 2);
            if comm.rank() == Rank(0) {
                let mut keyed = comm.keyed("not called by the other").unwrap();
                let pending = keyed.all_reduce(vec![1u32], ReduceOp::Sum);
                let error = comm.close().timeout(Duration::from_millis(400)).wait().unwrap_err();
                let Error::Deadline(report) = &error else { panic!("{link:?}: {error}") };
                assert_eq!(
                    (&report.operation[..], &report.late[..]),
                    ("close", &[Rank(1)][..]),
                    "{link:?}: {error}"
                );
                assert!(report.cause.contains("not over before it: all_reduce(1 × u32"), "{link:?}: {error}");
                step.wait();
                drop(pending);
            } else {
                let error = comm.close().wait().unwrap_err();
                let given_up =
                    matches!(error, Error::Deadline(_) | Error::Aborted { .. } | Error::Left { .. });
                assert!(given_up, "{link:?}: {error}");
                step.wait();
            }
        });
    }
}

#[cfg(feature = "testing")]
mod simulated {
    use hcomm::testing::World;

    use super::*;
    use common::Random;

    /// Messages in all directions and collectives, all detached but what is received; whoever has closed is killed, or not.
    fn close_with_all_under_way(seed: u64, is_killed: bool) {
        let n = [3, 4, 5, 8][seed as usize % 4];
        let mut world = World::new(n).seed(seed).delay(Duration::from_millis(1)..Duration::from_millis(20));
        if !is_killed {
            world = world.loss(0.03).duplicate(0.03).reorder(0.1);
        }
        let results = world.run(|mut comm, net| async move {
            let me = comm.rank();
            let mut random = Random(seed << 8 | u64::from(me.0));
            let others = (0..n as u32).filter(|rank| *rank != me.0);
            let count = |from: u32, to: u32| if (from + to).is_multiple_of(2) { LARGE } else { 100 };
            tokio::time::sleep(random.millis(30)).await;
            let mut received = Vec::new();
            for other in others {
                drop(comm.send(Rank(other), 1, vec![me.0; count(me.0, other)]));
                received.push((other, comm.recv(Rank(other), 1, vec![0u32; count(other, me.0)])));
            }
            let sum = comm.all_reduce(vec![1u32; 50_000], ReduceOp::Sum);
            let keyed = comm.keyed("a").unwrap().broadcast(vec![me.0 + 7; 50_000], Rank(1));
            let closed = comm.close().await;
            // All of it is there: what others do from here on changes nothing.
            for (other, received) in received {
                let got = received.await.unwrap_or_else(|error| panic!("seed {seed}: {me}: {error}"));
                assert!(got.iter().all(|of| *of == other), "seed {seed}");
            }
            assert!(sum.await.unwrap() == vec![n as u32; 50_000], "seed {seed}");
            assert!(keyed.await.unwrap() == vec![8; 50_000], "seed {seed}");
            closed.unwrap_or_else(|error| panic!("seed {seed}: {me}: {error}"));
            if is_killed {
                net.kill(me);
                std::future::pending::<()>().await;
            }
        });
        assert_eq!(results.into_iter().flatten().count(), if is_killed { 0 } else { n });
    }

    #[test]
    fn all_that_was_sent_has_arrived_when_a_close_ends() {
        (0..12).for_each(|seed| close_with_all_under_way(seed, false));
    }

    #[test]
    fn processes_may_end_once_they_have_closed() {
        (0..12).for_each(|seed| close_with_all_under_way(seed, true));
    }
}
