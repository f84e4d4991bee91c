//! A parameter server: rank 0 holds the parameters, workers compute gradients of their parts of the flowers.
//!
//! First *synchronous*: a step is taken once all workers have contributed their gradients, which are added in the order of ranks,
//! whoever was first. The result has the bits of one process that does the same. Then *with a backup worker*: a step is taken once
//! all but one have, and the last of them is late (J. Chen et al., "Revisiting distributed synchronous SGD", 2016). Then *stale
//! synchronous*: a step is taken for each gradient that comes, of parameters that may lack the last steps of others (Q. Ho et al.,
//! 2013), and *asynchronous*: however many (J. Dean et al., "Large scale distributed deep networks", 2012).
//!
//! `cargo run --example parameter_server` has four threads for ranks; for processes, `cargo build --example parameter_server`, then
//! `hcomm run -n 4 -- target/debug/examples/parameter_server`, or another launcher of those in `docs/launchers.md`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows its result")]

mod common;

use common::{Failure, Flower, Iris, Mlp, part};
use futures_util::future::try_join_all;
use hcomm::{Communicator, Rank, ReduceOp, Tag};

const STEPS: usize = 200;

const SERVER: Rank = Rank(0);
/// How many clocks a worker may be ahead of the slowest where they are stale synchronous.
const STALENESS: u32 = 2;

/// The messages of each way to train.
#[derive(Clone, Copy)]
struct Tags {
    /// Parameters, from the server to a worker.
    pull: Tag,
    /// The gradient of a worker's part, summed over its flowers.
    push: Tag,
}

const SYNCHRONOUS: Tags = Tags { pull: Tag(0), push: Tag(1) };
const WITH_BACKUP: Tags = Tags { pull: Tag(2), push: Tag(3) };
/// Both in one.
const STALE: Tag = Tag(4);
const ASYNCHRONOUS: Tag = Tag(5);

fn main() -> std::process::ExitCode {
    common::run(train)
}

async fn train(comm: Communicator) -> Result<(), Failure> {
    let workers = comm.size() - 1;
    if workers == 0 {
        return Err("a parameter server needs a worker: start two ranks or more".into());
    }
    let iris = Iris::new();
    // One can be spared of two or more.
    let enough = workers.div_ceil(2).max(workers - 1);
    if comm.rank() == SERVER {
        let mut model = Mlp::new(0..Mlp::LAYERS);
        serve_rounds(&comm, SYNCHRONOUS, workers, &mut model, &iris).await?;
        if bits(&model) != bits(&train_alone(&iris, workers)) {
            return Err("synchronous: the parameters differ from those of one process".into());
        }
        println!(
            "synchronous: {STEPS} steps of {workers} workers: {}; the bits of one process",
            told(&model, &iris)
        );

        // Whose gradients are in, or of which parameters they are, and so the result, differs from run to run from here on.
        let mut model = Mlp::new(0..Mlp::LAYERS);
        let late = serve_rounds(&comm, WITH_BACKUP, enough, &mut model, &iris).await?;
        learned(&model, &iris)?;
        println!(
            "with a backup worker: {STEPS} steps of {enough} of {workers} workers, {late} late: {}",
            told(&model, &iris)
        );

        for (name, tag) in [("stale synchronous", STALE), ("asynchronous", ASYNCHRONOUS)] {
            let mut model = Mlp::new(0..Mlp::LAYERS);
            serve_each(&comm, tag, &mut model, &iris).await?;
            learned(&model, &iris)?;
            println!("{name}: {} gradients of {workers} workers: {}", STEPS * workers, told(&model, &iris));
        }
    } else {
        let own = &iris.train[part(iris.train.len(), comm.rank().index() - 1, workers)];
        for tags in [SYNCHRONOUS, WITH_BACKUP] {
            work_in_rounds(&comm, tags, own).await?;
        }
        for (tag, staleness) in [(STALE, STALENESS), (ASYNCHRONOUS, u32::MAX)] {
            work(&comm, tag, staleness, own).await?;
        }
    }
    comm.close().await?;
    Ok(())
}

/// Takes a step once so many workers have contributed. Says how many contributions were late.
async fn serve_rounds(
    comm: &Communicator,
    tags: Tags,
    enough: usize,
    model: &mut Mlp,
    iris: &Iris,
) -> Result<u64, Failure> {
    let workers = 1..comm.size() as u32;
    let mut gradients = comm.contributions::<f32>(workers, tags.push, model.parameters.len());
    for step in 0..STEPS as u32 {
        send_all(comm, tags.pull, model).await?;
        let sum = gradients.reduce_first(enough, step, ReduceOp::Sum).await?;
        // As if those that are missing were like the others.
        let flowers = iris.train.len() * sum.contributors.len() / (comm.size() - 1);
        model.descend(&sum.buffer, flowers);
    }
    Ok(gradients.late())
}

/// The parameters to all workers at once.
async fn send_all(comm: &Communicator, tag: Tag, model: &Mlp) -> Result<(), Failure> {
    let workers = 1..comm.size() as u32;
    try_join_all(workers.map(|worker| comm.send(worker, tag, &model.parameters))).await?;
    Ok(())
}

/// Takes a step for each gradient.
async fn serve_each(comm: &Communicator, tag: Tag, model: &mut Mlp, iris: &Iris) -> Result<(), Failure> {
    let workers = 1..comm.size() as u32;
    let mut shared = comm.serve_parameters(workers, tag, model.parameters.clone());
    for _ in 0..STEPS * (comm.size() - 1) {
        let update = shared.next().await?.ok_or("no worker is left")?;
        model.descend(&update.buffer, iris.train.len());
        shared.parameters().copy_from_slice(&model.parameters);
    }
    Ok(())
}

/// Contributes the gradient for the parameters of each step.
async fn work_in_rounds(comm: &Communicator, tags: Tags, own: &[Flower]) -> Result<(), Failure> {
    let mut model = Mlp::new(0..Mlp::LAYERS);
    let mut gradient = model.zeros();
    for step in 0..STEPS as u32 {
        model.parameters = comm.recv(SERVER, tags.pull, model.parameters).await?;
        gradient.fill(0.0);
        model.gradient(own, &mut gradient);
        gradient = comm.contribute(SERVER, tags.push, step, gradient).await?;
    }
    Ok(())
}

/// Pulls parameters, no staler than they may be, and pushes the gradient for them.
async fn work(comm: &Communicator, tag: Tag, staleness: u32, own: &[Flower]) -> Result<(), Failure> {
    let mut model = Mlp::new(0..Mlp::LAYERS);
    let mut gradient = model.zeros();
    let mut shared = comm.parameters::<f32>(SERVER, tag, model.parameters.len(), staleness);
    for _ in 0..STEPS {
        model.parameters.copy_from_slice(shared.pull().await?.values);
        gradient.fill(0.0);
        model.gradient(own, &mut gradient);
        gradient = shared.push(gradient).await?;
    }
    Ok(())
}

/// Of all workers, in the order of ranks.
fn sum(gradients: impl Iterator<Item = Vec<f32>>) -> Option<Vec<f32>> {
    gradients.reduce(|mut sum, gradient| {
        sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        sum
    })
}

/// What the synchronous server and its workers do, in one process.
fn train_alone(iris: &Iris, workers: usize) -> Mlp {
    let mut model = Mlp::new(0..Mlp::LAYERS);
    for _ in 0..STEPS {
        let gradient = |worker| {
            let mut gradient = model.zeros();
            model.gradient(&iris.train[part(iris.train.len(), worker, workers)], &mut gradient);
            gradient
        };
        let sum = sum((0..workers).map(gradient)).unwrap_or_else(|| model.zeros());
        model.descend(&sum, iris.train.len());
    }
    model
}

fn learned(model: &Mlp, iris: &Iris) -> Result<(), Failure> {
    let [before, after] = [&Mlp::new(0..Mlp::LAYERS), model].map(|model| loss(model, &iris.train));
    if after > before / 2.0 {
        Err(format!("the loss has not halved: {before}, then {after}").into())
    } else {
        Ok(())
    }
}

fn bits(model: &Mlp) -> Vec<u32> {
    model.parameters.iter().map(|value| value.to_bits()).collect()
}

fn loss(model: &Mlp, flowers: &[Flower]) -> f32 {
    model.gradient(flowers, &mut model.zeros()) / flowers.len() as f32
}

fn told(model: &Mlp, iris: &Iris) -> String {
    let (right, of) = (model.right(&iris.test), iris.test.len());
    format!("loss {:.3}, {right} of {of} flowers right that it had not seen", loss(model, &iris.train))
}
