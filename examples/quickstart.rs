//! Four ranks of one process sum a vector: `cargo run --example quickstart`.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use hcomm::{Communicator, ReduceOp};

fn main() {
    let ranks = Communicator::local(4).into_iter().map(|mut comm| {
        std::thread::spawn(move || {
            let mine = vec![comm.rank().0 as f32; 1_000_000];
            // In async code: `comm.all_reduce(mine, ReduceOp::Sum).await?`
            comm.all_reduce(mine, ReduceOp::Sum).wait().expect("all ranks take part")
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        let sum = rank.join().expect("no rank panics");
        assert!(sum.iter().all(|value| *value == 0.0 + 1.0 + 2.0 + 3.0));
        println!("{} elements, each {}", sum.len(), sum[0]);
    }
}
