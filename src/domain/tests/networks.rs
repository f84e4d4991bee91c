//! Ranks on two hosts, which network namespaces play.

#[path = "../../../tests/common/hosts.rs"]
mod hosts;

use std::process::{Child, Stdio};

use super::*;
use hosts::Hosts;

/// A rank's host, and its own variables.
type Ranked<'a> = (usize, &'a [(&'a str, &'a str)]);

/// Ranks on the given hosts, each with variables of its own; what each printed.
fn run_on(hosts: &Hosts, ranks: &[Ranked<'_>]) -> Vec<String> {
    let world = ranks.len().to_string();
    let token = Token::random().unwrap().to_hex();
    let common = [
        ("MASTER_ADDR", "10.77.0.1"),
        ("MASTER_PORT", "29500"),
        ("WORLD_SIZE", &world),
        ("HCOMM_TOKEN", &token),
        ("HCOMM_TEST_RENDEZVOUS_S", "20"),
        ("HCOMM_TEST_LINK_S", "1.5"),
    ];
    let start = |(rank, (host, own)): (usize, &Ranked<'_>)| -> Child {
        hosts
            .command(*host)
            .args(["--exact", "domain::tests::ends::child_joins_from_env", "--nocapture"])
            .env("HCOMM_SHARED_MEMORY", "never")
            .env(super::ends::CHILD, "1")
            .envs(common)
            .envs(own.iter().copied())
            .env("RANK", rank.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = ranks.iter().enumerate().map(start).collect();
    let outputs = children.into_iter().map(|child| child.wait_with_output().unwrap());
    outputs.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).collect()
}

#[test]
fn the_address_that_routes_to_the_root_is_told() {
    let Some(hosts) = Hosts::new() else { return };
    for text in run_on(&hosts, &[(0, &[]), (1, &[]), (1, &[])]) {
        assert!(text.contains("joined: 10.77.0.1:") && text.matches(" 10.77.0.2:").count() == 2, "{text}");
        assert!(!text.contains("172.31.77.1"), "{text}");
    }
    let texts = run_on(&hosts, &[(0, &[]), (1, &[]), (1, &[])]);
    let near = ["same host: [false, false]", "same host: [false, true]", "same host: [false, true]"];
    texts.iter().zip(near).for_each(|(text, near)| assert!(text.contains(near), "{text}"));
}

#[test]
fn loopback_between_hosts_is_explained() {
    let Some(hosts) = Hosts::new() else { return };
    for text in run_on(&hosts, &[(0, &[]), (1, &[("HCOMM_INTERFACE", "lo")])]) {
        assert!(text.contains("rank 1 at 127.0.0.1:") && text.contains("on its own host only"), "{text}");
    }
}

#[test]
fn one_open_direction_is_enough() {
    let Some(hosts) = Hosts::new() else { return };
    hosts.block(1, "30000-30009");
    let ports = ("HCOMM_PORT_RANGE", "30000-30009");
    for text in run_on(&hosts, &[(0, &[ports]), (1, &[]), (1, &[])]) {
        assert!(text.contains("joined"), "{text}");
    }
}

#[test]
fn no_open_direction_is_told_to_all() {
    let Some(hosts) = Hosts::new() else { return };
    hosts.block(1, "30000-30009");
    hosts.block(0, "31000-31009");
    let (near, far) = (("HCOMM_PORT_RANGE", "30000-30009"), ("HCOMM_PORT_RANGE", "31000-31009"));
    for text in run_on(&hosts, &[(0, &[near]), (1, &[far])]) {
        assert!(text.contains("rank 1 can't reach rank 0 at 10.77.0.1:30000"), "{text}");
        assert!(text.contains("nor does rank 0 reach it at 10.77.0.2:31001"), "{text}");
    }
    // One port that is open both ways is all it takes.
    let (near, far) = (("HCOMM_PORT_RANGE", "30010-30010"), ("HCOMM_PORT_RANGE", "31010-31010"));
    for text in run_on(&hosts, &[(0, &[near]), (1, &[far])]) {
        assert!(text.contains("joined: 10.77.0.1:30010 10.77.0.2:31010"), "{text}");
    }
}

/// Nothing but the range is open, either way: neither the place where ranks meet nor their data connections need more.
#[test]
fn a_range_of_open_ports_is_all_it_takes() {
    let Some(hosts) = Hosts::new() else { return };
    hosts.open_only("30000-30009");
    let path = temporary("firewall");
    let at_file = format!("file:{}", path.display());
    let ports = ("HCOMM_PORT_RANGE", "30000-30009");
    let (by_file, near) = (("HCOMM_RENDEZVOUS", at_file.as_str()), ("HCOMM_INTERFACE", "10.77.0.1"));
    let at_root = ("MASTER_PORT", "30000");
    for (root, member) in
        [(&[ports, at_root][..], &[ports, at_root][..]), (&[ports, by_file, near], &[ports, by_file])]
    {
        for text in run_on(&hosts, &[(0, root), (1, member), (1, member)]) {
            assert!(text.contains("joined: 10.77.0.1:3000"), "{text}");
            assert_eq!(text.matches(" 10.77.0.2:3000").count(), 2, "{text}");
        }
    }
    // The firewall holds: a place beside the range is not reached.
    let hurry = [ports, ("HCOMM_TEST_RENDEZVOUS_S", "2")];
    let far = run_on(&hosts, &[(0, &hurry), (1, &hurry)]).remove(1);
    assert!(far.contains("can't reach the root (rank 0) at 10.77.0.1:29500"), "{far}");
}

/// What is told of a name that only this host understands so.
fn loopback_of(name: &str) -> String {
    format!("the name {name} stands for the loopback address 127.0.1.1 here, which no other host can reach")
}

/// As installers write it: the host's own name is a loopback address. Others have it from elsewhere.
#[test]
fn a_name_that_stands_for_loopback_on_the_roots_host_is_told() {
    let Some(hosts) = Hosts::new() else { return };
    if !hosts.know(["127.0.1.1 head", "10.77.0.1 head"]) {
        return;
    }
    let name = [("MASTER_ADDR", "head"), ("HCOMM_TEST_RENDEZVOUS_S", "2")];
    let [root, near, far] = &run_on(&hosts, &[(0, &name), (0, &name), (1, &name)])[..] else {
        panic!("three ranks")
    };
    for text in [root, near] {
        assert!(text.contains("still missing rank 2") && text.contains(&loopback_of("head")), "{text}");
    }
    assert!(far.contains("can't reach the root (rank 0) at head:29500"), "{far}");
    assert!(far.contains("10.77.0.1:29500: Connection refused"), "{far}");
}

#[test]
fn a_name_that_stands_for_loopback_on_both_hosts_is_told() {
    let Some(hosts) = Hosts::new() else { return };
    if !hosts.know(["127.0.1.1 head", "127.0.1.1 head"]) {
        return;
    }
    let name = [("MASTER_ADDR", "head"), ("HCOMM_TEST_RENDEZVOUS_S", "2")];
    let [root, far] = &run_on(&hosts, &[(0, &name), (1, &name)])[..] else { panic!("two ranks") };
    for (text, says) in [(root, "still missing rank 1"), (far, "can't reach the root")] {
        assert!(text.contains(says) && text.contains(&loopback_of("head")), "{text}");
    }
}

#[test]
fn a_name_that_is_known_on_both_hosts_is_good() {
    let Some(hosts) = Hosts::new() else { return };
    for line in ["10.77.0.1 head", "fd77::1 head", "fd77::1 head\n10.77.0.1 head"] {
        if !hosts.know([line, line]) {
            return;
        }
        let name = [("MASTER_ADDR", "head")];
        for text in run_on(&hosts, &[(0, &name), (1, &name)]) {
            assert!(text.contains("joined: ") && text.contains("same host: [false]"), "{text}");
        }
    }
}

#[test]
fn hosts_meet_over_ipv6() {
    let Some(hosts) = Hosts::new() else { return };
    for address in ["fd77::1", "[fd77::1]"] {
        let six = [("MASTER_ADDR", address)];
        for text in run_on(&hosts, &[(0, &six), (1, &six), (1, &six)]) {
            assert!(text.contains("joined: [fd77::1]:"), "{text}");
            assert_eq!(text.matches(" [fd77::2]:").count(), 2, "{text}");
        }
    }
}
