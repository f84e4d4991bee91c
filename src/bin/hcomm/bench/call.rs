//! One call of the operation on its buffers.

use hcomm::{Buffer, Communicator, Element, PreparedAllReduce, Rank, View};

use super::Failed;
use super::pattern::Pattern;
use super::settings::Settings;
use crate::names::Kind;

const ROOT: Rank = Rank(0);
const TAG: u32 = 0;

/// What calls of one size need.
pub struct Call<'a, T: Element> {
    settings: &'a Settings,
    pattern: Pattern<T>,
    prepared: Option<PreparedAllReduce<T>>,
    rank: usize,
    count: usize,
}

/// What a call is given and gives back.
pub struct Buffers<T: Element> {
    main: Buffer<T>,
    /// What is received, beside what is sent.
    received: Buffer<T>,
}

impl<'a, T: Element> Call<'a, T> {
    /// For vectors of `count` elements.
    pub fn new(settings: &'a Settings, comm: &mut Communicator, count: usize) -> Result<Self, Failed> {
        let prepared = settings.prepared.then(|| comm.prepare_all_reduce(count, settings.op)).transpose()?;
        let pattern = Pattern::new(settings.op, settings.ranks);
        Ok(Call { settings, pattern, prepared, rank: comm.rank().index(), count })
    }

    /// Memory for a call, not filled.
    pub fn buffers(&self) -> Buffers<T> {
        let received = if self.settings.kind == Kind::SendRecv { self.count } else { 0 };
        Buffers { main: Buffer::zeroed(self.count), received: Buffer::zeroed(received) }
    }

    /// Calls and waits for the end.
    pub async fn run(&self, comm: &mut Communicator, buffers: Buffers<T>) -> Result<Buffers<T>, Failed> {
        let Buffers { mut main, mut received } = buffers;
        let op = self.settings.op;
        match self.settings.kind {
            Kind::AllReduce => {
                main = match (&self.prepared, self.settings.algorithm) {
                    (Some(prepared), _) => prepared.run(comm, main).await?,
                    (None, Some(algorithm)) => comm.using(algorithm).all_reduce(main, op).await?,
                    (None, None) => comm.all_reduce(main, op).await?,
                }
            }
            Kind::Broadcast => {
                main = match self.view(comm) {
                    Some(view) => view.broadcast(main, ROOT).await?,
                    None => comm.broadcast(main, ROOT).await?,
                }
            }
            Kind::AllGather => {
                main = match self.view(comm) {
                    Some(view) => view.all_gather(main).await?,
                    None => comm.all_gather(main).await?,
                }
            }
            Kind::ReduceScatter => {
                main = match self.view(comm) {
                    Some(view) => view.reduce_scatter(main, op).await?,
                    None => comm.reduce_scatter(main, op).await?,
                }
            }
            Kind::Barrier => {
                comm.barrier().await?;
            }
            Kind::SendRecv => {
                let sent = comm.send(Rank(self.after() as u32), TAG, main);
                received = comm.recv(Rank(self.before() as u32), TAG, received).await?;
                main = sent.await?;
            }
        }
        Ok(Buffers { main, received })
    }

    fn view<'c>(&self, comm: &'c mut Communicator) -> Option<View<'c>> {
        self.settings.algorithm.map(|algorithm| comm.using(algorithm))
    }

    fn after(&self) -> usize {
        (self.rank + 1) % self.settings.ranks
    }

    fn before(&self) -> usize {
        (self.rank + self.settings.ranks - 1) % self.settings.ranks
    }

    /// This rank's input; what the operation must write is certainly wrong before.
    pub fn fill(&self, buffers: &mut Buffers<T>) {
        let Buffers { main, received } = buffers;
        let pattern = &self.pattern;
        let input = pattern.input(self.rank);
        match self.settings.kind {
            Kind::Broadcast if self.rank != ROOT.index() => {
                pattern.fill(main, 0, pattern.spoiled(ROOT.index()))
            }
            Kind::AllGather => {
                for (rank, part) in parts(main.len(), self.settings.ranks) {
                    let table = if rank == self.rank { input } else { pattern.spoiled(rank) };
                    pattern.fill(&mut main[part.clone()], part.start, table);
                }
            }
            _ => pattern.fill(main, 0, input),
        }
        pattern.fill(received, 0, pattern.spoiled(self.before()));
    }

    /// How many elements of this rank's result are wrong.
    pub fn wrong(&self, buffers: &Buffers<T>) -> u64 {
        let Buffers { main, received } = buffers;
        let pattern = &self.pattern;
        match self.settings.kind {
            Kind::AllReduce => pattern.wrong(main, 0, pattern.reduced()),
            Kind::Broadcast => pattern.wrong(main, 0, pattern.input(ROOT.index())),
            Kind::AllGather => parts(main.len(), self.settings.ranks)
                .map(|(rank, part)| pattern.wrong(&main[part.clone()], part.start, pattern.input(rank)))
                .sum(),
            Kind::ReduceScatter => parts(main.len(), self.settings.ranks)
                .filter(|(rank, _)| *rank == self.rank)
                .map(|(_, part)| pattern.wrong(&main[part.clone()], part.start, pattern.reduced()))
                .sum(),
            Kind::Barrier => 0,
            Kind::SendRecv => {
                pattern.wrong(main, 0, pattern.input(self.rank))
                    + pattern.wrong(received, 0, pattern.input(self.before()))
            }
        }
    }
}

/// Which rank's part is where, in a vector of equal parts.
fn parts(count: usize, ranks: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let each = count / ranks;
    (0..ranks).map(move |rank| (rank, rank * each..(rank + 1) * each))
}
