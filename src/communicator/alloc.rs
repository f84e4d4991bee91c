//! Memory that the other ranks of a host read where it lies.

use super::Communicator;
use crate::buffer::Buffer;
use crate::element::Element;

impl Communicator {
    /// A buffer of `len` zeros in the memory that is best for this communicator's operations.
    ///
    /// Where ranks [share memory](super::Builder::shared_memory) with other processes, these read a buffer of this kind where it
    /// lies: operations that are given it by value copy nothing on the way. Any other buffer will do as well, and is copied into
    /// memory that is shared, a piece at a time. Where no memory is shared with processes, this is [`Buffer::zeroed`].
    ///
    /// The memory is taken from the system in segments; huge pages are used where the system has set them aside. A segment that no
    /// buffer is in any more goes back to the system, on whichever thread the last one was dropped, and the other processes unmap
    /// it; but up to 64 MiB of such segments are kept for later buffers, until the communicator, all that were made from it, and
    /// all their buffers are gone. It counts as the caller's own: see [`Resources::shared`](super::Resources::shared). If the
    /// system refuses it, a warning says why, and the buffer is an ordinary one. If it refuses that another process maps it, that
    /// process warns of it, and gets copies.
    ///
    /// Memory that is taken from the system anew costs more than memory that is kept, which is set to zero: a buffer that is used
    /// again and again is best allocated once.
    ///
    /// Every rank decides for itself; nothing is agreed.
    ///
    /// # Panics
    ///
    /// As [`Buffer::zeroed`].
    ///
    /// ```
    /// use hcomm::{Buffer, ReduceOp};
    ///
    /// let threads: Vec<_> = hcomm::Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let mut gradients: Buffer<f32> = comm.alloc(1000);
    ///         gradients.fill(0.5);
    ///         comm.all_reduce(gradients, ReduceOp::Sum).wait().unwrap()[999]
    ///     })
    /// }).collect();
    /// assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 1.0));
    /// ```
    pub fn alloc<T: Element>(&self, len: usize) -> Buffer<T> {
        let lot =
            self.engine.arena().zip(len.checked_mul(size_of::<T>())).map(|(arena, bytes)| arena.lot(bytes));
        match lot {
            Some(Ok(lot)) => Buffer::in_lot(lot, len),
            Some(Err(reason)) => {
                tracing::warn!(len, reason, "a buffer is not in memory that other processes read");
                Buffer::zeroed(len)
            }
            None => Buffer::zeroed(len),
        }
    }
}
