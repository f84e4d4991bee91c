//! Messages of whoever sends one: receives that leave open from whom or with which tag, and looks at what has come.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{Communicator, Operation};
use crate::buffer::lend::{Lend, LendMut, Looking};
use crate::element::{DType, Element};
use crate::engine::{Arrival, CallDesc, Priority, Tagged, Take, Wish, Work};
use crate::error::{Error, OpError};
use crate::rank::{Rank, Tag};

/// From whom a message is asked for; a rank, or a `u32`, where it has to be of that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Whoever has sent one, this rank included.
    Any,
    /// This rank.
    Of(Rank),
}

impl<R: Into<Rank>> From<R> for Source {
    fn from(rank: R) -> Self {
        Source::Of(rank.into())
    }
}

/// With which tag a message is asked for; a tag, or a `u32`, where it has to be that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tags {
    /// Whichever.
    Any,
    /// This tag.
    Of(Tag),
}

impl<T: Into<Tag>> From<T> for Tags {
    fn from(tag: T) -> Self {
        Tags::Of(tag.into())
    }
}

/// What is known of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Who has sent it.
    pub source: Rank,
    /// With which tag.
    pub tag: Tag,
    /// Of which type its elements are.
    pub dtype: DType,
    /// How many they are.
    pub count: usize,
}

impl Status {
    fn new(arrival: Arrival, desc: &CallDesc) -> Status {
        let Arrival { from, tag, bytes, digest, .. } = arrival;
        let CallDesc { dtype, count, .. } = desc.of_message(bytes, digest);
        Status { source: Rank(from as u32), tag: Tag(tag), dtype, count }
    }
}

/// A message that was received, and what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received<B> {
    /// The buffer that was handed in, of which the message fills the first [`count`](Status::count) elements; for a borrowed one,
    /// nothing.
    pub buffer: B,
    /// Whose message it is, and how long.
    pub status: Status,
}

impl Communicator {
    /// Receives the next message that is of this source and has this tag, or of any where that is left open, into the buffer, of
    /// which it may fill a part; [`Received`] says whose message it is and how long.
    ///
    /// Messages of one rank that fit are received in the order of sending; those of several, as they have come. Of several receives
    /// that fit, [`recv`](Self::recv) among them, the message goes to the one that was called first.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if the message is longer than the buffer; [`Error::Mismatch`] if it is of another type;
    /// [`Error::Left`] once all other ranks have left, where any would do. Else as [`recv`](Self::recv).
    ///
    /// # Cancel safety
    ///
    /// **Not cancel safe,** as [`recv`](Self::recv) is not: a receive that is dropped takes its message all the same. Await
    /// [`matched_probe`](Self::matched_probe) in a `select!`.
    ///
    /// ```
    /// use hcomm::{Communicator, Source, Tags};
    ///
    /// let mut ranks = Communicator::local(2);
    /// let (one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    /// let sent = one.send(0, 7, vec![1.5f32, 2.5]);
    /// let got = zero.recv_from(Source::Any, Tags::Any, vec![0f32; 10]).wait().unwrap();
    /// assert_eq!((got.status.source.0, got.status.tag.0, got.status.count), (1, 7, 2));
    /// assert_eq!(got.buffer[..2], [1.5, 2.5]);
    /// sent.wait().unwrap();
    /// ```
    pub fn recv_from<B: LendMut>(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tags>,
        buffer: B,
    ) -> Receive<B> {
        let (wish, desc) = self.wish("recv_from", source.into(), tag.into());
        let work = wish.map(|wish| Work::Recv { wish, take: Take::UpTo });
        self.receive(self.deadline, desc, work, buffer)
    }

    /// Waits for a message that is of this source and has this tag, or of any, and says what it is; it stays where it is, for
    /// whoever receives it. So another task may have it first: where that can be, use [`matched_probe`](Self::matched_probe).
    ///
    /// # Errors
    ///
    /// As [`recv_from`](Self::recv_from), but for those about the message.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is taken.
    pub fn probe(&self, source: impl Into<Source>, tag: impl Into<Tags>) -> Probe {
        let (operation, desc) = self.look("probe", source.into(), tag.into(), Take::Look, self.deadline);
        Probe { operation, desc, channel: self.channel }
    }

    /// Says what the next message is that is of this source and has this tag, or of any, if one has come. It stays where it is.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no such rank. What else is wrong is told to who receives.
    pub fn try_probe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tags>,
    ) -> Result<Option<Status>, Error> {
        let (wish, desc) = self.wish("probe", source.into(), tag.into());
        let forked = || Error::Forked { operation: "try_probe".into() };
        let arrival = self.engine.glance(self.channel, wish?).ok_or_else(forked)?;
        Ok(arrival.map(|arrival| Status::new(arrival, &desc)))
    }

    /// Waits for a message that is of this source and has this tag, or of any, and takes it out of what others may receive:
    /// [`Message::recv`] receives it, once its [`status`](Message::status) has said how long a buffer it needs.
    ///
    /// # Errors
    ///
    /// As [`probe`](Self::probe).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if it is dropped before it is ready, no message is taken.
    ///
    /// ```
    /// use hcomm::{Communicator, Source, Tags};
    ///
    /// let mut ranks = Communicator::local(2);
    /// let (one, zero) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    /// let sent = one.send(0, 7, vec![1u64, 2, 3]);
    /// let message = zero.matched_probe(Source::Any, Tags::Any).wait().unwrap();
    /// let buffer = vec![0u64; message.status().count];
    /// assert_eq!(message.recv(buffer).wait().unwrap().buffer, [1, 2, 3]);
    /// sent.wait().unwrap();
    /// ```
    pub fn matched_probe(&self, source: impl Into<Source>, tag: impl Into<Tags>) -> MatchedProbe<'_> {
        self.matched_probe_within(self.deadline, source.into(), tag.into())
    }

    pub(super) fn matched_probe_within(
        &self,
        deadline: Duration,
        source: Source,
        tag: Tags,
    ) -> MatchedProbe<'_> {
        let (operation, desc) = self.look("matched_probe", source, tag, Take::Claim, deadline);
        let probe = Probe { operation, desc, channel: self.channel };
        MatchedProbe { communicator: self, probe }
    }

    /// Takes the next message that is of this source and has this tag, or of any, out of what others may receive, if one has come:
    /// what [`try_probe`](Self::try_probe) and then [`matched_probe`](Self::matched_probe) would do, but nobody has it between both.
    ///
    /// # Errors
    ///
    /// As [`try_probe`](Self::try_probe).
    ///
    /// ```
    /// let comm = hcomm::Communicator::local(1).remove(0);
    /// assert!(comm.try_matched_probe(0, 7).unwrap().is_none());
    /// let sent = comm.send(0, 7, vec![1u64, 2, 3]);
    /// let message = comm.try_matched_probe(0, 7).unwrap().unwrap();
    /// assert_eq!(message.recv(vec![0u64; 3]).wait().unwrap().buffer, [1, 2, 3]);
    /// sent.wait().unwrap();
    /// ```
    pub fn try_matched_probe(
        &self,
        source: impl Into<Source>,
        tag: impl Into<Tags>,
    ) -> Result<Option<Message<'_>>, Error> {
        let (wish, desc) = self.wish("matched_probe", source.into(), tag.into());
        let forked = || Error::Forked { operation: "try_matched_probe".into() };
        let arrival = self.engine.claim(self.channel, wish?).ok_or_else(forked)?;
        let message = |arrival: Arrival| {
            let (status, claim) = (Status::new(arrival, &desc), Some(arrival.claim));
            Message { communicator: self, status, digest: arrival.digest, claim }
        };
        Ok(arrival.map(message))
    }

    fn look(
        &self,
        operation: &'static str,
        source: Source,
        tag: Tags,
        take: Take,
        deadline: Duration,
    ) -> (Operation<Looking>, CallDesc) {
        let (wish, desc) = self.wish(operation, source, tag);
        let work = wish.map(|wish| Work::Recv { wish, take });
        let (lent, guard) = Looking.lend(&self.staging);
        let (seq, digest) = (self.next_point(), desc.digest());
        let operation = self.submit_within(deadline, Priority::Normal, seq, desc, digest, work, lent, guard);
        (operation, desc)
    }

    fn receive<B: Lend>(
        &self,
        deadline: Duration,
        desc: CallDesc,
        work: Result<Work, Error>,
        buffer: B,
    ) -> Receive<B> {
        let (lent, guard) = buffer.lend(&self.staging);
        let (dtype, count) = (B::Element::DTYPE, lent.0.raw().len() / size_of::<B::Element>());
        let desc = CallDesc { dtype, count, ..desc };
        let (seq, digest) = (self.next_point(), desc.digest());
        let operation = self.submit_within(deadline, Priority::Normal, seq, desc, digest, work, lent, guard);
        Receive { operation, desc }
    }

    fn wish(&self, operation: &'static str, source: Source, tag: Tags) -> (Result<Wish, Error>, CallDesc) {
        let from = match source {
            Source::Any => Ok(None),
            Source::Of(rank) => self.peer(operation, rank).map(Some),
        };
        let (of, root) = (
            if let Tags::Of(tag) = tag { Some(tag) } else { None },
            if let Source::Of(rank) = source { Some(rank) } else { None },
        );
        let desc = CallDesc {
            root,
            tag: Some(of.map_or(Tagged::Any, Tagged::Of)),
            ..CallDesc::new(operation, DType::U8, 0)
        };
        let wish =
            |from: Option<usize>| Wish { from: from.map(|from| from as u32), tag: of.map(|tag| tag.0) };
        (from.map(wish), desc)
    }
}

/// The future of a receive that may get a shorter message: gives back what was received.
///
/// What is said of an [`Operation`] holds for it.
#[must_use = "an operation has begun, but its result and its errors come from awaiting it"]
pub struct Receive<B: Lend> {
    operation: Operation<B>,
    desc: CallDesc,
}

impl<B: Lend> Receive<B> {
    /// See [`Operation::timeout`].
    pub fn timeout(self, limit: Duration) -> Self {
        Receive { operation: self.operation.timeout(limit), ..self }
    }

    /// See [`Operation::cancel`].
    pub fn cancel(&self) {
        self.operation.cancel();
    }

    pub(super) fn operation(&mut self) -> &mut Operation<B> {
        &mut self.operation
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
    pub fn wait(mut self) -> Result<Received<B::Returned>, OpError<B::Returned>> {
        self.operation.block();
        self.take()
    }

    /// What came of it, once it is over.
    pub(super) fn take(&mut self) -> Result<Received<B::Returned>, OpError<B::Returned>> {
        let (result, arrival) = self.operation.take_all();
        let status = arrival.map(|arrival| Status::new(arrival, &self.desc));
        match (result, status) {
            (Ok(buffer), Some(status)) => Ok(Received { buffer, status }),
            (Ok(_), None) => unreachable!("a receive that went well has a message"),
            (Err(error), _) => Err(error),
        }
    }
}

impl<B: Lend> fmt::Debug for Receive<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receive").field(&self.operation).finish()
    }
}

impl<B: Lend> Future for Receive<B> {
    type Output = Result<Received<B::Returned>, OpError<B::Returned>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.operation.poll_end(cx));
        Poll::Ready(self.take())
    }
}

/// The future of a [`probe`](Communicator::probe).
#[must_use = "it has begun, but what it finds comes from awaiting it"]
pub struct Probe {
    operation: Operation<Looking>,
    desc: CallDesc,
    channel: usize,
}

impl Probe {
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
    pub fn wait(mut self) -> Result<Status, Error> {
        self.operation.block();
        Ok(self.take()?.0)
    }

    fn take(&mut self) -> Result<(Status, Arrival), Error> {
        match self.operation.take_all() {
            (Ok(()), Some(arrival)) => Ok((Status::new(arrival, &self.desc), arrival)),
            (Ok(()), None) => unreachable!("a look that went well has seen a message"),
            (Err(failed), _) => Err(failed.error),
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.operation.give_up_look(self.channel);
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Probe").field(&self.operation).finish()
    }
}

impl Future for Probe {
    type Output = Result<Status, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.operation.poll_end(cx));
        Poll::Ready(self.take().map(|(status, _)| status))
    }
}

/// The future of a [`matched_probe`](Communicator::matched_probe).
#[must_use = "it has begun, but what it finds comes from awaiting it"]
pub struct MatchedProbe<'a> {
    communicator: &'a Communicator,
    probe: Probe,
}

impl<'a> MatchedProbe<'a> {
    /// See [`Operation::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.probe.operation.limit(limit);
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
    pub fn wait(mut self) -> Result<Message<'a>, Error> {
        self.probe.operation.block();
        self.take()
    }

    pub(super) fn operation(&mut self) -> &mut Operation<Looking> {
        &mut self.probe.operation
    }

    /// What came of it, once it is over.
    pub(super) fn take(&mut self) -> Result<Message<'a>, Error> {
        let (status, Arrival { digest, claim, .. }) = self.probe.take()?;
        Ok(Message { communicator: self.communicator, status, digest, claim: Some(claim) })
    }
}

impl fmt::Debug for MatchedProbe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MatchedProbe").field(&self.probe.operation).finish()
    }
}

impl<'a> Future for MatchedProbe<'a> {
    type Output = Result<Message<'a>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.probe.operation.poll_end(cx));
        Poll::Ready(self.take())
    }
}

/// A message that was found by [`matched_probe`](Communicator::matched_probe), and that nobody else can receive.
///
/// Dropping it counts as receiving it: it is thrown away, and its sender, if it has not left yet, gets
/// [`Aborted`](Error::Aborted).
#[must_use = "a message that is dropped is lost"]
pub struct Message<'a> {
    communicator: &'a Communicator,
    status: Status,
    digest: u64,
    claim: Option<u64>,
}

impl Message<'_> {
    /// Whose message it is, and how long.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Receives it into the buffer, of which it may fill a part.
    ///
    /// # Errors
    ///
    /// As [`recv_from`](Communicator::recv_from).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the receive, as that of [`recv`](Communicator::recv).
    pub fn recv<B: LendMut>(self, buffer: B) -> Receive<B> {
        let (deadline, desc) = (self.communicator.deadline, self.desc("recv_from"));
        self.receive(deadline, desc, Take::UpTo, buffer)
    }

    /// As a call of this name would ask for it.
    pub(super) fn desc(&self, operation: &'static str) -> CallDesc {
        let Status { source, tag, .. } = self.status;
        self.communicator.wish(operation, Source::Of(source), Tags::Of(tag)).1
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn receive<B: LendMut>(
        mut self,
        deadline: Duration,
        desc: CallDesc,
        take: Take,
        buffer: B,
    ) -> Receive<B> {
        let (claim, from) = (self.claim.take().unwrap_or_default(), self.status.source.0);
        self.communicator.receive(deadline, desc, Ok(Work::Claimed { claim, from, take }), buffer)
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.communicator.engine.drop_claimed(self.communicator.channel, claim);
        }
    }
}
