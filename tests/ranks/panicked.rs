//! A rank whose thread panics is lost to the others, who are told so; it has not left in order.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Barrier, Mutex};

use crate::common::{LINKS, Link, assert_usable, class, connect, run};
use hcomm::{Communicator, Error, Rank, ReduceOp, Report, ReportKind, State};

/// Unwinds this thread as a panic does, without its message in the output of tests.
fn panics(having: impl Send) {
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _having = having;
        resume_unwind(Box::new("on purpose"));
    }));
    assert!(unwound.is_err());
}

/// The error names rank 1, and says what befell it.
fn assert_panicked(link: Link, error: &Error) {
    let says = error.to_string();
    assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{link:?}: {says}");
    assert!(says.contains("its thread panicked") && error.is_fatal(), "{link:?}: {says}");
}

#[test]
fn a_rank_that_panics_is_lost_to_those_who_wait_for_it() {
    for link in LINKS {
        let path = std::env::temp_dir().join(format!("hcomm-panicked-{link:?}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let file = path.clone();
        let begun = Arc::new(Barrier::new(3));
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = kept.clone();
        run(connect(link, 3), move |mut comm| {
            let mut other = comm.dup().wait().unwrap();
            comm.report_to(&file).unwrap();
            assert_usable(&mut comm);
            if comm.rank() == Rank(1) {
                begun.wait();
                panics(comm);
            } else {
                let waiting = comm.all_reduce(vec![1u8; 10], ReduceOp::Sum);
                begun.wait();
                let error = waiting.wait().unwrap_err().error;
                assert_panicked(link, &error);
                let next = comm.barrier().wait().unwrap_err().error;
                assert!(matches!(&next, Error::Failed { lost: Some(Rank(1)), .. }), "{link:?}: {next}");
                let says = next.to_string();
                assert!(says.starts_with("communicator \"world\" has failed: rank 1 ("), "{link:?}: {says}");
                assert!(
                    says.contains(") is lost: its thread panicked") && !says.contains('#'),
                    "{link:?}: {says}"
                );
                let State::Failed { cause } = comm.state() else { panic!("{:?}", comm.state()) };
                assert!(cause.to_string().starts_with("next call #"), "{cause}");
                let rebuilt = comm.rebuild().wait().unwrap();
                assert_eq!(rebuilt.size(), 2);
                keep.lock().unwrap().push(rebuilt);
            }
            // The rank has others, which it did not have at hand.
            assert_usable(&mut other);
            other.close().wait().unwrap();
        });
        kept.lock().unwrap().clear();
        let text = std::fs::read_to_string(&path).unwrap();
        let reports: Vec<Report> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(reports.len(), 2, "{link:?}: {text}");
        for report in &reports {
            assert_eq!((report.kind, &report.late[..]), (ReportKind::PeerLost, &[Rank(1)][..]), "{text}");
            assert!(report.cause.contains("its thread panicked"), "{text}");
        }
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn who_rebuilds_is_told_who_is_gone_and_who_is_late() {
    for link in LINKS {
        let done = Arc::new(Barrier::new(3));
        run(connect(link, 4), move |mut comm| {
            match comm.rank() {
                Rank(1) => return panics(comm),
                Rank(2) => {}
                _ => {
                    assert_panicked(link, &comm.barrier().wait().unwrap_err().error);
                    comm.set_deadline(std::time::Duration::from_millis(300));
                    let error = comm.rebuild().wait().unwrap_err();
                    let Error::Deadline(report) = &error else { panic!("{link:?}: {error}") };
                    assert_eq!(report.late, [Rank(2)], "{link:?}: {report}");
                    assert_eq!(report.cause, "lost or left already: rank 1", "{link:?}: {report}");
                }
            }
            done.wait();
        });
    }
}

/// What was called is not seen to any more: nobody waits for it first.
#[test]
fn operations_of_a_rank_that_panics_hold_nobody_up() {
    for link in LINKS {
        let all = Arc::new(Barrier::new(3));
        run(connect(link, 3), move |mut comm| {
            assert_usable(&mut comm);
            all.wait();
            if comm.rank() == Rank(1) {
                let never = comm.recv(0, 7, vec![0u8; 3]);
                let sent = comm.send(0, 8, vec![8u8; 300_000]);
                panics((comm, never, sent));
            } else {
                let error = comm.all_reduce(vec![1u8; 300_000], ReduceOp::Sum).wait().unwrap_err().error;
                assert_panicked(link, &error);
            }
        });
    }
}

#[test]
fn keys_and_children_share_the_fate_of_what_is_dropped() {
    for link in LINKS {
        let all = Arc::new(Barrier::new(3));
        run(connect(link, 3), move |mut comm| {
            assert_usable(&mut comm);
            let mut child = comm.dup().wait().unwrap();
            if comm.rank() == Rank(1) {
                let used = child.keyed("used").unwrap().barrier();
                used.wait().unwrap();
                let held = child.keyed("held").unwrap();
                all.wait();
                panics((child, held));
            } else {
                child.keyed("used").unwrap().barrier().wait().unwrap();
                all.wait();
                for key in ["held", "used", "never called"] {
                    let error = child.keyed(key).unwrap().barrier().wait().unwrap_err().error;
                    assert_panicked(link, &error);
                }
                // It was told under the keys; the communicator itself has failed as well.
                let error = child.barrier().wait().unwrap_err().error;
                assert!(["peer lost", "failed"].contains(&class(&error)), "{link:?}: {error}");
                assert_eq!(error.blamed(), [Rank(1)], "{link:?}: {error}");
            }
            assert_usable(&mut comm);
        });
    }
}

#[test]
fn a_key_that_is_dropped_by_a_panic_is_over_and_its_communicator_is_not() {
    for link in LINKS {
        let all = Arc::new(Barrier::new(2));
        run(connect(link, 2), move |mut comm: Communicator| {
            let mut stream = comm.keyed("layer").unwrap();
            stream.barrier().wait().unwrap();
            all.wait();
            if comm.rank() == Rank(1) {
                panics(stream);
                let error = comm.keyed("layer").unwrap().barrier().wait().unwrap_err().error;
                assert_eq!(class(&error), "closed", "{link:?}: {error}");
            } else {
                let error = stream.barrier().wait().unwrap_err().error;
                assert_panicked(link, &error);
                assert!(error.to_string().contains("world[\"layer\"]"), "{link:?}: {error}");
            }
            comm.keyed("another").unwrap().barrier().wait().unwrap();
            assert_usable(&mut comm);
        });
    }
}
