//! A network that fails under a world that works: two hosts whose cable is pulled.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::hosts::Hosts;
use crate::common::processes::say;
use hcomm::{Communicator, Error, ReduceOp, Token};

/// Set in the processes of a world.
const CHILD: &str = "HCOMM_TEST_CHILD";
/// How long the system takes to give a silent peer up, and what a loaded machine may add.
const NOTICED_MAX: Duration = Duration::from_secs(30);
/// More than what is on its way when the cable is pulled, on the fast connection and on the bulk one.
const COUNTS: [usize; 2] = [16, 1 << 18];

fn start(hosts: &Hosts, rank: usize, token: &str) -> Child {
    hosts
        .command(rank)
        .args(["--exact", "cables::child_sums_until_it_fails", "--nocapture"])
        .env(CHILD, "1")
        .envs([("MASTER_ADDR", "10.77.0.1"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2")])
        .envs([("RANK", rank.to_string().as_str()), ("HCOMM_TOKEN", token)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Both sides name the other, with its host, by themselves: neither hears of the other any more.
#[test]
#[ignore = "half a minute: the system gives a peer up after 20 s"]
fn a_cable_that_is_pulled_is_told_on_both_sides() {
    let Some(hosts) = Hosts::new() else { return };
    let token = Token::random().unwrap().to_hex();
    let mut ranks = [0, 1].map(|rank| start(&hosts, rank, &token));
    let mut lines = ranks.each_mut().map(|rank| {
        let said = BufReader::new(rank.stdout.take().unwrap()).lines().map_while(Result::ok);
        said.filter_map(|line| line.strip_prefix("> ").map(str::to_string))
    });
    for said in &mut lines {
        assert_eq!(said.next().as_deref(), Some("at work"));
    }
    hosts.unplug();
    let pulled = Instant::now();
    for (said, (peer, address)) in lines.iter_mut().zip([(1, "10.77.0.2"), (0, "10.77.0.1")]) {
        let said = said.next().expect("a process has ended without a word");
        let after = pulled.elapsed();
        let named = format!("on \"world\": rank {peer} (host ");
        assert!(said.contains(&named) && said.contains(&format!("address {address}, process ")), "{said}");
        assert!(said.contains(") is lost: "), "{said}");
        assert!(after < NOTICED_MAX, "{after:?}: {said}");
    }
    for mut rank in ranks {
        assert!(rank.wait().unwrap().success());
    }
}

#[test]
fn child_sums_until_it_fails() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut comm = Communicator::from_env_blocking().unwrap();
    // Only the network can end it.
    comm.set_deadline(Duration::from_secs(300));
    for turn in 0usize.. {
        let summed = comm.all_reduce(vec![1u32; COUNTS[turn % 2]], ReduceOp::Sum).wait();
        match summed {
            Ok(sums) => assert!(sums.iter().all(|sum| *sum == 2)),
            Err(failed) => {
                assert!(matches!(failed.error, Error::PeerLost { .. }), "{failed}");
                say(&failed.error.to_string());
                return;
            }
        }
        if turn == 100 {
            say("at work");
        }
    }
}
