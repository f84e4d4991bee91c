//! Leaving in order.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{Communicator, Operation};
use crate::buffer::lend::Nothing;
use crate::element::ReduceOp;
use crate::error::Error;
use crate::path::Collective;

impl Communicator {
    /// Ends the use of the communicator in order: ends when all ranks have called it, so that everything sent has
    /// arrived. All ranks call it, as they call a collective. Dropping the communicator instead waits for nobody.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce): naming who has not called it, or who is gone. The communicator is closed in
    /// any case.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves without waiting.
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|comm| {
    ///     std::thread::spawn(move || comm.close().wait())
    /// }).collect();
    /// for thread in threads {
    ///     thread.join().unwrap().unwrap();
    /// }
    /// ```
    pub fn close(mut self) -> Close {
        let all_here =
            self.plain().collective("close", Collective::AllReduce, Some(ReduceOp::Max), Nothing::new());
        Close { all_here, communicator: Some(self) }
    }
}

/// The future of [`Communicator::close`].
#[derive(Debug)]
#[must_use = "dropping it leaves without waiting for the others"]
pub struct Close {
    all_here: Operation<Nothing>,
    communicator: Option<Communicator>,
}

impl Close {
    /// Gives it `limit` of time instead of the communicator's deadline; see [`Operation::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.all_here = self.all_here.timeout(limit);
        self
    }

    /// Gives the waiting up, on all ranks; see [`Operation::cancel`].
    pub fn cancel(&self) {
        self.all_here.cancel();
    }

    /// Waits on this thread, without a runtime.
    ///
    /// # Errors
    ///
    /// As awaiting it.
    pub fn wait(self) -> Result<(), Error> {
        let Close { all_here, communicator } = self;
        let ended = all_here.wait();
        drop(communicator);
        Ok(ended?)
    }
}

impl Future for Close {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.all_here).poll(cx));
        self.communicator = None;
        Poll::Ready(Ok(ended?))
    }
}
