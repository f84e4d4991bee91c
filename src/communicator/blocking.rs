//! Collectives and messages on a thread that waits: `&mut [T]` is lent without a copy.
//!
//! [`send`] alone copies its slice first. What else is awaited has a `wait` of its own:
//! [`Operation::wait`](super::Operation::wait), and that of the others.
//!
//! Sound because a call does not return before the operation has let go of the memory, whatever happens. No runtime is
//! needed; do not call these on a thread that a runtime needs.
//!
//! ```
//! use hcomm::{Communicator, ReduceOp, blocking};
//!
//! let threads: Vec<_> = Communicator::local(3).into_iter().map(|mut comm| {
//!     std::thread::spawn(move || {
//!         let mut data = [1.0f64; 100];
//!         blocking::all_reduce(&mut comm, &mut data, ReduceOp::Sum).unwrap();
//!         data[99]
//!     })
//! }).collect();
//! assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 3.0));
//! ```

use super::Communicator;
use crate::buffer::lend::Blocked;
use crate::element::{Element, ReduceOp};
use crate::error::Error;
use crate::rank::{Rank, Tag};

/// See [`Communicator::barrier`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn barrier(communicator: &mut Communicator) -> Result<(), Error> {
    communicator.barrier().wait()?;
    Ok(())
}

/// See [`Communicator::all_reduce`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_reduce<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    op: ReduceOp,
) -> Result<(), Error> {
    Ok(communicator.all_reduce(Blocked(buffer), op).wait()?)
}

/// See [`Communicator::broadcast`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn broadcast<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    root: impl Into<Rank>,
) -> Result<(), Error> {
    Ok(communicator.broadcast(Blocked(buffer), root).wait()?)
}

/// See [`Communicator::all_gather`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_gather<T: Element>(communicator: &mut Communicator, buffer: &mut [T]) -> Result<(), Error> {
    Ok(communicator.all_gather(Blocked(buffer)).wait()?)
}

/// See [`Communicator::reduce_scatter`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn reduce_scatter<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    op: ReduceOp,
) -> Result<(), Error> {
    Ok(communicator.reduce_scatter(Blocked(buffer), op).wait()?)
}

/// See [`Communicator::send`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn send<T: Element>(
    communicator: &Communicator,
    to: impl Into<Rank>,
    tag: impl Into<Tag>,
    buffer: &[T],
) -> Result<(), Error> {
    Ok(communicator.send(to, tag, buffer).wait()?)
}

/// See [`Communicator::recv`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn recv<T: Element>(
    communicator: &Communicator,
    from: impl Into<Rank>,
    tag: impl Into<Tag>,
    buffer: &mut [T],
) -> Result<(), Error> {
    Ok(communicator.recv(from, tag, Blocked(buffer)).wait()?)
}

/// See [`Communicator::split`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn split(
    communicator: &mut Communicator,
    color: Option<u32>,
    key: i64,
) -> Result<Option<Communicator>, Error> {
    communicator.split(color, key).wait()
}

/// See [`Communicator::dup`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn dup(communicator: &mut Communicator) -> Result<Communicator, Error> {
    communicator.dup().wait()
}

/// See [`Communicator::close`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn close(communicator: Communicator) -> Result<(), Error> {
    communicator.close().wait()
}
