//! What an operation reads is nobody else's to write, and not to be had before it is given back.

use hcomm::{Communicator, ReduceOp};

fn owned(comm: &mut Communicator, input: Vec<f32>, output: Vec<f32>) {
    let operation = comm.all_reduce_into(input, output, ReduceOp::Sum);
    println!("{}", input[0]);
    let _ = operation.wait();
}

fn borrowed(comm: &mut Communicator, mut input: Vec<f32>, output: Vec<f32>) {
    let operation = comm.all_reduce_into(&input[..], output, ReduceOp::Sum);
    input[0] = 1.0;
    let _ = operation.wait();
}

fn main() {}
