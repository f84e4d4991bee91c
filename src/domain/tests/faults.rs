//! Ranks that can't come together, and are all told why.

use super::super::frame::{Hello, Verdict};
use super::super::message::{Blocked, Table};
use super::super::publish::{Draft, Notice};
use super::*;

#[test]
fn a_missing_rank_is_named_to_all() {
    let config = hurried(4);
    for error in errors(run_ranks(&config, 0..3)) {
        let text = error.to_string();
        assert!(matches!(error, InitError::MissingRanks { missing, .. } if missing == [Rank(3)]), "{text}");
        assert!(text.contains("rank 2 at 127.0.0.1:") && text.contains("pid"), "{text}");
    }
}

#[test]
fn a_rank_claimed_twice_is_told_to_all() {
    let config = job(4);
    for error in errors(run_ranks(&config, [0, 1, 2, 2])) {
        assert!(matches!(error, InitError::DuplicateRank { rank: Rank(2), .. }), "{error}");
    }
}

#[test]
fn a_device_claimed_twice_is_told_to_all() {
    let config = JoinConfig { device: Some(5), ..job(2) };
    for error in errors(run_ranks(&config, 0..2)) {
        let two = format!(", pid {}); give each", std::process::id());
        assert!(error.to_string().contains(&two), "{error}");
        assert!(matches!(error, InitError::DuplicateDevice { device: 5, .. }), "{error}");
    }
}

#[test]
fn worlds_of_different_size_are_told_to_all() {
    let config = job(4);
    let mut configs: Vec<JoinConfig> = (0..4).map(|rank| as_rank(&config, rank)).collect();
    configs[3].world = 5;
    for error in errors(run(configs)) {
        let text = error.to_string();
        assert!(text.contains(": ranks 0, 1, 2 say 4; rank 3 at 127.0.0.1:"), "{text}");
        assert!(text.contains(&format!(", pid {}) says 5;", std::process::id())), "{text}");
    }
}

#[test]
fn facts_that_differ_are_told_to_all() {
    let config = job(3);
    let fact = |value: &str| vec![("simd".to_owned(), value.to_owned()), ("same".into(), "1".into())];
    let configs = ["avx2", "avx512", "avx2"].into_iter().zip(0..);
    let configs = configs.map(|(value, rank)| JoinConfig { facts: fact(value), ..as_rank(&config, rank) });
    for error in errors(run(configs.collect())) {
        let text = error.to_string();
        let plain = "ranks disagree on simd: ranks 0, 2 have \"avx2\"; rank 1 at 127.0.0.1:";
        assert!(text.starts_with(plain) && text.contains(") has \"avx512\";"), "{text}");
    }
}

#[test]
fn another_token_is_refused_and_the_root_says_so() {
    let config = hurried(2);
    let other = JoinConfig { token: Some(Token::random().unwrap()), ..as_rank(&config, 1) };
    let mut errors = errors(run(vec![as_rank(&config, 0), other]));
    assert!(matches!(errors.remove(1), InitError::Authentication { .. }));
    let text = errors.remove(0).to_string();
    assert!(text.contains("missing rank 1") && text.contains("did not prove the token"), "{text}");
}

#[test]
fn a_token_on_one_side_only_is_explained() {
    let config = hurried(2);
    let error =
        errors(run(vec![as_rank(&config, 0), JoinConfig { token: None, ..as_rank(&config, 1) }])).remove(1);
    assert!(error.to_string().contains("this process has no token"), "{error}");
}

#[test]
fn without_a_token_only_loopback_is_allowed() {
    // An address for documentation: nobody is asked anything.
    for rank in 0..2 {
        let rendezvous = Rendezvous::Root { address: "192.0.2.77:9".into() };
        let config = JoinConfig { rendezvous, token: None, ..as_rank(&hurried(2), rank) };
        let error = join_blocking(config).unwrap_err();
        assert!(
            matches!(&error, InitError::Config(text) if text.contains("allow_unauthenticated")),
            "{error}"
        );
    }
}

#[test]
fn a_root_address_of_another_host_is_explained() {
    let rendezvous = Rendezvous::Root { address: "192.0.2.77:9".into() };
    let error = join_blocking(JoinConfig { rendezvous, ..hurried(2) }).unwrap_err();
    assert!(error.to_string().contains("must be one of rank 0's host"), "{error}");
}

#[test]
fn a_root_that_never_starts_is_reported_with_tries_and_time() {
    let config = hurried(2);
    let error = join_blocking(as_rank(&config, 1)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, InitError::Unreachable { from: Rank(1), .. }), "{text}");
    assert!(
        text.contains("refused") && text.contains("times in") && text.contains("rendezvous deadline"),
        "{text}"
    );
}

#[test]
fn a_port_that_another_program_keeps_is_explained() {
    let config = hurried(2);
    let _other = std::net::TcpListener::bind(address_of(&config)).unwrap();
    let error = join_blocking(config).unwrap_err();
    assert!(error.to_string().contains("another program keeps the port"), "{error}");
}

#[test]
fn an_interface_that_is_not_there_is_told_to_all() {
    let config = job(2);
    let wrong = JoinConfig { interface: Some("l".into()), ..as_rank(&config, 1) };
    for error in errors(run(vec![as_rank(&config, 0), wrong])) {
        assert!(error.to_string().contains("lo 127.0.0.1 (the name only begins alike, loopback)"), "{error}");
    }
}

#[test]
fn too_few_ports_are_told_to_all() {
    let port = own_ports(1);
    let config = JoinConfig { interface: Some(own_ip()), port_range: Some(port..=port), ..job(3) };
    for error in errors(run_ranks(&config, 0..3)) {
        assert!(matches!(error, InitError::Limit { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{port}-{port}")), "{error}");
    }
}

#[test]
fn a_peer_of_the_next_version_is_told_and_all_others_too() {
    let config = job(2);
    let root = super::super::join(as_rank(&config, 0));
    block_on(async {
        let (_, outcome) = Puppet::reach(&as_rank(&config, 1), VERSION + 1).await;
        assert!(matches!(outcome, Err(handshake::Refusal::Version { theirs: VERSION, .. })));
        let error = root.await.unwrap_err();
        assert!(
            matches!(&error, InitError::Version { theirs, peer, .. } if *theirs == VERSION + 1 && peer.contains("rank 1")),
            "{error}"
        );
    });
}

#[test]
fn a_root_of_the_next_version_is_told() {
    let config = job(2);
    let member = super::super::join(as_rank(&config, 1));
    block_on(async {
        let listener = tokio::net::TcpListener::bind(address_of(&config)).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = handshake::hello(Kind::Control, true, 0, 0, [1; 32]);
        hello.version = VERSION + 1;
        let key = Key::control(config.token.as_ref(), b"");
        let welcome = |_: &Hello| Verdict::Welcome;
        let seen = handshake::accept(&mut stream, hello, &key, welcome).await;
        assert!(matches!(seen, Err(handshake::Refusal::Version { theirs: VERSION, from: 1 })));
        let error = member.await.unwrap_err();
        assert!(matches!(&error, InitError::Version { ours: VERSION, .. }), "{error}");
    });
}

/// A root that the test plays: it has proved the token and read the introduction.
async fn play_root(config: &JoinConfig) -> tokio::net::TcpStream {
    let listener = tokio::net::TcpListener::bind(address_of(config)).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let hello = handshake::hello(Kind::Control, true, 0, 0, nonce().unwrap());
    let key = Key::control(config.token.as_ref(), b"");
    handshake::accept(&mut stream, hello, &key, |_| Verdict::Welcome).await.unwrap();
    let first: ToRoot = message::receive(&mut stream, TO_ROOT_BYTES_MAX).await.unwrap();
    assert!(matches!(first, ToRoot::Join(_)));
    stream
}

async fn tell(stream: &mut tokio::net::TcpStream, message: &ToMember) {
    use tokio::io::AsyncWriteExt;
    stream.write_all(&message::encode(message, to_member_bytes_max(4)).unwrap()).await.unwrap();
}

#[test]
fn a_root_that_dies_is_named() {
    let config = job(3);
    let member = super::super::join(as_rank(&config, 1));
    let error = block_on(async {
        let mut root = play_root(&config).await;
        tell(&mut root, &ToMember::Accepted { decides_in: Duration::from_secs(20) }).await;
        drop(root);
        member.await.unwrap_err()
    });
    let named = format!("the root (rank 0) at {}", address_of(&config));
    assert!(matches!(&error, InitError::Lost { who, .. } if *who == named), "{error}");
}

#[test]
fn a_root_that_stops_is_reported_after_its_deadline() {
    let config = job(3);
    let member = super::super::join(as_rank(&config, 1));
    let error = block_on(async {
        let mut root = play_root(&config).await;
        tell(&mut root, &ToMember::Accepted { decides_in: Duration::from_millis(100) }).await;
        member.await.unwrap_err()
    });
    assert!(
        matches!(&error, InitError::Lost { reason, .. } if reason.contains("rendezvous deadline")),
        "{error}"
    );
}

#[test]
fn a_root_with_another_table_is_not_believed() {
    let config = job(3);
    let member = super::super::join(as_rank(&config, 1));
    let error = block_on(async {
        let mut root = play_root(&config).await;
        tell(&mut root, &ToMember::Accepted { decides_in: Duration::from_secs(20) }).await;
        tell(&mut root, &ToMember::Table(Table { nonce: [0; 32], members: vec![], facts: vec![] })).await;
        member.await.unwrap_err()
    });
    assert!(error.to_string().contains("table has 0 ranks instead of 3"), "{error}");
}

#[test]
fn a_member_that_dies_while_others_are_awaited_is_told_to_all() {
    let config = job(3);
    let root = super::super::join(as_rank(&config, 0));
    let error = block_on(async {
        drop(Puppet::seated(&as_rank(&config, 2), "127.0.0.1:9".parse().unwrap()).await);
        root.await.unwrap_err()
    });
    assert!(
        matches!(&error, InitError::Lost { who, .. } if who.contains("rank 2 at 127.0.0.1:9")),
        "{error}"
    );
}

#[test]
fn a_member_that_dies_while_connections_are_made_is_told_to_all() {
    let config = job(3);
    let others: Vec<_> = (0..2).map(|rank| super::super::join(as_rank(&config, rank))).collect();
    block_on(async {
        let mut puppet = Puppet::seated(&as_rank(&config, 2), "127.0.0.1:9".parse().unwrap()).await;
        assert!(matches!(puppet.hear().await, ToMember::Table(_)));
        drop(puppet);
        for other in others {
            let error = other.await.unwrap_err();
            assert!(
                matches!(&error, InitError::Lost { who, phase, .. } if who.contains("rank 2") && phase == "resources"),
                "{error}"
            );
        }
    });
}

#[test]
fn a_member_that_nobody_can_reach_is_told_to_all() {
    let config = JoinConfig { deadlines: hurried(2).deadlines, ..job(3) };
    let others = [0, 2].map(|rank| super::super::join(as_rank(&config, rank)));
    block_on(async {
        // Its address is closed: port 9 of an address that only this process uses.
        let closed: SocketAddr = format!("{}:9", own_ip()).parse().unwrap();
        let mut puppet = Puppet::seated(&as_rank(&config, 1), closed).await;
        assert!(matches!(puppet.hear().await, ToMember::Table(_)));
        for other in others {
            let error = other.await.unwrap_err();
            let text = error.to_string();
            let expected = InitError::Unreachable {
                from: Rank(2),
                to: "rank 1".into(),
                address: closed.to_string(),
                reason: String::new(),
            };
            assert!(text.starts_with(expected.to_string().as_str()), "{text}");
            assert!(text.contains("refused") && text.contains("link deadline"), "{text}");
        }
    });
}

/// Rank 1 can be reached by nobody, and reaches nobody.
#[test]
fn a_pair_that_fails_both_ways_is_told_to_all() {
    let config = JoinConfig {
        deadlines: Deadlines { link: Duration::from_millis(600), ..job(2).deadlines },
        ..job(2)
    };
    let root = super::super::join(as_rank(&config, 0));
    let error = block_on(async {
        let mut puppet = Puppet::seated(&as_rank(&config, 1), "127.0.0.1:9".parse().unwrap()).await;
        assert!(matches!(puppet.hear().await, ToMember::Table(_)));
        let (address, reason) = ("127.0.0.1:9".parse().unwrap(), "timed out".to_owned());
        let blocked = Blocked { from: Rank(1), to: Rank(0), address, reason };
        puppet.say(&ToRoot::Connected(vec![blocked])).await;
        let told = puppet.hear().await;
        assert!(matches!(&told, ToMember::Reverse(pairs) if *pairs == [(Rank(1), Rank(0))]), "{told:?}");
        puppet.say(&ToRoot::Connected(vec![])).await;
        let told = puppet.hear().await;
        assert!(matches!(told, ToMember::Failed(InitError::Unreachable { .. })), "{told:?}");
        root.await.unwrap_err()
    });
    let text = error.to_string();
    assert!(
        text.starts_with("rank 1 can't reach rank 0 at 127.0.0.1:9: timed out; nor does rank 0 reach it"),
        "{text}"
    );
}

/// A firewall at rank 1 lets nobody in; so rank 1 connects where it would be connected to.
#[test]
fn a_pair_that_fails_one_way_is_connected_the_other_way() {
    let config =
        JoinConfig { deadlines: Deadlines { link: Duration::from_secs(2), ..job(3).deadlines }, ..job(3) };
    let others = [0, 2].map(|rank| super::super::join(as_rank(&config, rank)));
    block_on(async {
        let closed: SocketAddr = format!("{}:9", own_ip()).parse().unwrap();
        let mut puppet = Puppet::seated(&as_rank(&config, 1), closed).await;
        let ToMember::Table(table) = puppet.hear().await else { panic!("no table") };
        let session = Key::control(config.token.as_ref(), b"").derive("hcomm session", &table.nonce);
        let mut streams = Vec::new();
        let dial_both = async |peer: u32| {
            let member = &table.members[peer as usize];
            let fast = dial(member, &session, Kind::Fast, (1, peer)).await.unwrap();
            [fast, dial(member, &session, Kind::Bulk, (1, peer)).await.unwrap()]
        };
        streams.extend(dial_both(0).await);
        puppet.say(&ToRoot::Connected(Vec::new())).await;
        let told = puppet.hear().await;
        assert!(matches!(&told, ToMember::Reverse(pairs) if *pairs == [(Rank(2), Rank(1))]), "{told:?}");
        streams.extend(dial_both(2).await);
        puppet.say(&ToRoot::Connected(Vec::new())).await;
        puppet.share().await;
        for other in others {
            let membership = other.await.unwrap();
            let all = super::streams(&membership);
            assert_eq!(all.iter().flatten().count(), 2);
            let fast = &all[1].unwrap().fast;
            assert!(streams.iter().any(|stream| stream.local_addr().unwrap() == fast.peer_addr().unwrap()));
        }
    });
}

/// Each time the file is read, and not only the first.
#[test]
fn a_file_that_names_an_open_address_needs_a_token() {
    let path = temporary("open");
    let notice = Notice { address: "192.0.2.77:9".parse().unwrap(), nonce: [1; 32] };
    let config =
        JoinConfig { rendezvous: Rendezvous::File { path: path.clone() }, token: None, ..hurried(2) };
    let near = Notice { address: "127.0.0.1:9".parse().unwrap(), nonce: [1; 32] };
    let near = Draft::write(&path, near).unwrap().publish().unwrap().ok().unwrap();
    let member = super::super::join(as_rank(&config, 1));
    thread::sleep(Duration::from_millis(100));
    drop(near);
    let _far = Draft::write(&path, notice).unwrap().publish().unwrap().ok().unwrap();
    let error = block_on(member).unwrap_err();
    assert!(matches!(&error, InitError::Config(text) if text.contains("allow_unauthenticated")), "{error}");
}
