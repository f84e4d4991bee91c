//! The order of collectives is one order: two threads can't call them on one communicator at once.

use hcomm::Communicator;

fn at_once(comm: &Communicator) {
    std::thread::scope(|scope| {
        scope.spawn(|| comm.barrier().wait());
        scope.spawn(|| comm.barrier().wait());
    });
}

fn main() {}
