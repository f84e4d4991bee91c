//! More bytes than 31 and 32 bits count.

use std::time::Duration;

use hcomm::{Buffer, Communicator, Rank};

use super::common::processes::say;
use super::common::{Link, connect, run_within};

const COUNTS: [usize; 2] = [(1 << 31) + 3, (1 << 32) + 5];
/// For one operation, on a machine that is busy otherwise.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the system could give now, in bytes.
fn available() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Places at both ends, and about the numbers that are special.
fn places(count: usize) -> Vec<usize> {
    let special = [0, 1 << 31, 1 << 32, count];
    let about = special.iter().flat_map(|at| (0..6).map(move |by| (at + by).wrapping_sub(3)));
    about.filter(|at| *at < count).collect()
}

fn memory(comm: &Communicator, is_shared: bool, count: usize) -> Buffer<u8> {
    if is_shared { comm.alloc(count) } else { Buffer::zeroed(count) }
}

#[test]
#[ignore = "takes 9 GiB of memory"]
fn more_than_2_to_the_32_bytes_arrive_where_they_belong() {
    for count in COUNTS {
        if available() < 2 * count as u64 + (2 << 30) {
            say(&format!("skipped: there is no memory for twice {count} bytes"));
            continue;
        }
        for is_shared in [true, false] {
            run_within(2 * PATIENCE, connect(Link::Shm, 2), move |mut comm| {
                comm.set_deadline(PATIENCE);
                let me = comm.rank();
                let mut buffer = memory(&comm, is_shared, count);
                let is = |buffer: &Buffer<u8>, by: u8| {
                    places(count).iter().all(|at| buffer[*at] == *at as u8 ^ by)
                };
                if me == Rank(0) {
                    places(count).iter().for_each(|at| buffer[*at] = *at as u8 ^ 0x55);
                }
                buffer = comm.broadcast(buffer, Rank(0)).wait().unwrap();
                assert!(is(&buffer, 0x55), "broadcast of {count} bytes, {is_shared}");
                if me == Rank(1) {
                    places(count).iter().for_each(|at| buffer[*at] = *at as u8 ^ 0xaa);
                    drop(comm.send(Rank(0), 1, buffer).wait().unwrap());
                } else {
                    buffer = comm.recv(Rank(1), 1, buffer).wait().unwrap();
                    assert!(is(&buffer, 0xaa), "a message of {count} bytes, {is_shared}");
                }
            });
        }
    }
}
