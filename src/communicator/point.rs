//! Point to point: send and receive by (peer, tag).

use super::{Communicator, Operation};
use crate::buffer::lend::{Lend, LendMut};
use crate::element::Element;
use crate::engine::{CallDesc, Work};
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
    /// [`Error::Cancelled`]; [`Error::InvalidArgument`] if there is no rank `to`; [`Error::Limit`] if 65 536 messages to this
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
        let work = self.peer("recv", from).map(|from| Work::Recv { from });
        self.point("recv", from, tag.into(), work, buffer)
    }

    fn peer(&self, operation: &str, rank: Rank) -> Result<usize, Error> {
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
        let (lent, guard) = buffer.lend(&self.staging);
        let desc = CallDesc {
            operation,
            dtype: B::Element::DTYPE,
            count: lent.0.raw().len() / size_of::<B::Element>(),
            op: None,
            root: Some(peer),
            tag: Some(tag),
            algorithm: "",
            fingerprint: 0,
        };
        let seq = self.points.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.submit_lent(seq, desc, work, lent, guard)
    }
}
