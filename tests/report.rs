//! Reports are written where the user says.

use std::time::Duration;

use hcomm::{Communicator, Rank, ReduceOp, Report};

#[test]
fn a_deadline_is_written_down_by_every_rank_that_waited_and_names_who_is_late() {
    let path = std::env::temp_dir().join(format!("hcomm-report-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mut ranks = Communicator::local(3);
    let absent = ranks.pop();
    let threads: Vec<_> = ranks
        .into_iter()
        .map(|mut comm| {
            comm.report_to(&path);
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
