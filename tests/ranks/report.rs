//! Reports are written where the user says, and tell enough to be put together.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::processes::{Processes, Role, say};
use crate::common::{GENEROUS, LINKS, assert_usable, connect, meeting_place, run};
use hcomm::{Communicator, Error, LinkKind, LinkState, Rank, ReduceOp, Report, ReportKind, Seq};
use rustix::process::Signal;

/// What a process of a world does: each receives from the next, and nobody sends.
pub fn child(Role { count, joined, .. }: Role) {
    let mut comm = joined.unwrap();
    let me = comm.rank().0;
    comm.report_to(std::env::temp_dir().join(format!("hcomm-cycle-{count}"))).unwrap();
    assert_usable(&mut comm);
    let next = Rank((me + 1) % 3);
    let received = comm.recv(next, 10 + me, vec![0u8; 5]);
    std::thread::spawn(|| {
        // The service thread has told the others by then, and they this one.
        std::thread::sleep(Duration::from_millis(700));
        say("waiting");
    });
    assert!(received.wait().is_err());
    drop(comm);
    say("done");
    std::process::exit(0);
}

#[test]
fn receives_in_a_circle_are_known_to_the_survivors_of_one_of_them() {
    let number = std::process::id() as usize;
    let path = std::env::temp_dir().join(format!("hcomm-cycle-{number}"));
    let _ = std::fs::remove_file(&path);
    let mut world = Processes::start("report: circle", 3, number, &meeting_place(), 30);
    world.all_say("waiting", None);
    world.signal(2, Signal::KILL);
    world.all_say("done", Some(2));
    world.end(Some(2));
    let text = std::fs::read_to_string(&path).unwrap();
    let mut reports: Vec<Report> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    reports.sort_by_key(|report| report.rank);
    assert_eq!(reports.len(), 2, "{text}");
    assert!(!reports[0].run.is_empty() && reports[0].run == reports[1].run, "{text}");
    assert!(reports[0].pid != reports[1].pid && reports.iter().all(|report| report.unix_ms > 0), "{text}");
    assert!(reports.iter().all(|report| report.kind == ReportKind::PeerLost), "{text}");
    let mut down = false;
    for (report, me) in reports.iter().zip(0u32..) {
        assert_eq!((report.rank, &report.late[..]), (Rank(me), &[Rank(2)][..]), "{report:?}");
        assert_eq!(
            (report.completed, &report.waits_for[..]),
            (Some(Seq(0)), &[Rank(me + 1)][..]),
            "{report:?}"
        );
        let lost =
            report.known.iter().find(|known| known.rank == Rank(2)).expect("it had told what it was in");
        let (operation, number) = lost.operation.as_ref().unwrap();
        assert!(operation.starts_with("recv(") && operation.contains("tag 12"), "{operation}");
        assert_eq!((*number, &lost.waits_for[..]), (Seq(0), &[Rank(0)][..]), "{lost:?}");
        let states: Vec<_> = report.links.iter().map(|link| (link.rank.0, link.kind, link.state)).collect();
        assert!(
            states.len() == 2 && states.iter().all(|(_, kind, _)| *kind == LinkKind::SharedMemory),
            "{states:?}"
        );
        down |= states.contains(&(2, LinkKind::SharedMemory, LinkState::Down));
        assert!(report.links.iter().all(|link| link.received_bytes > 0), "{:?}", report.links);
    }
    // Who was told of the loss by the other may not have seen it yet.
    assert!(down, "{text}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_deadline_is_written_down_by_every_rank_that_waited_and_names_who_is_late() {
    let path = std::env::temp_dir().join(format!("hcomm-report-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mut ranks = Communicator::local(3);
    let absent = ranks.pop();
    let threads: Vec<_> = ranks
        .into_iter()
        .map(|mut comm| {
            comm.report_to(&path).unwrap();
            comm.set_deadline(Duration::from_millis(300));
            std::thread::spawn(move || comm.all_reduce(vec![1u8; 10], ReduceOp::Sum).wait().is_err())
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    drop(absent);
    let text = std::fs::read_to_string(&path).unwrap();
    let reports: Vec<Report> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2);
    assert!(reports.iter().all(|report| report.operation == "all_reduce" && report.late == [Rank(2)]));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_is_refused_where_it_is_named() {
    let [one, other] = ["one", "other"]
        .map(|name| std::env::temp_dir().join(format!("hcomm-report-{name}-{}", std::process::id())));
    let mut comm = Communicator::local(1).remove(0);
    let nowhere = comm.report_to(one.join("report")).unwrap_err();
    assert_eq!(nowhere.kind(), std::io::ErrorKind::NotFound);
    comm.report_to(&one).unwrap();
    comm.report_to(&one).unwrap();
    let copy = comm.dup().wait().unwrap();
    for comm in [&comm, &copy] {
        let taken = comm.report_to(&other).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AlreadyExists);
        assert!(taken.to_string().contains(one.to_str().unwrap()), "{taken}");
    }
    assert!(one.exists() && !other.exists());
    std::fs::remove_file(one).unwrap();
}

#[test]
fn a_rank_that_leaves_in_order_is_no_crash() {
    let path = std::env::temp_dir().join(format!("hcomm-report-left-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mut ranks = Communicator::local(3);
    let leaver = ranks.pop();
    let waiting: Vec<_> = ranks
        .iter_mut()
        .map(|comm| {
            comm.report_to(&path).unwrap();
            comm.all_reduce(vec![1u8; 10], ReduceOp::Sum)
        })
        .collect();
    drop(leaver);
    for operation in waiting {
        let error = operation.wait().unwrap_err().error;
        let says = error.to_string();
        assert!(matches!(error, Error::Left { rank: Rank(2), .. }) && error.is_fatal(), "{says}");
        assert!(says.contains("rank 2") && says.contains("has left") && !says.contains("lost"), "{says}");
    }
    // What does not need it goes on.
    let (one, zero) = (&ranks[1], &ranks[0]);
    let sent = zero.send(1, 7, vec![3u8]);
    assert_eq!(one.recv(0, 7, vec![0u8]).wait().unwrap(), [3]);
    sent.wait().unwrap();
    // Whoever drove writes it, and its caller may be told before.
    let until = Instant::now() + GENEROUS;
    let text = loop {
        let text = std::fs::read_to_string(&path).unwrap();
        if text.lines().count() == 2 && text.ends_with('\n') || Instant::now() > until {
            break text;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let reports: Vec<Report> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2, "{text}");
    assert!(
        reports.iter().all(|report| report.kind == ReportKind::Left && report.late == [Rank(2)]),
        "{text}"
    );
    std::fs::remove_file(path).unwrap();
}

/// Ranks wait on two communicators in opposite order: whose deadline passes is told of the circle.
#[test]
fn communicators_in_opposite_order_are_told_as_a_circle() {
    /// Long enough for the others to have told where they are.
    const LIMIT: Duration = Duration::from_millis(1500);
    for link in LINKS {
        run(connect(link, 2), move |mut comm| {
            let mut copy = comm.dup().wait().unwrap();
            assert_usable(&mut comm);
            let first = comm.rank() == Rank(0);
            let names = [comm.name().to_string(), copy.name().to_string()];
            let error = if first {
                comm.barrier().timeout(LIMIT).wait().unwrap_err().error
            } else {
                copy.all_reduce(vec![1u8; 3], ReduceOp::Sum).wait().unwrap_err().error
            };
            if first {
                let Error::Deadline(report) = &error else { panic!("{link:?}: {error}") };
                let text = format!("{link:?}: {error}");
                assert_eq!((report.rank, &report.late[..]), (Rank(0), &[Rank(1)][..]), "{text}");
                let state = &report.states[0].1;
                assert!(state.contains("has not called #2, but is in all_reduce(3 × u8"), "{text}");
                let there = format!("#0 on \"{}\", waiting for 0", names[1]);
                assert!(state.contains(&there) && !state.contains("busy"), "{text}");
                for part in [
                    "ranks wait for each other, on communicators called in different orders: ",
                    &format!("rank 0 in barrier #2 on \"{}\" for rank 1", names[0]),
                    &format!("#0 on \"{}\" for rank 0", names[1]),
                ] {
                    assert!(report.cause.contains(part), "{part}: {text}");
                }
                drop(comm);
                drop(copy);
            } else {
                // The other one gave up, and left.
                assert!(matches!(error, Error::Left { rank: Rank(0), .. }), "{link:?}: {error}");
            }
        });
    }
}

/// Who computes is in no circle, even if it was waited for on another communicator before.
#[test]
fn a_rank_that_has_come_back_from_another_communicator_is_in_no_circle() {
    for link in LINKS {
        let told = Arc::new(Barrier::new(2));
        run(connect(link, 2), move |mut comm| {
            let mut copy = comm.dup().wait().unwrap();
            if comm.rank() == Rank(0) {
                let waiting = comm.barrier().timeout(Duration::from_millis(600));
                // The other one waits there when it is asked the first time.
                std::thread::sleep(Duration::from_millis(300));
                copy.barrier().wait().unwrap();
                let error = waiting.wait().unwrap_err().error;
                let Error::Deadline(report) = &error else { panic!("{link:?}: {error}") };
                assert_eq!((&report.late[..], &report.cause[..]), (&[Rank(1)][..], ""), "{link:?}: {error}");
            } else {
                copy.barrier().wait().unwrap();
            }
            told.wait();
        });
    }
}
