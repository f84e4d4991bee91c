//! Exchanges of each rank with those that it has named: halos of a grid, edges of a graph.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::collectives::{Counts, Lengths};
use super::{Communicator, Operation};
use crate::buffer::lend::{Lend, LendMut, Pair};
use crate::error::Error;
use crate::path::{Collective, VerifiedPlan, algorithms, verify};
use crate::rank::Rank;

impl Communicator {
    /// Agrees on who exchanges with whom: each rank names the ranks that it sends to, and those that it receives from. *All* ranks call
    /// it, those that have no neighbors with empty lists.
    ///
    /// The plan of the exchanges is proved here, once; a [`Neighborhood`] is used for any number of them.
    ///
    /// # Errors
    ///
    /// As [`all_gather`](Self::all_gather); [`Error::InvalidArgument`], which names the two, on all ranks if one names another that
    /// does not name it; and on a rank that names one twice, or one that there is not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// // Each rank of a ring sends its number to the next one, and half of it to the one before.
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let me = comm.rank().0;
    ///         let (next, before) = ((me + 1) % 3, (me + 2) % 3);
    ///         let ring = comm.neighborhood([next, before], [before, next]).wait().unwrap();
    ///         let sent = vec![me as f32, me as f32 / 2.0];
    ///         ring.exchange(&mut comm, sent, vec![0f32; 2]).wait().unwrap().1
    ///     })
    /// }).collect();
    /// let got: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(got, [[2.0, 0.5], [0.0, 1.0], [1.0, 0.0]]);
    /// ```
    pub fn neighborhood<D, S>(&mut self, destinations: D, sources: S) -> Neighbors
    where
        D: IntoIterator<Item: Into<Rank>>,
        S: IntoIterator<Item: Into<Rank>>,
    {
        let [destinations, sources] = [self.named(destinations), self.named(sources)];
        let lists = destinations.and_then(|destinations| Ok((destinations, sources?)));
        let mut all = vec![0u64; 2 * self.size()];
        if let Ok((destinations, sources)) = &lists {
            (all[2 * self.rank], all[2 * self.rank + 1]) = (mask(destinations), mask(sources));
        }
        let (lists, word) = match lists {
            Ok(lists) => (Some(lists), Ok(0)),
            Err(error) => (None, Err(error)),
        };
        let calls = self.plain().compared(word, "neighborhood", Collective::AllGather, None, all);
        Neighbors { calls: Some(calls), lists }
    }

    /// The ranks of a list, each of which there is, and is named once.
    fn named(&self, ranks: impl IntoIterator<Item: Into<Rank>>) -> Result<Vec<Rank>, Error> {
        let mut named: Vec<Rank> = Vec::new();
        for rank in ranks {
            let rank = rank.into();
            let problem = if rank.index() >= self.size() {
                format!("there is no rank {rank} among {}", self.size())
            } else if named.contains(&rank) {
                format!("rank {rank} is named twice: name it once, and put both parts together")
            } else {
                named.push(rank);
                continue;
            };
            return Err(Error::invalid("neighborhood", problem));
        }
        Ok(named)
    }
}

fn mask(ranks: &[Rank]) -> u64 {
    ranks.iter().fold(0, |mask, rank| mask | 1 << rank.0)
}

/// The future of [`Communicator::neighborhood`]. Once it has ended, polling it again panics.
#[must_use = "the neighborhood comes from awaiting it"]
pub struct Neighbors {
    /// What all send and receive, by bits; `None` once it is waited for.
    calls: Option<Operation<Vec<u64>>>,
    /// Whom this rank has named.
    lists: Option<(Vec<Rank>, Vec<Rank>)>,
}

impl Neighbors {
    /// Gives it `limit` of time instead of the communicator's deadline; see [`Operation::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.calls = self.calls.map(|calls| calls.timeout(limit));
        self
    }

    /// Gives it up, on all ranks; see [`Operation::cancel`].
    pub fn cancel(&self) {
        self.calls.iter().for_each(Operation::cancel);
    }

    /// Waits on this thread, without a runtime.
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// As [`Operation::wait`].
    pub fn wait(mut self) -> Result<Neighborhood, Error> {
        let Some(calls) = self.calls.take() else { unreachable!("it is waited for once") };
        let calls = calls.wait()?;
        self.agreed(&calls)
    }

    fn agreed(&mut self, calls: &[u64]) -> Result<Neighborhood, Error> {
        let Some((destinations, sources)) = self.lists.take() else {
            unreachable!("what was refused does not end well")
        };
        let sent: Vec<u64> = calls.iter().step_by(2).copied().collect();
        let invalid = |problem| Error::invalid("neighborhood", problem);
        for (from, sends) in sent.iter().enumerate() {
            for to in 0..sent.len() {
                let (sends, takes) = (sends >> to & 1 == 1, calls[2 * to + 1] >> from & 1 == 1);
                if sends && !takes {
                    return Err(invalid(format!(
                        "rank {from} sends to rank {to}, which does not receive from it"
                    )));
                } else if takes && !sends {
                    return Err(invalid(format!(
                        "rank {to} receives from rank {from}, which does not send to it"
                    )));
                }
            }
        }
        let plan =
            verify(algorithms::neighbors::exchange(&sent)).map_err(|error| invalid(error.to_string()))?;
        Ok(Neighborhood { plan: Arc::new(plan), destinations, sources })
    }
}

impl Future for Neighbors {
    type Output = Result<Neighborhood, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(calls) = &mut self.calls else { unreachable!("who waits does not poll") };
        let calls = ready!(Pin::new(calls).poll(cx))?;
        Poll::Ready(self.agreed(&calls))
    }
}

impl fmt::Debug for Neighbors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Neighbors").field("named", &self.lists).finish_non_exhaustive()
    }
}

/// Who exchanges with whom, as all ranks of a communicator have agreed.
///
/// Its exchanges are collectives of the communicator that agreed on it, or of another one of as many ranks: *all* ranks call them, in the
/// same order as other collectives, but each waits for its neighbors alone. A rank without neighbors is done at once.
#[derive(Clone, Debug)]
pub struct Neighborhood {
    plan: Arc<VerifiedPlan>,
    destinations: Vec<Rank>,
    sources: Vec<Rank>,
}

impl Neighborhood {
    /// The ranks that this one sends to, as it has named them.
    pub fn destinations(&self) -> &[Rank] {
        &self.destinations
    }

    /// The ranks that this one receives from, as it has named them.
    pub fn sources(&self) -> &[Rank] {
        &self.sources
    }

    /// Sends a part of `input` to each destination, and receives a part of `output` from each source, in the order in which they were
    /// named. The parts of a buffer are equally long, and both of a pair have as much for each other.
    ///
    /// # Errors
    ///
    /// As [`exchange_v`](Self::exchange_v); [`Error::InvalidArgument`] also if a buffer can't be cut into equal parts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn exchange<I, O>(&self, comm: &mut Communicator, input: I, output: O) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.call(comm, "exchange", Shares::Equal, input, output)
    }

    /// The same with parts that may differ in length, or be empty: `send_counts` has the elements of `input` for each destination,
    /// `recv_counts` those of `output` from each source, in the order in which they were named.
    ///
    /// # Errors
    ///
    /// As [`all_to_all_v_into`](Communicator::all_to_all_v_into).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn exchange_v<I, O>(
        &self,
        comm: &mut Communicator,
        input: I,
        send_counts: &[usize],
        output: O,
        recv_counts: &[usize],
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.call(comm, "exchange_v", Shares::Counts([send_counts, recv_counts]), input, output)
    }

    fn call<I, O>(
        &self,
        comm: &mut Communicator,
        operation: &'static str,
        shares: Shares<'_>,
        input: I,
        output: O,
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        let ranks = comm.size();
        let parts = |lengths: Lengths| {
            let [sent, taken] = match shares {
                Shares::Equal => [
                    equal(
                        "input",
                        "destinations",
                        lengths.input.unwrap_or_default(),
                        self.destinations.len(),
                    )?,
                    equal("output", "sources", lengths.output, self.sources.len())?,
                ],
                Shares::Counts([sent, taken]) => [
                    given("destinations", sent, self.destinations.len())?,
                    given("sources", taken, self.sources.len())?,
                ],
            };
            let parts = [place(&self.destinations, &sent, ranks)?, place(&self.sources, &taken, ranks)?];
            Ok(Counts::Apart(parts))
        };
        let buffers = Pair::new(input, output);
        comm.with_plan(&self.plan).cut(operation, Collective::AllToAll, None, parts, buffers)
    }
}

#[derive(Clone, Copy)]
enum Shares<'a> {
    Equal,
    /// Of each destination, and of each source.
    Counts([&'a [usize]; 2]),
}

fn equal(name: &str, whose: &str, len: usize, parts: usize) -> Result<Vec<usize>, String> {
    match parts {
        0 if len == 0 => Ok(Vec::new()),
        0 => Err(format!("the {name} has {len} elements, but there are no {whose}: give it none")),
        _ if !len.is_multiple_of(parts) => Err(format!(
            "the {name} of {len} elements can't be cut into {parts} equal parts, one for each of the {whose}: give {}, padded if need \
             be, or use exchange_v",
            len.next_multiple_of(parts)
        )),
        _ => Ok(vec![len / parts; parts]),
    }
}

fn given(whose: &str, counts: &[usize], parts: usize) -> Result<Vec<usize>, String> {
    match counts.len() == parts {
        true => Ok(counts.to_vec()),
        false => Err(format!("{} counts for {parts} {whose}: give one for each", counts.len())),
    }
}

/// Where the part of each rank lies, if it has one.
fn place(named: &[Rank], counts: &[usize], ranks: usize) -> Result<Vec<(usize, usize)>, String> {
    let (mut parts, mut end) = (vec![(0, 0); ranks], 0usize);
    for (rank, count) in named.iter().zip(counts) {
        // Of another communicator there may be fewer ranks, for which its plan is not.
        if let Some(part) = parts.get_mut(rank.index()) {
            *part = (end, *count);
        }
        end = end.checked_add(*count).ok_or("more elements than there can be")?;
    }
    Ok(parts)
}
