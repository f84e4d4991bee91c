//! Leaving in order.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{Communicator, Operation};
use crate::buffer::lend::Nothing;
use crate::element::ReduceOp;
use crate::error::Error;
use crate::path::{Algorithm, Collective};

impl Communicator {
    /// Ends the use of the communicator in order: ends when all ranks have called it, and everything sent has arrived with
    /// whoever receives it, also what was detached: the process may end then. All ranks call it, as they call a collective.
    /// Dropping the communicator instead waits for nobody.
    ///
    /// What was begun before goes on meanwhile. Messages that this rank has not begun to receive are lost: who closes will
    /// not receive them any more. To those who still wait for a message of this rank, or for it to take one, it
    /// [has left](Error::Left) from here on.
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
        self.engine.leave(self.channel);
        // Each rank hears from each other one itself, after all that was sent before, and so knows which messages will come.
        let all_here = self.close_round(Some(Algorithm::MeshOneShot));
        // A rank joins this round once it has received those.
        self.engine.settle(self.channel, self.next);
        let all_done = self.close_round(None);
        Close { rounds: [Some(all_here), Some(all_done)], communicator: Some(self) }
    }

    fn close_round(&mut self, algorithm: Option<Algorithm>) -> Operation<Nothing> {
        let view = match algorithm {
            Some(algorithm) => self.using(algorithm),
            None => self.plain(),
        };
        view.collective("close", Collective::AllReduce, Some(ReduceOp::Max), Nothing::new())
    }
}

/// The future of [`Communicator::close`].
///
/// # Panics
///
/// If it is polled again, or waited for, after it has ended, as other futures do.
#[derive(Debug)]
#[must_use = "dropping it leaves without waiting for the others"]
pub struct Close {
    /// Those that have not ended, in order.
    rounds: [Option<Operation<Nothing>>; 2],
    /// `None` once it has ended.
    communicator: Option<Communicator>,
}

const AGAIN: &str = "a close was polled again after it had ended";

impl Close {
    /// Gives it `limit` of time instead of the communicator's deadline; see [`Operation::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.rounds = self.rounds.map(|round| round.map(|round| round.timeout(limit)));
        self
    }

    /// Gives the waiting up, on all ranks; see [`Operation::cancel`].
    pub fn cancel(&self) {
        self.rounds.iter().flatten().for_each(Operation::cancel);
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
    pub fn wait(self) -> Result<(), Error> {
        let Close { rounds, communicator } = self;
        assert!(communicator.is_some(), "{AGAIN}");
        let mut ended = Ok(());
        for round in rounds.into_iter().flatten() {
            match ended {
                Ok(()) => ended = round.wait().map(drop),
                // Nobody waits for it any more: this rank leaves.
                Err(_) => round.cancel(),
            }
        }
        drop(communicator);
        Ok(ended?)
    }
}

impl Future for Close {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(self.communicator.is_some(), "{AGAIN}");
        let mut ended = Ok(());
        for index in 0..self.rounds.len() {
            let Some(round) = &mut self.rounds[index] else { continue };
            ended = ready!(Pin::new(round).poll(cx)).map(drop);
            self.rounds[index] = None;
            if ended.is_err() {
                break;
            }
        }
        // Nobody waits for the other one any more: this rank leaves.
        self.cancel();
        self.rounds = [None, None];
        self.communicator = None;
        Poll::Ready(Ok(ended?))
    }
}
