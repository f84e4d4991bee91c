//! Collectives: what all ranks call together.

use std::sync::{Arc, PoisonError};

use super::{Communicator, Operation, PreparedAllReduce};
use crate::buffer::lend::{Lend, LendMut, Nothing, Pair};
use crate::buffer::parts::Parts;
use crate::element::{DType, Element, ReduceOp};
use crate::engine::{CallDesc, Priority, Program, Work};
use crate::error::Error;
use crate::path::{
    Algorithm, Collective, Explanation, Extent, Placement, Space, VerifiedPlan, choose, out_of_place,
};
use crate::rank::Rank;

/// Programs kept per communicator: as many as there are algorithms, some roots, and some of the caller's own.
const PROGRAMS_MAX: usize = 32;

/// A communicator with options for one call: `comm.using(Algorithm::Ring).all_reduce(…)`, or several of them:
/// `comm.urgent().using(Algorithm::Ring).all_reduce(…)`.
#[derive(Debug)]
#[must_use = "options do nothing without a call"]
pub struct View<'a> {
    communicator: &'a mut Communicator,
    way: Way,
    priority: Priority,
}

/// Where the plan of a call comes from.
#[derive(Clone, Debug)]
enum Way {
    Chosen,
    Algorithm(Algorithm),
    Plan(Arc<VerifiedPlan>),
}

impl Communicator {
    /// Options for one call: this algorithm instead of the one that would be chosen. All ranks must ask for the same.
    pub fn using(&mut self, algorithm: Algorithm) -> View<'_> {
        self.plain().using(algorithm)
    }

    /// Options for one call: this plan, of the caller's own making, for the collective and the number of ranks that it
    /// was made for. All ranks must give an equal one: its [fingerprint](VerifiedPlan::fingerprint) is compared as the
    /// rest of the call is. Give the same `Arc` again and again; what a plan needs is looked up once for each.
    ///
    /// ```
    /// use std::sync::{Arc, PoisonError};
    ///
    /// use hcomm::path::{self, After, Collective, Operand, Plan, PlanBuilder, Post, Range, Space};
    /// use hcomm::{Communicator, Rank, ReduceOp};
    ///
    /// /// All send to rank 0, which sums in rank order and sends the result to all.
    /// fn star(ranks: u32) -> Plan {
    ///     let all = Range::new(Space::Output, 0, 1);
    ///     let mut plan = PlanBuilder::new(Collective::AllReduce, "star", ranks, 1, 1);
    ///     let sent: Vec<_> = (1..ranks).map(|rank| plan.send(Rank(rank), Rank(0), all, &[])).collect();
    ///     let mut operands = vec![Operand::Local(all)];
    ///     operands.extend(sent.iter().map(|sent| Operand::Message(sent.message)));
    ///     let sum = plan.reduce(Rank(0), all, &operands, Post::Finish, &[]);
    ///     for (rank, sent) in (1..ranks).zip(sent) {
    ///         let back = plan.send(Rank(0), Rank(rank), all, &[After::Stream(sum)]);
    ///         plan.place(back.message, all, &[After::Stream(sent.step)]);
    ///     }
    ///     plan.build()
    /// }
    ///
    /// // Proved here, for all ranks together; a plan that could hang, race or forget a rank is refused.
    /// let plan = Arc::new(path::verify(star(3)).unwrap());
    /// let threads: Vec<_> = Communicator::local(3).into_iter().map(|mut comm| {
    ///     let plan = plan.clone();
    ///     std::thread::spawn(move || {
    ///         let rank = comm.rank().0 as f32;
    ///         comm.with_plan(&plan).all_reduce(vec![rank, 10.0], ReduceOp::Sum).wait().unwrap()
    ///     })
    /// }).collect();
    /// for thread in threads {
    ///     assert_eq!(thread.join().unwrap(), [3.0, 30.0]);
    /// }
    /// ```
    pub fn with_plan(&mut self, plan: &Arc<VerifiedPlan>) -> View<'_> {
        self.plain().with_plan(plan)
    }

    pub(super) fn plain(&mut self) -> View<'_> {
        View { communicator: self, way: Way::Chosen, priority: Priority::Normal }
    }

    /// Which algorithm a call would use, why, what it costs, and which guarantee of equal bits holds. Local: any rank may ask,
    /// by itself.
    ///
    /// `count` is the whole vector's length in elements.
    ///
    /// # Errors
    ///
    /// If there is no plan for such a call.
    pub fn explain(&self, collective: Collective, count: usize, dtype: DType) -> Result<Explanation, Error> {
        let choice = choose(&self.facts, collective, bytes(count, dtype), None)
            .map_err(|error| refused("explain", &error))?;
        let plan = self.proved("explain", choice.algorithm, collective, Placement::InPlace)?;
        Ok(Explanation::new(choice, &plan, count, dtype.size()))
    }
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
    #[inline]
    pub(super) fn compared<B: Lend>(
        self,
        word: Result<u64, Error>,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        buffer: B,
    ) -> Operation<B> {
        let View { communicator, way, priority } = self;
        let seq = communicator.next;
        communicator.next += 1;
        let (lent, guard) = buffer.lend(&communicator.staging);
        let elements = |parts: &Parts| parts.raw().len() / size_of::<B::Element>();
        let lengths = Lengths { input: lent.0.input().map(elements), output: elements(&lent.0) };
        let dtype = B::Element::DTYPE;
        let (mut desc, program) = communicator.describe(operation, collective, op, lengths, dtype, &way);
        let work = word.and_then(|word| {
            desc.fingerprint ^= word;
            program.map(Work::Collective)
        });
        communicator.submit_as(priority, seq, desc, desc.digest(), work, lent, guard)
    }

    /// See [`Communicator::prepare_all_reduce`].
    ///
    /// # Errors
    ///
    /// As there; and if the plan or algorithm is for something else.
    pub fn prepare_all_reduce<T: Element>(
        self,
        count: usize,
        op: ReduceOp,
    ) -> Result<PreparedAllReduce<T>, Error> {
        let View { communicator, way, priority } = self;
        let (desc, program) = communicator.describe(
            "all_reduce",
            Collective::AllReduce,
            Some(op),
            Lengths::in_place(count),
            T::DTYPE,
            &way,
        );
        Ok(PreparedAllReduce::new(communicator, priority, desc, program?))
    }
}

impl Communicator {
    /// What is called, in the terms in which ranks compare it, and the program that does it.
    fn describe(
        &mut self,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        lengths: Lengths,
        dtype: DType,
        way: &Way,
    ) -> (CallDesc, Result<Arc<Program>, Error>) {
        let count = self.count(collective, lengths);
        let mut desc = CallDesc {
            operation,
            dtype,
            count: count.as_ref().map_or(lengths.output, |count| *count),
            op,
            root: collective.root(),
            tag: None,
            algorithm: "",
            fingerprint: 0,
        };
        let program = count.map_err(|problem| Error::invalid(operation, problem));
        let program = program.and_then(|_| self.plan(&desc, collective, lengths.placement(), way));
        if let Ok(program) = &program {
            desc.algorithm = program.plan.algorithm;
            desc.fingerprint = program.plan.fingerprint() ^ self.key_word;
        }
        (desc, program)
    }

    /// Elements of the vector that buffers of such lengths hold, or of which they hold parts.
    fn count(&self, collective: Collective, lengths: Lengths) -> Result<usize, String> {
        let (ranks, me) = (self.size(), self.rank());
        if let Some(root) = collective.root().filter(|root| root.index() >= ranks) {
            return Err(format!(
                "there is no rank {root} among {ranks} to be the root: give one from 0 to {}",
                ranks - 1
            ));
        }
        let Lengths { input, output } = lengths;
        let placement = lengths.placement();
        let extent = |space| collective.extent(placement, space, me);
        // By the first buffer that has something, and then the other one has to fit.
        let (name, len, of) = match (input, extent(Space::Input)) {
            (Some(input), of) if of != Extent::None => ("input", input, of),
            _ => ("buffer", output, extent(Space::Output)),
        };
        let count = match of {
            Extent::Part => len.checked_mul(ranks).ok_or("more elements than there can be")?,
            _ if collective.has_parts() && !len.is_multiple_of(ranks) => {
                return Err(format!(
                    "{} {name} of {len} elements can't be cut into {ranks} equal parts, one per rank: give {}, padded if \
                     need be",
                    if name == "input" { "an" } else { "a" },
                    len.next_multiple_of(ranks)
                ));
            }
            _ => len,
        };
        let Some(input) = input else { return Ok(count) };
        for (name, len, space) in [("input", input, Space::Input), ("output", output, Space::Output)] {
            let (needed, why) = match extent(space) {
                Extent::All => (count, "as many as the vector has"),
                Extent::Part => (count / ranks, "as many as a part has"),
                Extent::None => (0, "since only the root's is used"),
            };
            if len != needed {
                return Err(format!("the {name} has {len} elements: give it {needed}, {why}"));
            }
        }
        Ok(count)
    }

    fn plan(
        &mut self,
        desc: &CallDesc,
        collective: Collective,
        placement: Placement,
        way: &Way,
    ) -> Result<Arc<Program>, Error> {
        let CallDesc { operation, count, dtype, op, .. } = *desc;
        if matches!(collective, Collective::Scan | Collective::ExScan) && op == Some(ReduceOp::Avg) {
            let problem = "the ranks before one differ in number, so there is no average over them: use sum, and divide it";
            return Err(Error::invalid(operation, problem.to_string()));
        }
        let forced = match way {
            Way::Plan(plan) => return self.own_program(operation, collective, placement, plan),
            Way::Algorithm(algorithm) => Some(*algorithm),
            Way::Chosen => None,
        };
        let choice = choose(&self.facts, collective, bytes(count, dtype), forced)
            .map_err(|error| refused(operation, &error))?;
        self.program(operation, choice.algorithm, collective, placement)
    }

    /// The program of an algorithm for this rank, from the cache.
    fn program(
        &mut self,
        operation: &str,
        algorithm: Algorithm,
        collective: Collective,
        placement: Placement,
    ) -> Result<Arc<Program>, Error> {
        let of = (algorithm, collective, placement);
        let known =
            self.programs.iter().find(|known| matches!(known.of, Of::Algorithm(known) if known == of));
        if let Some(known) = known {
            return Ok(known.program.clone());
        }
        let plan = self.proved(operation, algorithm, collective, placement)?;
        Ok(self.keep_program(Of::Algorithm(of), plan))
    }

    /// The plan of an algorithm, from the table that all parts of the world share.
    fn proved(
        &self,
        operation: &str,
        algorithm: Algorithm,
        collective: Collective,
        placement: Placement,
    ) -> Result<Arc<VerifiedPlan>, Error> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.get(algorithm, collective, placement, self.members.len() as u32);
        plan.map_err(|error| refused(operation, &error))
    }

    /// The program of a caller's plan for this rank.
    fn own_program(
        &mut self,
        operation: &str,
        collective: Collective,
        placement: Placement,
        plan: &Arc<VerifiedPlan>,
    ) -> Result<Arc<Program>, Error> {
        // A plan in place does for two buffers, too; but not the other way round.
        let fits = plan.placement == placement || placement == Placement::OutOfPlace;
        if plan.collective != collective || plan.ranks.len() != self.size() || !fits {
            let problem = format!(
                "the plan \"{}\" is for {}{} on {} ranks, the call is {collective} on \"{}\" of {}: give it a plan for that, or \
                 call without .with_plan()",
                plan.algorithm,
                plan.collective,
                if fits { "" } else { " out of place" },
                plan.ranks.len(),
                self.name,
                self.size()
            );
            return Err(Error::invalid(operation, problem));
        }
        let is_it =
            |of: &Of| matches!(of, Of::Plan(of, as_it_is) if Arc::ptr_eq(of, plan) && *as_it_is == placement);
        if let Some(known) = self.programs.iter().find(|known| is_it(&known.of)) {
            return Ok(known.program.clone());
        }
        let run = match placement {
            Placement::InPlace => plan.clone(),
            Placement::OutOfPlace => {
                Arc::new(out_of_place(plan).map_err(|error| refused(operation, &error))?)
            }
        };
        Ok(self.keep_program(Of::Plan(plan.clone(), placement), run))
    }

    fn keep_program(&mut self, of: Of, plan: Arc<VerifiedPlan>) -> Arc<Program> {
        let program = Arc::new(Program::new(plan, self.rank));
        if self.programs.len() == PROGRAMS_MAX {
            self.programs.remove(0);
        }
        self.programs.push(Known { of, program: program.clone() });
        program
    }
}

/// How many elements a rank has handed in.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    /// Of the buffer that is read, if it is another one.
    input: Option<usize>,
    output: usize,
}

impl Lengths {
    const fn in_place(count: usize) -> Self {
        Lengths { input: None, output: count }
    }

    const fn placement(self) -> Placement {
        if self.input.is_some() { Placement::OutOfPlace } else { Placement::InPlace }
    }
}

/// A program that was used before.
#[derive(Clone, Debug)]
pub(super) struct Known {
    of: Of,
    program: Arc<Program>,
}

/// Whose plan a program is.
#[derive(Clone, Debug)]
enum Of {
    Algorithm((Algorithm, Collective, Placement)),
    /// The caller's own, as he has given it, and for which calls.
    Plan(Arc<VerifiedPlan>, Placement),
}

/// Length of a vector. There need be no memory for as many elements as are only asked about.
const fn bytes(count: usize, dtype: DType) -> u64 {
    (count as u64).saturating_mul(dtype.size() as u64)
}

fn refused(operation: &str, error: &dyn std::error::Error) -> Error {
    Error::invalid(operation, error.to_string())
}
