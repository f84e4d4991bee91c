//! One call of the operation on its buffers.

use hcomm::{Buffer, Communicator, Element, PreparedAllReduce, Rank, View};

use super::Failed;
use super::pattern::Pattern;
use super::settings::{Settings, Source};
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
    main: Memory<T>,
    /// What is received, beside what is sent.
    received: Memory<T>,
}

/// Elements from where the user wants them.
pub enum Memory<T: Element> {
    Buffer(Buffer<T>),
    Vec(Vec<T>),
    Slice(Vec<T>),
}

impl<T: Element> Memory<T> {
    fn new(source: Source, comm: &Communicator, count: usize) -> Self {
        match source {
            Source::Alloc => Memory::Buffer(comm.alloc(count)),
            Source::Vec => Memory::Vec(vec![T::zeroed(); count]),
            Source::Slice => Memory::Slice(vec![T::zeroed(); count]),
        }
    }
}

impl<T: Element> std::ops::Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Memory::Buffer(buffer) => buffer,
            Memory::Vec(vec) | Memory::Slice(vec) => vec,
        }
    }
}

impl<T: Element> std::ops::DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Memory::Buffer(buffer) => buffer,
            Memory::Vec(vec) | Memory::Slice(vec) => vec,
        }
    }
}

/// One operation on whatever memory it is.
macro_rules! on {
    ($memory:expr, $buffer:ident => $call:expr) => {
        match $memory {
            Memory::Buffer($buffer) => Memory::Buffer($call.await?),
            Memory::Vec($buffer) => Memory::Vec($call.await?),
            Memory::Slice(mut vec) => {
                let $buffer = vec.as_mut_slice();
                $call.await?;
                Memory::Slice(vec)
            }
        }
    };
}

impl<'a, T: Element> Call<'a, T> {
    /// For vectors of `count` elements.
    pub fn new(settings: &'a Settings, comm: &mut Communicator, count: usize) -> Result<Self, Failed> {
        let prepared = settings.prepared.then(|| comm.prepare_all_reduce(count, settings.op)).transpose()?;
        let pattern = Pattern::new(settings.op, settings.ranks);
        Ok(Call { settings, pattern, prepared, rank: comm.rank().index(), count })
    }

    /// Memory for a call, not filled.
    pub fn buffers(&self, comm: &Communicator) -> Buffers<T> {
        let (source, kind) = (self.settings.buffer, self.settings.kind);
        let received = if kind == Kind::SendRecv { self.count } else { 0 };
        Buffers { main: Memory::new(source, comm, self.count), received: Memory::new(source, comm, received) }
    }

    /// Calls and waits for the end.
    pub async fn run(&self, comm: &mut Communicator, buffers: Buffers<T>) -> Result<Buffers<T>, Failed> {
        let Buffers { mut main, mut received } = buffers;
        let op = self.settings.op;
        match self.settings.kind {
            Kind::AllReduce => {
                main = match (&self.prepared, self.view(comm)) {
                    (_, Some(view)) => on!(main, buffer => view.all_reduce(buffer, op)),
                    (Some(prepared), None) => on!(main, buffer => prepared.run(comm, buffer)),
                    (None, None) => on!(main, buffer => comm.all_reduce(buffer, op)),
                }
            }
            Kind::Broadcast => {
                main = match self.view(comm) {
                    Some(view) => on!(main, buffer => view.broadcast(buffer, ROOT)),
                    None => on!(main, buffer => comm.broadcast(buffer, ROOT)),
                }
            }
            Kind::AllGather => {
                main = match self.view(comm) {
                    Some(view) => on!(main, buffer => view.all_gather(buffer)),
                    None => on!(main, buffer => comm.all_gather(buffer)),
                }
            }
            Kind::ReduceScatter => {
                main = match self.view(comm) {
                    Some(view) => on!(main, buffer => view.reduce_scatter(buffer, op)),
                    None => on!(main, buffer => comm.reduce_scatter(buffer, op)),
                }
            }
            Kind::Barrier => {
                comm.barrier().await?;
            }
            Kind::SendRecv => (main, received) = self.send_recv(comm, main, received).await?,
        }
        Ok(Buffers { main, received })
    }

    async fn send_recv(
        &self,
        comm: &Communicator,
        main: Memory<T>,
        received: Memory<T>,
    ) -> Result<(Memory<T>, Memory<T>), Failed> {
        let (after, before) = (Rank(self.after() as u32), Rank(self.before() as u32));
        Ok(match (main, received) {
            (Memory::Buffer(main), Memory::Buffer(received)) => {
                let sent = comm.send(after, TAG, main);
                let received = comm.recv(before, TAG, received).await?;
                (Memory::Buffer(sent.await?), Memory::Buffer(received))
            }
            (Memory::Slice(main), Memory::Slice(mut received)) => {
                let sent = comm.send(after, TAG, main.as_slice());
                comm.recv(before, TAG, received.as_mut_slice()).await?;
                sent.await?;
                (Memory::Slice(main), Memory::Slice(received))
            }
            (Memory::Vec(main), Memory::Vec(received)) => {
                let sent = comm.send(after, TAG, main);
                let received = comm.recv(before, TAG, received).await?;
                (Memory::Vec(sent.await?), Memory::Vec(received))
            }
            other => other,
        })
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
