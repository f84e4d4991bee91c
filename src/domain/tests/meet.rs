//! Ranks that come together.

use std::os::unix::fs::PermissionsExt;

use super::super::publish::{self, Draft, Notice};
use super::*;

fn meet(config: &JoinConfig) {
    let outcomes = run_ranks(config, 0..config.world);
    check_streams(outcomes.into_iter().map(|outcome| outcome.unwrap()).collect());
}

#[test]
fn two_to_four_ranks_meet_at_an_address() {
    (2..=4).for_each(|world| meet(&job(world)));
}

#[test]
fn sixteen_ranks_meet() {
    meet(&job(16));
}

#[test]
fn one_rank_needs_nobody() {
    check_streams(vec![join_blocking(JoinConfig::default()).unwrap()]);
}

/// The future needs a waker and nothing else.
#[test]
fn any_executor_will_do() {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let config = job(2);
    let waker = std::sync::Arc::new(Unpark(thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let futures = [0, 1].map(|rank| super::super::join(as_rank(&config, rank)));
    let outcomes = futures.map(|mut future| {
        loop {
            match std::pin::Pin::new(&mut future).poll(&mut context) {
                std::task::Poll::Ready(outcome) => return outcome.unwrap(),
                std::task::Poll::Pending => thread::park(),
            }
        }
    });
    check_streams(outcomes.into());
}

/// Inside a runtime, whose thread it blocks.
#[test]
fn blocking_works_inside_a_runtime() {
    let config = job(2);
    let other = super::super::join(as_rank(&config, 0));
    let member = block_on(async { join_blocking(as_rank(&config, 1)).unwrap() });
    check_streams(vec![block_on(other).unwrap(), member]);
}

#[test]
fn loopback_needs_no_token() {
    meet(&JoinConfig { token: None, ..job(3) });
}

#[test]
fn a_name_may_have_addresses_of_both_families() {
    let address = format!("localhost:{}", own_ports(1) + (std::process::id() % 4096) as u16);
    meet(&JoinConfig { rendezvous: Rendezvous::Root { address }, ..job(3) });
}

#[test]
fn the_root_may_come_last() {
    let config = job(3);
    let early: Vec<_> = (1..3).map(|rank| super::super::join(as_rank(&config, rank))).collect();
    thread::sleep(Duration::from_millis(100));
    let mut all = vec![join_blocking(as_rank(&config, 0)).unwrap()];
    all.extend(early.into_iter().map(|future| block_on(future).unwrap()));
    check_streams(all);
}

#[test]
fn a_root_on_every_address_tells_one_that_works() {
    let port = own_ports(1) + 4096 + (std::process::id() % 4096) as u16;
    let place = |host: &str| Rendezvous::Root { address: format!("{host}:{port}") };
    let config = job(3);
    let root = JoinConfig { rendezvous: place("[::]"), ..as_rank(&config, 0) };
    let members = (1..3).map(|rank| JoinConfig { rendezvous: place("127.0.0.1"), ..as_rank(&config, rank) });
    let outcomes = run(std::iter::once(root).chain(members).collect());
    check_streams(outcomes.into_iter().map(|outcome| outcome.unwrap()).collect());
}

#[test]
fn ranks_meet_at_a_file_over_ipv6() {
    let path = temporary("v6");
    let config = JoinConfig { interface: Some("::1".into()), ..job(3) };
    meet(&JoinConfig { rendezvous: Rendezvous::File { path: path.clone() }, ..config });
    assert!(!path.exists());
}

#[test]
fn the_file_is_private_and_ends_with_its_root() {
    let path = temporary("private");
    let config = JoinConfig { rendezvous: Rendezvous::File { path: path.clone() }, ..job(2) };
    let root = super::super::join(as_rank(&config, 0));
    while publish::read(&path).is_err() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(root);
    while path.exists() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// As a job that was killed leaves it.
fn leave(path: &std::path::Path, notice: Notice) {
    let published = Draft::write(path, notice).unwrap().publish().unwrap().ok().unwrap();
    let text = std::fs::read(path).unwrap();
    drop(published);
    std::fs::write(path, text).unwrap();
}

/// The file names a place where somebody else listens by now; the members find that out, and read again.
#[test]
fn a_stale_file_confuses_nobody() {
    let path = temporary("stale");
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let notice = Notice { address: stranger.local_addr().unwrap(), nonce: [1; 32] };
    leave(&path, notice);
    let config = JoinConfig { rendezvous: Rendezvous::File { path: path.clone() }, token: None, ..job(3) };
    let early: Vec<_> = (1..3).map(|rank| super::super::join(as_rank(&config, rank))).collect();
    let (first, _) = stranger.accept().unwrap();
    drop((first, stranger));
    let mut all = vec![join_blocking(as_rank(&config, 0)).unwrap()];
    all.extend(early.into_iter().map(|future| block_on(future).unwrap()));
    check_streams(all);
    assert!(!path.exists());
}

/// What is left over may be the place of a root that lives, and that belongs to another rendezvous.
#[test]
fn a_root_that_the_file_does_not_mean_is_refused() {
    let other = job(2);
    let other = JoinConfig { token: None, ..other };
    let foreign = super::super::join(as_rank(&other, 0));
    let path = temporary("foreign");
    let notice = Notice { address: address_of(&other), nonce: [1; 32] };
    leave(&path, notice);
    let config =
        JoinConfig { rendezvous: Rendezvous::File { path: path.clone() }, token: None, ..hurried(2) };
    let error = join_blocking(as_rank(&config, 1)).unwrap_err();
    assert!(
        matches!(&error, InitError::Authentication { reason, .. } if reason.contains("another rendezvous")),
        "{error}"
    );
    std::fs::remove_file(path).unwrap();
    let member = join_blocking(as_rank(&other, 1)).unwrap();
    check_streams(vec![block_on(foreign).unwrap(), member]);
}

#[test]
fn two_jobs_at_one_port_follow_each_other() {
    let first = job(2);
    let second = JoinConfig { token: Some(Token::random().unwrap()), ..first.clone() };
    let both = [&first, &second].into_iter().flat_map(|config| [as_rank(config, 0), as_rank(config, 1)]);
    let mut outcomes: Vec<Membership> =
        run(both.collect()).into_iter().map(|outcome| outcome.unwrap()).collect();
    let later = outcomes.split_off(2);
    assert_ne!(later[0].session, outcomes[0].session);
    check_streams(outcomes);
    check_streams(later);
}

#[test]
fn two_jobs_at_one_file_follow_each_other() {
    let path = temporary("two");
    let first = JoinConfig { rendezvous: Rendezvous::File { path: path.clone() }, ..job(2) };
    let second = JoinConfig { token: Some(Token::random().unwrap()), ..first.clone() };
    let both = [&first, &second].into_iter().flat_map(|config| [as_rank(config, 0), as_rank(config, 1)]);
    let mut outcomes: Vec<Membership> =
        run(both.collect()).into_iter().map(|outcome| outcome.unwrap()).collect();
    check_streams(outcomes.split_off(2));
    check_streams(outcomes);
    assert!(!path.exists());
}

#[test]
fn two_groups_of_one_job_at_one_port_follow_each_other() {
    let first = job(3);
    let second = JoinConfig { name: "other".into(), ..first.clone() };
    let both = [&first, &second].into_iter().flat_map(|config| (0..3).map(|rank| as_rank(config, rank)));
    let mut outcomes: Vec<Membership> =
        run(both.collect()).into_iter().map(|outcome| outcome.unwrap()).collect();
    let later = outcomes.split_off(3);
    check_streams(outcomes);
    check_streams(later);
}

#[test]
fn an_address_used_again_makes_a_new_session() {
    let config = job(2);
    let sessions: Vec<[u8; 32]> =
        (0..3).map(|_| run_ranks(&config, 0..2).remove(0).unwrap().session).collect();
    assert!(sessions[0] != sessions[1] && sessions[1] != sessions[2]);
}

#[test]
fn data_ports_come_from_the_range() {
    let first = own_ports(3);
    let config = JoinConfig { interface: Some(own_ip()), port_range: Some(first..=first + 2), ..job(3) };
    let outcomes: Vec<Membership> =
        run_ranks(&config, 0..3).into_iter().map(|outcome| outcome.unwrap()).collect();
    let mut ports: Vec<u16> = outcomes[1].members.iter().map(|member| member.address.port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, [first, first + 1, first + 2]);
    check_streams(outcomes);
}

/// Before anybody has come, the file names a port of the range; and where all ports are needed they suffice.
#[test]
fn the_root_s_port_at_a_file_comes_from_the_range() {
    let (first, path) = (own_ports(4), temporary("range"));
    let config = JoinConfig {
        rendezvous: Rendezvous::File { path: path.clone() },
        interface: Some(own_ip()),
        port_range: Some(first..=first + 3),
        ..job(3)
    };
    let root = super::super::join(as_rank(&config, 0));
    let notice = loop {
        match publish::read(&path) {
            Ok(notice) => break notice,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!((first..=first + 3).contains(&notice.address.port()), "{}", notice.address);
    let mut all: Vec<Membership> =
        run_ranks(&config, 1..3).into_iter().map(|outcome| outcome.unwrap()).collect();
    all.insert(0, block_on(root).unwrap());
    let mut ports: Vec<u16> = all[0].members.iter().map(|member| member.address.port()).collect();
    ports.push(notice.address.port());
    ports.sort_unstable();
    assert_eq!(ports, [first, first + 1, first + 2, first + 3]);
    check_streams(all);
}

#[test]
fn a_range_without_a_port_for_the_root_at_a_file_is_explained() {
    let (first, path) = (own_ports(2), temporary("narrow"));
    let config = JoinConfig {
        rendezvous: Rendezvous::File { path },
        interface: Some(own_ip()),
        port_range: Some(first..=first + 1),
        ..job(2)
    };
    for error in errors(run_ranks(&config, 0..2)) {
        let text = error.to_string();
        assert!(matches!(error, InitError::Limit { .. }) && text.contains("one more on rank 0's"), "{text}");
    }
}

#[test]
fn facts_that_agree_in_any_order_are_fine() {
    let facts = |order: [usize; 2]| order.map(|i| (["a", "b"][i].to_owned(), "1".to_owned())).to_vec();
    let config = job(2);
    let outcomes = run(vec![
        JoinConfig { facts: facts([0, 1]), ..as_rank(&config, 0) },
        JoinConfig { facts: facts([1, 0]), ..as_rank(&config, 1) },
    ]);
    check_streams(outcomes.into_iter().map(|outcome| outcome.unwrap()).collect());
}
