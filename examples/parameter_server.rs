//! A parameter server: rank 0 holds the parameters, workers compute gradients of their parts of the flowers.
//!
//! First *synchronous*: a step is taken once all workers have pushed their gradients, which the server adds in the order of ranks,
//! whoever was first. The result has the bits of one process that does the same. Then *asynchronous*: a step is taken for each
//! gradient that comes, though it be of older parameters, and nobody waits for a slow worker (J. Dean et al., "Large scale
//! distributed deep networks", 2012). Workers do the same in both.
//!
//! `cargo run --example parameter_server` has four threads for ranks; for processes, `cargo build --example parameter_server`, then
//! `hcomm run -n 4 -- target/debug/examples/parameter_server`, or another launcher of those in `docs/launchers.md`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows its result")]

mod common;

use common::{Failure, Flower, Iris, Mlp, part};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use hcomm::{Communicator, Rank, Tag};

const STEPS: usize = 200;

const SERVER: Rank = Rank(0);
/// Parameters, from the server to a worker.
const PULL: Tag = Tag(0);
/// The gradient of a worker's part, summed over its flowers.
const PUSH: Tag = Tag(1);

fn main() -> std::process::ExitCode {
    common::run(train)
}

async fn train(comm: Communicator) -> Result<(), Failure> {
    let workers = comm.size() - 1;
    if workers == 0 {
        return Err("a parameter server needs a worker: start two ranks or more".into());
    }
    let iris = Iris::new();
    if comm.rank() == SERVER {
        let mut model = Mlp::new(0..Mlp::LAYERS);
        serve_synchronous(&comm, &mut model, &iris).await?;
        if bits(&model) != bits(&train_alone(&iris, workers)) {
            return Err("synchronous: the parameters differ from those of one process".into());
        }
        println!(
            "synchronous: {STEPS} steps of {workers} workers: {}; the bits of one process",
            told(&model, &iris)
        );

        let mut model = Mlp::new(0..Mlp::LAYERS);
        let before = loss(&model, &iris.train);
        serve_asynchronous(&comm, &mut model, &iris).await?;
        // Which gradients are of which parameters, and so the result, differs from run to run.
        if loss(&model, &iris.train) > before / 2.0 {
            return Err("asynchronous: the loss has not halved".into());
        }
        println!("asynchronous: {} gradients of {workers} workers: {}", STEPS * workers, told(&model, &iris));
    } else {
        let own = &iris.train[part(iris.train.len(), comm.rank().index() - 1, workers)];
        for _mode in ["synchronous", "asynchronous"] {
            work(&comm, own).await?;
        }
    }
    comm.close().await?;
    Ok(())
}

async fn serve_synchronous(comm: &Communicator, model: &mut Mlp, iris: &Iris) -> Result<(), Failure> {
    let workers = 1..comm.size() as u32;
    let mut pushed = comm.incoming::<f32>(PUSH);
    send_all(comm, model).await?;
    for _ in 0..STEPS {
        let mut gradients = vec![Vec::new(); workers.len()];
        for _ in workers.clone() {
            let push = pushed.next().await.ok_or("no worker is left")??;
            gradients[push.status.source.index() - 1] = push.buffer;
        }
        model.descend(&sum(model, &gradients), iris.train.len());
        send_all(comm, model).await?;
    }
    Ok(())
}

async fn serve_asynchronous(comm: &Communicator, model: &mut Mlp, iris: &Iris) -> Result<(), Failure> {
    let mut pushed = comm.incoming::<f32>(PUSH);
    send_all(comm, model).await?;
    for _ in 0..STEPS * (comm.size() - 1) {
        let push = pushed.next().await.ok_or("no worker is left")??;
        model.descend(&push.buffer, iris.train.len());
        comm.send(push.status.source, PULL, &model.parameters).await?;
    }
    Ok(())
}

/// The parameters to all workers at once.
async fn send_all(comm: &Communicator, model: &Mlp) -> Result<(), Failure> {
    let workers = 1..comm.size() as u32;
    try_join_all(workers.map(|worker| comm.send(worker, PULL, &model.parameters))).await?;
    Ok(())
}

/// Pulls parameters, and pushes the gradient for them.
async fn work(comm: &Communicator, own: &[Flower]) -> Result<(), Failure> {
    let mut model = Mlp::new(0..Mlp::LAYERS);
    let mut gradient = model.zeros();
    model.parameters = comm.recv(SERVER, PULL, model.parameters).await?;
    for _ in 0..STEPS {
        gradient.fill(0.0);
        model.gradient(own, &mut gradient);
        // The answer has its place before it can come.
        let answer = comm.recv(SERVER, PULL, model.parameters);
        gradient = comm.send(SERVER, PUSH, gradient).await?;
        model.parameters = answer.await?;
    }
    Ok(())
}

/// Of all workers, in the order of ranks.
fn sum(model: &Mlp, gradients: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = model.zeros();
    for gradient in gradients {
        sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
    }
    sum
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
        let gradients: Vec<_> = (0..workers).map(gradient).collect();
        model.descend(&sum(&model, &gradients), iris.train.len());
    }
    model
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
