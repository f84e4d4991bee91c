//! The flight recorder: what was called is known afterwards, on every link, whichever way it ended.

use std::time::Duration;

use crate::common::{GENEROUS, LINKS, connect, run, world};
use hcomm::{Communicator, OperationRecord, Outcome, Priority, Rank, ReduceOp, Report, Seq, Tag};

/// Those of an operation.
fn of<'a>(records: &'a [OperationRecord], operation: &str) -> Vec<&'a OperationRecord> {
    records.iter().filter(|record| record.operation == operation).collect()
}

#[test]
fn each_call_is_recorded_with_what_it_was_called_with_and_how_it_ended() {
    for link in LINKS {
        for n in [2, 3, 5] {
            world(link, n, move |mut comm| {
                let (me, next) = (comm.rank(), Rank((comm.rank().0 + 1) % n as u32));
                let before = Rank((me.0 + n as u32 - 1) % n as u32);
                // Small ones may be over at once, a large one is not.
                for count in [2, 3, 300_000] {
                    comm.all_reduce(vec![1f32; count], ReduceOp::Max).wait().unwrap();
                }
                comm.urgent().broadcast(vec![7u64; 9], 1).wait().unwrap();
                let sent = comm.send(next, 5, vec![1u16; 4]);
                comm.recv(before, 5, vec![0u16; 4]).wait().unwrap();
                sent.wait().unwrap();
                let sent = comm.send(next, 6, vec![1u8; 3]);
                comm.recv_from(hcomm::Source::Any, hcomm::Tags::Any, vec![0u8; 10]).wait().unwrap();
                sent.wait().unwrap();
                comm.barrier().wait().unwrap();
                let records = comm.recent_operations();
                let reduced = of(&records, "all_reduce");
                assert_eq!(reduced.iter().map(|record| record.count).collect::<Vec<_>>(), [2, 3, 300_000]);
                for (record, seq) in reduced.iter().zip(0..) {
                    assert_eq!((record.seq, record.rank, record.outcome), (Seq(seq), me, Outcome::Ok));
                    assert_eq!((record.op, record.communicator.as_str()), (Some(ReduceOp::Max), "world"));
                    assert!(!record.algorithm.is_empty() && record.root.is_none() && record.peer.is_none());
                    assert_eq!(record.bytes(), 4 * record.count);
                }
                let broadcast = of(&records, "broadcast")[0];
                assert_eq!((broadcast.root, broadcast.priority), (Some(Rank(1)), Priority::Urgent));
                let sends = of(&records, "send");
                let send = (sends[0].peer, sends[0].tag, sends[0].bytes(), sends[0].outcome);
                assert_eq!(send, (Some(next), Some(Tag(5)), 8, Outcome::Ok));
                let received = of(&records, "recv")[0];
                assert_eq!((received.peer, received.tag, received.root), (Some(before), Some(Tag(5)), None));
                // What came is known once it has.
                let any =
                    records.iter().find(|record| record.tag == Some(Tag(6)) && record.operation != "send");
                let any = any.unwrap_or_else(|| panic!("{records:#?}"));
                assert_eq!((any.peer, any.bytes(), any.outcome), (Some(before), 3, Outcome::Ok));
                for pair in records.windows(2) {
                    assert!(pair[0].called <= pair[1].called, "{pair:#?}");
                }
                for record in &records {
                    let (begun, ended) = (record.begun.unwrap(), record.ended.unwrap());
                    assert!(record.called <= begun && begun <= ended, "{record:?}");
                }
            });
        }
    }
}

#[test]
fn what_fails_is_recorded_with_its_error_and_what_hangs_as_in_flight() {
    for link in LINKS {
        let ended = run(connect(link, 2), |mut comm| {
            comm.barrier().wait().unwrap();
            if comm.rank() == Rank(0) {
                let waiting = comm.recv(1, 9, vec![0u8; 1]);
                let late = comm.all_reduce(vec![1i32; 5], ReduceOp::Sum).timeout(Duration::from_millis(30));
                late.wait().unwrap_err();
                let records = comm.recent_operations();
                let late = of(&records, "all_reduce")[0];
                assert_eq!((late.outcome, late.count), (Outcome::Deadline, 5));
                assert!(late.took().unwrap() >= Duration::from_millis(30), "{late:?}");
                let hanging = of(&records, "recv")[0];
                assert_eq!((hanging.outcome, hanging.ended), (Outcome::InFlight, None));
                assert!(
                    hanging.to_string().contains("peer 1, tag 9")
                        && hanging.to_string().contains("in flight for")
                );
                waiting.cancel();
                waiting.wait().unwrap_err();
                assert_eq!(of(&comm.recent_operations(), "recv")[0].outcome, Outcome::Cancelled);
                // Only now may the other go on.
                comm.send(1, 1, vec![0u8]).wait().unwrap();
            } else {
                comm.recv(0, 1, vec![1u8]).wait().unwrap();
                let failed = comm.all_reduce(vec![1i32; 5], ReduceOp::Sum).wait().unwrap_err();
                let record = comm.recent_operations();
                let record = of(&record, "all_reduce")[0].clone();
                assert_eq!(record.outcome, Outcome::Aborted, "{failed}");
                assert!(record.ended.is_some());
            }
            comm.barrier().wait().unwrap();
            true
        });
        assert_eq!(ended, [true; 2]);
    }
}

/// On one communicator something waits, while more than all that is kept is called on another.
#[test]
fn the_last_2048_are_kept_and_what_waits_is_not_forgotten() {
    const MORE: u64 = 5000;
    world(crate::common::Link::Memory, 2, |mut comm| {
        let mut other = comm.dup().wait().unwrap();
        let waiting = comm.recv(1 - comm.rank().0, 3, vec![0u8; 2]);
        for _ in 0..MORE {
            other.all_reduce(vec![1u8; 1], ReduceOp::Sum).wait().unwrap();
        }
        let records = comm.recent_operations();
        assert_eq!(records.len(), 2048 + 1);
        assert_eq!((records[0].operation.as_str(), records[0].outcome), ("recv", Outcome::InFlight));
        let numbers = records[1..].iter().map(|record| record.seq.0);
        assert!(numbers.eq(MORE - 2048..MORE), "the last ones, each once");
        let name = other.name().to_string();
        assert!(
            records[1..].iter().all(|record| record.communicator == name && record.communicator != "world")
        );
        // The message of who is ahead would end what the other looks for.
        other.barrier().wait().unwrap();
        comm.send(1 - comm.rank().0, 3, vec![1u8; 2]).wait().unwrap();
        waiting.wait().unwrap();
        assert_eq!(comm.resources().recorder, other.resources().recorder);
        assert!((2048 * 64..1 << 20).contains(&comm.resources().recorder), "{:?}", comm.resources());
    });
}

#[test]
fn a_closed_communicator_is_still_known_by_its_name() {
    let mut comm = Communicator::local(1).remove(0);
    for _ in 0..500 {
        let mut other = comm.split(Some(0), 0).wait().unwrap().unwrap();
        other.barrier().wait().unwrap();
    }
    let records = comm.recent_operations();
    let barriers = of(&records, "barrier");
    assert_eq!(barriers.len(), 500);
    assert!(barriers.iter().all(|record| !record.communicator.is_empty()), "{barriers:?}");
}

#[test]
fn a_report_has_the_last_operations_and_what_is_in_flight() {
    let path = std::env::temp_dir().join(format!("hcomm-recorded-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let file = path.clone();
    run(connect(crate::common::Link::Memory, 2), move |mut comm| {
        comm.report_to(&file).unwrap();
        comm.set_deadline(GENEROUS);
        let waiting = comm.recv(1 - comm.rank().0, 3, vec![0u8; 2]);
        for _ in 0..200 {
            comm.all_reduce(vec![1u8; 1], ReduceOp::Sum).wait().unwrap();
        }
        if comm.rank() == Rank(0) {
            comm.broadcast(vec![0u8; 7], 1).timeout(Duration::from_millis(30)).wait().unwrap_err();
            comm.send(1, 3, vec![0u8; 2]).wait().unwrap();
        } else {
            // Until the other has given it up.
            assert_eq!(waiting.wait().unwrap(), [0; 2]);
            comm.broadcast(vec![0u8; 7], 1).wait().unwrap_err();
            return comm.send(0, 3, vec![0u8; 2]).wait().unwrap().len();
        }
        waiting.wait().unwrap().len()
    });
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let reports: Vec<Report> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let report = reports.iter().find(|report| report.rank == Rank(0)).unwrap();
    assert!(report.recent.len() <= 128 && text.len() < 64 << 10, "{} in {}", report.recent.len(), text.len());
    let first = &report.recent[0];
    assert_eq!((first.operation.as_str(), first.outcome), ("recv", Outcome::InFlight), "{first:?}");
    let last = report.recent.last().unwrap();
    assert_eq!((last.operation.as_str(), last.outcome, last.count), ("broadcast", Outcome::Deadline, 7));
    assert_eq!(of(&report.recent, "all_reduce").len(), 63);
}
