//! Collectives: what all ranks call together.

use super::{Communicator, Operation};
use crate::buffer::lend::{Lend, LendMut};
use crate::element::{DType, Element, ReduceOp};
use crate::engine::{CallDesc, Work};
use crate::error::Error;
use crate::path::{Algorithm, Collective, Explanation, choose};
use crate::rank::Rank;

/// A communicator with options for one call: `comm.using(Algorithm::Ring).all_reduce(…)`.
#[derive(Debug)]
pub struct View<'a> {
    communicator: &'a mut Communicator,
    algorithm: Option<Algorithm>,
}

impl Communicator {
    /// Options for one call: this algorithm instead of the one that would be chosen. All ranks must ask for the same.
    pub fn using(&mut self, algorithm: Algorithm) -> View<'_> {
        View { communicator: self, algorithm: Some(algorithm) }
    }

    fn plain(&mut self) -> View<'_> {
        View { communicator: self, algorithm: None }
    }

    /// Which algorithm a call would use, why, what it costs, and which guarantee of equal bits holds.
    ///
    /// `count` is the whole vector's length in elements.
    ///
    /// # Errors
    ///
    /// If there is no plan for such a call.
    pub fn explain(
        &mut self,
        collective: Collective,
        count: usize,
        dtype: DType,
    ) -> Result<Explanation, Error> {
        let bytes = count as u64 * dtype.size() as u64;
        let choice = choose(&self.facts, collective, bytes, None).map_err(unsupported)?;
        let program = self.program(choice.algorithm, collective)?;
        Ok(Explanation::new(choice, &program.plan, count, dtype.size()))
    }

    /// Ends when all ranks have called it.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    pub fn barrier(&mut self) -> Operation<Vec<u8>> {
        let view = View { communicator: self, algorithm: None };
        view.collective("barrier", Collective::AllReduce, Some(ReduceOp::Max), vec![0u8])
    }

    /// Combines the vectors of all ranks, element by element; all ranks get the result, with equal bits.
    ///
    /// All ranks call it with the same number of elements, any number, of the same type.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] on all ranks if they call different things; [`Error::Deadline`] naming who is late;
    /// [`Error::PeerLost`] naming who is gone. The buffer comes back inside the error.
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
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast<B: LendMut>(&mut self, buffer: B, root: Rank) -> Operation<B> {
        self.plain().broadcast(buffer, root)
    }

    /// Gives all ranks the parts of all ranks.
    ///
    /// The buffer holds [`size`](Self::size) parts of equal length, in rank order; each rank fills in its own part, and
    /// the operation the others.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce); [`Error::InvalidArgument`] if the length is no multiple of the size.
    pub fn all_gather<B: LendMut>(&mut self, buffer: B) -> Operation<B> {
        self.plain().all_gather(buffer)
    }

    /// Combines the vectors of all ranks, element by element; each rank gets one part of the result.
    ///
    /// The buffer holds [`size`](Self::size) parts of equal length; afterwards the rank's own part holds the result, and
    /// the contents of the others are undefined.
    ///
    /// # Errors
    ///
    /// As [`all_gather`](Self::all_gather).
    pub fn reduce_scatter<B: LendMut>(&mut self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.plain().reduce_scatter(buffer, op)
    }
}

impl View<'_> {
    /// See [`Communicator::all_reduce`].
    pub fn all_reduce<B: LendMut>(self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.collective("all_reduce", Collective::AllReduce, Some(op), buffer)
    }

    /// See [`Communicator::broadcast`].
    pub fn broadcast<B: LendMut>(self, buffer: B, root: Rank) -> Operation<B> {
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

    fn collective<B: Lend>(
        self,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        buffer: B,
    ) -> Operation<B> {
        let View { communicator, algorithm } = self;
        let seq = communicator.next;
        communicator.next += 1;
        let (lent, guard) = buffer.lend(&communicator.staging);
        let count = lent.0.raw().len() / size_of::<B::Element>();
        let dtype = B::Element::DTYPE;
        let (desc, work) = communicator.describe(operation, collective, op, count, dtype, algorithm);
        communicator.submit_lent(seq, desc, work, lent, guard)
    }
}

impl Communicator {
    /// What is called, in the terms in which ranks compare it, and the program that does it.
    pub(super) fn describe(
        &mut self,
        operation: &'static str,
        collective: Collective,
        op: Option<ReduceOp>,
        count: usize,
        dtype: DType,
        algorithm: Option<Algorithm>,
    ) -> (CallDesc, Result<Work, Error>) {
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
        let program = self.plan(operation, collective, count, dtype, algorithm);
        if let Ok(program) = &program {
            desc.algorithm = program.plan.algorithm;
            desc.fingerprint = program.plan.fingerprint();
        }
        (desc, program.map(Work::Collective))
    }

    fn plan(
        &mut self,
        operation: &'static str,
        collective: Collective,
        count: usize,
        dtype: DType,
        algorithm: Option<Algorithm>,
    ) -> Result<std::sync::Arc<crate::engine::Program>, Error> {
        let ranks = self.size();
        let parts = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
        if parts && !count.is_multiple_of(ranks) {
            let problem =
                format!("a buffer of {count} elements can't be cut into {ranks} equal parts, one per rank");
            return Err(Error::InvalidArgument { operation: operation.into(), problem });
        }
        let bytes = count as u64 * dtype.size() as u64;
        let choice = choose(&self.facts, collective, bytes, algorithm).map_err(unsupported)?;
        self.program(choice.algorithm, collective)
    }
}

fn unsupported(error: crate::path::Unsupported) -> Error {
    Error::InvalidArgument { operation: "collective".into(), problem: error.to_string() }
}
