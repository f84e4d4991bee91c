//! What users of `tracing` are told while nothing has failed yet, or nothing that a call could tell.

mod common;
#[path = "common/events.rs"]
mod events;

use common::hosts::Host;
use common::processes::passes_alone;
use events::Events;
use hcomm::{Communicator, InitError, ReduceOp};

/// Set in the process that has a host of its own.
const CHILD: &str = "HCOMM_TEST_CHILD";
/// The only address of that host that is not loopback.
const OPEN: &str = "10.78.0.1";

/// Two ranks that meet at `host`, as threads.
fn meet(host: &str, allow: bool) -> Vec<Result<Communicator, InitError>> {
    let join = |rank: u32| {
        let builder = Communicator::builder().rank(rank).world(2).root(format!("{host}:29500"));
        let builder = builder.rendezvous_deadline(common::GENEROUS);
        let builder = if allow { builder.allow_unauthenticated() } else { builder };
        std::thread::spawn(move || builder.connect_blocking())
    };
    [0, 1].map(join).map(|rank| rank.join().unwrap()).into()
}

#[test]
fn without_a_token_other_addresses_must_be_allowed_and_are_warned_of() {
    let Some(host) = Host::new(OPEN) else { return };
    passes_alone(&["ip", "netns", "exec", &host.0], "child_meets_in_the_open", CHILD);
}

#[test]
fn child_meets_in_the_open() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let warnings = || Events::of_all_threads().with("open to everybody");
    for refused in meet(OPEN, false) {
        let error = refused.unwrap_err();
        let names_both =
            |text: &str| text.contains("HCOMM_TOKEN") && text.contains(".allow_unauthenticated()");
        assert!(matches!(&error, InitError::Config(text) if names_both(text)), "{error}");
    }
    let ranks = |host, allow| meet(host, allow).into_iter().map(Result::unwrap).collect();
    for allow in [false, true] {
        common::run(ranks("127.0.0.1", allow), |mut comm| common::assert_usable(&mut comm));
    }
    assert!(warnings().is_empty(), "nobody else reaches loopback: {:?}", warnings());
    common::run(ranks(OPEN, true), |mut comm| {
        assert_eq!(comm.all_reduce(vec![comm.rank().0], ReduceOp::Sum).wait().unwrap(), [1]);
    });
    let told = warnings();
    let addresses = |of: &str| -> Vec<String> {
        let of = told.iter().filter(|warning| warning.message.starts_with(of));
        of.map(|warning| warning.field("address").to_string()).collect()
    };
    // Once by each rank, for the address that both meet at, and for its own.
    assert_eq!(
        addresses("the root's address"),
        [format!("{OPEN}:29500"), format!("{OPEN}:29500")],
        "{told:?}"
    );
    let own = addresses("the address for data connections");
    assert!(own.len() == 2 && own.iter().all(|own| own.starts_with(OPEN)), "{told:?}");
    assert_eq!(told.len(), 4, "{told:?}");
}

#[cfg(feature = "testing")]
mod sim {
    use std::time::Duration;

    use hcomm::testing::World;
    use hcomm::{Error, Rank, ReduceOp};
    use tokio::time::Instant;

    use super::*;

    /// After five seconds and then ever more rarely, by each rank that waits, with the rank that is late.
    #[test]
    fn who_waits_is_warned_after_5_10_20_40_and_80_seconds() {
        for n in [3, 4, 5, 8] {
            let (events, late) = (Events::default(), Rank(n as u32 - 1));
            let mut began = None;
            events.while_doing(|| {
                let starts = World::new(n).run(|mut comm, _| async move {
                    let start = Instant::now();
                    if comm.rank() == late {
                        tokio::time::sleep(Duration::from_secs(100)).await;
                    }
                    comm.all_reduce(vec![1u32; 10], ReduceOp::Sum).await.unwrap();
                    start
                });
                began = starts[0];
            });
            let began = began.unwrap();
            let told = events.with("all_reduce #0 on \"world\"");
            for (at, seconds) in [5, 10, 20, 40, 80].into_iter().enumerate() {
                let warnings = &told[at * (n - 1)..][..n - 1];
                for warning in warnings {
                    let after = (warning.at - began).as_secs_f64();
                    assert!((after - seconds as f64).abs() < 0.5, "{after} s, not {seconds}: {warning:?}");
                    let says = format!("waited {seconds}.0s for rank {late}");
                    assert!(warning.message.contains(&says), "{says}: {warning:?}");
                    assert_eq!(warning.level, tracing::Level::WARN);
                }
            }
            assert_eq!(told.len(), 5 * (n - 1), "{n} ranks: {told:?}");
        }
    }

    #[test]
    fn what_ends_within_five_seconds_is_not_warned_of() {
        let events = Events::default();
        events.while_doing(|| {
            World::new(3).run(|mut comm, _| async move {
                if comm.rank() == Rank(1) {
                    tokio::time::sleep(Duration::from_millis(4900)).await;
                }
                comm.barrier().await.unwrap();
            })
        });
        assert!(events.with("").is_empty(), "{events:?}");
    }

    #[test]
    fn a_lost_rank_is_warned_of_once_by_each_that_is_left() {
        for n in [3usize, 4, 5, 8] {
            let events = Events::default();
            events.while_doing(|| {
                World::new(n).seed(n as u64).run(|mut comm, net| async move {
                    let mut other = comm.dup().await.unwrap();
                    if comm.rank() == Rank(1) {
                        net.kill(Rank(1));
                    }
                    for comm in [&mut comm, &mut other] {
                        let failed = comm.barrier().await.unwrap_err();
                        assert!(matches!(failed.error, Error::PeerLost { rank: Rank(1), .. }), "{failed}");
                    }
                })
            });
            let told = events.with("lost a rank");
            assert_eq!(told.len(), n - 1, "{told:?}");
            for warning in told {
                let [rank, host, cause] = ["rank", "host", "cause"].map(|name| warning.field(name));
                assert!(rank == "1" && !host.is_empty() && !cause.is_empty(), "{warning:?}");
            }
        }
    }
}
