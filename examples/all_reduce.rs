//! Ranks sum a vector. It needs a launcher: `cargo build --release --example all_reduce`, then
//! `hcomm run -n 4 -- target/release/examples/all_reduce` (`hcomm` comes by `cargo install --path . --features cli`),
//! or another of those in `docs/launchers.md`.

#![allow(clippy::print_stdout, reason = "an example shows its result")]

use hcomm::{Communicator, ReduceOp};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut comm = Communicator::from_env().await?;
    let mine = vec![comm.rank().0 as f32 + 1.0; 1_000_000];
    let sum = comm.all_reduce(mine, ReduceOp::Sum).await?;
    let ranks = comm.size() as f32;
    assert!(sum.iter().all(|value| *value == ranks * (ranks + 1.0) / 2.0));
    if comm.rank().0 == 0 {
        println!("{} ranks summed {} elements", comm.size(), sum.len());
    }
    Ok(())
}
