//! `Bytes` may be shared, and so can be sent but not received into.

use hcomm::bytes::Bytes;
use hcomm::{Communicator, Rank};

fn receive(comm: &Communicator, bytes: Bytes) {
    drop(comm.recv(Rank(0), 1, bytes));
}

fn main() {}
