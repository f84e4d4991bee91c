//! A `Buffer` is handed over, not lent: there would be a copy that nobody asked for.

use hcomm::{Buffer, Communicator, ReduceOp};

fn sum(comm: &mut Communicator, buffer: &mut Buffer<f32>) {
    drop(comm.all_reduce(buffer, ReduceOp::Sum));
}

fn main() {}
