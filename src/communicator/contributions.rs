//! The first of many contributions to a round, reduced, by a rank that does not wait for stragglers: backup workers (J. Chen et al.,
//! "Revisiting distributed synchronous SGD", 2016).
//!
//! A contribution is a message whose digest has its round (`CallDesc::of_round`), so that it needs no header of its own, and is
//! checked like any other. Of each contributor one message at a time is claimed by a look at its own messages only: a rank that has
//! left is noticed by that look, and one that is ahead waits in what its messages may take here. What is of a round that is over is
//! thrown away. Reduced is in the order of ranks, once it is known who is in.
//!
//! What has come is kept by [`Contributions`], and only looks by [`ReduceFirst`]: so nothing is lost with that future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::collectives::unsupported;
use super::messages::{MatchedProbe, Message, Receive, Source, Tags};
use super::scope::{self, unlimited};
use super::{Communicator, Operation};
use crate::buffer::lend::Lend;
use crate::buffer::raw::reduce_slices;
use crate::element::{Element, ReduceOp};
use crate::engine::{CallDesc, Take, Work};
use crate::error::Error;
use crate::kernel::Reduction;
use crate::rank::{Rank, Tag};

const OPERATION: &str = "reduce_first";

impl Communicator {
    /// Sends this rank's contribution to a round to rank `to`, which reduces the first of them by
    /// [`contributions`](Self::contributions) with this tag, type and count.
    ///
    /// A rank contributes to rounds in ascending order, and need not contribute to each. It may be ahead of `to` as far as a
    /// [`send`](Self::send) may be ahead of its receive.
    ///
    /// That it went well says that the buffer may be used again, and not that it was counted: a contribution that comes after its
    /// round is thrown away. If it has more than 64 KiB, its sender gets [`Error::Aborted`] then, so that it need not be sent.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn contribute<B: Lend>(
        &self,
        to: impl Into<Rank>,
        tag: impl Into<Tag>,
        round: u32,
        buffer: B,
    ) -> Operation<B> {
        let to = to.into();
        let work = self.peer("contribute", to).map(|to| Work::Send { to });
        self.point_of("contribute", to, (tag.into(), Some(round)), work, buffer)
    }

    /// What these ranks [contribute](Self::contribute) to this one with a tag, `count` elements each, round by round; this rank may be
    /// one of them. [`reduce_first`](Contributions::reduce_first) ends with the first of a round.
    ///
    /// The tag is for nothing else as long as this is there: what it has claimed of the messages is dropped with it, as that of a
    /// [`Message`].
    ///
    /// In memory there are a vector of each contributor to the round under way, at most, and one for the result; the vectors are used
    /// again. Who is ahead, or late, is held up or thrown away without one.
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// let mut ranks = Communicator::local(4);
    /// let workers = ranks.split_off(1);
    /// let server = ranks.remove(0);
    /// let mut gradients = server.contributions::<f32>(1..4, 7, 2);
    /// // The third worker is slow: its gradient of round 0 comes when it is over.
    /// workers[0].contribute(0, 7, 0, vec![1.0f32, 2.0]).wait().unwrap();
    /// workers[1].contribute(0, 7, 0, vec![3.0f32, 4.0]).wait().unwrap();
    /// let first = gradients.reduce_first(2, 0, ReduceOp::Avg).wait().unwrap();
    /// assert_eq!(first.buffer, [2.0, 3.0]);
    /// assert_eq!(first.missing, [hcomm::Rank(3)]);
    ///
    /// workers[2].contribute(0, 7, 0, vec![90.0f32, 90.0]).wait().unwrap();
    /// workers[2].contribute(0, 7, 1, vec![5.0f32, 6.0]).wait().unwrap();
    /// workers[0].contribute(0, 7, 1, vec![7.0f32, 8.0]).wait().unwrap();
    /// let second = gradients.reduce_first(2, 1, ReduceOp::Avg).wait().unwrap();
    /// assert_eq!(second.buffer, [6.0, 7.0]);
    /// assert_eq!(gradients.late(), 1);
    /// ```
    pub fn contributions<T: Element>(
        &self,
        of: impl IntoIterator<Item = impl Into<Rank>>,
        tag: impl Into<Tag>,
        count: usize,
    ) -> Contributions<'_, T> {
        let contributors =
            each_once(of).into_iter().map(|rank| Contributor { rank, has: Has::Nothing }).collect();
        let (communicator, tag, spare) = (self, tag.into(), Vec::new());
        Contributions { communicator, tag, count, contributors, round: None, late: 0, spare }
    }
}

/// Contributions of several ranks, as [`Communicator::contributions`] collects them.
#[must_use = "it is for its reductions"]
pub struct Contributions<'a, T: Element> {
    communicator: &'a Communicator,
    tag: Tag,
    count: usize,
    /// In the order of ranks.
    contributors: Vec<Contributor<'a, T>>,
    /// The one under way, or the last.
    round: Option<u32>,
    late: u64,
    spare: Vec<Vec<T>>,
}

struct Contributor<'a, T: Element> {
    rank: Rank,
    has: Has<'a, T>,
}

enum Has<'a, T: Element> {
    Nothing,
    /// Of a later round.
    Early(Message<'a>, u32),
    /// It is received, since then.
    Coming(Receive<Vec<T>>, Instant),
    Here(Vec<T>),
}

/// The first contributions to a round.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reduced<T> {
    /// Their reduction, in the order of ranks.
    pub buffer: Vec<T>,
    /// Whose they are, in ascending order.
    pub contributors: Vec<Rank>,
    /// Whose contribution is not in.
    pub missing: Vec<Rank>,
}

impl<'a, T: Element> Contributions<'a, T> {
    /// Waits until `k` of the ranks have contributed to this round, and reduces what they gave; once as many are there, nobody else
    /// is waited for. Equal contributions of the same ranks give the same bits, in whatever order they come: they are reduced in the
    /// order of ranks. [`ReduceOp::Avg`] divides by how
    /// many are in: `k`, or more where more had come already when it was asked for.
    ///
    /// Rounds ascend, and some may be left out. What comes of an earlier one is thrown away, and [counted](Self::late); what is of a
    /// later one is kept for that, and its rank does not contribute to this one any more. Of several contributions of a rank to a
    /// round, the first counts.
    ///
    /// It begins when it is polled, and its deadline is the communicator's, unless [`timeout`](ReduceFirst::timeout) says otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`], whose `late` are all that have not contributed, and [`Error::TooFew`] as soon as `k` can't be reached any
    /// more, because others have left or are in a later round. What has come is kept: [`contributed`](Self::contributed) says of
    /// whom, and to ask for so many of the same round again ends at once. But what is just being received when the
    /// deadline passes, as can be of more than 64 KiB, is given up: its sender gets [`Error::Aborted`].
    ///
    /// [`Error::Mismatch`] if a message with this tag is no contribution, or one of another type or count. It is thrown away, and the
    /// rest is kept: call again to go on.
    ///
    /// [`Error::PeerLost`] if a rank is lost, be it a contributor or not: the communicator has failed then.
    /// [`Error::InvalidArgument`] for `k` of 0 or more than there are ranks, for a round before the last one, and for a reduction that is not for the type.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what has come stays with these contributions, and another call for the same round goes on.
    pub fn reduce_first(&mut self, k: usize, round: u32, op: ReduceOp) -> ReduceFirst<'_, 'a, T> {
        let limit = self.communicator.deadline;
        let looks = Vec::new();
        ReduceFirst { from: self, k, round, op, limit, begun: None, looks, timed: None, ended: false }
    }

    /// Who has contributed to the round that was asked for last and has not ended well yet.
    pub fn contributed(&self) -> Vec<Rank> {
        self.list(|has| matches!(has, Has::Here(_)))
    }

    /// How many contributions have come after their round, and were thrown away.
    pub fn late(&self) -> u64 {
        self.late
    }

    fn list(&self, is_it: impl Fn(&Has<'a, T>) -> bool) -> Vec<Rank> {
        let those = self.contributors.iter().filter(|contributor| is_it(&contributor.has));
        those.map(|contributor| contributor.rank).collect()
    }

    fn desc(&self, operation: &'static str, message: &Message<'_>) -> CallDesc {
        CallDesc { dtype: T::DTYPE, count: self.count, ..message.desc(operation) }
    }

    /// Whatever can't be right of a call.
    fn check(&self, k: usize, round: u32, op: ReduceOp) -> Result<(), Error> {
        let ranks = self.contributors.len();
        let problem = if k == 0 || k > ranks {
            format!("{k} contributions of {ranks} ranks: give a number from 1 to {ranks}")
        } else if let Some(last) = self.round.filter(|last| *last > round) {
            format!("round {round} is over: round {last} was asked for")
        } else if !op.supports(T::DTYPE) {
            unsupported(op, T::DTYPE)
        } else {
            let peer = |contributor: &Contributor<'_, T>| {
                self.communicator.peer(OPERATION, contributor.rank).map(|_| ())
            };
            return self.contributors.iter().try_for_each(peer);
        };
        Err(Error::invalid(OPERATION, problem))
    }

    /// Turns to a round: what is there of earlier ones is late.
    fn turn_to(&mut self, round: u32) {
        if self.round == Some(round) {
            return;
        }
        self.round = Some(round);
        for at in 0..self.contributors.len() {
            match std::mem::replace(&mut self.contributors[at].has, Has::Nothing) {
                Has::Nothing => {}
                Has::Here(buffer) => {
                    self.late += 1;
                    self.spare.push(buffer);
                }
                Has::Coming(receive, _) => {
                    self.late += 1;
                    receive.cancel();
                }
                Has::Early(message, of) => self.take(at, message, Some(of)),
            }
        }
    }

    /// Puts a message of a contributor that has none where it belongs.
    fn take(&mut self, at: usize, message: Message<'a>, of: Option<u32>) {
        let round = self.round.unwrap_or_default();
        match of {
            Some(of) if of < round => self.late += 1,
            Some(of) if of > round => self.contributors[at].has = Has::Early(message, of),
            // What is no contribution is refused where it is received, and both sides are told.
            _ => {
                let desc = self.desc(OPERATION, &message).of_round(round);
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.resize(self.count, T::zeroed());
                let begun = self.communicator.engine.now();
                let receive = unlimited(|| message.receive(Duration::MAX, desc, Take::Exact, buffer));
                self.contributors[at].has = Has::Coming(receive, begun);
            }
        }
    }

    /// Reduces what is here, which ends the round.
    fn reduce(&mut self, op: ReduceOp) -> Reduced<T> {
        let contributors = self.contributed();
        let missing = self.list(|has| !matches!(has, Has::Here(_)));
        let mut buffers = Vec::with_capacity(contributors.len());
        for contributor in &mut self.contributors {
            match std::mem::replace(&mut contributor.has, Has::Nothing) {
                Has::Here(buffer) => buffers.push(buffer),
                other => contributor.has = other,
            }
        }
        let rest = buffers.split_off(1);
        let mut buffer = buffers.remove(0);
        let divisor = if op == ReduceOp::Avg { contributors.len() as u32 } else { 1 };
        let others: Vec<&[T]> = rest.iter().map(Vec::as_slice).collect();
        reduce_slices(Reduction { dtype: T::DTYPE, op, divisor }, &mut buffer, &others);
        self.spare.extend(rest);
        Reduced { buffer, contributors, missing }
    }
}

impl<T: Element> Drop for Contributions<'_, T> {
    fn drop(&mut self) {
        for contributor in &self.contributors {
            if let Has::Coming(receive, _) = &contributor.has {
                receive.cancel();
            }
        }
    }
}

impl<T: Element> fmt::Debug for Contributions<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contributions")
            .field("tag", &self.tag)
            .field("round", &self.round)
            .field("contributed", &self.contributed())
            .field("late", &self.late)
            .finish_non_exhaustive()
    }
}

/// The future of [`Contributions::reduce_first`].
#[must_use = "it does nothing unless it is awaited"]
pub struct ReduceFirst<'c, 'a, T: Element> {
    from: &'c mut Contributions<'a, T>,
    k: usize,
    round: u32,
    op: ReduceOp,
    limit: Duration,
    begun: Option<Instant>,
    /// A look at the messages of each contributor.
    looks: Vec<Look<'a>>,
    /// Whose wait has the deadline.
    timed: Option<usize>,
    ended: bool,
}

enum Look<'a> {
    /// Nothing is waited for.
    None,
    At(Box<MatchedProbe<'a>>, Instant),
    /// It contributes no more.
    Gone,
}

impl<'a, T: Element> ReduceFirst<'_, 'a, T> {
    /// Gives it this long instead of the communicator's deadline, from when it is first polled.
    pub fn timeout(self, limit: Duration) -> Self {
        ReduceFirst { limit, ..self }
    }

    /// Waits for the end on this thread, without a runtime; see [`Operation::wait`].
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// In a simulated world (feature `testing`), which stands still while a rank waits like this.
    pub fn wait(mut self) -> Result<Reduced<T>, Error> {
        self.from.communicator.engine.allow_blocking();
        block_on(&mut self)
    }

    fn begin(&mut self) -> Result<(), Error> {
        if self.begun.is_none() {
            self.from.check(self.k, self.round, self.op)?;
            let begun = self.from.communicator.engine.now();
            self.limit = scope::left(|| begun).map_or(self.limit, |left| self.limit.min(left));
            self.begun = Some(begun);
            self.from.turn_to(self.round);
            self.looks = self.from.contributors.iter().map(|_| Look::None).collect();
        }
        Ok(())
    }

    /// What is left of the time from an instant on.
    fn left(&self, since: Instant) -> Duration {
        let begun = self.begun.unwrap_or(since);
        self.limit.saturating_sub(since.saturating_duration_since(begun)).max(Duration::from_millis(1))
    }

    /// Looks for a message of a contributor that has none.
    fn look(&mut self, at: usize) {
        let from = &self.from;
        let now = from.communicator.engine.now();
        // One wait has the deadline, for all.
        let deadline = if self.timed.is_none() { self.left(now) } else { Duration::MAX };
        self.timed.get_or_insert(at);
        let (source, tag) = (Source::Of(from.contributors[at].rank), Tags::Of(from.tag));
        let look = unlimited(|| from.communicator.matched_probe_within(deadline, source, tag));
        self.looks[at] = Look::At(Box::new(look), now);
    }

    /// What has come of a contributor; moves on until it waits, is here, or does not come.
    fn step(&mut self, at: usize, cx: &Context<'_>) -> Result<(), Error> {
        loop {
            match (&mut self.from.contributors[at].has, &mut self.looks[at]) {
                (Has::Here(_) | Has::Early(..), _) | (Has::Nothing, Look::Gone) => return Ok(()),
                (Has::Coming(receive, _), _) => {
                    if !receive.operation().is_over(cx) {
                        return Ok(());
                    }
                    let received = receive.take();
                    self.from.contributors[at].has = Has::Nothing;
                    let timed = self.untime(at);
                    match received {
                        Ok(received) => self.from.contributors[at].has = Has::Here(received.buffer),
                        Err(failed) => {
                            self.from.spare.extend(failed.buffer);
                            self.bear(failed.error, timed)?;
                        }
                    }
                }
                (Has::Nothing, Look::None) => self.look(at),
                (Has::Nothing, Look::At(probe, _)) => {
                    if !probe.operation().is_over(cx) {
                        return Ok(());
                    }
                    let found = probe.take();
                    let timed = self.untime(at);
                    self.looks[at] = Look::None;
                    match found {
                        Ok(message) => {
                            let of = self.from.desc(OPERATION, &message).round_of(message.digest());
                            self.from.take(at, message, of);
                        }
                        Err(Error::Left { .. }) => self.looks[at] = Look::Gone,
                        Err(error) => self.bear(error, timed)?,
                    }
                }
            }
        }
    }

    /// What its sender has given up is as if it had not come, or an earlier wait for it; all else ends this one.
    fn bear(&self, error: Error, timed: bool) -> Result<(), Error> {
        match error {
            Error::Aborted { .. } => Ok(()),
            Error::Deadline(_) if !timed => Ok(()),
            Error::Deadline(mut report) => {
                report.operation = OPERATION.into();
                report.late = self.from.list(|has| !matches!(has, Has::Here(_)));
                Err(Error::Deadline(report))
            }
            other => Err(other),
        }
    }

    /// Its wait is over; says whether that had the deadline.
    fn untime(&mut self, at: usize) -> bool {
        self.timed.take_if(|timed| *timed == at).is_some()
    }

    /// Whether a contributor is waited for.
    fn awaits(&self, at: usize) -> bool {
        matches!(
            (&self.from.contributors[at].has, &self.looks[at]),
            (Has::Coming(..), _) | (Has::Nothing, Look::At(..))
        )
    }

    fn has_enough(&self) -> bool {
        let here = |contributor: &&Contributor<'_, T>| matches!(contributor.has, Has::Here(_));
        self.from.contributors.iter().filter(here).count() >= self.k
    }

    /// Ends it once there can't be enough any more.
    fn judge(&self) -> Result<(), Error> {
        let here = self.from.contributed();
        let coming = (0..self.looks.len()).filter(|at| self.awaits(*at)).count();
        if here.len() + coming >= self.k {
            return Ok(());
        }
        let (mut missing, mut causes) = (Vec::new(), Vec::new());
        for (contributor, look) in self.from.contributors.iter().zip(&self.looks) {
            let rank = contributor.rank;
            match (&contributor.has, look) {
                (Has::Early(_, of), _) => causes.push(format!("rank {rank} is in round {of} already")),
                (Has::Nothing, Look::Gone) => causes.push(format!("rank {rank} has left")),
                _ => continue,
            }
            missing.push(rank);
        }
        Err(Error::TooFew {
            communicator: self.from.communicator.name.clone(),
            round: self.round,
            needed: self.k as u32,
            contributed: here.into(),
            missing: missing.into(),
            cause: causes.join("; ").into(),
        })
    }

    /// Gives one of the waits the deadline, if none has it, and drives by it. Says whether it ended meanwhile.
    fn sleep(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(at) = self.timed.or_else(|| (0..self.looks.len()).find(|at| self.awaits(*at))) else {
            unreachable!("without anybody to wait for there are enough, or too few")
        };
        if self.timed.replace(at).is_none() {
            let since = match (&self.from.contributors[at].has, &self.looks[at]) {
                (Has::Coming(_, since), _) | (_, Look::At(_, since)) => *since,
                _ => unreachable!("it is waited for"),
            };
            let left = self.left(since);
            match (&mut self.from.contributors[at].has, &mut self.looks[at]) {
                (Has::Coming(receive, _), _) => receive.operation().limit(left),
                (_, Look::At(probe, _)) => probe.operation().limit(left),
                _ => {}
            }
        }
        match (&mut self.from.contributors[at].has, &mut self.looks[at]) {
            (Has::Coming(receive, _), _) => receive.operation().poll_end(cx).is_ready(),
            (_, Look::At(probe, _)) => probe.operation().poll_end(cx).is_ready(),
            _ => false,
        }
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reduced<T>, Error>> {
        self.begin()?;
        loop {
            // What is there may be enough for who asks for fewer than before.
            for at in 0..self.looks.len() {
                if self.has_enough() {
                    break;
                }
                self.step(at, cx)?;
            }
            if self.has_enough() {
                return Poll::Ready(Ok(self.from.reduce(self.op)));
            }
            self.judge()?;
            if !self.sleep(cx) {
                return Poll::Pending;
            }
        }
    }
}

impl<T: Element> Future for ReduceFirst<'_, '_, T> {
    type Output = Result<Reduced<T>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.ended, "an operation was polled again after it had ended");
        let polled = self.poll_all(cx);
        self.ended = polled.is_ready();
        polled
    }
}

impl<T: Element> fmt::Debug for ReduceFirst<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReduceFirst").field("k", &self.k).field("of", &self.from).finish_non_exhaustive()
    }
}

/// Ranks in ascending order, each once.
pub(super) fn each_once(ranks: impl IntoIterator<Item = impl Into<Rank>>) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = ranks.into_iter().map(Into::into).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Waits for a future on this thread.
pub(super) fn block_on<F: Future + Unpin>(future: &mut F) -> F::Output {
    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut cx) {
            return output;
        }
        std::thread::park();
    }
}
