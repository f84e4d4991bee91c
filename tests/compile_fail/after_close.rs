//! Who has closed a communicator does not have it any more.

use hcomm::Communicator;

fn close(mut comm: Communicator) {
    drop(comm.close());
    drop(comm.barrier());
}

fn main() {}
