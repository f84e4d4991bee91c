//! What is prepared for one element type takes no other.

use hcomm::{Communicator, ReduceOp};

fn run(comm: &mut Communicator) {
    let sum = comm.prepare_all_reduce::<f32>(4, ReduceOp::Sum).unwrap();
    drop(sum.run(comm, vec![1i32; 4]));
}

fn main() {}
