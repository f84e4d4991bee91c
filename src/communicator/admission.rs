//! How many collectives are in flight at once, for services that call more of them than there is room for.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{Communicator, Operation};
use crate::buffer::lend::{Lend, Looking};
use crate::element::DType;
use crate::engine::{CallDesc, Priority, Tagged, Work};
use crate::error::Error;

impl Communicator {
    /// Limits how many collectives of this communicator are in flight on this rank at once, at least one: those that are called beyond
    /// take their numbers and begin as others end, in the order of calls. At first there is no limit but that of
    /// [`resources`](Self::resources), which shows what waits as `delayed`.
    ///
    /// What is in flight shares links and processors, so fewer of them end sooner each; and a caller who awaits [`ready`](Self::ready)
    /// before it makes a buffer and calls has as many buffers as the limit, which is what bounds a service's memory: buffers of
    /// callers are not part of `HCOMM_MEMORY`. Ranks may have different limits.
    ///
    /// Messages are not counted, nor is what is called on communicators that were made from this one, or under [keys](Self::keyed),
    /// each of which has a limit of its own.
    pub fn set_admission(&mut self, limit: usize) {
        self.engine.set_admission(self.channel, limit);
    }

    /// Waits until a collective that is called next begins at once, as far as [`set_admission`](Self::set_admission) goes. Without a
    /// limit, and where fewer are in flight, that is at once.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`], which names who is late for the first that is in flight; and what every call ends with once the communicator
    /// has failed, as [`Error::PeerLost`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is taken, and nothing reserved. The next call is this caller's all the same: nobody else has the
    /// communicator.
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// let threads: Vec<_> = Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         comm.set_admission(4);
    ///         let mut sums = Vec::new();
    ///         for step in 0..100 {
    ///             comm.ready().wait().unwrap();
    ///             sums.push(comm.all_reduce(vec![step; 1000], ReduceOp::Sum));
    ///             assert!(comm.resources().operations <= 4);
    ///         }
    ///         for (step, sum) in (0..).zip(sums) {
    ///             assert_eq!(sum.wait().unwrap(), [2 * step; 1000]);
    ///         }
    ///     })
    /// }).collect();
    /// threads.into_iter().for_each(|thread| thread.join().unwrap());
    /// ```
    pub fn ready(&mut self) -> Ready<'_> {
        let desc = CallDesc {
            // It is between no ranks, and takes no number of collectives.
            tag: Some(Tagged::Any),
            ..CallDesc::new("ready", DType::U8, 0)
        };
        let (lent, guard) = Looking.lend(&self.staging);
        let (seq, digest) = (self.next_point(), desc.digest());
        let operation = self.submit_as(Priority::Normal, seq, desc, digest, Ok(Work::Admit), lent, guard);
        Ready { operation, communicator: PhantomData }
    }
}

/// The future of [`Communicator::ready`].
#[must_use = "it waits when it is awaited"]
pub struct Ready<'a> {
    operation: Operation<Looking>,
    communicator: PhantomData<&'a mut Communicator>,
}

impl Ready<'_> {
    /// See [`Operation::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.operation.limit(limit);
        self
    }

    /// See [`Operation::wait`].
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// In a simulated world (feature `testing`), which stands still while a rank waits like this.
    pub fn wait(mut self) -> Result<(), Error> {
        self.operation.block();
        Ok(self.operation.take_all().0?)
    }
}

impl Future for Ready<'_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.operation.poll_end(cx));
        Poll::Ready(Ok(self.operation.take_all().0?))
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.operation.cancel();
    }
}

impl fmt::Debug for Ready<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ready").field(&self.operation).finish()
    }
}
