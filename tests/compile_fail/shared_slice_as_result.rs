//! A result needs memory that may be written.

use hcomm::{Communicator, ReduceOp};

fn sum(comm: &mut Communicator, data: &[f32]) {
    drop(comm.all_reduce(data, ReduceOp::Sum));
}

fn main() {}
