//! Results, and the errors in them, are not overlooked.

#![deny(unused_must_use)]

use hcomm::{Buffer, Communicator, Rank, ReduceOp};

fn ignore(mut comm: Communicator) {
    comm.all_reduce(vec![1.0f32], ReduceOp::Sum);
    comm.barrier();
    comm.send(Rank(0), 1, vec![1u8]);
    comm.split(None, 0);
    comm.all_reduce(vec![1.0f32], ReduceOp::Sum).timeout(std::time::Duration::from_secs(1));
    Buffer::<f32>::zeroed(1);
    Communicator::builder().rank(0);
    Communicator::from_env();
    comm.close();
}

fn main() {}
