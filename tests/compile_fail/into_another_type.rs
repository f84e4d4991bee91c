//! What is combined is of the type that goes in.

use hcomm::{Communicator, ReduceOp};

fn sum(comm: &mut Communicator, input: Vec<f32>) {
    drop(comm.all_reduce_into(input, vec![0f64; 4], ReduceOp::Sum));
}

fn main() {}
