//! `hcomm why`: what is told of programs that hang or fail, from the reports that their ranks write.

use std::path::Path;
use std::time::Duration;

use hcomm::{Communicator, ReduceOp};

use super::{prints, scratch};

/// What is told of ranks of one process that each do this, in a line.
fn told(name: &str, ranks: usize, each: impl Fn(&mut Communicator) + Sync) -> String {
    let file = scratch(name);
    std::thread::scope(|scope| {
        for mut comm in Communicator::local(ranks) {
            let (each, file) = (&each, &file);
            scope.spawn(move || {
                comm.report_to(file).unwrap();
                // Long enough that all have told where they are.
                comm.set_deadline(Duration::from_millis(1500));
                each(&mut comm);
            });
        }
    });
    let text = of(&file);
    std::fs::remove_file(&file).unwrap();
    text
}

fn of(file: &Path) -> String {
    let text = prints(&["why", file.to_str().unwrap()]);
    assert!(!text.contains("0.0ns"), "{text}");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn two_that_send_first_are_told_to_receive_first() {
    let text = told("send.jsonl", 2, |comm| {
        let peer = 1 - comm.rank().0;
        let given = if peer == 1 { 1000 } else { 1500 };
        let sent = comm.send(peer, 0, vec![0f32; 1 << 20]).timeout(Duration::from_millis(given)).wait();
        assert!(sent.is_err());
    });
    assert!(text.contains("ranks wait for each other: 0 → 1 → 0"), "{text}");
    assert!(text.contains("Let one of them receive before it sends"), "{text}");
}

#[test]
fn a_receive_beside_a_collective_of_the_others_has_no_sender() {
    let text = told("recv.jsonl", 3, |comm| {
        if comm.rank().0 == 2 {
            assert!(comm.recv(0, 0, vec![0f32; 8]).wait().is_err());
        } else {
            assert!(comm.all_reduce(vec![0f32; 8], ReduceOp::Sum).wait().is_err());
        }
    });
    assert!(text.contains("rank 2 waits for a message that nobody sends: rank 0 is in all_reduce"), "{text}");
    assert!(!text.contains("before it sends"), "{text}");
}

#[test]
fn the_last_operations_of_each_rank_are_told() {
    let text = told("last.jsonl", 2, |comm| {
        for count in 1..30 {
            comm.all_reduce(vec![0f32; count], ReduceOp::Sum).wait().unwrap();
        }
        if comm.rank().0 == 0 {
            assert!(comm.recv(1, 7, vec![0u8; 3]).wait().is_err());
        }
        let _ = comm.barrier().timeout(Duration::from_secs(3)).wait();
    });
    let (_, last) = text.split_once("Last operations of rank 0 of \"world\":").expect(&text);
    assert!(last.contains("all_reduce #28 on \"world\" (29 × f32, sum, "), "{text}");
    assert!(last.contains("recv #0 on \"world\" (3 × u8, peer 1, tag 7), called "), "{text}");
    assert!(last.contains("ago: deadline in 1.5"), "{text}");
    // Twenty of them, this one among them.
    assert!(last.contains("all_reduce #10 ") && !last.contains("all_reduce #9 "), "{text}");
}

#[test]
fn the_sides_of_a_message_are_compared_by_type_and_count() {
    let text = told("differ.jsonl", 2, |comm| {
        if comm.rank().0 == 0 {
            let _ = comm.send(1, 0, vec![0f32; 8]).wait();
        } else {
            assert!(comm.recv(0, 0, vec![0f32; 9]).wait().is_err());
        }
    });
    assert!(text.contains("element type and count of a message must be the same on both sides"), "{text}");
    assert!(!text.contains("reduction, root"), "{text}");
}
