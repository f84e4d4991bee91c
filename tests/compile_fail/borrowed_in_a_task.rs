//! A task may outlive whoever spawns it: what it works on is its own.

use hcomm::{Communicator, ReduceOp};

/// As runtimes have it.
fn spawn<F: Future + Send + 'static>(_task: F) {}

async fn of_a_caller(comm: &mut Communicator, data: &mut [f32]) {
    spawn(comm.all_reduce(data, ReduceOp::Sum));
}

async fn of_its_own(comm: &mut Communicator) {
    let mut data = vec![1.0f32; 8];
    spawn(comm.all_reduce(&mut data, ReduceOp::Sum));
}

fn main() {}
