//! A key's calls have an order, which two tasks would not have.

use hcomm::{Keyed, ReduceOp};

async fn both(keyed: Keyed) {
    let task = |mut keyed: Keyed| async move { keyed.all_reduce(vec![1f32; 4], ReduceOp::Sum).await };
    let first = task(keyed);
    let second = task(keyed);
    let _ = (first.await, second.await);
}

fn main() {}
