//! Streams of calls beside a communicator's own, each under a key.
//!
//! A key has a channel of its own, whose identifier comes from that of the communicator and the key: ranks need not talk to
//! make one. `engine::family` says how it shares the communicator's fate.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::split::line;
use super::{Communicator, Operation, Prepared, Ready, View};
use crate::buffer::lend::{Lend, LendMut, Nothing, Pair};
use crate::element::{Element, ReduceOp};
use crate::engine::channel::{Channel, Family};
use crate::engine::family::{KEY_BYTES_MAX, key_id, key_word};
use crate::error::Error;
use crate::path::{Algorithm, VerifiedPlan};
use crate::rank::Rank;

/// Keys of one communicator at most: more than a model has layers. Each costs memory on every rank as long as the
/// communicator lives.
const KEYS_MAX: usize = 1024;

/// The keys of a communicator that were used so far.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// What is done under each key; `None` while somebody has it.
    streams: HashMap<Arc<str>, Option<Communicator>>,
    closed: bool,
}

impl Keys {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The communicator goes: what nobody has goes with it, the rest once it is given back.
    pub(super) fn close(&self) {
        let streams = {
            let mut known = self.lock();
            known.closed = true;
            std::mem::take(&mut known.streams)
        };
        drop(streams);
    }

    fn give_back(&self, key: &Arc<str>, stream: Communicator) {
        let mut known = self.lock();
        let slot = if known.closed { None } else { known.streams.get_mut(key) };
        if let Some(slot) = slot {
            *slot = Some(stream);
            return;
        }
        // Its communicator has gone. The lock is not for what follows.
        drop(known);
        drop(stream);
    }
}

impl Communicator {
    /// A stream of calls of its own under a key, with the same ranks: for several tasks that call collectives at the same
    /// time, in any order among each other.
    ///
    /// Calls under one key are in the same order on all ranks; calls under different keys need not be. Ranks find each
    /// other by the key alone: asking for one sends at most a note and waits for nobody. Calls under a key go on where the
    /// last ones under it left off, whoever made them.
    ///
    /// It belongs to this communicator: a lost rank fails both, [`rebuild`](Self::rebuild) ends it (the new communicator has
    /// keys of its own), and once this is dropped, calls are refused as [`Error::Closed`]. Its operations have this
    /// communicator's deadline; errors name it after both: `world["layer3.weight"]`. One operation per key may be in flight
    /// whatever [`resources`](Self::resources) allows.
    ///
    /// # Errors
    ///
    /// [`Error::KeyInUse`] while somebody else has this key, so that two tasks can't race under it;
    /// [`Error::InvalidArgument`] for a key of no or more than 256 bytes; [`Error::Limit`] for the 1025th key of a
    /// communicator.
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// let threads: Vec<_> = Communicator::local(2).into_iter().map(|comm| {
    ///     std::thread::spawn(move || {
    ///         // Gradients become ready in another order on each rank.
    ///         let mut layers = ["layer0", "layer1", "layer2"];
    ///         layers.rotate_left(comm.rank().index());
    ///         let sums = layers.map(|layer| {
    ///             let gradient = vec![layer.len() as f32; 4];
    ///             comm.keyed(layer).unwrap().all_reduce(gradient, ReduceOp::Sum)
    ///         });
    ///         for sum in sums {
    ///             assert_eq!(sum.wait().unwrap(), [12.0; 4]);
    ///         }
    ///     })
    /// }).collect();
    /// threads.into_iter().for_each(|thread| thread.join().unwrap());
    /// ```
    pub fn keyed(&self, key: &str) -> Result<Keyed, Error> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let bytes = key.len();
            return Err(Error::invalid(
                "keyed",
                format!("a key has 1 to {KEY_BYTES_MAX} bytes, not {bytes}"),
            ));
        }
        let mut known = self.keys.lock();
        let known_as = known.streams.get_key_value(key).map(|(key, _)| key.clone());
        let (key, mut stream) = if let Some(known_as) = known_as {
            let slot = known.streams.get_mut(key).and_then(Option::take);
            let Some(stream) = slot else {
                return Err(Error::KeyInUse { communicator: self.name.clone(), key: known_as });
            };
            (known_as, stream)
        } else {
            if known.streams.len() == KEYS_MAX {
                return Err(Error::Limit {
                    operation: "keyed".into(),
                    what: format!("keys of \"{}\"", self.name).into(),
                    limit: KEYS_MAX as u64,
                    hint: "use one of them, or those of another communicator, as `dup` makes it".into(),
                });
            }
            let key: Arc<str> = key.into();
            known.streams.insert(key.clone(), None);
            // Nobody else gets it meanwhile.
            drop(known);
            (key.clone(), self.open_keyed(&key))
        };
        stream.set_deadline(self.deadline);
        Ok(Keyed { key, stream: Some(stream), keys: self.keys.clone() })
    }

    fn open_keyed(&self, key: &Arc<str>) -> Communicator {
        let id = key_id(self.id, key);
        let name = format!("{}[{key:?}]", self.name).into();
        let mut channel = Channel::new(id, name, self.members.clone(), self.rank);
        channel.lineage = line(&self.lineage, self.id);
        channel.family = Some(Family { parent: self.id, key: key.clone() });
        let mut stream = Self::open_channel(self.engine.clone(), channel, self.facts, self.plans.clone());
        stream.programs = self.programs.clone();
        stream.key_word = key_word(key);
        stream
    }
}

/// The calls under one key of a communicator, as [`Communicator::keyed`] hands them out to one at a time: dropping it lets
/// others have the key. Operations in flight go on.
///
/// If it is dropped because its thread panics, the key is closed: others that wait under it are told of a lost rank, and
/// calls under it are refused here. The communicator is of use without it.
#[must_use = "a key is for calls under it, and nobody else has it meanwhile"]
pub struct Keyed {
    key: Arc<str>,
    /// None once it was given back.
    stream: Option<Communicator>,
    keys: Arc<Keys>,
}

impl Keyed {
    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.stream.as_ref().map_or(Rank(0), Communicator::rank)
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.stream.as_ref().map_or(0, Communicator::size)
    }

    /// Its communicator's name and the key, as errors and reports have it.
    pub fn name(&self) -> &str {
        self.stream.as_ref().map_or("", Communicator::name)
    }

    /// How long operations may take.
    pub fn deadline(&self) -> Duration {
        self.stream.as_ref().map_or(Duration::ZERO, Communicator::deadline)
    }

    /// How long operations may take from now on, as long as this is had.
    pub fn set_deadline(&mut self, deadline: Duration) {
        if let Some(stream) = &mut self.stream {
            stream.set_deadline(deadline);
        }
    }

    /// See [`Communicator::set_admission`]: for the calls under this key, also of whoever has it next.
    pub fn set_admission(&mut self, limit: usize) {
        self.stream().set_admission(limit);
    }

    /// See [`Communicator::ready`].
    pub fn ready(&mut self) -> Ready<'_> {
        self.stream().ready()
    }

    pub(super) fn stream(&mut self) -> &mut Communicator {
        // It is there until this is dropped.
        self.stream.as_mut().unwrap_or_else(|| unreachable!("a key that was given back"))
    }

    /// See [`Communicator::using`].
    pub fn using(&mut self, algorithm: Algorithm) -> View<'_> {
        self.stream().using(algorithm)
    }

    /// See [`Communicator::with_plan`].
    pub fn with_plan(&mut self, plan: &Arc<VerifiedPlan>) -> View<'_> {
        self.stream().with_plan(plan)
    }

    /// See [`Communicator::urgent`].
    pub fn urgent(&mut self) -> View<'_> {
        self.stream().urgent()
    }

    /// See [`Communicator::bulk`].
    pub fn bulk(&mut self) -> View<'_> {
        self.stream().bulk()
    }

    /// See [`Communicator::barrier`].
    pub fn barrier(&mut self) -> Operation<Nothing> {
        self.stream().barrier()
    }

    /// See [`Communicator::all_reduce`].
    pub fn all_reduce<B: LendMut>(&mut self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.stream().all_reduce(buffer, op)
    }

    /// See [`Communicator::broadcast`].
    pub fn broadcast<B: LendMut>(&mut self, buffer: B, root: impl Into<Rank>) -> Operation<B> {
        self.stream().broadcast(buffer, root)
    }

    /// See [`Communicator::all_gather`].
    pub fn all_gather<B: LendMut>(&mut self, buffer: B) -> Operation<B> {
        self.stream().all_gather(buffer)
    }

    /// See [`Communicator::reduce_scatter`].
    pub fn reduce_scatter<B: LendMut>(&mut self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.stream().reduce_scatter(buffer, op)
    }

    /// See [`Communicator::reduce`].
    pub fn reduce<B: LendMut>(&mut self, buffer: B, op: ReduceOp, root: impl Into<Rank>) -> Operation<B> {
        self.stream().reduce(buffer, op, root)
    }

    /// See [`Communicator::gather`].
    pub fn gather<B: LendMut>(&mut self, buffer: B, root: impl Into<Rank>) -> Operation<B> {
        self.stream().gather(buffer, root)
    }

    /// See [`Communicator::scatter`].
    pub fn scatter<B: LendMut>(&mut self, buffer: B, root: impl Into<Rank>) -> Operation<B> {
        self.stream().scatter(buffer, root)
    }

    /// See [`Communicator::all_to_all`].
    pub fn all_to_all<B: LendMut>(&mut self, buffer: B) -> Operation<B> {
        self.stream().all_to_all(buffer)
    }

    /// See [`Communicator::scan`].
    pub fn scan<B: LendMut>(&mut self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.stream().scan(buffer, op)
    }

    /// See [`Communicator::exscan`].
    pub fn exscan<B: LendMut>(&mut self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.stream().exscan(buffer, op)
    }

    /// See [`Communicator::all_reduce_into`].
    pub fn all_reduce_into<I, O>(&mut self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().all_reduce_into(input, output, op)
    }

    /// See [`Communicator::all_gather_into`].
    pub fn all_gather_into<I, O>(&mut self, input: I, output: O) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().all_gather_into(input, output)
    }

    /// See [`Communicator::reduce_scatter_into`].
    pub fn reduce_scatter_into<I, O>(&mut self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().reduce_scatter_into(input, output, op)
    }

    /// See [`Communicator::reduce_into`].
    pub fn reduce_into<I, O>(
        &mut self,
        input: I,
        output: O,
        op: ReduceOp,
        root: impl Into<Rank>,
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().reduce_into(input, output, op, root)
    }

    /// See [`Communicator::gather_into`].
    pub fn gather_into<I, O>(&mut self, input: I, output: O, root: impl Into<Rank>) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().gather_into(input, output, root)
    }

    /// See [`Communicator::scatter_into`].
    pub fn scatter_into<I, O>(&mut self, input: I, output: O, root: impl Into<Rank>) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().scatter_into(input, output, root)
    }

    /// See [`Communicator::all_to_all_into`].
    pub fn all_to_all_into<I, O>(&mut self, input: I, output: O) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().all_to_all_into(input, output)
    }

    /// See [`Communicator::scan_into`].
    pub fn scan_into<I, O>(&mut self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().scan_into(input, output, op)
    }

    /// See [`Communicator::exscan_into`].
    pub fn exscan_into<I, O>(&mut self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().exscan_into(input, output, op)
    }

    /// See [`Communicator::all_gather_v`].
    pub fn all_gather_v<B: LendMut>(&mut self, buffer: B, counts: &[usize]) -> Operation<B> {
        self.stream().all_gather_v(buffer, counts)
    }

    /// See [`Communicator::reduce_scatter_v`].
    pub fn reduce_scatter_v<B: LendMut>(
        &mut self,
        buffer: B,
        counts: &[usize],
        op: ReduceOp,
    ) -> Operation<B> {
        self.stream().reduce_scatter_v(buffer, counts, op)
    }

    /// See [`Communicator::all_gather_v_into`].
    pub fn all_gather_v_into<I, O>(&mut self, input: I, output: O, counts: &[usize]) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().all_gather_v_into(input, output, counts)
    }

    /// See [`Communicator::reduce_scatter_v_into`].
    pub fn reduce_scatter_v_into<I, O>(
        &mut self,
        input: I,
        output: O,
        counts: &[usize],
        op: ReduceOp,
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().reduce_scatter_v_into(input, output, counts, op)
    }

    /// An all_reduce under this key, agreed once; see [`Communicator::prepare_all_reduce`]. It fits this key alone, also
    /// when this was dropped and the key asked for again.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_all_reduce<T: Element>(
        &mut self,
        count: usize,
        op: ReduceOp,
    ) -> Result<Prepared<T>, Error> {
        self.stream().prepare_all_reduce(count, op)
    }

    /// See [`Communicator::prepare_broadcast`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_broadcast<T: Element>(
        &mut self,
        count: usize,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        self.stream().prepare_broadcast(count, root)
    }

    /// See [`Communicator::prepare_reduce`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_reduce<T: Element>(
        &mut self,
        count: usize,
        op: ReduceOp,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        self.stream().prepare_reduce(count, op, root)
    }

    /// See [`Communicator::prepare_all_gather`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_all_gather<T: Element>(&mut self, count: usize) -> Result<Prepared<T>, Error> {
        self.stream().prepare_all_gather(count)
    }

    /// See [`Communicator::prepare_reduce_scatter`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_reduce_scatter<T: Element>(
        &mut self,
        count: usize,
        op: ReduceOp,
    ) -> Result<Prepared<T>, Error> {
        self.stream().prepare_reduce_scatter(count, op)
    }

    /// See [`Communicator::prepare_gather`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_gather<T: Element>(
        &mut self,
        count: usize,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        self.stream().prepare_gather(count, root)
    }

    /// See [`Communicator::prepare_scatter`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_scatter<T: Element>(
        &mut self,
        count: usize,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        self.stream().prepare_scatter(count, root)
    }

    /// See [`Communicator::prepare_all_to_all`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_all_to_all<T: Element>(&mut self, count: usize) -> Result<Prepared<T>, Error> {
        self.stream().prepare_all_to_all(count)
    }

    /// See [`Communicator::prepare_scan`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_scan<T: Element>(&mut self, count: usize, op: ReduceOp) -> Result<Prepared<T>, Error> {
        self.stream().prepare_scan(count, op)
    }

    /// See [`Communicator::prepare_exscan`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_exscan<T: Element>(&mut self, count: usize, op: ReduceOp) -> Result<Prepared<T>, Error> {
        self.stream().prepare_exscan(count, op)
    }

    /// Runs what was prepared under this key; see [`Prepared::run`].
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// let comm = Communicator::local(1).remove(0);
    /// let mut layer = comm.keyed("layer0")?;
    /// let sum = layer.prepare_all_reduce::<f32>(3, ReduceOp::Sum)?;
    /// assert_eq!(layer.run(&sum, vec![1.0, 2.0, 3.0]).wait()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run<B: LendMut>(&mut self, prepared: &Prepared<B::Element>, buffer: B) -> Operation<B> {
        prepared.run(self.stream(), buffer)
    }
}

impl fmt::Debug for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Drop for Keyed {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            if std::thread::panicking() {
                stream.engine.abandon(stream.channel);
            }
            self.keys.give_back(&self.key, stream);
        }
    }
}
