//! Collectives: what all ranks call together.

use std::sync::{Arc, PoisonError};

use super::{Communicator, Operation, PreparedAllReduce};
use crate::buffer::lend::{Lend, LendMut, Nothing};
use crate::element::{DType, Element, ReduceOp};
use crate::engine::{CallDesc, Priority, Program, Work};
use crate::error::Error;
use crate::path::{Algorithm, Collective, Explanation, VerifiedPlan, choose};
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
        let plan = self.proved("explain", choice.algorithm, collective)?;
        Ok(Explanation::new(choice, &plan, count, dtype.size()))
    }

    /// Ends when all ranks have called it.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn barrier(&mut self) -> Operation<Nothing> {
        self.plain().barrier()
    }

    /// Combines the vectors of all ranks, element by element; all ranks get the result, with equal bits.
    ///
    /// All ranks call it with the same number of elements, any number, of the same type.
    ///
    /// # Errors
    ///
    /// - [`Error::Mismatch`], on all ranks, if they call different things;
    /// - [`Error::Deadline`] naming who is late;
    /// - [`Error::PeerLost`] naming who has crashed or can't be reached, [`Error::Left`] who has left in order, and
    ///   [`Error::Protocol`] who does not speak as agreed;
    /// - [`Error::Aborted`] if another rank has given it up, or what it called was refused there; [`Error::Cancelled`] if this one
    ///   has, or begins to [`rebuild`](Self::rebuild);
    /// - [`Error::InvalidArgument`] if there is no plan for the call: for an algorithm or plan of another collective or number of
    ///   ranks;
    /// - [`Error::Failed`] if the communicator has failed before, [`Error::Closed`] if it was rebuilt.
    ///
    /// The buffer comes back inside the [error](crate::OpError), unless a peer might still be in it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// let threads: Vec<_> = Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let rank = comm.rank().0 as f32;
    ///         comm.all_reduce(vec![rank, 10.0], ReduceOp::Sum).wait().unwrap()
    ///     })
    /// }).collect();
    /// for thread in threads {
    ///     assert_eq!(thread.join().unwrap(), [1.0, 20.0]);
    /// }
    /// ```
    pub fn all_reduce<B: LendMut>(&mut self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.plain().all_reduce(buffer, op)
    }

    /// Gives all ranks the vector of rank `root`.
    ///
    /// All ranks call it with the same number of elements; what others than the root hand in is overwritten.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce); [`Error::InvalidArgument`] if there is no rank `root`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let weights = if comm.rank().0 == 1 { vec![0.5f32, 2.0] } else { vec![0.0; 2] };
    ///         comm.broadcast(weights, 1).wait().unwrap()
    ///     })
    /// }).collect();
    /// assert!(threads.into_iter().all(|thread| thread.join().unwrap() == [0.5, 2.0]));
    /// ```
    pub fn broadcast<B: LendMut>(&mut self, buffer: B, root: impl Into<Rank>) -> Operation<B> {
        self.plain().broadcast(buffer, root)
    }

    /// Gives all ranks the parts of all ranks.
    ///
    /// The buffer holds [`size`](Self::size) parts of equal length, in rank order; each rank fills in its own part, and
    /// the operation the others. It works in place: there is no second buffer for the own part.
    ///
    /// ```text
    ///            before      after
    /// rank 0     a . .       a b c
    /// rank 1     . b .       a b c
    /// rank 2     . . c       a b c
    /// ```
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce); [`Error::InvalidArgument`] if the length is no multiple of the size.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let (me, part) = (comm.rank().index(), 2);
    ///         let mut parts = vec![0u32; part * comm.size()];
    ///         parts[me * part..][..part].fill(me as u32 + 1);
    ///         comm.all_gather(parts).wait().unwrap()
    ///     })
    /// }).collect();
    /// assert!(threads.into_iter().all(|thread| thread.join().unwrap() == [1, 1, 2, 2, 3, 3]));
    /// ```
    pub fn all_gather<B: LendMut>(&mut self, buffer: B) -> Operation<B> {
        self.plain().all_gather(buffer)
    }

    /// Combines the vectors of all ranks, element by element; each rank gets one part of the result.
    ///
    /// The buffer holds [`size`](Self::size) parts of equal length; afterwards the rank's own part holds the result, and
    /// the contents of the others are undefined. It works in place: the result is where the own part was.
    ///
    /// ```text
    ///            before      after
    /// rank 0     a b c       a+d+g   .     .
    /// rank 1     d e f         .   b+e+h   .
    /// rank 2     g h i         .     .   c+f+i
    /// ```
    ///
    /// # Errors
    ///
    /// As [`all_gather`](Self::all_gather).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// use hcomm::ReduceOp;
    ///
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let (me, part) = (comm.rank().index(), 2);
    ///         let sums = comm.reduce_scatter(vec![1u32, 1, 10, 10, 100, 100], ReduceOp::Sum).wait().unwrap();
    ///         sums[me * part..][..part].to_vec()
    ///     })
    /// }).collect();
    /// let parts: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(parts, [3, 3, 30, 30, 300, 300]);
    /// ```
    pub fn reduce_scatter<B: LendMut>(&mut self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.plain().reduce_scatter(buffer, op)
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
        let View { communicator, way, priority } = self;
        let seq = communicator.next;
        communicator.next += 1;
        let (lent, guard) = buffer.lend(&communicator.staging);
        let count = lent.0.raw().len() / size_of::<B::Element>();
        let dtype = B::Element::DTYPE;
        let (desc, program) = communicator.describe(operation, collective, op, count, dtype, &way);
        let work = program.map(Work::Collective);
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
        let (desc, program) =
            communicator.describe("all_reduce", Collective::AllReduce, Some(op), count, T::DTYPE, &way);
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
        count: usize,
        dtype: DType,
        way: &Way,
    ) -> (CallDesc, Result<Arc<Program>, Error>) {
        let mut desc = CallDesc {
            operation,
            dtype,
            count,
            op,
            root: if let Collective::Broadcast { root } = collective { Some(root) } else { None },
            tag: None,
            algorithm: "",
            fingerprint: 0,
        };
        let program = self.plan(&desc, collective, way);
        if let Ok(program) = &program {
            desc.algorithm = program.plan.algorithm;
            desc.fingerprint = program.plan.fingerprint() ^ self.key_word;
        }
        (desc, program)
    }

    fn plan(&mut self, desc: &CallDesc, collective: Collective, way: &Way) -> Result<Arc<Program>, Error> {
        let CallDesc { operation, count, dtype, .. } = *desc;
        let ranks = self.size();
        let parts = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
        if parts && !count.is_multiple_of(ranks) {
            let problem = format!(
                "a buffer of {count} elements can't be cut into {ranks} equal parts, one per rank: give {}, padded if need be",
                count.next_multiple_of(ranks)
            );
            return Err(Error::invalid(operation, problem));
        }
        let forced = match way {
            Way::Plan(plan) => return self.own_program(operation, collective, plan),
            Way::Algorithm(algorithm) => Some(*algorithm),
            Way::Chosen => None,
        };
        let choice = choose(&self.facts, collective, bytes(count, dtype), forced)
            .map_err(|error| refused(operation, &error))?;
        self.program(operation, choice.algorithm, collective)
    }

    /// The program of an algorithm for this rank, from the cache.
    fn program(
        &mut self,
        operation: &str,
        algorithm: Algorithm,
        collective: Collective,
    ) -> Result<Arc<Program>, Error> {
        let known = self.programs.iter().find(|known| known.is_of(algorithm, collective));
        if let Some(known) = known {
            return Ok(known.program.clone());
        }
        let plan = self.proved(operation, algorithm, collective)?;
        Ok(self.keep_program(Some((algorithm, collective)), plan))
    }

    /// The plan of an algorithm, from the table that all parts of the world share.
    fn proved(
        &self,
        operation: &str,
        algorithm: Algorithm,
        collective: Collective,
    ) -> Result<Arc<VerifiedPlan>, Error> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.get(algorithm, collective, self.members.len() as u32);
        plan.map_err(|error| refused(operation, &error))
    }

    /// The program of a caller's plan for this rank.
    fn own_program(
        &mut self,
        operation: &str,
        collective: Collective,
        plan: &Arc<VerifiedPlan>,
    ) -> Result<Arc<Program>, Error> {
        if plan.collective != collective || plan.ranks.len() != self.size() {
            let problem = format!(
                "the plan \"{}\" is for {} on {} ranks, the call is {collective} on \"{}\" of {}: give it a plan for that, or \
                 call without .with_plan()",
                plan.algorithm,
                plan.collective,
                plan.ranks.len(),
                self.name,
                self.size()
            );
            return Err(Error::invalid(operation, problem));
        }
        let known = self.programs.iter().find(|known| Arc::ptr_eq(&known.program.plan, plan));
        if let Some(known) = known {
            return Ok(known.program.clone());
        }
        Ok(self.keep_program(None, plan.clone()))
    }

    fn keep_program(&mut self, of: Option<(Algorithm, Collective)>, plan: Arc<VerifiedPlan>) -> Arc<Program> {
        let program = Arc::new(Program::new(plan, self.rank));
        if self.programs.len() == PROGRAMS_MAX {
            self.programs.remove(0);
        }
        self.programs.push(Known { of, program: program.clone() });
        program
    }
}

/// A program that was used before.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// None for a caller's plan.
    of: Option<(Algorithm, Collective)>,
    program: Arc<Program>,
}

impl Known {
    fn is_of(&self, algorithm: Algorithm, collective: Collective) -> bool {
        self.of == Some((algorithm, collective))
    }
}

/// Length of a vector. There need be no memory for as many elements as are only asked about.
const fn bytes(count: usize, dtype: DType) -> u64 {
    (count as u64).saturating_mul(dtype.size() as u64)
}

fn refused(operation: &str, error: &dyn std::error::Error) -> Error {
    Error::invalid(operation, error.to_string())
}
