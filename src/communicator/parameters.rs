//! Parameters that one rank holds and others pull and push, as stale as their users allow: stale synchronous parallel (Q. Ho et al.,
//! "More effective distributed ML via a stale synchronous parallel parameter server", 2013).
//!
//! All messages have one tag, and a round in their digest, as contributions have: of an update it is its worker's clock; of a message
//! without elements, which asks, the version that is wanted; of the answer, the version that it has. A worker asks for one answer at
//! a time, so the server has one vector for each, and one update of each at most. What is asked for and not there yet waits at the
//! server, and keeps nobody from pushing: so the slowest worker is never waited for by whom it waits for.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use super::contributions::{block_on, each_once};
use super::messages::{MatchedProbe, Message, Receive, Source, Tags};
use super::scope::{self, unlimited};
use super::{Communicator, Operation};
use crate::buffer::lend::Lend;
use crate::element::Element;
use crate::engine::{CallDesc, Take, Work};
use crate::error::Error;
use crate::rank::{Rank, Tag};

impl Communicator {
    /// Holds parameters for these ranks, who have them by [`parameters`](Self::parameters) with the same tag, type and count.
    ///
    /// The tag is for nothing else on these ranks as long as this is there.
    ///
    /// ```
    /// use hcomm::Communicator;
    ///
    /// let mut ranks = Communicator::local(3);
    /// let workers = ranks.split_off(1);
    /// let server = ranks.remove(0);
    /// let threads: Vec<_> = workers.into_iter().map(|comm| {
    ///     std::thread::spawn(move || {
    ///         // Of the others' updates, those of the last two clocks may be missing.
    ///         let mut shared = comm.parameters::<f32>(0, 7, 4, 2);
    ///         for clock in 0..10 {
    ///             let pulled = shared.pull_wait().unwrap();
    ///             assert!(pulled.version + 2 >= clock);
    ///             shared.push(vec![1.0f32; 4]).wait().unwrap();
    ///         }
    ///     })
    /// }).collect();
    /// let mut served = server.serve_parameters(1..3, 7, vec![0f32; 4]);
    /// while let Some(update) = served.next_wait().unwrap() {
    ///     served.parameters().iter_mut().zip(&update.buffer).for_each(|(sum, value)| *sum += value);
    /// }
    /// assert_eq!(served.parameters(), [20.0; 4]);
    /// threads.into_iter().for_each(|thread| thread.join().unwrap());
    /// ```
    pub fn serve_parameters<T: Element>(
        &self,
        workers: impl IntoIterator<Item = impl Into<Rank>>,
        tag: impl Into<Tag>,
        parameters: Vec<T>,
    ) -> ServedParameters<'_, T> {
        let workers = each_once(workers).into_iter().map(Worker::new).collect();
        let (communicator, tag, spare) = (self, tag.into(), Vec::new());
        let (applied, next, limit) = (None, 0, None);
        ServedParameters { communicator, tag, parameters, workers, applied, next, limit, spare }
    }

    /// The parameters that rank `server` [holds](Self::serve_parameters), `count` of them, for this rank, whose clock begins at 0 and
    /// goes on with each [push](Parameters::push).
    ///
    /// `staleness` says how far what is [pulled](Parameters::pull) may be behind this rank's clock: 0 is a step in which all wait for
    /// all, `u32::MAX` is never to wait for another worker.
    pub fn parameters<T: Element>(
        &self,
        server: impl Into<Rank>,
        tag: impl Into<Tag>,
        count: usize,
        staleness: u32,
    ) -> Parameters<'_, T> {
        let (server, tag) = (server.into(), tag.into());
        let (clock, asked, buffer) = (0, false, Vec::new());
        Parameters { communicator: self, server, tag, count, staleness, clock, asked, buffer }
    }
}

/// Parameters that this rank holds: see [`Communicator::serve_parameters`].
#[must_use = "workers wait for it"]
pub struct ServedParameters<'a, T: Element> {
    communicator: &'a Communicator,
    tag: Tag,
    parameters: Vec<T>,
    workers: Vec<Worker<'a, T>>,
    /// Whose update was handed out, and is in once the next is asked for.
    applied: Option<(usize, u32)>,
    /// Who is looked at first.
    next: usize,
    /// How long is looked, where there is a limit around.
    limit: Option<Duration>,
    spare: Vec<Vec<T>>,
}

struct Worker<'a, T: Element> {
    rank: Rank,
    /// How many of its updates are in.
    clock: u32,
    /// The version that it asks for.
    wanted: Option<u32>,
    answer: Option<Operation<Vec<T>>>,
    awaits: Awaits<'a, T>,
}

enum Awaits<'a, T: Element> {
    Nothing,
    Message(MatchedProbe<'a>),
    Update(Receive<Vec<T>>, u32),
    /// It has left.
    Gone,
}

impl<T: Element> Worker<'_, T> {
    fn new(rank: Rank) -> Self {
        Worker { rank, clock: 0, wanted: None, answer: None, awaits: Awaits::Nothing }
    }

    fn is_gone(&self) -> bool {
        matches!(self.awaits, Awaits::Gone)
    }
}

/// What a worker has pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Update<T> {
    /// Whose it is.
    pub worker: Rank,
    /// At which clock of that worker.
    pub clock: u32,
    /// What it has pushed: as many elements as there are parameters.
    pub buffer: Vec<T>,
}

impl<'a, T: Element> ServedParameters<'a, T> {
    /// The parameters, to be changed by an update before the [next](Self::next) is asked for. Workers have them as they are then.
    pub fn parameters(&mut self) -> &mut [T] {
        &mut self.parameters
    }

    /// Of how many clocks the updates of all workers that have not left are in.
    pub fn version(&self) -> u32 {
        let here = self.workers.iter().filter(|worker| !worker.is_gone());
        here.map(|worker| worker.clock).min().unwrap_or(u32::MAX)
    }

    /// The clocks of all workers: how many updates of each are in.
    pub fn clocks(&self) -> Vec<(Rank, u32)> {
        self.workers.iter().map(|worker| (worker.rank, worker.clock)).collect()
    }

    /// Which workers have left: nobody waits for their updates any more.
    pub fn left(&self) -> Vec<Rank> {
        self.workers.iter().filter(|worker| worker.is_gone()).map(|worker| worker.rank).collect()
    }

    /// Waits for the next update, and answers those who pull meanwhile; `None` once all workers have left. The last update is in
    /// once this is called: from then on it counts for the [`version`](Self::version).
    ///
    /// It has no deadline: a service may be idle; [`within`](crate::within) gives it one.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] for a message with this tag that is neither an update nor asks for parameters of this type and count: it is
    /// thrown away, and to call again goes on. [`Error::PeerLost`] if a rank is lost: the communicator has failed then, and all
    /// workers are told the same. One that leaves in order is no error: it is among those that have [left](Self::left), and holds up
    /// nobody. [`Error::InvalidArgument`] if there is no such rank, or are no parameters.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no update is lost. Nobody is answered while this is not awaited.
    pub async fn next(&mut self) -> Result<Option<Update<T>>, Error> {
        self.limit_looks();
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same on this thread, without a runtime.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    ///
    /// # Panics
    ///
    /// In a simulated world (feature `testing`), which stands still while a rank waits like this.
    pub fn next_wait(&mut self) -> Result<Option<Update<T>>, Error> {
        self.communicator.engine.allow_blocking();
        self.limit_looks();
        block_on(&mut poll_fn(|cx| self.poll_next(cx)))
    }

    /// Looks go on from one call to the next, unless they have a limit, or are to have one.
    fn limit_looks(&mut self) {
        let left = scope::left(|| self.communicator.engine.now());
        if left.is_some() || self.limit.is_some() {
            for worker in &mut self.workers {
                if matches!(worker.awaits, Awaits::Message(_)) {
                    worker.awaits = Awaits::Nothing;
                }
            }
        }
        self.limit = left;
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Update<T>>, Error>> {
        if self.parameters.is_empty() {
            let problem = "there are no parameters: give it one or more";
            return Poll::Ready(Err(Error::invalid("serve_parameters", problem.into())));
        }
        if let Some((at, clock)) = self.applied.take() {
            let worker = &mut self.workers[at];
            worker.clock = worker.clock.max(clock.saturating_add(1));
        }
        // However many updates there are.
        self.answer(cx);
        loop {
            for step in 0..self.workers.len() {
                let at = (self.next + step) % self.workers.len();
                if let Some(update) = self.step(at, cx)? {
                    self.applied = Some((at, update.clock));
                    self.next = at + 1;
                    return Poll::Ready(Ok(Some(update)));
                }
            }
            self.answer(cx);
            if self.workers.iter().all(Worker::is_gone) {
                return Poll::Ready(Ok(None));
            }
            if !self.sleep(cx) {
                return Poll::Pending;
            }
        }
    }

    /// What has come of a worker: moves on until it waits.
    fn step(&mut self, at: usize, cx: &Context<'_>) -> Result<Option<Update<T>>, Error> {
        loop {
            match &mut self.workers[at].awaits {
                Awaits::Gone => return Ok(None),
                Awaits::Nothing => {
                    let (source, tag) = (Source::Of(self.workers[at].rank), Tags::Of(self.tag));
                    let (comm, limit) = (self.communicator, self.limit.unwrap_or(Duration::MAX));
                    let look = unlimited(|| comm.matched_probe_within(limit, source, tag));
                    self.workers[at].awaits = Awaits::Message(look);
                }
                Awaits::Message(look) => {
                    if !look.operation().is_over(cx) {
                        return Ok(None);
                    }
                    let found = look.take();
                    self.workers[at].awaits = Awaits::Nothing;
                    match found {
                        Ok(message) => self.heed(at, message),
                        Err(Error::Left { .. }) => self.workers[at].awaits = Awaits::Gone,
                        // Where a limit is around it.
                        Err(error) => return Err(error),
                    }
                }
                Awaits::Update(receive, clock) => {
                    if !receive.operation().is_over(cx) {
                        return Ok(None);
                    }
                    let (received, clock) = (receive.take(), *clock);
                    let worker = &mut self.workers[at];
                    worker.awaits = Awaits::Nothing;
                    match received {
                        Ok(received) => {
                            let (worker, buffer) = (worker.rank, received.buffer);
                            return Ok(Some(Update { worker, clock, buffer }));
                        }
                        // Its worker has given it up.
                        Err(failed) if matches!(failed.error, Error::Aborted { .. }) => {}
                        Err(failed) => return Err(failed.error),
                    }
                }
            }
        }
    }

    /// A message of a worker: an update, or a wish.
    fn heed(&mut self, at: usize, message: Message<'a>) {
        let of = |count| CallDesc { dtype: T::DTYPE, count, ..message.desc("serve_parameters") };
        let (wish, update) = (of(0).round_of(message.digest()), of(self.parameters.len()));
        let worker = &mut self.workers[at];
        if let Some(version) = wish.filter(|_| message.status().count == 0) {
            worker.wanted = Some(version.max(worker.wanted.unwrap_or_default()));
            return;
        }
        // What is neither is refused where it is received, and both sides are told.
        let clock = update.round_of(message.digest()).unwrap_or_default();
        let buffer = vec![T::zeroed(); self.parameters.len()];
        let desc = update.of_round(clock);
        let receive = unlimited(|| message.receive(Duration::MAX, desc, Take::Exact, buffer));
        worker.awaits = Awaits::Update(receive, clock);
    }

    /// Answers those whose version is there.
    fn answer(&mut self, cx: &Context<'_>) {
        let version = self.version();
        for worker in self.workers.iter_mut().filter(|worker| !worker.is_gone()) {
            if let Some(answer) = &mut worker.answer {
                if !answer.is_over(cx) {
                    continue;
                }
                // Whoever does not want it any more asks again, or has left.
                let (Ok(buffer) | Err(crate::error::OpError { buffer: Some(buffer), .. })) =
                    answer.take_all().0
                else {
                    worker.answer = None;
                    continue;
                };
                worker.answer = None;
                self.spare.push(buffer);
            }
            if worker.wanted.is_none_or(|wanted| wanted > version) {
                continue;
            }
            worker.wanted = None;
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(&self.parameters);
            let to = self.communicator.peer("serve_parameters", worker.rank);
            let work = to.map(|to| Work::Send { to });
            let (comm, message) = (self.communicator, (self.tag, Some(version)));
            let answer = unlimited(|| comm.point_of("send", worker.rank, message, work, buffer));
            worker.answer = Some(answer);
        }
    }

    /// Drives by one of those that are waited for. Says whether anything ended meanwhile.
    fn sleep(&mut self, cx: &mut Context<'_>) -> bool {
        let mut awaited = self.workers.iter_mut().filter_map(|worker| match &mut worker.awaits {
            Awaits::Message(look) => Some(look.operation().poll_end(cx).is_ready()),
            Awaits::Update(receive, _) => Some(receive.operation().poll_end(cx).is_ready()),
            Awaits::Nothing | Awaits::Gone => None,
        });
        awaited.next().unwrap_or(false)
    }
}

impl<T: Element> fmt::Debug for ServedParameters<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedParameters")
            .field("tag", &self.tag)
            .field("clocks", &self.clocks())
            .field("left", &self.left())
            .finish_non_exhaustive()
    }
}

/// Parameters that another rank holds: see [`Communicator::parameters`].
#[must_use = "it is for pulling and pushing"]
pub struct Parameters<'a, T: Element> {
    communicator: &'a Communicator,
    server: Rank,
    tag: Tag,
    count: usize,
    staleness: u32,
    clock: u32,
    /// An answer is on its way.
    asked: bool,
    buffer: Vec<T>,
}

/// Parameters as they were pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled<'p, T> {
    /// Of how many clocks the updates of all workers are in, at least; this rank's own are, as far as the server has received them.
    pub version: u32,
    /// The parameters.
    pub values: &'p [T],
}

impl<T: Element> Parameters<'_, T> {
    /// How many updates this rank has pushed.
    pub fn clock(&self) -> u32 {
        self.clock
    }

    /// Waits for parameters that have all updates of all workers but for those of the last clocks that staleness allows to be
    /// missing: of version `clock - staleness` at least. They may be newer.
    ///
    /// Each message of it has the communicator's deadline; [`within`](crate::within) gives it another.
    ///
    /// # Errors
    ///
    /// [`Error::Deadline`] if another worker is too slow, or the server is: it blames the server, which knows by
    /// [`clocks`](ServedParameters::clocks) who it is. [`Error::PeerLost`] if any rank is lost, [`Error::Left`] if the server has left.
    /// [`Error::Mismatch`] if it has parameters of another type or count.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: to pull again takes the answer that was asked for.
    pub async fn pull(&mut self) -> Result<Pulled<'_, T>, Error> {
        let wanted = self.clock.saturating_sub(self.staleness);
        loop {
            if !self.asked {
                self.asked = true;
                self.ask(wanted).await.inspect_err(|_| self.asked = false)?;
            }
            let comm = self.communicator;
            let message = comm.matched_probe(self.server, self.tag).await?;
            // It is on its way no more, whatever comes of it.
            self.asked = false;
            let (version, receive) = self.receive(message);
            self.buffer = receive.await?.buffer;
            if version >= wanted {
                return Ok(Pulled { version, values: &self.buffer });
            }
        }
    }

    /// The same on this thread, without a runtime.
    ///
    /// # Errors
    ///
    /// As [`pull`](Self::pull).
    ///
    /// # Panics
    ///
    /// In a simulated world (feature `testing`), which stands still while a rank waits like this.
    pub fn pull_wait(&mut self) -> Result<Pulled<'_, T>, Error> {
        self.communicator.engine.allow_blocking();
        block_on(&mut Box::pin(self.pull()))
    }

    /// Pushes an update of this rank's clock, which goes on by one.
    ///
    /// # Errors
    ///
    /// As [`send`](Communicator::send).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn push<B: Lend<Element = T>>(&mut self, update: B) -> Operation<B> {
        let clock = self.clock;
        self.clock = clock.saturating_add(1);
        self.communicator.contribute(self.server, self.tag, clock, update)
    }

    async fn ask(&self, version: u32) -> Result<(), Error> {
        self.communicator.contribute(self.server, self.tag, version, Vec::<T>::new()).await?;
        Ok(())
    }

    fn receive(&mut self, message: Message<'_>) -> (u32, Receive<Vec<T>>) {
        let desc = CallDesc { dtype: T::DTYPE, count: self.count, ..message.desc("pull") };
        let version = desc.round_of(message.digest()).unwrap_or_default();
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(self.count, T::zeroed());
        let deadline = self.communicator.deadline;
        (version, message.receive(deadline, desc.of_round(version), Take::Exact, buffer))
    }
}

impl<T: Element> fmt::Debug for Parameters<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parameters")
            .field("server", &self.server)
            .field("tag", &self.tag)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
