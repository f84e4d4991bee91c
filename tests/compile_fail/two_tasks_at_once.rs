//! Calls may be in flight together, but one task makes them: their order is part of the program.

use hcomm::{Communicator, ReduceOp};

async fn step(comm: &mut Communicator) {
    let first = comm.all_reduce(vec![1.0f32], ReduceOp::Sum);
    let second = comm.barrier();
    first.await.unwrap();
    second.await.unwrap();
}

async fn at_once(comm: &mut Communicator) {
    let (one, other) = (step(comm), step(comm));
    one.await;
    other.await;
}

async fn while_a_view_is_held(comm: &mut Communicator) {
    let urgent = comm.urgent();
    comm.barrier().await.unwrap();
    urgent.barrier().await.unwrap();
}

fn main() {}
