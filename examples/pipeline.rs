//! Pipeline parallelism: each rank is a *stage*, which has some layers of the model. A batch goes through in *micro-batches*, so
//! that stages compute at the same time: activations go forward from stage to stage, gradients back.
//!
//! The order is one forward, one backward (1F1B) with a flush after each batch (D. Narayanan et al., "Memory-efficient
//! pipeline-parallel DNN training", 2021): stage `s` of `p` goes ahead by `p - 1 - s` micro-batches, and keeps the activations of
//! one more at most. Of four stages and six micro-batches, with `F` forward and `B` backward:
//!
//! ```text
//! stage 0   F0 F1 F2 F3          B0 F4 B1 F5 B2    B3    B4    B5
//! stage 1      F0 F1 F2       B0 F3 B1 F4 B2 F5 B3    B4    B5
//! stage 2         F0 F1    B0 F2 B1 F3 B2 F4 B3 F5 B4    B5
//! stage 3            F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
//! ```
//!
//! Each stage adds the gradients of micro-batches in their order, as one process does that takes one after the other: so losses and
//! parameters have the same bits as its.
//!
//! `cargo run --example pipeline` has four threads for ranks; for processes, `cargo build --example pipeline`, then
//! `hcomm run -n 4 -- target/debug/examples/pipeline`, or another launcher of those in `docs/launchers.md`. Between machines of
//! different kinds `exp` may differ in the last bit.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows its result")]

mod common;

use std::collections::VecDeque;
use std::ops::Range;

use common::{Failure, Flower, Iris, Mlp, part};
use futures_util::future::try_join_all;
use hcomm::{Communicator, Operation};

const STEPS: usize = 100;
const MICRO_BATCHES: usize = 8;
/// Receives that are posted before they are waited for: one message comes in while another is computed with.
const AHEAD: usize = 2;

fn main() -> std::process::ExitCode {
    common::run(train)
}

async fn train(mut comm: Communicator) -> Result<(), Failure> {
    let (rank, stages) = (comm.rank().index(), comm.size());
    if stages > Mlp::LAYERS {
        return Err(format!("the model has {} layers: start at most as many ranks", Mlp::LAYERS).into());
    }
    let iris = Iris::new();
    let layers = |stage| part(Mlp::LAYERS, stage, stages);
    let mut stage = Stage::new(&comm, layers(rank), micro_batches(&iris));
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        losses.push(stage.step(iris.train.len()).await?);
    }
    let own = stage.model.parameters;

    let counts: Vec<usize> = (0..stages).map(|stage| Mlp::count(layers(stage))).collect();
    let mut parameters = vec![0.0; Mlp::count(0..Mlp::LAYERS)];
    let start = Mlp::count(0..layers(rank).start);
    parameters[start..start + own.len()].copy_from_slice(&own);
    let parameters = comm.all_gather_v(parameters, &counts).await?;
    let losses = comm.broadcast(losses, stages as u32 - 1).await?;
    if rank == 0 {
        judge(&parameters, &losses, &iris, stages)?;
    }
    comm.close().await?;
    Ok(())
}

fn micro_batches(iris: &Iris) -> Vec<&[Flower]> {
    iris.train.chunks(iris.train.len().div_ceil(MICRO_BATCHES)).collect()
}

/// What a rank has of the model, and what is on its way.
struct Stage<'a> {
    comm: &'a Communicator,
    model: Mlp,
    gradient: Vec<f32>,
    loss: f32,
    batches: Vec<&'a [Flower]>,
    /// Which sends activations, unless this is the first stage.
    before: Option<Neighbour<'a>>,
    /// Which sends gradients back, unless this is the last.
    behind: Option<Neighbour<'a>>,
    /// Micro-batches that went forward and have not come back.
    kept: VecDeque<Kept>,
    /// Gradients to the stage before.
    sent: Vec<Operation<Vec<f32>>>,
}

/// The activations of a micro-batch. The last of them is lent to its send, if there is a stage behind.
struct Kept {
    activations: Vec<Vec<f32>>,
    sent: Option<Operation<Vec<f32>>>,
}

impl<'a> Stage<'a> {
    fn new(comm: &'a Communicator, layers: Range<usize>, batches: Vec<&'a [Flower]>) -> Self {
        let (rank, last) = (comm.rank().0, comm.size() as u32 - 1);
        let neighbour = |rank, width| Neighbour::new(comm, rank, &batches, width);
        let before = (rank > 0).then(|| neighbour(rank - 1, Mlp::WIDTHS[layers.start]));
        let behind = (rank < last).then(|| neighbour(rank + 1, Mlp::WIDTHS[layers.end]));
        let model = Mlp::new(layers);
        let gradient = model.zeros();
        let (kept, sent) = (VecDeque::new(), Vec::new());
        Stage { comm, model, gradient, loss: 0.0, batches, before, behind, kept, sent }
    }

    /// A batch, forward and back, and the step along its gradient. Returns the loss, at the last stage.
    async fn step(&mut self, flowers: usize) -> Result<f32, Failure> {
        let count = self.batches.len();
        let ahead = (self.comm.size() - 1 - self.comm.rank().index()).min(count);
        self.gradient.fill(0.0);
        self.loss = 0.0;
        for batch in 0..ahead {
            self.forward(batch).await?;
        }
        for batch in ahead..count {
            self.forward(batch).await?;
            self.backward(batch - ahead).await?;
        }
        for batch in count - ahead..count {
            self.backward(batch).await?;
        }
        try_join_all(self.sent.drain(..)).await?;
        self.model.descend(&self.gradient, flowers);
        Ok(self.loss)
    }

    async fn forward(&mut self, batch: usize) -> Result<(), Failure> {
        let input = match &mut self.before {
            Some(before) => before.next().await?,
            None => Flower::rows(self.batches[batch]),
        };
        let mut activations = self.model.forward(input);
        let next = self.behind.as_ref().map(|behind| behind.rank);
        let sent = next.and_then(|to| Some(self.comm.send(to, batch as u32, activations.pop()?)));
        self.kept.push_back(Kept { activations, sent });
        Ok(())
    }

    async fn backward(&mut self, batch: usize) -> Result<(), Failure> {
        let Kept { mut activations, sent } = self.kept.pop_front().ok_or("no micro-batch is kept")?;
        let output = match (&mut self.behind, sent) {
            (Some(behind), Some(sent)) => {
                let gradient = behind.next().await?;
                activations.push(sent.await?);
                gradient
            }
            _ => {
                let (loss, gradient) = Mlp::loss(&activations[activations.len() - 1], self.batches[batch]);
                self.loss += loss;
                gradient
            }
        };
        let input = self.model.backward(&activations, output, &mut self.gradient);
        if let Some(before) = &self.before {
            self.sent.push(self.comm.send(before.rank, batch as u32, input));
        }
        Ok(())
    }
}

/// The stage before or behind, and its messages: of each batch those of all micro-batches, with their numbers as tags.
struct Neighbour<'a> {
    comm: &'a Communicator,
    rank: u32,
    /// Length of the message of each micro-batch.
    lengths: Vec<usize>,
    /// How many receives were posted.
    posted: usize,
    flying: VecDeque<Operation<Vec<f32>>>,
}

impl<'a> Neighbour<'a> {
    fn new(comm: &'a Communicator, rank: u32, batches: &[&[Flower]], width: usize) -> Self {
        let lengths = batches.iter().map(|batch| batch.len() * width).collect();
        let mut neighbour = Neighbour { comm, rank, lengths, posted: 0, flying: VecDeque::new() };
        (0..AHEAD).for_each(|_| neighbour.post());
        neighbour
    }

    fn post(&mut self) {
        if self.posted < STEPS * self.lengths.len() {
            let batch = self.posted % self.lengths.len();
            self.flying.push_back(self.comm.recv(self.rank, batch as u32, vec![0.0; self.lengths[batch]]));
            self.posted += 1;
        }
    }

    async fn next(&mut self) -> Result<Vec<f32>, Failure> {
        let message = self.flying.pop_front().ok_or("all messages have come")?.await?;
        self.post();
        Ok(message)
    }
}

/// Compares with one process.
fn judge(parameters: &[f32], losses: &[f32], iris: &Iris, stages: usize) -> Result<(), Failure> {
    let (model, alone) = train_alone(iris);
    let differs = |ours: &[f32], theirs: &[f32]| {
        ours.iter().map(|v| v.to_bits()).ne(theirs.iter().map(|v| v.to_bits()))
    };
    if differs(losses, &alone) {
        return Err("the losses differ from those of one process".into());
    }
    if differs(parameters, &model.parameters) {
        return Err("the parameters differ from those of one process".into());
    }
    let mean = |loss: Option<&f32>| loss.map_or(f32::NAN, |loss| loss / iris.train.len() as f32);
    println!(
        "{STEPS} steps of {MICRO_BATCHES} micro-batches through {stages} stages: loss {:.3} to {:.3}, {} of {} flowers right that it \
         had not seen; the bits of one process",
        mean(losses.first()),
        mean(losses.last()),
        model.right(&iris.test),
        iris.test.len()
    );
    Ok(())
}

/// The same computation in one process: the model and the loss of each step.
fn train_alone(iris: &Iris) -> (Mlp, Vec<f32>) {
    let mut model = Mlp::new(0..Mlp::LAYERS);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let mut gradient = model.zeros();
        losses.push(micro_batches(iris).iter().map(|batch| model.gradient(batch, &mut gradient)).sum());
        model.descend(&gradient, iris.train.len());
    }
    (model, losses)
}
