//! A sender far ahead of its receiver: it waits, and memory stays bounded.

mod common;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::{LINKS, world};
use hcomm::Rank;

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// A sender far ahead of its receiver waits; then all arrives in order.
fn flood(link: common::Link, messages: u32, bytes: usize) {
    let ready = Arc::new(Barrier::new(2));
    world(link, 2, move |comm| {
        if comm.rank() == Rank(0) {
            ready.wait();
            let before = resident_bytes();
            let mut late = 0;
            for number in 0..messages {
                let mut buffer = vec![0u8; bytes];
                buffer[..4].copy_from_slice(&number.to_le_bytes());
                let mut sent = comm.send(Rank(1), 3, buffer);
                // Once, it is waited for in vain: nobody receives.
                if late == 0 {
                    let polled = current_thread().block_on(async {
                        tokio::time::timeout(Duration::from_millis(300), &mut sent).await
                    });
                    let Err(_) = polled else { continue };
                    late = number + 1;
                    let grown = resident_bytes().saturating_sub(before);
                    assert!(grown < 64 << 20, "{link:?}: {grown} bytes for {number} messages of {bytes}");
                    let staged = comm.resources().in_use_max;
                    assert!(staged < 64 << 20, "{link:?}: {staged} bytes staged");
                    ready.wait();
                }
                sent.wait().unwrap();
            }
            assert!(
                late > 0,
                "{link:?}: {messages} messages of {bytes} bytes were taken although nobody receives"
            );
        } else {
            ready.wait();
            ready.wait();
            let mut buffer = vec![0u8; bytes];
            for number in 0..messages {
                buffer = comm.recv(Rank(0), 3, buffer).wait().unwrap();
                assert_eq!(u32::from_le_bytes(buffer[..4].try_into().unwrap()), number, "{link:?}");
            }
        }
    });
}

/// One after the other: the memory of the whole process is looked at.
#[test]
fn a_flood_of_messages_waits_for_its_receiver() {
    for link in LINKS {
        flood(link, 20_000, 64);
        flood(link, 300, 256 << 10);
    }
}

#[test]
#[ignore = "takes a minute"]
fn a_flood_of_many_more_messages_waits_for_its_receiver() {
    for link in LINKS {
        flood(link, 1_000_000, 64);
        flood(link, 10_000, 1 << 20);
    }
}
