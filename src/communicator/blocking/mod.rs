//! Collectives and messages on a thread that waits: `&mut [T]` is lent without a copy.
//!
//! [`send`] alone copies its slice first. What else is awaited has a `wait` of its own:
//! [`Operation::wait`](super::Operation::wait), and that of the others.
//!
//! Sound because a call does not return before the operation has let go of the memory, whatever happens; a panic on its
//! way, say of a waker that it calls for another task, ends the process. No runtime is needed; do not call these on a
//! thread that a runtime needs.
//!
//! **After an error the contents of a slice are undefined,** unlike those of a `&mut [T]` that is awaited: the operation has
//! worked on the slice itself.
//!
//! # Panics
//!
//! In a simulated world (feature `testing`), which stands still while a rank waits like this: before anything is called.
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

mod calls;
mod unequal;

pub use super::scope::within_on_this_thread as within;
pub use calls::Calls;
pub use unequal::{all_to_all_v, all_to_all_v_into, gather_v, gather_v_into, scatter_v, scatter_v_into};

use super::{Communicator, Operation, Prepared};
use crate::buffer::lend::{Blocked, BlockedInput, Pair};
use crate::element::{Element, ReduceOp};
use crate::error::Error;
use crate::group::Group;
use crate::rank::{Rank, Tag};

/// Ends the process where it is dropped: a panic must not unwind past memory that other ranks may be in.
struct NoUnwinding;

impl Drop for NoUnwinding {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Begins an operation on a slice, and waits for it. Whether that is allowed was asked before.
fn lent<'a, T: Element>(
    buffer: &'a mut [T],
    begin: impl FnOnce(Blocked<'a, T>) -> Operation<Blocked<'a, T>>,
) -> Result<(), Error> {
    let guard = NoUnwinding;
    let result = begin(Blocked(buffer)).wait();
    std::mem::forget(guard);
    Ok(result?)
}

/// The same with a slice that is only read.
fn lent_into<'a, T: Element>(
    input: &'a [T],
    output: &'a mut [T],
    begin: impl FnOnce(
        BlockedInput<'a, T>,
        Blocked<'a, T>,
    ) -> Operation<Pair<BlockedInput<'a, T>, Blocked<'a, T>>>,
) -> Result<(), Error> {
    let guard = NoUnwinding;
    let result = begin(BlockedInput(input), Blocked(output)).wait();
    std::mem::forget(guard);
    match result {
        Ok(((), ())) => Ok(()),
        Err(failed) => Err(failed.error),
    }
}

/// See [`Communicator::barrier`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn barrier(communicator: &mut Communicator) -> Result<(), Error> {
    communicator.plain().blocking().barrier()
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
    communicator.plain().blocking().all_reduce(buffer, op)
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
    communicator.plain().blocking().broadcast(buffer, root)
}

/// See [`Communicator::all_gather`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_gather<T: Element>(communicator: &mut Communicator, buffer: &mut [T]) -> Result<(), Error> {
    communicator.plain().blocking().all_gather(buffer)
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
    communicator.plain().blocking().reduce_scatter(buffer, op)
}

/// See [`Communicator::reduce`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn reduce<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    op: ReduceOp,
    root: impl Into<Rank>,
) -> Result<(), Error> {
    communicator.plain().blocking().reduce(buffer, op, root)
}

/// See [`Communicator::gather`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn gather<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    root: impl Into<Rank>,
) -> Result<(), Error> {
    communicator.plain().blocking().gather(buffer, root)
}

/// See [`Communicator::scatter`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn scatter<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    root: impl Into<Rank>,
) -> Result<(), Error> {
    communicator.plain().blocking().scatter(buffer, root)
}

/// See [`Communicator::all_to_all`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_to_all<T: Element>(communicator: &mut Communicator, buffer: &mut [T]) -> Result<(), Error> {
    communicator.plain().blocking().all_to_all(buffer)
}

/// See [`Communicator::scan`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn scan<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    op: ReduceOp,
) -> Result<(), Error> {
    communicator.plain().blocking().scan(buffer, op)
}

/// See [`Communicator::exscan`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn exscan<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    op: ReduceOp,
) -> Result<(), Error> {
    communicator.plain().blocking().exscan(buffer, op)
}

/// See [`Communicator::all_reduce_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_reduce_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    op: ReduceOp,
) -> Result<(), Error> {
    communicator.plain().blocking().all_reduce_into(input, output, op)
}

/// See [`Communicator::all_gather_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_gather_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
) -> Result<(), Error> {
    communicator.plain().blocking().all_gather_into(input, output)
}

/// See [`Communicator::reduce_scatter_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn reduce_scatter_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    op: ReduceOp,
) -> Result<(), Error> {
    communicator.plain().blocking().reduce_scatter_into(input, output, op)
}

/// See [`Communicator::reduce_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn reduce_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    op: ReduceOp,
    root: impl Into<Rank>,
) -> Result<(), Error> {
    communicator.plain().blocking().reduce_into(input, output, op, root)
}

/// See [`Communicator::gather_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn gather_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    root: impl Into<Rank>,
) -> Result<(), Error> {
    communicator.plain().blocking().gather_into(input, output, root)
}

/// See [`Communicator::scatter_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn scatter_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    root: impl Into<Rank>,
) -> Result<(), Error> {
    communicator.plain().blocking().scatter_into(input, output, root)
}

/// See [`Communicator::all_to_all_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_to_all_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
) -> Result<(), Error> {
    communicator.plain().blocking().all_to_all_into(input, output)
}

/// See [`Communicator::scan_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn scan_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    op: ReduceOp,
) -> Result<(), Error> {
    communicator.plain().blocking().scan_into(input, output, op)
}

/// See [`Communicator::exscan_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn exscan_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    op: ReduceOp,
) -> Result<(), Error> {
    communicator.plain().blocking().exscan_into(input, output, op)
}

/// See [`Communicator::all_gather_v`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_gather_v<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    counts: &[usize],
) -> Result<(), Error> {
    communicator.plain().blocking().all_gather_v(buffer, counts)
}

/// See [`Communicator::all_gather_v_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_gather_v_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    counts: &[usize],
) -> Result<(), Error> {
    communicator.plain().blocking().all_gather_v_into(input, output, counts)
}

/// See [`Communicator::reduce_scatter_v`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn reduce_scatter_v<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    counts: &[usize],
    op: ReduceOp,
) -> Result<(), Error> {
    communicator.plain().blocking().reduce_scatter_v(buffer, counts, op)
}

/// See [`Communicator::reduce_scatter_v_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn reduce_scatter_v_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    counts: &[usize],
    op: ReduceOp,
) -> Result<(), Error> {
    communicator.plain().blocking().reduce_scatter_v_into(input, output, counts, op)
}

/// Runs what was prepared; see [`Prepared::run`].
///
/// # Errors
///
/// As there.
///
/// ```
/// use hcomm::{Communicator, ReduceOp, blocking};
///
/// let mut comm = Communicator::local(1).remove(0);
/// let sum = comm.prepare_all_reduce::<f32>(2, ReduceOp::Sum)?;
/// let mut data = [1.0, 2.0];
/// blocking::run(&mut comm, &sum, &mut data)?;
/// assert_eq!(data, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run<T: Element>(
    communicator: &mut Communicator,
    prepared: &Prepared<T>,
    buffer: &mut [T],
) -> Result<(), Error> {
    communicator.engine.allow_blocking();
    lent(buffer, |buffer| prepared.run(communicator, buffer))
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
    communicator.engine.allow_blocking();
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
    communicator.engine.allow_blocking();
    let (from, tag) = (from.into(), tag.into());
    lent(buffer, |buffer| communicator.recv(from, tag, buffer))
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

/// See [`Communicator::split_by_host`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn split_by_host(communicator: &mut Communicator) -> Result<Communicator, Error> {
    communicator.split_by_host().wait()
}

/// See [`Communicator::create`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn create(communicator: &mut Communicator, group: &Group) -> Result<Option<Communicator>, Error> {
    communicator.create(group).wait()
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const CHILD: &str = "HCOMM_TEST_UNWINDS";

    /// The second process of the test below; nothing in the test run itself.
    #[test]
    fn child() {
        if std::env::var_os(CHILD).is_some() {
            let mut memory = [0u8; 8];
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _ = lent(&mut memory, |_| panic!("on purpose"));
            }));
            drop(unwound);
        }
    }

    #[test]
    fn a_panic_does_not_unwind_past_memory_that_is_lent() {
        use std::os::unix::process::ExitStatusExt;
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "communicator::blocking::tests::child"]).env(CHILD, "");
        let output = child.output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    }
}
