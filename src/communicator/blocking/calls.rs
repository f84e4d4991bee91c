//! Collectives with options, or under a key, on a thread that waits.

use super::{lent, lent_into, run};
#[cfg(doc)]
use crate::communicator::Communicator;
use crate::communicator::{Keyed, Prepared, View};
use crate::element::{Element, ReduceOp};
use crate::error::Error;
use crate::rank::Rank;

/// Collectives with options, or under a key, on a thread that waits: `comm.using(Algorithm::Ring).blocking().all_reduce(…)`.
///
/// ```
/// use hcomm::path::Algorithm;
/// use hcomm::{Communicator, ReduceOp};
///
/// let mut comm = Communicator::local(1).remove(0);
/// let mut data = [1.0f32, 2.0];
/// comm.using(Algorithm::MeshTwoShot).blocking().all_reduce(&mut data, ReduceOp::Sum)?;
/// comm.keyed("layer0")?.blocking().broadcast(&mut data, 0)?;
/// assert_eq!(data, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "options do nothing without a call"]
pub struct Calls<'a>(View<'a>);

impl<'a> View<'a> {
    /// Its collectives on a thread that waits, on slices that are not copied; see [`blocking`](super).
    pub fn blocking(self) -> Calls<'a> {
        Calls(self)
    }
}

impl Keyed {
    /// The collectives under this key on a thread that waits, on slices that are not copied; see [`blocking`](super).
    pub fn blocking(&mut self) -> Calls<'_> {
        self.stream().plain().blocking()
    }

    /// Runs what was prepared under this key, on a slice that is not copied; see [`blocking::run`](run).
    ///
    /// # Errors
    ///
    /// As [`Prepared::run`].
    pub fn run_blocking<T: Element>(
        &mut self,
        prepared: &Prepared<T>,
        buffer: &mut [T],
    ) -> Result<(), Error> {
        run(self.stream(), prepared, buffer)
    }
}

impl<'a> Calls<'a> {
    /// The options, once it is clear that a thread may wait: nothing is lent yet, so that it may unwind.
    pub(super) fn allowed(self) -> View<'a> {
        self.0.communicator().engine.allow_blocking();
        self.0
    }

    /// See [`Communicator::barrier`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn barrier(self) -> Result<(), Error> {
        self.allowed().barrier().wait()?;
        Ok(())
    }

    /// See [`Communicator::all_reduce`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_reduce<T: Element>(self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let view = self.allowed();
        lent(buffer, |buffer| view.all_reduce(buffer, op))
    }

    /// See [`Communicator::broadcast`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn broadcast<T: Element>(self, buffer: &mut [T], root: impl Into<Rank>) -> Result<(), Error> {
        let (view, root) = (self.allowed(), root.into());
        lent(buffer, |buffer| view.broadcast(buffer, root))
    }

    /// See [`Communicator::all_gather`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_gather<T: Element>(self, buffer: &mut [T]) -> Result<(), Error> {
        let view = self.allowed();
        lent(buffer, |buffer| view.all_gather(buffer))
    }

    /// See [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn reduce_scatter<T: Element>(self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let view = self.allowed();
        lent(buffer, |buffer| view.reduce_scatter(buffer, op))
    }

    /// See [`Communicator::reduce`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn reduce<T: Element>(
        self,
        buffer: &mut [T],
        op: ReduceOp,
        root: impl Into<Rank>,
    ) -> Result<(), Error> {
        let (view, root) = (self.allowed(), root.into());
        lent(buffer, |buffer| view.reduce(buffer, op, root))
    }

    /// See [`Communicator::gather`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn gather<T: Element>(self, buffer: &mut [T], root: impl Into<Rank>) -> Result<(), Error> {
        let (view, root) = (self.allowed(), root.into());
        lent(buffer, |buffer| view.gather(buffer, root))
    }

    /// See [`Communicator::scatter`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn scatter<T: Element>(self, buffer: &mut [T], root: impl Into<Rank>) -> Result<(), Error> {
        let (view, root) = (self.allowed(), root.into());
        lent(buffer, |buffer| view.scatter(buffer, root))
    }

    /// See [`Communicator::all_to_all`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_to_all<T: Element>(self, buffer: &mut [T]) -> Result<(), Error> {
        let view = self.allowed();
        lent(buffer, |buffer| view.all_to_all(buffer))
    }

    /// See [`Communicator::scan`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn scan<T: Element>(self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let view = self.allowed();
        lent(buffer, |buffer| view.scan(buffer, op))
    }

    /// See [`Communicator::exscan`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn exscan<T: Element>(self, buffer: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let view = self.allowed();
        lent(buffer, |buffer| view.exscan(buffer, op))
    }

    /// See [`Communicator::all_reduce_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_reduce_into<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let view = self.allowed();
        lent_into(input, output, |input, output| view.all_reduce_into(input, output, op))
    }

    /// See [`Communicator::all_gather_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_gather_into<T: Element>(self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let view = self.allowed();
        lent_into(input, output, |input, output| view.all_gather_into(input, output))
    }

    /// See [`Communicator::reduce_scatter_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn reduce_scatter_into<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let view = self.allowed();
        lent_into(input, output, |input, output| view.reduce_scatter_into(input, output, op))
    }

    /// See [`Communicator::reduce_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn reduce_into<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
        root: impl Into<Rank>,
    ) -> Result<(), Error> {
        let (view, root) = (self.allowed(), root.into());
        lent_into(input, output, |input, output| view.reduce_into(input, output, op, root))
    }

    /// See [`Communicator::gather_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn gather_into<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        root: impl Into<Rank>,
    ) -> Result<(), Error> {
        let (view, root) = (self.allowed(), root.into());
        lent_into(input, output, |input, output| view.gather_into(input, output, root))
    }

    /// See [`Communicator::scatter_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn scatter_into<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        root: impl Into<Rank>,
    ) -> Result<(), Error> {
        let (view, root) = (self.allowed(), root.into());
        lent_into(input, output, |input, output| view.scatter_into(input, output, root))
    }

    /// See [`Communicator::all_to_all_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_to_all_into<T: Element>(self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let view = self.allowed();
        lent_into(input, output, |input, output| view.all_to_all_into(input, output))
    }

    /// See [`Communicator::scan_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn scan_into<T: Element>(self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let view = self.allowed();
        lent_into(input, output, |input, output| view.scan_into(input, output, op))
    }

    /// See [`Communicator::exscan_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn exscan_into<T: Element>(self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let view = self.allowed();
        lent_into(input, output, |input, output| view.exscan_into(input, output, op))
    }

    /// See [`Communicator::all_gather_v`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_gather_v<T: Element>(self, buffer: &mut [T], counts: &[usize]) -> Result<(), Error> {
        let view = self.allowed();
        lent(buffer, |buffer| view.all_gather_v(buffer, counts))
    }

    /// See [`Communicator::all_gather_v_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_gather_v_into<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        let view = self.allowed();
        lent_into(input, output, |input, output| view.all_gather_v_into(input, output, counts))
    }

    /// See [`Communicator::reduce_scatter_v`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn reduce_scatter_v<T: Element>(
        self,
        buffer: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let view = self.allowed();
        lent(buffer, |buffer| view.reduce_scatter_v(buffer, counts, op))
    }

    /// See [`Communicator::reduce_scatter_v_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn reduce_scatter_v_into<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let view = self.allowed();
        lent_into(input, output, |input, output| view.reduce_scatter_v_into(input, output, counts, op))
    }
}
