//! A borrowed slice lives until its operation is over.

use hcomm::{Communicator, Operation, ReduceOp};

fn sum(comm: &mut Communicator) -> Operation<&mut [f32]> {
    let mut data = [1.0f32; 8];
    comm.all_reduce(&mut data[..], ReduceOp::Sum)
}

fn later(comm: &mut Communicator) {
    let operation;
    {
        let mut data = [1.0f32; 8];
        operation = comm.all_reduce(&mut data[..], ReduceOp::Sum);
    }
    let _ = operation.wait();
}

fn main() {}
