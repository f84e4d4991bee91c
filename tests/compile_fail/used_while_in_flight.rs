//! Memory that an operation has is nobody else's.

use hcomm::{Communicator, ReduceOp};

fn owned(comm: &mut Communicator, data: Vec<f32>) {
    let operation = comm.all_reduce(data, ReduceOp::Sum);
    println!("{}", data[0]);
    let _ = operation.wait();
}

fn borrowed(comm: &mut Communicator, data: &mut [f32]) {
    let operation = comm.all_reduce(&mut *data, ReduceOp::Sum);
    data[0] = 1.0;
    let _ = operation.wait();
}

fn main() {}
