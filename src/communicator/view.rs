//! [`View`]: options for one call, and the calls that they are for.

use std::sync::Arc;

use super::collectives::{Counts, Lengths};
use super::{Communicator, Operation, Prepared};
use crate::buffer::lend::{Lend, LendMut, Lent, Nothing, Pair};
use crate::buffer::parts::Parts;
use crate::element::{Element, ReduceOp};
use crate::engine::{CallDesc, Priority, Work};
use crate::error::Error;
use crate::path::{Algorithm, Collective, VerifiedPlan};
use crate::rank::Rank;

/// A communicator with options for one call: `comm.using(Algorithm::Ring).all_reduce(…)`, or several of them:
/// `comm.urgent().using(Algorithm::Ring).all_reduce(…)`.
#[derive(Debug)]
#[must_use = "options do nothing without a call"]
pub struct View<'a> {
    pub(super) communicator: &'a mut Communicator,
    pub(super) way: Way,
    pub(super) priority: Priority,
}

/// Where the plan of a call comes from.
#[derive(Clone, Debug)]
pub(super) enum Way {
    Chosen,
    Algorithm(Algorithm),
    Plan(Arc<VerifiedPlan>),
}

impl<'a> View<'a> {
    /// See [`Communicator::using`].
    pub fn using(self, algorithm: Algorithm) -> View<'a> {
        View { way: Way::Algorithm(algorithm), ..self }
    }

    /// See [`Communicator::with_plan`].
    pub fn with_plan(self, plan: &Arc<VerifiedPlan>) -> View<'a> {
        View { way: Way::Plan(plan.clone()), ..self }
    }

    /// See [`Communicator::urgent`].
    pub fn urgent(self) -> View<'a> {
        View { priority: Priority::Urgent, ..self }
    }

    /// See [`Communicator::bulk`].
    pub fn bulk(self) -> View<'a> {
        View { priority: Priority::Bulk, ..self }
    }

    /// See [`Communicator::barrier`].
    pub fn barrier(self) -> Operation<Nothing> {
        self.collective("barrier", Collective::AllReduce, Some(ReduceOp::Max), Nothing::new())
    }

    /// See [`Communicator::all_reduce`].
    pub fn all_reduce<B: LendMut>(self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.collective("all_reduce", Collective::AllReduce, Some(op), buffer)
    }

    /// See [`Communicator::broadcast`].
    pub fn broadcast<B: LendMut>(self, buffer: B, root: impl Into<Rank>) -> Operation<B> {
        let root = root.into();
        self.collective("broadcast", Collective::Broadcast { root }, None, buffer)
    }

    /// See [`Communicator::all_gather`].
    pub fn all_gather<B: LendMut>(self, buffer: B) -> Operation<B> {
        self.collective("all_gather", Collective::AllGather, None, buffer)
    }

    /// See [`Communicator::reduce_scatter`].
    pub fn reduce_scatter<B: LendMut>(self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.collective("reduce_scatter", Collective::ReduceScatter, Some(op), buffer)
    }

    /// See [`Communicator::reduce`].
    pub fn reduce<B: LendMut>(self, buffer: B, op: ReduceOp, root: impl Into<Rank>) -> Operation<B> {
        let root = root.into();
        self.collective("reduce", Collective::Reduce { root }, Some(op), buffer)
    }

    /// See [`Communicator::gather`].
    pub fn gather<B: LendMut>(self, buffer: B, root: impl Into<Rank>) -> Operation<B> {
        let root = root.into();
        self.collective("gather", Collective::Gather { root }, None, buffer)
    }

    /// See [`Communicator::scatter`].
    pub fn scatter<B: LendMut>(self, buffer: B, root: impl Into<Rank>) -> Operation<B> {
        let root = root.into();
        self.collective("scatter", Collective::Scatter { root }, None, buffer)
    }

    /// See [`Communicator::all_to_all`].
    pub fn all_to_all<B: LendMut>(self, buffer: B) -> Operation<B> {
        self.collective("all_to_all", Collective::AllToAll, None, buffer)
    }

    /// See [`Communicator::scan`].
    pub fn scan<B: LendMut>(self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.collective("scan", Collective::Scan, Some(op), buffer)
    }

    /// See [`Communicator::exscan`].
    pub fn exscan<B: LendMut>(self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.collective("exscan", Collective::ExScan, Some(op), buffer)
    }

    /// See [`Communicator::all_reduce_into`].
    pub fn all_reduce_into<I, O>(self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.collective("all_reduce_into", Collective::AllReduce, Some(op), Pair::new(input, output))
    }

    /// See [`Communicator::all_gather_into`].
    pub fn all_gather_into<I, O>(self, input: I, output: O) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.collective("all_gather_into", Collective::AllGather, None, Pair::new(input, output))
    }

    /// See [`Communicator::reduce_scatter_into`].
    pub fn reduce_scatter_into<I, O>(self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.collective("reduce_scatter_into", Collective::ReduceScatter, Some(op), Pair::new(input, output))
    }

    /// See [`Communicator::reduce_into`].
    pub fn reduce_into<I, O>(
        self,
        input: I,
        output: O,
        op: ReduceOp,
        root: impl Into<Rank>,
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        let root = root.into();
        self.collective("reduce_into", Collective::Reduce { root }, Some(op), Pair::new(input, output))
    }

    /// See [`Communicator::gather_into`].
    pub fn gather_into<I, O>(self, input: I, output: O, root: impl Into<Rank>) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        let root = root.into();
        self.collective("gather_into", Collective::Gather { root }, None, Pair::new(input, output))
    }

    /// See [`Communicator::scatter_into`].
    pub fn scatter_into<I, O>(self, input: I, output: O, root: impl Into<Rank>) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        let root = root.into();
        self.collective("scatter_into", Collective::Scatter { root }, None, Pair::new(input, output))
    }

    /// See [`Communicator::all_to_all_into`].
    pub fn all_to_all_into<I, O>(self, input: I, output: O) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.collective("all_to_all_into", Collective::AllToAll, None, Pair::new(input, output))
    }

    /// See [`Communicator::scan_into`].
    pub fn scan_into<I, O>(self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.collective("scan_into", Collective::Scan, Some(op), Pair::new(input, output))
    }

    /// See [`Communicator::exscan_into`].
    pub fn exscan_into<I, O>(self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.collective("exscan_into", Collective::ExScan, Some(op), Pair::new(input, output))
    }

    pub(super) fn communicator(&self) -> &Communicator {
        self.communicator
    }

    /// See [`Communicator::all_gather_v`].
    pub fn all_gather_v<B: LendMut>(self, buffer: B, counts: &[usize]) -> Operation<B> {
        self.unequal("all_gather_v", Collective::AllGather, None, Counts::Agreed(counts), buffer)
    }

    /// See [`Communicator::all_gather_v_into`].
    pub fn all_gather_v_into<I, O>(self, input: I, output: O, counts: &[usize]) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        let buffers = Pair::new(input, output);
        self.unequal("all_gather_v_into", Collective::AllGather, None, Counts::Agreed(counts), buffers)
    }

    /// See [`Communicator::reduce_scatter_v`].
    pub fn reduce_scatter_v<B: LendMut>(self, buffer: B, counts: &[usize], op: ReduceOp) -> Operation<B> {
        self.unequal("reduce_scatter_v", Collective::ReduceScatter, Some(op), Counts::Agreed(counts), buffer)
    }

    /// See [`Communicator::reduce_scatter_v_into`].
    pub fn reduce_scatter_v_into<I, O>(
        self,
        input: I,
        output: O,
        counts: &[usize],
        op: ReduceOp,
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        let buffers = Pair::new(input, output);
        self.unequal(
            "reduce_scatter_v_into",
            Collective::ReduceScatter,
            Some(op),
            Counts::Agreed(counts),
            buffers,
        )
    }

    pub(super) fn collective<B: Lend>(
        self,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        buffer: B,
    ) -> Operation<B> {
        self.compared(Ok(0), operation, collective, op, buffer)
    }

    /// The same, where ranks compare a word beside the call; or of which it is known that it is wrong: it takes its number, and is
    /// refused.
    pub(super) fn compared<B: Lend>(
        self,
        word: Result<u64, Error>,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        buffer: B,
    ) -> Operation<B> {
        self.begin(buffer, |communicator, way, lent| {
            let (lengths, dtype) = (lengths::<B>(lent), B::Element::DTYPE);
            let (mut desc, program) = communicator.describe(operation, collective, op, lengths, dtype, way);
            let work = word.and_then(|word| {
                desc.fingerprint ^= word;
                program.map(Work::Collective)
            });
            (desc, work)
        })
    }

    /// The same of parts that are not equal.
    pub(super) fn unequal<B: Lend>(
        self,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        counts: Counts<'_>,
        buffer: B,
    ) -> Operation<B> {
        self.cut(operation, collective, op, |_| Ok(counts), buffer)
    }

    /// The same, cut as `counts` says once the buffers' lengths are known.
    pub(super) fn cut<'c, B: Lend>(
        self,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        counts: impl FnOnce(Lengths) -> Result<Counts<'c>, String>,
        buffer: B,
    ) -> Operation<B> {
        self.begin(buffer, |communicator, way, lent| {
            let lengths = lengths::<B>(lent);
            let (of, dtype) = ((lengths, counts(lengths)), B::Element::DTYPE);
            let (desc, program) = communicator.describe_unequal(operation, collective, op, of, dtype, way);
            let work = program.map(|(program, cuts)| {
                let parts = std::mem::replace(&mut lent.0, Parts::NONE);
                lent.0 = parts.with_cuts(cuts);
                Work::Collective(program)
            });
            (desc, work)
        })
    }

    /// Takes a number for what it is then found to be.
    fn begin<B: Lend>(
        self,
        buffer: B,
        describe: impl FnOnce(&mut Communicator, &Way, &mut Lent) -> (CallDesc, Result<Work, Error>),
    ) -> Operation<B> {
        let View { communicator, way, priority } = self;
        let seq = communicator.next;
        communicator.next += 1;
        let (mut lent, guard) = buffer.lend(&communicator.staging);
        let (desc, work) = describe(communicator, &way, &mut lent);
        communicator.submit_as(priority, seq, desc, desc.digest(), work, lent, guard)
    }

    /// See [`Communicator::prepare_all_reduce`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_all_reduce<T: Element>(self, count: usize, op: ReduceOp) -> Result<Prepared<T>, Error> {
        self.prepare("all_reduce", Collective::AllReduce, Some(op), count)
    }

    /// See [`Communicator::prepare_broadcast`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_broadcast<T: Element>(
        self,
        count: usize,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        let root = root.into();
        self.prepare("broadcast", Collective::Broadcast { root }, None, count)
    }

    /// See [`Communicator::prepare_reduce`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_reduce<T: Element>(
        self,
        count: usize,
        op: ReduceOp,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        let root = root.into();
        self.prepare("reduce", Collective::Reduce { root }, Some(op), count)
    }

    /// See [`Communicator::prepare_all_gather`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_all_gather<T: Element>(self, count: usize) -> Result<Prepared<T>, Error> {
        self.prepare("all_gather", Collective::AllGather, None, count)
    }

    /// See [`Communicator::prepare_reduce_scatter`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_reduce_scatter<T: Element>(
        self,
        count: usize,
        op: ReduceOp,
    ) -> Result<Prepared<T>, Error> {
        self.prepare("reduce_scatter", Collective::ReduceScatter, Some(op), count)
    }

    /// See [`Communicator::prepare_gather`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_gather<T: Element>(
        self,
        count: usize,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        let root = root.into();
        self.prepare("gather", Collective::Gather { root }, None, count)
    }

    /// See [`Communicator::prepare_scatter`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_scatter<T: Element>(
        self,
        count: usize,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        let root = root.into();
        self.prepare("scatter", Collective::Scatter { root }, None, count)
    }

    /// See [`Communicator::prepare_all_to_all`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_all_to_all<T: Element>(self, count: usize) -> Result<Prepared<T>, Error> {
        self.prepare("all_to_all", Collective::AllToAll, None, count)
    }

    /// See [`Communicator::prepare_scan`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_scan<T: Element>(self, count: usize, op: ReduceOp) -> Result<Prepared<T>, Error> {
        self.prepare("scan", Collective::Scan, Some(op), count)
    }

    /// See [`Communicator::prepare_exscan`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_exscan<T: Element>(self, count: usize, op: ReduceOp) -> Result<Prepared<T>, Error> {
        self.prepare("exscan", Collective::ExScan, Some(op), count)
    }

    fn prepare<T: Element>(
        self,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        count: usize,
    ) -> Result<Prepared<T>, Error> {
        let View { communicator, way, priority } = self;
        let lengths = Lengths::in_place(count);
        let (desc, program) = communicator.describe(operation, collective, op, lengths, T::DTYPE, &way);
        Ok(Prepared::new(communicator, priority, desc, program?, count))
    }
}

/// Elements of what was lent.
fn lengths<B: Lend>(lent: &Lent) -> Lengths {
    let elements = |parts: &Parts| parts.raw().len() / size_of::<B::Element>();
    Lengths { input: lent.0.input().map(elements), output: elements(&lent.0) }
}
