//! One call of the operation on its buffers.

use hcomm::{Buffer, Communicator, Element, Prepared, Rank};

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
    prepared: Option<Prepared<T>>,
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

/// A call by the algorithm that is asked for, if one is.
macro_rules! begin {
    ($self:expr, $comm:expr, $call:ident($($argument:expr),*)) => {
        match $self.settings.algorithm {
            Some(algorithm) => $comm.using(algorithm).$call($($argument),*),
            None => $comm.$call($($argument),*),
        }
    };
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

/// The same from one to another, which are of one kind.
macro_rules! on_two {
    ($input:expr, $output:expr, ($from:ident, $to:ident) => $call:expr) => {
        match ($input, $output) {
            (Memory::Buffer($from), Memory::Buffer($to)) => {
                let (from, to) = $call.await?;
                (Memory::Buffer(from), Memory::Buffer(to))
            }
            (Memory::Vec($from), Memory::Vec($to)) => {
                let (from, to) = $call.await?;
                (Memory::Vec(from), Memory::Vec(to))
            }
            (Memory::Slice(from), Memory::Slice(mut to)) => {
                let ($from, $to) = (from.as_slice(), to.as_mut_slice());
                $call.await?;
                (Memory::Slice(from), Memory::Slice(to))
            }
            other => other,
        }
    };
}

impl<'a, T: Element> Call<'a, T> {
    /// For vectors of `count` elements.
    pub fn new(settings: &'a Settings, comm: &mut Communicator, count: usize) -> Result<Self, Failed> {
        let prepared = if settings.prepared { prepare(settings, comm, count)? } else { None };
        let pattern = Pattern::new(settings.op, settings.ranks);
        Ok(Call { settings, pattern, prepared, rank: comm.rank().index(), count })
    }

    /// Memory for a call, not filled.
    pub fn buffers(&self, comm: &Communicator) -> Buffers<T> {
        let (source, kind, root) = (self.settings.buffer, self.settings.kind, self.is_root());
        let (all, part) = (self.count, self.count / self.settings.ranks);
        let (main, received) = match kind {
            Kind::SendRecv => (all, all),
            Kind::Gather if !self.settings.into => (if root { all } else { part }, 0),
            Kind::Scatter if !self.settings.into => (if root { all } else { part }, 0),
            _ if !self.settings.into => (all, 0),
            Kind::AllGather => (part, all),
            Kind::ReduceScatter => (all, part),
            Kind::Gather => (part, if root { all } else { 0 }),
            Kind::Scatter => (if root { all } else { 0 }, part),
            Kind::Reduce => (all, if root { all } else { 0 }),
            _ => (all, all),
        };
        Buffers { main: Memory::new(source, comm, main), received: Memory::new(source, comm, received) }
    }

    fn is_root(&self) -> bool {
        self.rank == ROOT.index()
    }

    /// Calls and waits for the end.
    pub async fn run(&self, comm: &mut Communicator, buffers: Buffers<T>) -> Result<Buffers<T>, Failed> {
        let Buffers { mut main, mut received } = buffers;
        let (kind, op) = (self.settings.kind, self.settings.op);
        if self.settings.into {
            (main, received) = match kind {
                Kind::AllReduce => {
                    on_two!(main, received, (from, to) => begin!(self, comm, all_reduce_into(from, to, op)))
                }
                Kind::AllGather => {
                    on_two!(main, received, (from, to) => begin!(self, comm, all_gather_into(from, to)))
                }
                Kind::ReduceScatter => {
                    on_two!(main, received, (from, to) => begin!(self, comm, reduce_scatter_into(from, to, op)))
                }
                Kind::Reduce => {
                    on_two!(main, received, (from, to) => begin!(self, comm, reduce_into(from, to, op, ROOT)))
                }
                Kind::Gather => {
                    on_two!(main, received, (from, to) => begin!(self, comm, gather_into(from, to, ROOT)))
                }
                Kind::Scatter => {
                    on_two!(main, received, (from, to) => begin!(self, comm, scatter_into(from, to, ROOT)))
                }
                Kind::AllToAll => {
                    on_two!(main, received, (from, to) => begin!(self, comm, all_to_all_into(from, to)))
                }
                Kind::Scan => {
                    on_two!(main, received, (from, to) => begin!(self, comm, scan_into(from, to, op)))
                }
                Kind::ExScan => {
                    on_two!(main, received, (from, to) => begin!(self, comm, exscan_into(from, to, op)))
                }
                Kind::Broadcast | Kind::Barrier | Kind::SendRecv => (main, received),
            };
            return Ok(Buffers { main, received });
        }
        main = match (kind, &self.prepared) {
            (_, Some(prepared)) => on!(main, buffer => prepared.run(comm, buffer)),
            (Kind::Barrier, _) => {
                comm.barrier().await?;
                main
            }
            (Kind::SendRecv, _) => {
                (main, received) = self.send_recv(comm, main, received).await?;
                main
            }
            (Kind::AllReduce, None) => on!(main, buffer => begin!(self, comm, all_reduce(buffer, op))),
            (Kind::Broadcast, _) => on!(main, buffer => begin!(self, comm, broadcast(buffer, ROOT))),
            (Kind::AllGather, _) => on!(main, buffer => begin!(self, comm, all_gather(buffer))),
            (Kind::ReduceScatter, _) => on!(main, buffer => begin!(self, comm, reduce_scatter(buffer, op))),
            (Kind::Reduce, _) => on!(main, buffer => begin!(self, comm, reduce(buffer, op, ROOT))),
            (Kind::Gather, _) => on!(main, buffer => begin!(self, comm, gather(buffer, ROOT))),
            (Kind::Scatter, _) => on!(main, buffer => begin!(self, comm, scatter(buffer, ROOT))),
            (Kind::AllToAll, _) => on!(main, buffer => begin!(self, comm, all_to_all(buffer))),
            (Kind::Scan, _) => on!(main, buffer => begin!(self, comm, scan(buffer, op))),
            (Kind::ExScan, _) => on!(main, buffer => begin!(self, comm, exscan(buffer, op))),
        };
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
        let (input, root) = (pattern.input(self.rank), pattern.spoiled(ROOT.index()));
        let own = self.own().start;
        match self.settings.kind {
            Kind::Broadcast if !self.is_root() => pattern.fill(main, 0, root),
            Kind::Scatter if !self.is_root() => pattern.fill(main, own, root),
            Kind::AllGather | Kind::Gather if main.len() == self.count => {
                for (rank, part) in parts(main.len(), self.settings.ranks) {
                    let table = if rank == self.rank { input } else { pattern.spoiled(rank) };
                    pattern.fill(&mut main[part.clone()], part.start, table);
                }
            }
            Kind::AllGather | Kind::Gather => pattern.fill(main, own, input),
            _ => pattern.fill(main, 0, input),
        }
        for Expected { place, first, table } in self.expected() {
            if let Some(elements) = received.get_mut(place) {
                pattern.fill(elements, first, table);
                bytemuck::cast_slice_mut(elements).iter_mut().for_each(|byte: &mut u8| *byte = !*byte);
            }
        }
    }

    /// How many elements of this rank's result are wrong.
    pub fn wrong(&self, buffers: &Buffers<T>) -> u64 {
        let Buffers { main, received } = buffers;
        let is_beside = self.settings.into || self.settings.kind == Kind::SendRecv;
        let result = if is_beside { received } else { main };
        let wrong = |Expected { place, first, table }: Expected<'_, T>| match result.get(place.clone()) {
            Some(elements) => self.pattern.wrong(elements, first, table),
            None => place.len() as u64,
        };
        let input = if is_beside && main.len() == self.count {
            self.pattern.wrong(main, 0, self.pattern.input(self.rank))
        } else {
            0
        };
        input + self.expected().into_iter().map(wrong).sum::<u64>()
    }

    /// This rank's part of a vector.
    fn own(&self) -> std::ops::Range<usize> {
        let each = self.count / self.settings.ranks;
        self.rank * each..(self.rank + 1) * each
    }

    /// What must be in the buffer that the result comes to.
    fn expected(&self) -> Vec<Expected<'_, T>> {
        let (ranks, pattern, own) = (self.settings.ranks, &self.pattern, self.own());
        let all = |table| vec![Expected { place: 0..self.count, first: 0, table }];
        let each = |first: &dyn Fn(usize) -> usize| {
            let part = |(rank, place): (usize, std::ops::Range<usize>)| Expected {
                first: first(place.start),
                place,
                table: pattern.input(rank),
            };
            parts(self.count, ranks).map(part).collect()
        };
        match self.settings.kind {
            Kind::AllReduce => all(pattern.reduced(ranks)),
            Kind::Reduce if self.is_root() => all(pattern.reduced(ranks)),
            Kind::Scan => all(pattern.reduced(self.rank + 1)),
            Kind::ExScan if self.rank > 0 => all(pattern.reduced(self.rank)),
            Kind::Broadcast => all(pattern.input(ROOT.index())),
            Kind::SendRecv => all(pattern.input(self.before())),
            Kind::AllGather => each(&|start| start),
            Kind::Gather if self.is_root() => each(&|start| start),
            Kind::AllToAll => each(&|_| own.start),
            Kind::ReduceScatter => {
                let place = if self.settings.into { 0..own.len() } else { own.clone() };
                vec![Expected { place, first: own.start, table: pattern.reduced(ranks) }]
            }
            Kind::Scatter if self.is_root() && !self.settings.into => all(pattern.input(ROOT.index())),
            Kind::Scatter => {
                vec![Expected { place: 0..own.len(), first: own.start, table: pattern.input(ROOT.index()) }]
            }
            Kind::Reduce | Kind::Gather | Kind::ExScan | Kind::Barrier => Vec::new(),
        }
    }
}

/// This rank's part of an operation in one buffer on vectors of `count` elements.
fn prepare<T: Element>(
    settings: &Settings,
    comm: &mut Communicator,
    count: usize,
) -> Result<Option<Prepared<T>>, Failed> {
    let op = settings.op;
    let mine = if comm.rank() == ROOT { count } else { count / settings.ranks };
    Ok(Some(match settings.kind {
        Kind::AllReduce => comm.prepare_all_reduce(count, op)?,
        Kind::Broadcast => comm.prepare_broadcast(count, ROOT)?,
        Kind::AllGather => comm.prepare_all_gather(count)?,
        Kind::ReduceScatter => comm.prepare_reduce_scatter(count, op)?,
        Kind::Reduce => comm.prepare_reduce(count, op, ROOT)?,
        Kind::Gather => comm.prepare_gather(mine, ROOT)?,
        Kind::Scatter => comm.prepare_scatter(mine, ROOT)?,
        Kind::AllToAll => comm.prepare_all_to_all(count)?,
        Kind::Scan => comm.prepare_scan(count, op)?,
        Kind::ExScan => comm.prepare_exscan(count, op)?,
        Kind::Barrier | Kind::SendRecv => return Ok(None),
    }))
}

/// What must be at a place: elements from a number on, by a table.
struct Expected<'a, T> {
    place: std::ops::Range<usize>,
    first: usize,
    table: &'a [T],
}

/// Which rank's part is where, in a vector of equal parts.
fn parts(count: usize, ranks: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let each = count / ranks;
    (0..ranks).map(move |rank| (rank, rank * each..(rank + 1) * each))
}
