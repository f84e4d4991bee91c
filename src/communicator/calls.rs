//! The collectives of a communicator that work in one buffer; [`into`](super::into) has those that work from one to another.

use super::{Communicator, Operation};
use crate::buffer::lend::{LendMut, Nothing};
use crate::element::ReduceOp;
#[cfg(doc)]
use crate::error::Error;
use crate::rank::Rank;

impl Communicator {
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
    ///   ranks; or if the reduction does not [support](ReduceOp::supports) the type;
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

    /// Combines the vectors of all ranks, element by element; rank `root` gets the result.
    ///
    /// All ranks call it with the same number of elements. What the vectors of the other ranks hold afterwards is undefined: ranks
    /// work in them. [`reduce_into`](Self::reduce_into) leaves them as they are.
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
    /// use hcomm::ReduceOp;
    ///
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let loss = comm.reduce(vec![comm.rank().0 as f32, 1.0], ReduceOp::Avg, 2).wait().unwrap();
    ///         (comm.rank().0 == 2).then_some(loss)
    ///     })
    /// }).collect();
    /// let results: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(results, [[1.0, 1.0]]);
    /// ```
    pub fn reduce<B: LendMut>(&mut self, buffer: B, op: ReduceOp, root: impl Into<Rank>) -> Operation<B> {
        self.plain().reduce(buffer, op, root)
    }

    /// Gives rank `root` the parts of all ranks.
    ///
    /// At the root, the buffer holds [`size`](Self::size) parts of equal length, in rank order, of which it fills in its own; each
    /// other rank hands in its part, and has it back as it was.
    ///
    /// ```text
    ///                 before      after
    /// rank 0 (root)   a . .       a b c
    /// rank 1          b           b
    /// rank 2          c           c
    /// ```
    ///
    /// # Errors
    ///
    /// As [`all_gather`](Self::all_gather); [`Error::InvalidArgument`] if there is no rank `root`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let own = comm.rank().0 + 1;
    ///         let buffer = if own == 1 { vec![own, 0, 0] } else { vec![own] };
    ///         comm.gather(buffer, 0).wait().unwrap()
    ///     })
    /// }).collect();
    /// let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(results, [vec![1, 2, 3], vec![2], vec![3]]);
    /// ```
    pub fn gather<B: LendMut>(&mut self, buffer: B, root: impl Into<Rank>) -> Operation<B> {
        self.plain().gather(buffer, root)
    }

    /// Gives each rank its part of what rank `root` has.
    ///
    /// At the root, the buffer holds [`size`](Self::size) parts of equal length, in rank order, and stays as it is; each other rank
    /// hands in room for its part.
    ///
    /// ```text
    ///                 before      after
    /// rank 0 (root)   a b c       a b c
    /// rank 1          .           b
    /// rank 2          .           c
    /// ```
    ///
    /// # Errors
    ///
    /// As [`all_gather`](Self::all_gather); [`Error::InvalidArgument`] if there is no rank `root`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let buffer = if comm.rank().0 == 0 { vec![1u8, 2, 3] } else { vec![0] };
    ///         comm.scatter(buffer, 0).wait().unwrap()
    ///     })
    /// }).collect();
    /// let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(results, [vec![1, 2, 3], vec![2], vec![3]]);
    /// ```
    pub fn scatter<B: LendMut>(&mut self, buffer: B, root: impl Into<Rank>) -> Operation<B> {
        self.plain().scatter(buffer, root)
    }

    /// Gives each rank a part of each rank: what was part `j` of rank `i` becomes part `i` of rank `j`.
    ///
    /// The buffer holds [`size`](Self::size) parts of equal length, in rank order. It works in place, for which some parts are put
    /// aside on their way; [`all_to_all_into`](Self::all_to_all_into) does without that.
    ///
    /// ```text
    ///            before      after
    /// rank 0     a b c       a d g
    /// rank 1     d e f       b e h
    /// rank 2     g h i       c f i
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
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let tokens = if comm.rank().0 == 0 { vec![0.0f32, 0.1] } else { vec![1.0, 1.1] };
    ///         comm.all_to_all(tokens).wait().unwrap()
    ///     })
    /// }).collect();
    /// let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(results, [[0.0, 1.0], [0.1, 1.1]]);
    /// ```
    pub fn all_to_all<B: LendMut>(&mut self, buffer: B) -> Operation<B> {
        self.plain().all_to_all(buffer)
    }

    /// Combines the vectors of the ranks up to this one, its own included, element by element.
    ///
    /// All ranks call it with the same number of elements. [`ReduceOp::Avg`] is refused: the ranks before one differ in number.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// use hcomm::ReduceOp;
    ///
    /// // Who has how many items, and where each one's end in the order of ranks.
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || comm.scan(vec![comm.rank().0 + 1], ReduceOp::Sum).wait().unwrap()[0])
    /// }).collect();
    /// let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(ends, [1, 3, 6]);
    /// ```
    pub fn scan<B: LendMut>(&mut self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.plain().scan(buffer, op)
    }

    /// Combines the vectors of the ranks before this one, element by element. Rank 0, before which there is none, keeps its vector
    /// as it was.
    ///
    /// All ranks call it with the same number of elements. [`ReduceOp::Avg`] is refused: the ranks before one differ in number.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// use hcomm::ReduceOp;
    ///
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || comm.exscan(vec![comm.rank().0 + 1], ReduceOp::Sum).wait().unwrap()[0])
    /// }).collect();
    /// let starts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(starts[1..], [1, 3]);
    /// ```
    pub fn exscan<B: LendMut>(&mut self, buffer: B, op: ReduceOp) -> Operation<B> {
        self.plain().exscan(buffer, op)
    }

    /// Gives all ranks the parts of all ranks, which may differ in length: `counts` says how many elements each rank's has.
    ///
    /// The buffer holds all parts, in rank order, one behind the other; each rank fills in its own. All ranks call it with the same
    /// counts, which are compared: each may be 0.
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce); [`Error::InvalidArgument`] if there are more or fewer counts than ranks, or the buffer has
    /// another length than their sum.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let parts = if comm.rank().0 == 0 { vec![1u32, 0, 0] } else { vec![0, 2, 3] };
    ///         comm.all_gather_v(parts, &[1, 2]).wait().unwrap()
    ///     })
    /// }).collect();
    /// assert!(threads.into_iter().all(|thread| thread.join().unwrap() == [1, 2, 3]));
    /// ```
    pub fn all_gather_v<B: LendMut>(&mut self, buffer: B, counts: &[usize]) -> Operation<B> {
        self.plain().all_gather_v(buffer, counts)
    }

    /// Combines the vectors of all ranks, element by element; each rank gets one part of the result, of which `counts` says the
    /// length.
    ///
    /// Afterwards the rank's own part of the buffer holds the result, and the contents of the others are undefined. All ranks call it
    /// with the same counts, which are compared: each may be 0.
    ///
    /// # Errors
    ///
    /// As [`all_gather_v`](Self::all_gather_v).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn reduce_scatter_v<B: LendMut>(
        &mut self,
        buffer: B,
        counts: &[usize],
        op: ReduceOp,
    ) -> Operation<B> {
        self.plain().reduce_scatter_v(buffer, counts, op)
    }
}
