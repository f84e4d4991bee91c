//! A rank that calls far ahead of another one: its calls wait to begin, and nobody is harmed.

use std::sync::{Arc, Barrier};

use crate::common::world;
use hcomm::Rank;

/// Calls far ahead of another rank's leave no more there than it may keep: they wait to begin, and all end.
fn run_ahead(link: crate::common::Link) {
    const CALLS: u32 = 70_000;
    let ready = Arc::new(Barrier::new(2));
    world(link, 2, move |mut comm| {
        comm.set_deadline(10 * crate::common::GENEROUS);
        if comm.rank() == Rank(1) {
            ready.wait();
        }
        for number in 0..CALLS {
            if number % 2 == 0 {
                drop(comm.barrier());
            } else {
                drop(comm.broadcast(vec![number; 2], Rank(0)));
            }
        }
        if comm.rank() == Rank(0) {
            assert!(comm.resources().delayed > 0, "{link:?}: {:?}", comm.resources());
            ready.wait();
        }
        crate::common::assert_usable(&mut comm);
    });
}

#[test]
fn calls_far_ahead_wait_for_the_others() {
    run_ahead(crate::common::Link::Tcp);
}

#[test]
#[ignore = "takes half a minute"]
fn calls_far_ahead_wait_for_the_others_in_a_process() {
    run_ahead(crate::common::Link::Memory);
}
