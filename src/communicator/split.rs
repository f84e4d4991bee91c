//! Communicators made from communicators.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{Communicator, Operation};
use crate::engine::channel::{Channel, channel_id};
use crate::error::Error;
use crate::path::{Collective, Facts};

impl Communicator {
    /// Makes a communicator of all ranks that call with the same `color`, ordered by `key` and, where keys are equal,
    /// by rank; `None` for ranks that call without a color. All ranks call it, as they call a collective.
    ///
    /// The new one shares the connections of this one and has an order of calls, errors and a deadline of its own; the
    /// deadline is this one's at first. Its name is this one's with the number of the call and the color: "world/7:0".
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the others get a communicator that this rank has left: what they call there and needs it
    /// ends with [`Error::Left`].
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// // Even and odd ranks by themselves.
    /// let threads: Vec<_> = Communicator::local(4).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let rank = comm.rank().0;
    ///         let mut half = comm.split(Some(rank % 2), 0).wait().unwrap().unwrap();
    ///         half.all_reduce(vec![rank], ReduceOp::Sum).wait().unwrap()[0]
    ///     })
    /// }).collect();
    /// let sums: Vec<u32> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(sums, [2, 4, 2, 4]);
    /// ```
    pub fn split(&mut self, color: Option<u32>, key: i64) -> Split {
        self.split_alike("split", color, key, Ok(0))
    }

    /// A communicator of the same ranks with an order of calls of its own. All ranks call it, as they call a collective.
    ///
    /// # Errors
    ///
    /// As [`split`](Self::split).
    ///
    /// # Cancel safety
    ///
    /// As [`split`](Self::split).
    pub fn dup(&mut self) -> Dup {
        self.split_with_all("dup", DUP)
    }

    /// A split that no rank stays out of, ordered by rank.
    pub(super) fn split_with_all(&mut self, operation: &'static str, color: u32) -> Dup {
        Dup { gathering: self.gather_calls(operation, Some(color), 0, Ok(0)) }
    }

    pub(super) fn split_alike(
        &mut self,
        operation: &'static str,
        color: Option<u32>,
        key: i64,
        word: Result<u64, Error>,
    ) -> Split {
        Split { gathering: self.gather_calls(operation, color, key, word) }
    }

    /// `word`: what else ranks compare, or why this rank's call is refused.
    fn gather_calls(
        &mut self,
        operation: &'static str,
        color: Option<u32>,
        key: i64,
        word: Result<u64, Error>,
    ) -> Gathering {
        let number = self.next;
        let mut calls = vec![[0i64; 3]; self.size()].concat();
        let own = self.rank * 3;
        calls[own..own + 3].copy_from_slice(&[i64::from(color.is_some()), color.unwrap_or(0).into(), key]);
        let parent = Parent::of(self);
        let calls = self.plain().compared(word, operation, Collective::AllGather, None, calls);
        Gathering { calls: Some(calls), parent, number, color }
    }
}

/// The future of [`Communicator::split`] and [`Communicator::create`]. Once it has ended, polling it again panics.
#[derive(Debug)]
#[must_use = "the new communicator comes from awaiting it"]
pub struct Split {
    gathering: Gathering,
}

/// The future of [`Communicator::dup`] and [`Communicator::split_by_host`]. Once it has ended, polling it again panics.
#[derive(Debug)]
#[must_use = "the new communicator comes from awaiting it"]
pub struct Dup {
    gathering: Gathering,
}

impl Split {
    /// Gives it `limit` of time instead of the communicator's deadline; see [`Operation::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.gathering.limit(limit);
        self
    }

    /// Gives it up, on all ranks; see [`Operation::cancel`].
    pub fn cancel(&self) {
        self.gathering.calls.iter().for_each(Operation::cancel);
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
    pub fn wait(mut self) -> Result<Option<Communicator>, Error> {
        self.gathering.wait()
    }
}

impl Dup {
    /// Gives it `limit` of time instead of the communicator's deadline; see [`Operation::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.gathering.limit(limit);
        self
    }

    /// Gives it up, on all ranks; see [`Operation::cancel`].
    pub fn cancel(&self) {
        self.gathering.calls.iter().for_each(Operation::cancel);
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
    pub fn wait(mut self) -> Result<Communicator, Error> {
        Ok(joined(self.gathering.wait()?))
    }
}

impl Future for Split {
    type Output = Result<Option<Communicator>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.gathering.poll(cx)
    }
}

impl Future for Dup {
    type Output = Result<Communicator, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.gathering.poll(cx).map_ok(joined)
    }
}

/// The color of all ranks of a duplicate.
const DUP: u32 = 0;

/// Who was called with a color is in it.
fn joined(child: Option<Communicator>) -> Communicator {
    let Some(child) = child else { unreachable!("it was called with a color") };
    child
}

/// All ranks tell each other whether they join, their colors and keys.
struct Gathering {
    /// `None` while it is waited for on a thread, and after that.
    calls: Option<Operation<Vec<i64>>>,
    parent: Parent,
    number: u64,
    /// Of the communicator that is to be made here.
    color: Option<u32>,
}

impl Gathering {
    fn limit(&mut self, limit: Duration) {
        self.calls = self.calls.take().map(|calls| calls.timeout(limit));
    }

    fn wait(&mut self) -> Result<Option<Communicator>, Error> {
        let Some(calls) = self.calls.take() else { unreachable!("it is waited for once") };
        Ok(self.child(&calls.wait()?))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Communicator>, Error>> {
        let Some(calls) = &mut self.calls else { unreachable!("who waits does not poll") };
        let calls = ready!(Pin::new(calls).poll(cx))?;
        Poll::Ready(Ok(self.child(&calls)))
    }

    fn child(&mut self, calls: &[i64]) -> Option<Communicator> {
        self.color.take().map(|color| self.parent.child(self.number, color, calls))
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if let Some(color) = self.color {
            self.parent.engine.renounce(self.parent.child_id(self.number, color));
        }
    }
}

impl fmt::Debug for Gathering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathering").field("of", &self.parent.name).finish_non_exhaustive()
    }
}

/// What a child takes over.
pub(super) struct Parent {
    pub engine: std::sync::Arc<crate::engine::Engine>,
    pub id: u64,
    pub name: std::sync::Arc<str>,
    /// The communicators that it was made from.
    pub lineage: std::sync::Arc<[u64]>,
    members: std::sync::Arc<[u32]>,
    rank: usize,
    facts: Facts,
    deadline: std::time::Duration,
    plans: std::sync::Arc<std::sync::Mutex<crate::path::PlanCache>>,
}

impl Parent {
    pub(super) fn of(comm: &Communicator) -> Self {
        Parent {
            engine: comm.engine.clone(),
            id: comm.id,
            name: comm.name.clone(),
            lineage: comm.lineage.clone(),
            members: comm.members.clone(),
            rank: comm.rank,
            facts: comm.facts,
            deadline: comm.deadline,
            plans: comm.plans.clone(),
        }
    }

    fn child_id(&self, number: u64, color: u32) -> u64 {
        channel_id(self.id, &[number, u64::from(color)])
    }

    fn child(&self, number: u64, color: u32, calls: &[i64]) -> Communicator {
        let mut chosen: Vec<(i64, usize)> = calls
            .chunks_exact(3)
            .enumerate()
            .filter(|(_, call)| call[0] == 1 && call[1] == i64::from(color))
            .map(|(rank, call)| (call[2], rank))
            .collect();
        chosen.sort_unstable();
        let chosen: Vec<usize> = chosen.into_iter().map(|(_, rank)| rank).collect();
        let name = format!("{}/{number}:{color}", self.name).into();
        let id = self.child_id(number, color);
        let lineage = line(&self.lineage, self.id);
        self.open(id, name, lineage, &chosen)
    }

    /// A communicator of these ranks of the parent, in this order.
    pub(super) fn open(
        &self,
        id: u64,
        name: std::sync::Arc<str>,
        lineage: std::sync::Arc<[u64]>,
        chosen: &[usize],
    ) -> Communicator {
        let rank = chosen.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let members = chosen.iter().map(|rank| self.members[*rank]).collect();
        let facts = self.facts.of_part(chosen.len() as u32);
        let mut channel = Channel::new(id, name, members, rank);
        channel.lineage = lineage;
        let mut child = Communicator::open_channel(self.engine.clone(), channel, facts, self.plans.clone());
        child.set_deadline(self.deadline);
        child
    }
}

/// What is made from a communicator comes from this.
pub(super) fn line(lineage: &[u64], id: u64) -> std::sync::Arc<[u64]> {
    lineage.iter().copied().chain([id]).collect()
}
