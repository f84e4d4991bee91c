//! Data-parallel training: each rank computes the gradient of its part of the flowers, `all_reduce` averages the gradients, and
//! all take the same step. The result is that of one process with all flowers, but for rounding, and has equal bits on all ranks.
//!
//! `cargo run --example data_parallel` has four threads for ranks; for processes, `cargo build --example data_parallel`, then
//! `hcomm run -n 4 -- target/debug/examples/data_parallel`, or another launcher of those in `docs/launchers.md`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows its result")]

mod common;

use common::{Failure, Iris, Mlp, part};
use hcomm::{Communicator, ReduceOp};

const STEPS: usize = 200;

/// How far a parameter may be from that of one process. The gradients are summed in another order, by part and then over the
/// ranks, which differs by rounding, about 1e-7 of each; the steps carry that on. Parameters are about 1.
const TOLERANCE: f32 = 1e-4;

fn main() -> std::process::ExitCode {
    common::run(train)
}

async fn train(mut comm: Communicator) -> Result<(), Failure> {
    let (rank, ranks) = (comm.rank().index(), comm.size());
    let iris = Iris::new();
    let own = &iris.train[part(iris.train.len(), rank, ranks)];
    let mut model = Mlp::new(0..Mlp::LAYERS);
    if rank != 0 {
        model.parameters.fill(0.0);
    }
    model.parameters = comm.broadcast(model.parameters, 0).await?;

    let mut gradient = model.zeros();
    for _ in 0..STEPS {
        gradient.fill(0.0);
        model.gradient(own, &mut gradient);
        gradient = comm.all_reduce(gradient, ReduceOp::Avg).await?;
        // The average of sums over parts is the sum over all, divided by the ranks: right also where parts differ in length.
        gradient.iter_mut().for_each(|value| *value *= ranks as f32);
        model.descend(&gradient, iris.train.len());
    }

    let mut checksums = vec![0; ranks];
    checksums[rank] = checksum(&model.parameters);
    let checksums = comm.all_gather(checksums).await?;
    if checksums.iter().any(|other| *other != checksums[rank]) {
        return Err(format!("ranks have different bits: checksums {checksums:x?}").into());
    }
    if rank == 0 {
        judge(&model, &iris, ranks)?;
    }
    comm.close().await?;
    Ok(())
}

/// FNV-1a over the bits.
fn checksum(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Compares with one process.
fn judge(model: &Mlp, iris: &Iris, ranks: usize) -> Result<(), Failure> {
    let alone = train_alone(iris);
    let pairs = model.parameters.iter().zip(&alone.parameters);
    let differences: Vec<f32> = pairs.map(|(one, other)| (one - other).abs()).collect();
    let most = differences.iter().copied().fold(0.0, f32::max);
    // Not by the largest, which leaves out what is no number.
    if !differences.iter().all(|difference| *difference <= TOLERANCE) {
        return Err(format!("a parameter differs by {most:e} from that of one process").into());
    }
    println!(
        "{STEPS} steps on {ranks} ranks: {} of {} flowers right that it had not seen; equal bits on all ranks; parameters are \
         those of one process within {most:.0e}",
        model.right(&iris.test),
        iris.test.len()
    );
    Ok(())
}

fn train_alone(iris: &Iris) -> Mlp {
    let mut model = Mlp::new(0..Mlp::LAYERS);
    for _ in 0..STEPS {
        let mut gradient = model.zeros();
        model.gradient(&iris.train, &mut gradient);
        model.descend(&gradient, iris.train.len());
    }
    model
}
