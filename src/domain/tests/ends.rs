//! What is left when set-up ends early. Each runs in a process of its own: others would be counted as well.

use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;

/// Set in processes that run one `child_…` test; without it these have nothing to do.
pub(super) const CHILD: &str = "HCOMM_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// How many threads of this process have this name.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn in_own_process(test: &str) {
    let name = format!("domain::tests::ends::{test}");
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&status.stdout);
    assert!(
        status.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&status.stderr)
    );
}

#[test]
fn a_dropped_future_leaves_nothing_behind() {
    in_own_process("child_drops_futures");
}

#[test]
fn child_drops_futures() {
    if !is_child() {
        return;
    }
    let config = JoinConfig { deadlines: Deadlines::default(), ..job(3) };
    // tokio's signal driver, which only tests have, keeps two descriptors once it was used.
    drop(run_ranks(&config, 0..3));
    let before = descriptors();
    for _ in 0..5 {
        let futures: Vec<_> = (0..2).map(|rank| super::super::join(as_rank(&config, rank))).collect();
        while TcpStream::connect(address_of(&config)).is_err() {
            thread::sleep(Duration::from_millis(2));
        }
        drop(futures);
        // The default deadline is a minute: waiting less than that shows that they were cancelled.
        let started = std::time::Instant::now();
        while threads_named("hcomm-setup") > 0 || descriptors() > before {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{} descriptors, {before} before",
                descriptors()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
    let members: Vec<Membership> =
        run_ranks(&config, 0..3).into_iter().map(|outcome| outcome.unwrap()).collect();
    assert_eq!(descriptors(), before + 3 * 2 * 2);
    drop(members);
    assert_eq!(descriptors(), before);
}

#[test]
fn a_future_is_dropped_while_it_connects_to_a_black_hole() {
    in_own_process("child_connects_to_a_black_hole");
}

/// An address that answers nothing: its queue of connections is full, and nobody takes any.
fn black_hole() -> (socket2::Socket, Vec<TcpStream>, SocketAddr) {
    let address: SocketAddr = format!("{}:{}", own_ip(), own_ports(1)).parse().unwrap();
    let hole = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    hole.bind(&address.into()).unwrap();
    hole.listen(0).unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        queued.push(stream);
    }
    (hole, queued, address)
}

/// How many sockets of this host wait for this address to answer.
fn connecting_to(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else { panic!("{address} is none of this test's") };
    let shown = format!("{:08X}:{:04X} 02 ", u32::from_ne_bytes(address.ip().octets()), address.port());
    std::fs::read_to_string("/proc/net/tcp").unwrap().matches(&shown).count()
}

#[test]
fn child_connects_to_a_black_hole() {
    if !is_child() {
        return;
    }
    let (_hole, _queued, address) = black_hole();
    // Nothing ends by itself within this test.
    let long = Deadlines { rendezvous: Duration::from_secs(300), link: Duration::from_secs(300) };
    let rendezvous = Rendezvous::Root { address: address.to_string() };
    let config = JoinConfig { rendezvous, deadlines: long, ..job(2) };
    let (others, before) = (connecting_to(address), descriptors());
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let future = super::super::join(as_rank(&config, 1));
        while connecting_to(address) == others {
            thread::sleep(Duration::from_millis(1));
        }
        let dropped = std::time::Instant::now();
        drop(future);
        while threads_named("hcomm-setup") > 0 || connecting_to(address) > others {
            thread::sleep(Duration::from_millis(1));
        }
        quickest = quickest.min(dropped.elapsed());
    }
    // A few milliseconds, and a second try of the system would be a second later.
    assert!(quickest < Duration::from_secs(1), "{quickest:?}");
    assert!(descriptors() <= before + 2, "{} descriptors, {before} before", descriptors());
}

/// For trials on several hosts or in several network namespaces: settings from the environment.
#[test]
fn child_joins_from_env() {
    if !is_child() {
        return;
    }
    let seconds =
        |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok()).map(Duration::from_secs_f32);
    let mut config = super::super::from_env().unwrap();
    config.deadlines.rendezvous = seconds("HCOMM_TEST_RENDEZVOUS_S").unwrap_or(config.deadlines.rendezvous);
    config.deadlines.link = seconds("HCOMM_TEST_LINK_S").unwrap_or(config.deadlines.link);
    match join_blocking(config) {
        Ok(membership) => {
            let addresses: Vec<String> =
                membership.members.iter().map(|member| member.address.to_string()).collect();
            let same: Vec<bool> =
                streams(&membership).iter().flatten().map(|streams| streams.same_host).collect();
            let text = format!("joined: {} same host: {same:?}\n", addresses.join(" "));
            std::io::stderr().write_all(text.as_bytes()).unwrap();
        }
        Err(error) => panic!("{error}"),
    }
}

/// What each of three processes says that join with these variables, beside those that every launcher sets.
fn launched(port: u16, variables: &[(&str, &str)]) -> Vec<String> {
    let start = |rank: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "domain::tests::ends::child_joins_from_env", "--nocapture"])
            .env("HCOMM_SHARED_MEMORY", "never")
            .envs([(CHILD, "1"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3")])
            .envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())])
            .envs([("MASTER_ADDR", own_ip()), ("MASTER_PORT", port.to_string())])
            .envs(variables.iter().copied())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<_> = (0..3).map(start).collect();
    let ended = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap().stderr);
    ended.map(|said| String::from_utf8_lossy(&said).into_owned()).collect()
}

/// Its agent listens on MASTER_PORT for as long as the job runs, and must not hear of us.
#[test]
fn a_store_on_the_master_port_is_left_alone() {
    let port = own_ports(3);
    let store = std::net::TcpListener::bind((own_ip().as_str(), port)).unwrap();
    store.set_nonblocking(true).unwrap();
    for variables in [
        &[("TORCHELASTIC_RUN_ID", "job")][..],
        &[("TORCHELASTIC_RUN_ID", "job"), ("TORCHELASTIC_USE_AGENT_STORE", "True")],
        &[("HCOMM_ROOT_PORT", &(port + 2).to_string())],
    ] {
        for said in launched(port, variables) {
            assert!(said.starts_with("joined: ") && said.contains("[true, true]"), "{variables:?}: {said}");
        }
        let heard = store.accept().map(|(_, from)| from);
        assert_eq!(heard.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "{variables:?}");
    }
    // Where nothing says that it is torchrun's, the port should have been free.
    let hurry = [("HCOMM_TEST_RENDEZVOUS_S", "2"), ("HCOMM_TEST_LINK_S", "0.3")];
    let said = &launched(port, &hurry)[0];
    assert!(said.contains(&format!("{}:{port}", own_ip())) && said.contains("HCOMM_ROOT_PORT"), "{said}");
}

#[test]
fn limits_are_checked_at_the_start() {
    in_own_process("child_has_few_descriptors");
}

#[test]
fn child_has_few_descriptors() {
    if !is_child() {
        return;
    }
    // The soft limit is raised where that is enough.
    setrlimit(Resource::Nofile, Rlimit { current: Some(40), maximum: Some(100) }).unwrap();
    check_streams(run_ranks(&job(2), 0..2).into_iter().map(|outcome| outcome.unwrap()).collect());
    let error = join_blocking(hurried(64)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, InitError::Limit { available: 100, needed, .. } if needed > 189), "{text}");
    assert!(text.contains("LimitNOFILE"), "{text}");
}

/// What the user opens while ranks meet must not fail for want of descriptors, whoever comes.
const OPENED_MEANWHILE: usize = 20;

/// Rank 0 has as many descriptors as it needs and no more, its control connections to all others are there, and so are its
/// data connections in the end; and 200 that say nothing come to each of its ports.
#[test]
fn visitors_take_no_descriptor_that_the_job_needs() {
    let config = JoinConfig { deadlines: Deadlines::default(), ..job(64) };
    // For this test's own ends of all that.
    let _ = super::super::check_local_limits(400);
    let address = address_of(&config);
    let root = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "domain::tests::ends::child_has_no_descriptor_to_spare", "--nocapture"])
        .envs([(CHILD, "1"), ("RANK", "0"), ("WORLD_SIZE", "64")])
        .envs([("MASTER_ADDR", own_ip()), ("MASTER_PORT", address.port().to_string())])
        .env("HCOMM_TOKEN", config.token.as_ref().unwrap().to_hex())
        .env("HCOMM_SHARED_MEMORY", "never")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    block_on(async {
        let mut others = vec![Puppet::seated(&as_rank(&config, 1), "127.0.0.1:9".parse().unwrap()).await];
        let _silent = super::strangers::silent(address, 200);
        for rank in 2..config.world {
            others.push(Puppet::seated(&as_rank(&config, rank), "127.0.0.1:9".parse().unwrap()).await);
        }
        let mut streams = Vec::new();
        let mut visitors = Vec::new();
        for (puppet, rank) in others.iter_mut().zip(1..) {
            let ToMember::Table(table) = puppet.hear().await else { panic!("no table") };
            let session = Key::control(config.token.as_ref(), b"").derive("hcomm session", &table.nonce);
            if visitors.is_empty() {
                visitors = super::strangers::silent(table.members[0].address, 200);
            }
            for kind in [Kind::Fast, Kind::Bulk] {
                streams.push(dial(&table.members[0], &session, kind, (rank, 0)).await.unwrap());
            }
        }
        for puppet in &mut others {
            puppet.say(&ToRoot::Connected(Vec::new())).await;
        }
        for puppet in &mut others {
            puppet.shares().await;
        }
        for puppet in &mut others {
            puppet.may_begin().await;
        }
    });
    let output = root.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn child_has_no_descriptor_to_spare() {
    use std::sync::atomic::AtomicBool;
    if !is_child() {
        return;
    }
    // Too few: joining raises it to what it needs.
    let few = Rlimit { current: Some(64), ..rustix::process::getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, few).unwrap();
    let joined = AtomicBool::new(false);
    thread::scope(|scope| {
        let user = scope.spawn(|| {
            while !joined.load(Ordering::Relaxed) {
                if rustix::process::getrlimit(Resource::Nofile).current == few.current {
                    continue;
                }
                let opened = (0..OPENED_MEANWHILE).map(|_| std::fs::File::open("/dev/null"));
                let opened: Vec<std::io::Result<std::fs::File>> = opened.collect();
                assert!(opened.iter().all(Result::is_ok), "{opened:?}");
                thread::sleep(Duration::from_micros(200));
            }
        });
        let membership = join_blocking(super::super::from_env().unwrap());
        // All connections of set-up and of the job.
        joined.store(true, Ordering::Relaxed);
        user.join().unwrap();
        assert_eq!(streams(&membership.unwrap()).iter().flatten().count(), 63);
    });
}
