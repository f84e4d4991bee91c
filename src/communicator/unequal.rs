//! Collectives of unequal parts of which each rank knows its own: gather, scatter and all_to_all with counts.
//!
//! What one rank sends, and another has room for, is compared pair by pair. Those whose counts all ranks know, and compare as a whole,
//! are beside their equal siblings in [`calls`](super::calls) and [`into`](super::into).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::collectives::Counts;
use super::{Communicator, Keyed, Operation, View};
use crate::buffer::lend::{Lend, LendMut, Pair};
use crate::element::Element;
#[cfg(doc)]
use crate::error::Error;
use crate::error::OpError;
use crate::path::Collective;
use crate::rank::Rank;

impl Communicator {
    /// [`gather`](Self::gather) of parts that may differ in length, or be empty.
    ///
    /// Rank `root` gives the `counts` of all ranks, in elements and in the order of ranks, and a buffer for the sum of them, with its own
    /// part in its place. The others give a buffer that is their part; their `counts` are not looked at, and may be empty.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather); [`Error::Mismatch`], which names the ranks, if a part has another length than the root has room for;
    /// [`Error::InvalidArgument`] if the root's counts don't go with the number of ranks or the buffer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || match comm.rank().0 {
    ///         0 => comm.gather_v(vec![7, 0, 0, 0], &[1, 0, 3], 0).wait().unwrap(),
    ///         1 => comm.gather_v(Vec::new(), &[], 0).wait().unwrap(),
    ///         _ => comm.gather_v(vec![1, 2, 3], &[], 0).wait().unwrap(),
    ///     })
    /// }).collect();
    /// let results: Vec<Vec<u32>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(results[0], [7, 1, 2, 3]);
    /// ```
    pub fn gather_v<B: LendMut>(
        &mut self,
        buffer: B,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> Operation<B> {
        self.plain().gather_v(buffer, counts, root)
    }

    /// [`gather_v`](Self::gather_v) from a buffer with the own part to one with room for all parts at rank `root`. The other ranks give
    /// an empty `output`.
    ///
    /// # Errors
    ///
    /// As [`gather_v`](Self::gather_v); [`Error::InvalidArgument`] also if the root's `input` has another length than its count.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn gather_v_into<I, O>(
        &mut self,
        input: I,
        output: O,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().gather_v_into(input, output, counts, root)
    }

    /// [`scatter`](Self::scatter) of parts that may differ in length, or be empty.
    ///
    /// Rank `root` gives the `counts` of all ranks, in elements and in the order of ranks, and a buffer that is all parts, one after
    /// the other. The others need not know how long their parts are: they give a buffer with room for theirs, of which
    /// [`Scattered::count`] elements are filled from the front, and no counts.
    ///
    /// # Errors
    ///
    /// As [`scatter`](Self::scatter); [`Error::Mismatch`], which names the ranks, if a part is longer than what its rank has room for;
    /// [`Error::InvalidArgument`] if the root's counts don't go with the number of ranks or the buffer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(3).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || match comm.rank().0 {
    ///         0 => comm.scatter_v(vec![7, 1, 2, 3], &[1, 0, 3], 0).wait().unwrap(),
    ///         _ => comm.scatter_v(vec![0; 10], &[], 0).wait().unwrap(),
    ///     })
    /// }).collect();
    /// let parts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(parts.iter().map(|part| part.count).collect::<Vec<_>>(), [1, 0, 3]);
    /// assert_eq!(parts[2].buffer[..3], [1, 2, 3]);
    /// ```
    pub fn scatter_v<B: LendMut>(
        &mut self,
        buffer: B,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> ScatterV<B> {
        self.plain().scatter_v(buffer, counts, root)
    }

    /// [`scatter_v`](Self::scatter_v) from a buffer with all parts at rank `root` to one with room for its own part at each rank, the
    /// root included. The other ranks give an empty `input`.
    ///
    /// # Errors
    ///
    /// As [`scatter_v`](Self::scatter_v).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn scatter_v_into<I, O>(
        &mut self,
        input: I,
        output: O,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> ScatterV<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().scatter_v_into(input, output, counts, root)
    }

    /// [`all_to_all`](Self::all_to_all) of parts that may differ in length, or be empty, in one buffer: of each pair of ranks, both have
    /// as much for each other.
    ///
    /// `counts` has for each rank, in the order of ranks, how many elements this one has for it, and gets from it. Where that is not the
    /// same, use [`all_to_all_v_into`](Self::all_to_all_v_into). What is sent is put aside first, as much as the buffer.
    ///
    /// # Errors
    ///
    /// As [`all_to_all`](Self::all_to_all); [`Error::Mismatch`], which names the ranks, if two have given different counts for each other;
    /// [`Error::InvalidArgument`] if the counts don't go with the number of ranks or the buffer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    pub fn all_to_all_v<B: LendMut>(&mut self, buffer: B, counts: &[usize]) -> Operation<B> {
        self.plain().all_to_all_v(buffer, counts)
    }

    /// [`all_to_all_into`](Self::all_to_all_into) of parts that may differ in length, or be empty.
    ///
    /// `send_counts` says how many elements of `input` are for each rank, `recv_counts` how many of `output` come from each: one after
    /// the other, in the order of ranks. What one rank sends another has to be what that takes.
    ///
    /// # Errors
    ///
    /// As [`all_to_all_into`](Self::all_to_all_into); [`Error::Mismatch`], which names the ranks, if one sends another what that does not
    /// take; [`Error::InvalidArgument`] if the counts don't go with the number of ranks or the buffers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future detaches the operation; see [`Operation`].
    ///
    /// ```
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let (sent, send_counts, recv_counts) = match comm.rank().0 {
    ///             0 => (vec!['a', 'b', 'c'], [1, 2], [1, 0]),
    ///             _ => (vec![], [0, 0], [2, 0]),
    ///         };
    ///         let sent: Vec<u32> = sent.into_iter().map(u32::from).collect();
    ///         let room = vec![0; recv_counts.iter().sum()];
    ///         comm.all_to_all_v_into(sent, &send_counts, room, &recv_counts).wait().unwrap().1
    ///     })
    /// }).collect();
    /// let got: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    /// assert_eq!(got, [vec![u32::from('a')], vec![u32::from('b'), u32::from('c')]]);
    /// ```
    pub fn all_to_all_v_into<I, O>(
        &mut self,
        input: I,
        send_counts: &[usize],
        output: O,
        recv_counts: &[usize],
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.plain().all_to_all_v_into(input, send_counts, output, recv_counts)
    }
}

impl View<'_> {
    /// See [`Communicator::gather_v`].
    pub fn gather_v<B: LendMut>(self, buffer: B, counts: &[usize], root: impl Into<Rank>) -> Operation<B> {
        let root = root.into();
        self.own("gather_v", Collective::Gather { root }, [&[], counts], buffer)
    }

    /// See [`Communicator::gather_v_into`].
    pub fn gather_v_into<I, O>(
        self,
        input: I,
        output: O,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        let root = root.into();
        self.own("gather_v_into", Collective::Gather { root }, [&[], counts], Pair::new(input, output))
    }

    /// See [`Communicator::scatter_v`].
    pub fn scatter_v<B: LendMut>(self, buffer: B, counts: &[usize], root: impl Into<Rank>) -> ScatterV<B> {
        let root = root.into();
        let known = self.own_part(counts, root);
        let operation = self.own("scatter_v", Collective::Scatter { root }, [&[], counts], buffer);
        ScatterV { operation, known }
    }

    /// See [`Communicator::scatter_v_into`].
    pub fn scatter_v_into<I, O>(
        self,
        input: I,
        output: O,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> ScatterV<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        let root = root.into();
        let known = self.own_part(counts, root);
        let buffers = Pair::new(input, output);
        let operation = self.own("scatter_v_into", Collective::Scatter { root }, [counts, &[]], buffers);
        ScatterV { operation, known }
    }

    /// See [`Communicator::all_to_all_v`].
    pub fn all_to_all_v<B: LendMut>(self, buffer: B, counts: &[usize]) -> Operation<B> {
        self.own("all_to_all_v", Collective::AllToAll, [&[], counts], buffer)
    }

    /// See [`Communicator::all_to_all_v_into`].
    pub fn all_to_all_v_into<I, O>(
        self,
        input: I,
        send_counts: &[usize],
        output: O,
        recv_counts: &[usize],
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        let buffers = Pair::new(input, output);
        self.own("all_to_all_v_into", Collective::AllToAll, [send_counts, recv_counts], buffers)
    }

    /// `counts` of the input and of the output.
    fn own<B: Lend>(
        self,
        operation: &'static str,
        collective: Collective,
        [input, output]: [&[usize]; 2],
        buffer: B,
    ) -> Operation<B> {
        self.unequal(operation, collective, None, Counts::Own { input, output }, buffer)
    }

    /// The root's own part, of which nothing is told.
    fn own_part(&self, counts: &[usize], root: Rank) -> Option<usize> {
        let me = self.communicator().rank();
        (me == root).then(|| counts.get(me.index()).copied().unwrap_or_default())
    }
}

impl Keyed {
    /// See [`Communicator::gather_v`].
    pub fn gather_v<B: LendMut>(
        &mut self,
        buffer: B,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> Operation<B> {
        self.stream().gather_v(buffer, counts, root)
    }

    /// See [`Communicator::gather_v_into`].
    pub fn gather_v_into<I, O>(
        &mut self,
        input: I,
        output: O,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().gather_v_into(input, output, counts, root)
    }

    /// See [`Communicator::scatter_v`].
    pub fn scatter_v<B: LendMut>(
        &mut self,
        buffer: B,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> ScatterV<B> {
        self.stream().scatter_v(buffer, counts, root)
    }

    /// See [`Communicator::scatter_v_into`].
    pub fn scatter_v_into<I, O>(
        &mut self,
        input: I,
        output: O,
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> ScatterV<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().scatter_v_into(input, output, counts, root)
    }

    /// See [`Communicator::all_to_all_v`].
    pub fn all_to_all_v<B: LendMut>(&mut self, buffer: B, counts: &[usize]) -> Operation<B> {
        self.stream().all_to_all_v(buffer, counts)
    }

    /// See [`Communicator::all_to_all_v_into`].
    pub fn all_to_all_v_into<I, O>(
        &mut self,
        input: I,
        send_counts: &[usize],
        output: O,
        recv_counts: &[usize],
    ) -> Operation<Pair<I, O>>
    where
        I: Lend,
        O: LendMut<Element = I::Element>,
    {
        self.stream().all_to_all_v_into(input, send_counts, output, recv_counts)
    }
}

/// What a rank got of a [`scatter_v`](Communicator::scatter_v).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scattered<B> {
    /// The buffer that was handed in; for a borrowed one, nothing.
    pub buffer: B,
    /// How many elements this rank's part has: the first ones of the buffer, but for the root's in one buffer, which stays in its place.
    pub count: usize,
}

/// The future of a [`scatter_v`](Communicator::scatter_v): gives back the buffer, and how much of it was filled.
///
/// What is said of an [`Operation`] holds for it.
#[must_use = "an operation has begun, but its result and its errors come from awaiting it"]
pub struct ScatterV<B: Lend> {
    operation: Operation<B>,
    /// The root's part.
    known: Option<usize>,
}

impl<B: Lend> ScatterV<B> {
    /// See [`Operation::timeout`].
    pub fn timeout(self, limit: Duration) -> Self {
        ScatterV { operation: self.operation.timeout(limit), ..self }
    }

    /// See [`Operation::cancel`].
    pub fn cancel(&self) {
        self.operation.cancel();
    }

    /// See [`Operation::wait`].
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// In a simulated world (feature `testing`), which stands still while a rank waits like this.
    pub fn wait(mut self) -> Result<Scattered<B::Returned>, OpError<B::Returned>> {
        self.operation.block();
        self.take()
    }

    fn take(&mut self) -> Result<Scattered<B::Returned>, OpError<B::Returned>> {
        let (result, arrival) = self.operation.take_all();
        let got = arrival.map(|arrival| B::Element::DTYPE.elements(arrival.bytes));
        result.map(|buffer| Scattered { buffer, count: self.known.or(got).unwrap_or_default() })
    }
}

impl<B: Lend> fmt::Debug for ScatterV<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScatterV").field(&self.operation).finish()
    }
}

impl<B: Lend> Future for ScatterV<B> {
    type Output = Result<Scattered<B::Returned>, OpError<B::Returned>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.operation.poll_end(cx));
        Poll::Ready(self.take())
    }
}
