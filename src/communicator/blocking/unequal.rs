//! Collectives of unequal parts on a thread that waits.

use super::{Calls, NoUnwinding, lent, lent_into};
use crate::buffer::lend::{Blocked, BlockedInput};
use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::Error;
use crate::rank::Rank;

impl Calls<'_> {
    /// See [`Communicator::gather_v`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn gather_v<T: Element>(
        self,
        buffer: &mut [T],
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> Result<(), Error> {
        let view = self.allowed();
        let root = root.into();
        lent(buffer, |buffer| view.gather_v(buffer, counts, root))
    }

    /// See [`Communicator::gather_v_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn gather_v_into<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> Result<(), Error> {
        let view = self.allowed();
        let root = root.into();
        lent_into(input, output, |input, output| view.gather_v_into(input, output, counts, root))
    }

    /// See [`Communicator::scatter_v`]: how many elements this rank's part has.
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn scatter_v<T: Element>(
        self,
        buffer: &mut [T],
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> Result<usize, Error> {
        let view = self.allowed();
        let root = root.into();
        let guard = NoUnwinding;
        let result = view.scatter_v(Blocked(buffer), counts, root).wait();
        std::mem::forget(guard);
        Ok(result?.count)
    }

    /// See [`Communicator::scatter_v_into`]: how many elements this rank's part has.
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn scatter_v_into<T: Element>(
        self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: impl Into<Rank>,
    ) -> Result<usize, Error> {
        let view = self.allowed();
        let root = root.into();
        let guard = NoUnwinding;
        let result = view.scatter_v_into(BlockedInput(input), Blocked(output), counts, root).wait();
        std::mem::forget(guard);
        result.map(|part| part.count).map_err(|failed| failed.error)
    }

    /// See [`Communicator::all_to_all_v`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_to_all_v<T: Element>(self, buffer: &mut [T], counts: &[usize]) -> Result<(), Error> {
        let view = self.allowed();
        lent(buffer, |buffer| view.all_to_all_v(buffer, counts))
    }

    /// See [`Communicator::all_to_all_v_into`].
    ///
    /// # Errors
    ///
    /// As the operation of the same name.
    pub fn all_to_all_v_into<T: Element>(
        self,
        input: &[T],
        send_counts: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
    ) -> Result<(), Error> {
        let view = self.allowed();
        lent_into(input, output, |input, output| {
            view.all_to_all_v_into(input, send_counts, output, recv_counts)
        })
    }
}

/// See [`Communicator::gather_v`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn gather_v<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    counts: &[usize],
    root: impl Into<Rank>,
) -> Result<(), Error> {
    communicator.plain().blocking().gather_v(buffer, counts, root)
}

/// See [`Communicator::gather_v_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn gather_v_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    counts: &[usize],
    root: impl Into<Rank>,
) -> Result<(), Error> {
    communicator.plain().blocking().gather_v_into(input, output, counts, root)
}

/// See [`Communicator::scatter_v`]: how many elements this rank's part has.
///
/// # Errors
///
/// As the operation of the same name.
pub fn scatter_v<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    counts: &[usize],
    root: impl Into<Rank>,
) -> Result<usize, Error> {
    communicator.plain().blocking().scatter_v(buffer, counts, root)
}

/// See [`Communicator::scatter_v_into`]: how many elements this rank's part has.
///
/// # Errors
///
/// As the operation of the same name.
pub fn scatter_v_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    output: &mut [T],
    counts: &[usize],
    root: impl Into<Rank>,
) -> Result<usize, Error> {
    communicator.plain().blocking().scatter_v_into(input, output, counts, root)
}

/// See [`Communicator::all_to_all_v`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_to_all_v<T: Element>(
    communicator: &mut Communicator,
    buffer: &mut [T],
    counts: &[usize],
) -> Result<(), Error> {
    communicator.plain().blocking().all_to_all_v(buffer, counts)
}

/// See [`Communicator::all_to_all_v_into`].
///
/// # Errors
///
/// As the operation of the same name.
pub fn all_to_all_v_into<T: Element>(
    communicator: &mut Communicator,
    input: &[T],
    send_counts: &[usize],
    output: &mut [T],
    recv_counts: &[usize],
) -> Result<(), Error> {
    communicator.plain().blocking().all_to_all_v_into(input, send_counts, output, recv_counts)
}
