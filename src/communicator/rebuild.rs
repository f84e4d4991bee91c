//! States of a communicator, and how it is made anew after a failure.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::split::Parent;
use super::{Communicator, Operation};
use crate::buffer::lend::Lend;
use crate::domain::Phase;
use crate::element::Element;
use crate::engine::{CallDesc, Engine, Work, successor_id};
use crate::error::Error;
use crate::rank::Rank;

/// Whether a communicator can be used.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum State {
    /// It can.
    Ready,
    /// A rank of it is lost: every call fails at once. [`Communicator::rebuild`] makes it anew without that rank.
    Failed {
        /// Who is lost, and what was seen: an [`Error::PeerLost`]. Or an [`Error::Left`], where that rank has told this one in order
        /// that it leaves, and another rank saw it go without. [`Error::blamed`] names it in either case.
        cause: Error,
    },
    /// It was rebuilt: its successor is used instead.
    Closed,
}

impl State {
    /// Whether it can be used.
    pub const fn is_ready(&self) -> bool {
        matches!(self, State::Ready)
    }
}

/// What a communicator becomes: shared by whoever may have it, the communicator and those that wait for it.
#[derive(Default)]
pub(super) struct Succession {
    /// It was made.
    is_made: AtomicBool,
    /// Where others may make it with this rank, once it was asked for.
    of: OnceLock<(Arc<Engine>, u64, u64)>,
}

impl Drop for Succession {
    fn drop(&mut self) {
        if let (false, Some((engine, id, epoch))) = (*self.is_made.get_mut(), self.of.get()) {
            engine.renounce_successor(*id, *epoch);
        }
    }
}

impl Communicator {
    /// Whether it can be used, as far as this rank has noticed. A failure is noticed whether operations wait or not. A rank
    /// that has left in order is no failure by itself: messages among the others still go, and collectives end as
    /// [`Error::Left`].
    pub fn state(&self) -> State {
        match self.engine.failure(self.channel) {
            None => State::Ready,
            Some(Error::Closed { .. }) => State::Closed,
            Some(cause) => State::Failed { cause },
        }
    }

    /// How many times it was rebuilt: 0 for one that was joined, split or duplicated.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What each rank of this one was in the communicator that it was [rebuilt](Self::rebuild) from; empty for others.
    pub fn former_ranks(&self) -> &[Rank] {
        &self.former
    }

    /// Makes the communicator anew among the ranks that are left: those whose process is not lost, and that have not
    /// left or closed it. They keep their order and are numbered from 0 again. All ranks that are left call it; it ends
    /// when they have agreed on who that is, also if another rank is lost meanwhile.
    ///
    /// The new one is of the next [`epoch`](Self::epoch): nothing that was sent in this one is seen in it. Operations of
    /// this one that are in flight are cancelled, on all ranks. Siblings and what was split from it are not touched: those
    /// without a lost rank work on, the others are rebuilt like this one. What was prepared is prepared again. This one is
    /// [`Closed`](State::Closed) once the new one exists, and to be dropped.
    ///
    /// A rank that has not noticed the loss is waited for: it sees its calls fail, and calls this in turn.
    /// `hcomm run` ends all ranks when one fails, unless it is called with `--keep-going`.
    ///
    /// **Agree on where to go on.** Of the call in which a rank was lost, some of the others may have the result already
    /// and some not. Numbers begin anew here, so nothing but your program can tell: before the next step, take the least
    /// step of all, as below. [`former_ranks`](Self::former_ranks) says who is who now, for data that is cut by rank.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`] after the communicator's deadline, naming the ranks that are alive and have not called:
    /// calling again goes on where it was. [`Error::Failed`] if the other ranks have given this one up, because the
    /// network between them broke. [`Error::Closed`] if it was rebuilt before. A rank that is lost just when the others
    /// have agreed is a member of the new communicator, which has failed then, and is rebuilt again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, this rank has agreed nevertheless, and is waited for in the new communicator. Calling
    /// again goes on where it was. Once this one is dropped as well, the rank has left the new one.
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// let mut ranks = Communicator::local(4);
    /// drop(ranks.remove(1));
    /// let threads: Vec<_> = ranks.into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         // Steps that this rank has done; rank 1 is gone, and there is no sum of all.
    ///         let done = 7u64;
    ///         comm.all_reduce(vec![1u32], ReduceOp::Sum).wait().unwrap_err();
    ///         let mut comm = comm.rebuild().wait().unwrap();
    ///         let done = comm.all_reduce(vec![done], ReduceOp::Min).wait().unwrap()[0];
    ///         assert_eq!((done, comm.former_ranks().len()), (7, 3));
    ///         comm.all_reduce(vec![1u32], ReduceOp::Sum).wait().unwrap()
    ///     })
    /// }).collect();
    /// for thread in threads {
    ///     assert_eq!(thread.join().unwrap(), [3]);
    /// }
    /// ```
    pub fn rebuild(&mut self) -> Rebuild {
        let succession = self.succession.clone();
        let _ = succession.of.set((self.engine.clone(), self.id, self.epoch + 1));
        let agreed = (!succession.is_made.load(Ordering::Acquire)).then(|| self.agree());
        let parent = Parent::of(self);
        Rebuild { agreed, parent, succession, epoch: self.epoch + 1, phases: self.phases.clone() }
    }

    /// One byte per rank, 1 for those that are gone.
    fn agree(&self) -> Operation<Vec<u8>> {
        let buffer = vec![0u8; self.size()];
        let desc = CallDesc::new("rebuild", <u8 as Element>::DTYPE, self.size());
        let (lent, guard) = buffer.lend(&self.staging);
        self.submit_lent(self.epoch + 1, desc, Ok(Work::Rebuild), lent, guard)
    }
}

/// The future of [`Communicator::rebuild`]. Once it has ended, polling it again panics.
#[must_use = "the new communicator comes from awaiting it"]
pub struct Rebuild {
    /// None if the successor exists already.
    agreed: Option<Operation<Vec<u8>>>,
    parent: Parent,
    succession: Arc<Succession>,
    epoch: u64,
    phases: Arc<[(Phase, Duration)]>,
}

impl Rebuild {
    /// Gives it `limit` of time instead of the communicator's deadline; see [`Operation::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.agreed = self.agreed.map(|agreed| agreed.timeout(limit));
        self
    }

    /// Gives the waiting up, on this rank alone; await this to get [`Error::Cancelled`]. This rank has agreed nevertheless, and
    /// the others may rebuild with it, as where the future is dropped. Calling [`rebuild`](Communicator::rebuild) again goes on
    /// where it was.
    pub fn cancel(&self) {
        if let Some(agreed) = &self.agreed {
            agreed.cancel();
        }
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
        let agreed = self.agreed.take().ok_or_else(|| self.closed())?;
        self.successor(&agreed.wait()?)
    }

    fn closed(&self) -> Error {
        Error::Closed { communicator: self.parent.name.clone() }
    }

    /// The ranks that are not `gone`.
    fn successor(&self, gone: &[u8]) -> Result<Communicator, Error> {
        if self.succession.is_made.swap(true, Ordering::AcqRel) {
            return Err(self.closed());
        }
        let (parent, epoch) = (&self.parent, self.epoch);
        let left: Vec<usize> = (0..gone.len()).filter(|rank| gone[*rank] == 0).collect();
        let id = successor_id(parent.id, epoch, gone.iter().map(|gone| *gone != 0));
        let name = format!("{}@{epoch}", base(&parent.name, epoch - 1)).into();
        let mut comm = parent.open(id, name, parent.lineage.clone(), &left);
        comm.epoch = epoch;
        comm.phases = self.phases.clone();
        comm.former = left.iter().map(|rank| Rank(*rank as u32)).collect();
        Ok(comm)
    }
}

impl Future for Rebuild {
    type Output = Result<Communicator, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(agreed) = &mut self.agreed else { return Poll::Ready(Err(self.closed())) };
        let gone = ready!(Pin::new(agreed).poll(cx))?;
        Poll::Ready(self.successor(&gone))
    }
}

impl fmt::Debug for Rebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rebuild").field("of", &self.parent.name).finish_non_exhaustive()
    }
}

/// The name without its epoch.
fn base(name: &str, epoch: u64) -> &str {
    let suffix = format!("@{epoch}");
    if epoch == 0 { name } else { name.strip_suffix(suffix.as_str()).unwrap_or(name) }
}
