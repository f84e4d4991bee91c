//! The collectives of a communicator from one buffer to another. All ranks call the one form or the other: which of both is compared.

use super::{Communicator, Operation};
use crate::buffer::lend::{Lend, LendMut, Pair};
use crate::element::ReduceOp;
#[cfg(doc)]
use crate::error::Error;
use crate::rank::Rank;

impl Communicator {
    /// [`all_reduce`](Self::all_reduce) from one buffer to another of the same length; `input` is only read, and both come back.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce); [`Error::InvalidArgument`] also if the lengths of both buffers don't go together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// use hcomm::ReduceOp;
    ///
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let gradient = vec![comm.rank().0 as f32; 2];
    ///         comm.all_reduce_into(gradient, vec![0.0; 2], ReduceOp::Sum).wait().unwrap()
    ///     })
    /// }).collect();
    /// let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(results[1], (vec![1.0, 1.0], vec![1.0, 1.0]));
    /// ```
    pub fn all_reduce_into<I, O>(&mut self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().all_reduce_into(input, output, op)
    }

    /// [`all_gather`](Self::all_gather) from a buffer with the own part to one with room for all parts.
    ///
    /// All ranks call it with parts of the same length; `output` is [`size`](Self::size) times as long.
    ///
    /// # Errors
    ///
    /// As [`all_gather`](Self::all_gather); [`Error::InvalidArgument`] also if the lengths of both buffers don't go together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || comm.all_gather_into(vec![comm.rank().0], vec![9; 2]).wait().unwrap().1)
    /// }).collect();
    /// assert!(threads.into_iter().all(|thread| thread.join().unwrap() == [0, 1]));
    /// ```
    pub fn all_gather_into<I, O>(&mut self, input: I, output: O) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().all_gather_into(input, output)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) from a vector to a buffer for the own part of the result; the vector stays as it is.
    ///
    /// All ranks call it with vectors of the same length, which is [`size`](Self::size) times that of `output`.
    ///
    /// # Errors
    ///
    /// As [`reduce_scatter`](Self::reduce_scatter); [`Error::InvalidArgument`] also if the lengths of both buffers don't go together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn reduce_scatter_into<I, O>(&mut self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().reduce_scatter_into(input, output, op)
    }

    /// [`reduce`](Self::reduce) from a vector, which stays as it is, to another buffer of the same length at rank `root`. The other ranks
    /// give an empty `output`.
    ///
    /// # Errors
    ///
    /// As [`reduce`](Self::reduce); [`Error::InvalidArgument`] also if the lengths of both buffers don't go together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// use hcomm::ReduceOp;
    ///
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let output = if comm.rank().0 == 0 { vec![0i64; 3] } else { Vec::new() };
    ///         comm.reduce_into(vec![5, 6, 7], output, ReduceOp::Max, 0).wait().unwrap()
    ///     })
    /// }).collect();
    /// assert!(threads.into_iter().all(|thread| thread.join().unwrap().0 == [5, 6, 7]));
    /// ```
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
        self.plain().reduce_into(input, output, op, root)
    }

    /// [`gather`](Self::gather) from a buffer with the own part to one with room for all parts at rank `root`. The other ranks give an
    /// empty `output`.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather); [`Error::InvalidArgument`] also if the lengths of both buffers don't go together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn gather_into<I, O>(&mut self, input: I, output: O, root: impl Into<Rank>) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().gather_into(input, output, root)
    }

    /// [`scatter`](Self::scatter) from a buffer with all parts at rank `root` to one for its own part at each rank, the root included.
    /// The other ranks give an empty `input`.
    ///
    /// # Errors
    ///
    /// As [`scatter`](Self::scatter); [`Error::InvalidArgument`] also if the lengths of both buffers don't go together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let parts = if comm.rank().0 == 1 { vec![10u16, 11, 20, 21] } else { Vec::new() };
    ///         comm.scatter_into(parts, vec![0; 2], 1).wait().unwrap().1
    ///     })
    /// }).collect();
    /// let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(results, [[10, 11], [20, 21]]);
    /// ```
    pub fn scatter_into<I, O>(&mut self, input: I, output: O, root: impl Into<Rank>) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().scatter_into(input, output, root)
    }

    /// [`all_to_all`](Self::all_to_all) from one buffer to another of the same length: nothing is put aside.
    ///
    /// # Errors
    ///
    /// As [`all_to_all`](Self::all_to_all); [`Error::InvalidArgument`] also if the lengths of both buffers don't go together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn all_to_all_into<I, O>(&mut self, input: I, output: O) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().all_to_all_into(input, output)
    }

    /// [`scan`](Self::scan) from one buffer to another of the same length.
    ///
    /// # Errors
    ///
    /// As [`scan`](Self::scan); [`Error::InvalidArgument`] also if the lengths of both buffers don't go together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn scan_into<I, O>(&mut self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().scan_into(input, output, op)
    }

    /// [`exscan`](Self::exscan) from one buffer to another of the same length. Rank 0 gets nothing: its `output` stays as it was.
    ///
    /// # Errors
    ///
    /// As [`exscan`](Self::exscan); [`Error::InvalidArgument`] also if the lengths of both buffers don't go together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn exscan_into<I, O>(&mut self, input: I, output: O, op: ReduceOp) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().exscan_into(input, output, op)
    }

    /// [`all_gather_v`](Self::all_gather_v) from a buffer with the own part to one with room for all parts.
    ///
    /// # Errors
    ///
    /// As [`all_gather_v`](Self::all_gather_v); [`Error::InvalidArgument`] also if `input` has another length than this rank's count.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn all_gather_v_into<I, O>(&mut self, input: I, output: O, counts: &[usize]) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().all_gather_v_into(input, output, counts)
    }

    /// [`reduce_scatter_v`](Self::reduce_scatter_v) from a vector to a buffer for the own part of the result; the vector stays as it is.
    ///
    /// # Errors
    ///
    /// As [`all_gather_v`](Self::all_gather_v); [`Error::InvalidArgument`] also if `output` has another length than this rank's count.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// use hcomm::ReduceOp;
    ///
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let counts = [3, 1];
    ///         let own = vec![0f32; counts[comm.rank().index()]];
    ///         comm.reduce_scatter_v_into(vec![1f32, 2.0, 3.0, 4.0], own, &counts, ReduceOp::Sum).wait().unwrap().1
    ///     })
    /// }).collect();
    /// let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(results, [vec![2.0, 4.0, 6.0], vec![8.0]]);
    /// ```
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
        self.plain().reduce_scatter_v_into(input, output, counts, op)
    }
}
