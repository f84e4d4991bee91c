//! An array by value would not come back: its note says how one is lent.

use hcomm::{Communicator, ReduceOp};

fn mean(comm: &mut Communicator, loss: f32) {
    drop(comm.all_reduce([loss], ReduceOp::Avg));
}

fn main() {}
