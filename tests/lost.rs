//! Processes that are killed, stopped, or leave: survivors are told who, and nothing that was sent is lost.

mod common;

use std::time::{Duration, Instant};

use common::processes::{PORTS, Place, Processes, Role, say, taken};
use common::{Random, class, meeting_place};
use hcomm::{Communicator, Error, Rank, ReduceOp};
use rustix::process::Signal;

/// What a process of a world does, told by the environment; nothing in the test run itself.
#[test]
fn child() {
    let Some(Role { scenario, count, before, joined }) = Role::of_this_process() else { return };
    let comm = match joined {
        Ok(comm) => comm,
        Err(error) => {
            say(&format!("not joined: {error}"));
            drop(error);
            give_back(before);
            std::process::exit(0);
        }
    };
    match scenario.as_str() {
        "reduce" => {
            reduce_until_told(comm, count, Duration::MAX);
            give_back(before);
        }
        "reduce for a while" => reduce_until_told(comm, count, Duration::from_millis(4500)),
        "leave" => leave(comm, count),
        "receive and close" => close_with_all_under_way(comm, count, true),
        "close and receive" => close_with_all_under_way(comm, count, false),
        "exit" => exit_after_the_last(comm, count),
        other => panic!("no scenario {other}"),
    }
    // As a program that ends: nothing is waited for.
    std::process::exit(0);
}

/// The communicator is gone; says what stays of what was taken for it.
fn give_back(before: (usize, usize)) {
    let until = Instant::now() + Duration::from_secs(15);
    let left = loop {
        let now = taken();
        let left = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        if left == (0, 0) || Instant::now() > until {
            break left;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open: Vec<_> = open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let open = if left.0 > 0 { format!(": {open:?}") } else { String::new() };
    say(&format!("gave back all but {} descriptors, {} threads{open}", left.0, left.1));
}

fn reduce_until_told(mut comm: Communicator, count: usize, limit: Duration) {
    let (me, n) = (comm.rank().0, comm.size());
    let begun = Instant::now();
    let mut buffer = vec![0u32; count];
    for round in 0u32.. {
        let stop = me == 0 && begun.elapsed() > limit;
        buffer.fill(round);
        buffer[0] = u32::from(stop);
        match comm.all_reduce(buffer, ReduceOp::Sum).wait() {
            Ok(sum) => {
                assert!(sum[1..].iter().all(|value| *value == n as u32 * round), "rank {me} round {round}");
                if round == 3 {
                    say("running");
                }
                if sum[0] > 0 {
                    say("done");
                    return;
                }
                buffer = sum;
            }
            Err(error) => {
                let error = Error::from(error);
                let blamed: Vec<String> = error.blamed().iter().map(Rank::to_string).collect();
                say(&format!("{} {}", class(&error), blamed.join(" ")));
                let host = if let Error::PeerLost { host, .. } = &error { &**host } else { "none" };
                say(&format!("in full: on {host}: {error}"));
                // What comes next fails at once, and does not hang.
                let next = comm.all_reduce(vec![0u32], ReduceOp::Sum).wait().unwrap_err();
                assert_eq!(class(&next.error), "failed", "{next}");
                return;
            }
        }
    }
}

/// Rank 0 sends to all and leaves; the others receive later.
fn leave(comm: Communicator, count: usize) {
    if comm.rank() == Rank(0) {
        let others = 1..comm.size() as u32;
        let small: Vec<_> = others.clone().map(|to| comm.send(Rank(to), 1, vec![to; 100])).collect();
        let large: Vec<_> = others.map(|to| comm.send(Rank(to), 2, vec![to; count])).collect();
        let last: Vec<_> = (1..comm.size() as u32).map(|to| comm.send(Rank(to), 8, vec![to])).collect();
        small.into_iter().chain(large).chain(last).for_each(|sent| drop(sent.wait().unwrap()));
        drop(comm);
    } else {
        let me = comm.rank().0;
        let large = comm.recv(Rank(0), 2, vec![0u32; count]).wait().unwrap();
        assert_eq!(large, vec![me; count]);
        // By now rank 0 is gone, or about to be.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(comm.recv(Rank(0), 1, vec![0u32; 100]).wait().unwrap(), vec![me; 100]);
        let error = comm.recv(Rank(0), 1, vec![0u32; 100]).wait().unwrap_err();
        assert_eq!(class(&error.error), "left", "{error}");
        // One message is there, but with another tag than this.
        let error = comm.recv(Rank(0), 9, vec![0u32; 100]).wait().unwrap_err();
        assert_eq!(class(&error.error), "left", "{error}");
        assert_eq!(comm.recv(Rank(0), 8, vec![0u32; 1]).wait().unwrap(), [me]);
    }
    say("done");
}

/// Rank 0 sends much that nobody has received yet, detaches it all, closes, and ends. The others receive later, or have begun
/// to and close as well.
fn close_with_all_under_way(mut comm: Communicator, count: usize, receive_first: bool) {
    /// More than the eager budget, so that some of these are offered, and more than the system takes.
    const SMALL: usize = 400;
    let (me, n) = (comm.rank().0, comm.size() as u32);
    let value = |to: u32, tag: usize| to * 1000 + tag as u32;
    if me == 0 {
        for to in 1..n {
            drop(comm.send(Rank(to), 0, vec![value(to, 0); count]));
            (1..SMALL).for_each(|tag| drop(comm.send(Rank(to), tag as u32, vec![value(to, tag); 1500])));
            drop(comm.send(Rank(to), SMALL as u32, vec![value(to, SMALL); count]));
        }
        drop(comm.broadcast(vec![7u32; count], Rank(0)));
        comm.close().wait().unwrap();
        // Nothing waits for what is under way.
        say("done");
        std::process::exit(0);
    }
    let length = |tag: usize| if tag == 0 || tag == SMALL { count } else { 1500 };
    let receive = |tag: usize| comm.recv(Rank(0), tag as u32, vec![0u32; length(tag)]);
    let check = |tag: usize, got: Vec<u32>| {
        assert!(got.iter().all(|of| *of == value(me, tag)), "rank {me} tag {tag}");
    };
    // Long enough for the sender to wait in its close.
    std::thread::sleep(Duration::from_millis(300));
    if receive_first {
        (0..=SMALL).rev().for_each(|tag| check(tag, receive(tag).wait().unwrap()));
        let sum = comm.broadcast(vec![0u32; count], Rank(0)).wait().unwrap();
        assert!(sum == vec![7; count]);
        comm.close().wait().unwrap();
    } else {
        let begun: Vec<_> = (0..=SMALL).map(receive).collect();
        let sum = comm.broadcast(vec![0u32; count], Rank(0));
        comm.close().wait().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        for (tag, received) in begun.into_iter().enumerate() {
            check(tag, received.wait().unwrap_or_else(|error| panic!("rank {me} tag {tag}: {error}")));
        }
        assert!(sum.wait().unwrap() == vec![7; count]);
    }
    say("done");
}

/// Every process exits right after its last operation; its handle is dropped, and nothing waited for.
fn exit_after_the_last(mut comm: Communicator, count: usize) {
    let (me, n) = (comm.rank().0, comm.size() as u32);
    for round in 0..3 {
        let sum = comm.all_reduce(vec![me + round; count], ReduceOp::Sum).wait().unwrap();
        assert_eq!(sum, vec![n * (n - 1) / 2 + n * round; count]);
    }
    let got = comm.broadcast(vec![me; count], Rank(1)).wait().unwrap();
    assert_eq!(got, vec![1; count]);
    drop(comm);
    say("done");
    std::process::exit(0);
}

#[test]
fn survivors_of_a_killed_process_all_name_it() {
    for count in [2usize, 4 << 20] {
        for n in [2, 3, 4] {
            let victim = n - 2;
            let place = meeting_place();
            let mut world = Processes::start("reduce", n, count, &place, 30);
            world.all_say("running", None);
            world.signal(victim, Signal::KILL);
            world.all_say(&format!("peer lost {victim}"), Some(victim));
            world.end(Some(victim));
            assert!(!place.exists());
        }
    }
}

/// What the survivors of a kill are told, and how long after it the last of them was told.
fn told_of_a_kill(n: usize, count: usize) -> Duration {
    let victim = n - 2;
    let mut world = Processes::start("reduce", n, count, &meeting_place(), 30);
    world.all_say("running", None);
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (host, process) = (format!("on host {name}, address "), format!(", process {}", world.pid(victim)));
    let killed = Instant::now();
    world.signal(victim, Signal::KILL);
    let (mut last, mut open) = (Duration::ZERO, n - 1);
    while open > 0 {
        let (rank, said) = world.next();
        let Some(said) = said else { continue };
        if said == format!("peer lost {victim}") {
            last = killed.elapsed();
        } else if let Some(full) = said.strip_prefix("in full: ") {
            let (named, error) = full.split_once(": ").unwrap();
            assert!(named.starts_with(&host) && named.ends_with(&process), "rank {rank}: {full}");
            let named = named.trim_start_matches("on ");
            assert!(error.contains(&format!("rank {victim} ({named}) is lost")), "rank {rank}: {full}");
            open -= 1;
        } else {
            // One may have ended before another is told.
            let besides = said == "running" || said.starts_with("gave back");
            assert!(rank == victim || besides, "rank {rank} says: {said}");
        }
    }
    world.end(Some(victim));
    last
}

/// The one in the middle, since a machine may be busy with something else.
#[test]
fn survivors_are_told_of_a_kill_at_once_and_on_which_host() {
    /// From the kill on, for a process that has less than a GiB of memory: the system frees that first.
    const LIMIT: Duration = Duration::from_millis(200);
    for count in [2usize, 1 << 20] {
        let mut times: Vec<Duration> = (0..5).map(|time| told_of_a_kill(2 + time % 3, count)).collect();
        say(&format!("{count} elements: the last survivor was told after {times:.0?}"));
        times.sort_unstable();
        assert!(times[times.len() / 2] <= LIMIT, "{count} elements: after {times:?}");
    }
}

#[test]
fn a_process_that_is_stopped_for_three_seconds_is_not_given_up() {
    let place = meeting_place();
    let mut world = Processes::start("reduce for a while", 3, 5000, &place, 30);
    world.all_say("running", None);
    world.signal(1, Signal::STOP);
    std::thread::sleep(Duration::from_secs(3));
    world.signal(1, Signal::CONT);
    world.all_say("done", None);
    world.end(None);
}

/// As a quota of processor time does.
#[test]
fn a_process_that_runs_for_a_twentieth_of_the_time_is_not_given_up() {
    for (n, count) in [(3, 5000), (2, 2)] {
        let mut world = Processes::start("reduce for a while", n, count, &meeting_place(), 30);
        world.all_say("running", None);
        for _ in 0..30 {
            world.signal(1, Signal::STOP);
            std::thread::sleep(Duration::from_millis(95));
            world.signal(1, Signal::CONT);
            std::thread::sleep(Duration::from_millis(5));
        }
        world.all_say("done", None);
        world.end(None);
    }
}

#[test]
fn what_was_sent_arrives_although_its_sender_has_left() {
    for count in [2000usize, 4 << 20] {
        for _ in 0..3 {
            let mut world = Processes::start("leave", 3, count, &meeting_place(), 30);
            world.all_say("done", None);
            world.end(None);
        }
    }
}

#[test]
fn what_was_sent_before_a_close_arrives_although_its_sender_has_ended() {
    for count in [2000usize, 4 << 20] {
        for n in [2, 3] {
            for order in ["receive and close", "close and receive"] {
                let mut world = Processes::start(order, n, count, &meeting_place(), 30);
                world.all_say("done", None);
                world.end(None);
            }
        }
    }
}

fn exit(times: usize) {
    for time in 0..times {
        let count = [1usize, 3000, 100_000, 1 << 20][time % 4];
        let mut world = Processes::start("exit", 2 + time % 2, count, &meeting_place(), 30);
        world.all_say("done", None);
        world.end(None);
    }
}

#[test]
fn processes_that_exit_after_their_last_operation_lose_nothing() {
    exit(16);
}

#[test]
#[ignore = "takes a minute"]
fn processes_that_exit_after_their_last_operation_lose_nothing_200_times() {
    exit(200);
}

/// Kills one of three processes at some point, from before set-up on: the others end by themselves, having given back what
/// they took, and the next world meets at the same place.
fn kill(place: Place, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut random = Random(seed);
        let (victim, delay_ms) = (random.below(3), random.below(200) as u64);
        let count = [2usize, 50_000, 1 << 20][random.below(3)];
        let mut world = Processes::start("reduce", 3, count, place, 3);
        std::thread::sleep(Duration::from_millis(delay_ms));
        world.signal(victim, Signal::KILL);
        let context = format!("seed {seed} victim {victim} after {delay_ms} ms");
        let (mut ended, mut gave_back) = (0, 0);
        while ended < 3 {
            let (rank, said) = world.next();
            match said {
                None => ended += 1,
                Some(said) if rank == victim || said == "running" => {}
                Some(said) if said == "gave back all but 0 descriptors, 0 threads" => gave_back += 1,
                Some(said) => {
                    let lost = said == format!("peer lost {victim}") || said.starts_with("in full");
                    let told = said.starts_with("not joined") && names(&said, victim);
                    assert!(lost || told, "{context}: rank {rank} says: {said}");
                }
            }
        }
        assert_eq!(gave_back, 2, "{context}");
        world.end(Some(victim));
    }
    let mut world = Processes::start("exit", 3, 100, place, 30);
    world.all_say("done", None);
    world.end(None);
}

/// Whether the error of a failed set-up says who is missing, be it as the root.
fn names(said: &str, victim: usize) -> bool {
    said.contains(&format!("rank {victim}")) || victim == 0 && said.contains("root")
}

fn kill_at_a_file(seeds: std::ops::Range<u64>) {
    let place = meeting_place();
    kill(Place::from(&place), seeds);
    let prefix = place.file_name().unwrap().to_str().unwrap();
    let left: Vec<_> = std::fs::read_dir(place.parent().unwrap())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| *name == prefix || name.starts_with(&format!("{prefix}.")))
        .collect();
    assert!(left.is_empty(), "left over: {left:?}");
}

/// The next world binds the same ports at once.
fn kill_at_an_address(seeds: std::ops::Range<u64>) {
    // Below what the system hands out by itself, and not where other tests are.
    let first = 28_000 + (std::process::id() % 500) as u16 * PORTS;
    kill(Place::Ports(first), seeds);
}

#[test]
fn a_process_killed_at_any_point_leaves_nothing_behind() {
    kill_at_a_file(0..5);
    kill_at_an_address(5..10);
}

#[test]
#[ignore = "takes a minute"]
fn a_process_killed_at_any_of_a_hundred_points_leaves_nothing_behind() {
    kill_at_a_file(0..50);
    kill_at_an_address(50..100);
}
