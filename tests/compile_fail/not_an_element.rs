//! Only numbers that every rank lays out alike are elements.

use hcomm::{Buffer, Communicator, ReduceOp};

fn send(comm: &mut Communicator) {
    drop(comm.all_reduce(vec![true; 3], ReduceOp::Sum));
    drop(comm.all_reduce(vec![1usize; 3], ReduceOp::Sum));
    let _ = Buffer::<u128>::zeroed(3);
}

fn main() {}
