//! A collective agreed once and run often.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::{Communicator, Operation};
use crate::buffer::lend::LendMut;
use crate::element::{Element, ReduceOp};
use crate::engine::{CallDesc, Priority, Program, Work};
use crate::error::Error;
use crate::rank::Rank;

/// A collective whose type, count, reduction and plan are fixed: a run looks nothing up.
///
/// Made by [`Communicator::prepare_all_reduce`] and its siblings, for collectives in one buffer, and run on the communicator it was
/// made from. It is one rank's part of the plan: each rank prepares its own.
///
/// | | |
/// |---|---|
/// | fixed here, when it is prepared | collective, element type, count, root, reduction, priority, algorithm or plan, and their digest |
/// | compared by all ranks, at each run | that digest: one number of 64 bits, as for an ordinary call |
/// | given at each run | the buffer: any of that type and count, lent for this run alone |
///
/// Nothing is agreed when it is prepared, and no rank waits then: one that has prepared something else is told so at the run, as
/// [`Error::Mismatch`]. A run allocates nothing once the communicator is warm.
#[derive(Clone)]
pub struct Prepared<T> {
    desc: CallDesc,
    digest: u64,
    priority: Priority,
    program: Arc<Program>,
    /// Elements of this rank's buffer.
    count: usize,
    /// The one that it was made from, which is the only one that it fits.
    communicator: u64,
    name: Arc<str>,
    rank: Rank,
    element: PhantomData<T>,
}

impl<T> fmt::Debug for Prepared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Prepared");
        shown.field("call", &format_args!("{}", self.desc.info())).field("communicator", &self.name);
        shown.finish_non_exhaustive()
    }
}

impl Communicator {
    /// Fixes type, count, reduction and plan of an all_reduce. Local: ranks are compared at each run, by one digest.
    ///
    /// `count` is, here and in its siblings, the length of the buffer that this rank will hand in.
    ///
    /// # Errors
    ///
    /// If there is no plan for so many ranks, or the call would be refused.
    ///
    /// ```
    /// use hcomm::{Buffer, Communicator, ReduceOp};
    ///
    /// let threads: Vec<_> = Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let sum = comm.prepare_all_reduce::<f32>(1000, ReduceOp::Sum).unwrap();
    ///         let mut buffer = Buffer::<f32>::zeroed(1000);
    ///         for _ in 0..10 {
    ///             buffer.fill(1.0);
    ///             buffer = sum.run(&mut comm, buffer).wait().unwrap();
    ///         }
    ///         buffer[999]
    ///     })
    /// }).collect();
    /// assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 2.0));
    /// ```
    pub fn prepare_all_reduce<T: Element>(
        &mut self,
        count: usize,
        op: ReduceOp,
    ) -> Result<Prepared<T>, Error> {
        self.plain().prepare_all_reduce(count, op)
    }

    /// The same of a [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    ///
    /// As [`prepare_all_reduce`](Self::prepare_all_reduce).
    pub fn prepare_broadcast<T: Element>(
        &mut self,
        count: usize,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        self.plain().prepare_broadcast(count, root)
    }

    /// The same of a [`reduce`](Self::reduce).
    ///
    /// # Errors
    ///
    /// As [`prepare_all_reduce`](Self::prepare_all_reduce).
    pub fn prepare_reduce<T: Element>(
        &mut self,
        count: usize,
        op: ReduceOp,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        self.plain().prepare_reduce(count, op, root)
    }

    /// The same of a [`all_gather`](Self::all_gather).
    ///
    /// # Errors
    ///
    /// As [`prepare_all_reduce`](Self::prepare_all_reduce).
    pub fn prepare_all_gather<T: Element>(&mut self, count: usize) -> Result<Prepared<T>, Error> {
        self.plain().prepare_all_gather(count)
    }

    /// The same of a [`reduce_scatter`](Self::reduce_scatter).
    ///
    /// # Errors
    ///
    /// As [`prepare_all_reduce`](Self::prepare_all_reduce).
    pub fn prepare_reduce_scatter<T: Element>(
        &mut self,
        count: usize,
        op: ReduceOp,
    ) -> Result<Prepared<T>, Error> {
        self.plain().prepare_reduce_scatter(count, op)
    }

    /// The same of a [`gather`](Self::gather).
    ///
    /// # Errors
    ///
    /// As [`prepare_all_reduce`](Self::prepare_all_reduce).
    pub fn prepare_gather<T: Element>(
        &mut self,
        count: usize,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        self.plain().prepare_gather(count, root)
    }

    /// The same of a [`scatter`](Self::scatter).
    ///
    /// # Errors
    ///
    /// As [`prepare_all_reduce`](Self::prepare_all_reduce).
    pub fn prepare_scatter<T: Element>(
        &mut self,
        count: usize,
        root: impl Into<Rank>,
    ) -> Result<Prepared<T>, Error> {
        self.plain().prepare_scatter(count, root)
    }

    /// The same of a [`all_to_all`](Self::all_to_all).
    ///
    /// # Errors
    ///
    /// As [`prepare_all_reduce`](Self::prepare_all_reduce).
    pub fn prepare_all_to_all<T: Element>(&mut self, count: usize) -> Result<Prepared<T>, Error> {
        self.plain().prepare_all_to_all(count)
    }

    /// The same of a [`scan`](Self::scan).
    ///
    /// # Errors
    ///
    /// As [`prepare_all_reduce`](Self::prepare_all_reduce).
    pub fn prepare_scan<T: Element>(&mut self, count: usize, op: ReduceOp) -> Result<Prepared<T>, Error> {
        self.plain().prepare_scan(count, op)
    }

    /// The same of a [`exscan`](Self::exscan).
    ///
    /// # Errors
    ///
    /// As [`prepare_all_reduce`](Self::prepare_all_reduce).
    pub fn prepare_exscan<T: Element>(&mut self, count: usize, op: ReduceOp) -> Result<Prepared<T>, Error> {
        self.plain().prepare_exscan(count, op)
    }
}

impl<T: Element> Prepared<T> {
    pub(super) fn new(
        communicator: &Communicator,
        priority: Priority,
        desc: CallDesc,
        program: Arc<Program>,
        count: usize,
    ) -> Self {
        Prepared {
            count,
            desc,
            digest: desc.digest(),
            priority,
            program,
            communicator: communicator.identity,
            name: communicator.name.clone(),
            rank: communicator.rank(),
            element: PhantomData,
        }
    }

    /// Runs it: a call of the communicator like any other, and compares equal to an ordinary one of the same kind.
    ///
    /// # Errors
    ///
    /// As [`Communicator::all_reduce`]; [`Error::InvalidArgument`] for another length, or on another communicator than it
    /// was made from: of another world, split, or rank.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn run<B: LendMut<Element = T>>(&self, communicator: &mut Communicator, buffer: B) -> Operation<B> {
        let seq = communicator.next;
        communicator.next += 1;
        let (lent, guard) = buffer.lend(&communicator.staging);
        let count = lent.0.raw().len() / size_of::<T>();
        let work = self.fits(communicator, count).map(|()| Work::Collective(self.program.clone()));
        communicator.submit_as(self.priority, seq, self.desc, self.digest, work, lent, guard)
    }

    fn fits(&self, communicator: &Communicator, count: usize) -> Result<(), Error> {
        let problem = if communicator.identity != self.communicator {
            format!(
                "prepared by rank {} of \"{}\", run by rank {} of another communicator, \"{}\": each rank of each \
                 communicator prepares its own",
                self.rank,
                self.name,
                communicator.rank(),
                communicator.name
            )
        } else if count != self.count {
            format!(
                "prepared for {} elements, run with {count}: give it a buffer of that length, or prepare one for {count}",
                self.count
            )
        } else {
            return Ok(());
        };
        Err(Error::invalid(self.desc.operation, problem))
    }
}
