//! Point to point: send and receive by (peer, tag).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{Communicator, Operation};
use crate::buffer::lend::{Lend, LendMut};
use crate::element::Element;
use crate::engine::{CallDesc, Tagged, Take, Wish, Work};
use crate::error::Error;
use crate::rank::{Rank, Tag};

impl Communicator {
    /// Sends a message to rank `to`; it is found there by this rank and `tag`.
    ///
    /// Ends when the buffer may be used again: for up to 64 KiB usually at once, the receiver keeps the message; for
    /// more, when the receiver has called [`recv`](Self::recv). Messages with the same tag arrive in the order of
    /// sending. To oneself works, too.
    ///
    /// Small messages that nobody has asked for are kept at the receiver, within a bound per pair of processes (at most
    /// 1 MiB; see [`resources`](Self::resources)); from then on a send waits for its receive, so that two ranks who both
    /// send first, and much, wait for each other.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`], [`Error::PeerLost`], [`Error::Left`], [`Error::Protocol`]; [`Error::Aborted`] if the receiver expects
    /// another type or count, or gives up the receive that was for it, for more than 64 KiB: a smaller message has left by then,
    /// and only the receiver learns of it;
    /// [`Error::Cancelled`]; [`Error::InvalidArgument`] if there is no rank `to`; [`Error::Limit`] if 131 072 messages to this
    /// rank wait for their receives; [`Error::Failed`] and [`Error::Closed`] as for [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn send<B: Lend>(&self, to: impl Into<Rank>, tag: impl Into<Tag>, buffer: B) -> Operation<B> {
        let to = to.into();
        let work = self.peer("send", to).map(|to| Work::Send { to });
        self.point("send", to, tag.into(), work, buffer)
    }

    /// Receives the next message of rank `from` with `tag` into the buffer, which must have its type and count.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] if the message has another type or count; [`Error::Deadline`]; [`Error::PeerLost`]
    /// or [`Error::Left`] once all that the sender had sent before is received; [`Error::Aborted`] if the sender has given up a
    /// message that was on its way; [`Error::Cancelled`]; [`Error::InvalidArgument`] if there is no rank `from`;
    /// [`Error::Protocol`], [`Error::Failed`] and [`Error::Closed`] as for [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    ///
    /// **Not cancel safe:** dropping the future, as `select!` and timers of a runtime do, detaches the operation, which takes
    /// the next message with this tag all the same and throws it away, unless the communicator is dropped before one comes.
    /// Keep the future and poll it again, or limit it by
    /// [`Operation::timeout`]; or [`cancel`](Operation::cancel) it and await that.
    ///
    /// ```
    /// use hcomm::Communicator;
    ///
    /// let mut ranks = Communicator::local(2);
    /// let (one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    /// let sent = zero.send(1, 7, vec![1u32, 2, 3]);
    /// let got = one.recv(0, 7, vec![0u32; 3]).wait().unwrap();
    /// assert_eq!(got, [1, 2, 3]);
    /// sent.wait().unwrap();
    /// ```
    pub fn recv<B: LendMut>(&self, from: impl Into<Rank>, tag: impl Into<Tag>, buffer: B) -> Operation<B> {
        let from = from.into();
        let tag = tag.into();
        let wish = self.peer("recv", from).map(|from| Wish::exact(from, tag.0));
        let work = wish.map(|wish| Work::Recv { wish, take: Take::Exact });
        self.point("recv", from, tag, work, buffer)
    }

    /// Sends a message to rank `to`, and receives one of rank `from` meanwhile: as [`send`](Self::send) and [`recv`](Self::recv), which
    /// both begin at this call, so that ranks that do so in a ring don't wait for each other. With the same rank twice it is an exchange.
    ///
    /// Any number of operations may be in flight: what is begun progresses together, without being grouped.
    ///
    /// # Errors
    ///
    /// The first of those of both that comes; the other operation goes on by itself then. Buffers of both are lost, but for what the
    /// error gives back of its own.
    ///
    /// # Cancel safety
    ///
    /// **Not cancel safe,** as [`recv`](Self::recv).
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|comm| {
    ///     std::thread::spawn(move || {
    ///         let (me, n) = (comm.rank().0, comm.size() as u32);
    ///         let (_, got) = comm.send_recv((me + 1) % n, vec![me], (me + n - 1) % n, vec![0u32], 7).wait().unwrap();
    ///         got[0]
    ///     })
    /// }).collect();
    /// let got: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(got, [2, 0, 1]);
    /// ```
    pub fn send_recv<S: Lend, R: LendMut>(
        &self,
        to: impl Into<Rank>,
        message: S,
        from: impl Into<Rank>,
        buffer: R,
        tag: impl Into<Tag>,
    ) -> SendRecv<S, R> {
        let tag = tag.into();
        // What comes finds its place at once.
        let receive = Part::Flying(self.recv(from, tag, buffer));
        SendRecv { send: Part::Flying(self.send(to, tag, message)), receive }
    }

    pub(super) fn next_point(&self) -> u64 {
        self.points.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn peer(&self, operation: &str, rank: Rank) -> Result<usize, Error> {
        if rank.index() < self.size() {
            return Ok(rank.index());
        }
        let (name, size) = (&self.name, self.size());
        let problem =
            format!("there is no rank {rank} in \"{name}\" of {size} ranks: give one from 0 to {}", size - 1);
        Err(Error::invalid(operation, problem))
    }

    fn point<B: Lend>(
        &self,
        operation: &'static str,
        peer: Rank,
        tag: Tag,
        work: Result<Work, Error>,
        buffer: B,
    ) -> Operation<B> {
        self.point_of(operation, peer, (tag, None), work, buffer)
    }

    /// The same, which may belong to a round.
    pub(super) fn point_of<B: Lend>(
        &self,
        operation: &'static str,
        peer: Rank,
        (tag, round): (Tag, Option<u32>),
        work: Result<Work, Error>,
        buffer: B,
    ) -> Operation<B> {
        let (lent, guard) = buffer.lend(&self.staging);
        let desc = CallDesc {
            root: Some(peer),
            tag: Some(Tagged::Of(tag)),
            ..CallDesc::new(operation, B::Element::DTYPE, lent.0.raw().len() / size_of::<B::Element>())
        };
        let desc = round.map_or(desc, |round| desc.of_round(round));
        self.submit_lent(self.next_point(), desc, work, lent, guard)
    }
}

/// The future of [`Communicator::send_recv`]: gives both buffers back.
#[must_use = "it has begun, but its result and its errors come from awaiting it"]
pub struct SendRecv<S: Lend, R: Lend> {
    send: Part<S>,
    receive: Part<R>,
}

enum Part<B: Lend> {
    Flying(Operation<B>),
    Over(Option<B::Returned>),
}

impl<B: Lend> Part<B>
where
    B::Returned: Unpin,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Part::Flying(operation) = self {
            *self = Part::Over(Some(ready!(Pin::new(operation).poll(cx))?));
        }
        Poll::Ready(Ok(()))
    }

    fn wait(self) -> Result<B::Returned, Error> {
        match self {
            Part::Flying(operation) => Ok(operation.wait()?),
            Part::Over(Some(buffer)) => Ok(buffer),
            Part::Over(None) => panic!("an operation was polled again after it had ended"),
        }
    }
}

impl<S: Lend, R: Lend> SendRecv<S, R>
where
    S::Returned: Unpin,
    R::Returned: Unpin,
{
    /// See [`Operation::timeout`], for both.
    pub fn timeout(mut self, limit: Duration) -> Self {
        if let Part::Flying(operation) = &mut self.send {
            operation.limit(limit);
        }
        if let Part::Flying(operation) = &mut self.receive {
            operation.limit(limit);
        }
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
    pub fn wait(self) -> Result<(S::Returned, R::Returned), Error> {
        let received = self.receive.wait()?;
        Ok((self.send.wait()?, received))
    }
}

impl<S: Lend, R: Lend> Future for SendRecv<S, R>
where
    S::Returned: Unpin,
    R::Returned: Unpin,
{
    type Output = Result<(S::Returned, R::Returned), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let receive = this.receive.poll(cx)?;
        let send = this.send.poll(cx)?;
        if receive.is_pending() || send.is_pending() {
            return Poll::Pending;
        }
        match (&mut this.send, &mut this.receive) {
            (Part::Over(sent), Part::Over(received)) => match (sent.take(), received.take()) {
                (Some(sent), Some(received)) => Poll::Ready(Ok((sent, received))),
                _ => panic!("an operation was polled again after it had ended"),
            },
            _ => unreachable!("both are over"),
        }
    }
}

impl<S: Lend, R: Lend> fmt::Debug for SendRecv<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRecv").finish_non_exhaustive()
    }
}
