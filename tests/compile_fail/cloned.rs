//! A communicator is one rank's, and there is one.

use hcomm::Communicator;

fn twice(comm: &Communicator) -> (Communicator, Communicator) {
    (comm.clone(), comm.clone())
}

fn main() {}
