//! What is urgent, what can wait, and how often which moved.

use super::{Communicator, View};
use crate::engine::Priority;

impl Communicator {
    /// Options for one call: it overtakes what is in flight. In each turn of this rank it moves before all that is not
    /// urgent, and while it is in flight one of the others moves beside it. Between processes, messages of it up to 1 MiB
    /// go over the connection for small ones and so pass what is queued on the other.
    ///
    /// For what others wait for while something large is under way: a loss or a flag beside gradients, on this
    /// communicator or on another one of this rank. Only the order of work on this rank changes, and neither results nor
    /// what ranks compare: others may call the same without. Overtaking needs all of them to hurry, though.
    ///
    /// It is for collectives: [`send`](Self::send) and [`recv`](Self::recv) have no priority. They are normal.
    ///
    /// A call that waits for room in memory waits for those called before it on its communicator: on another one it
    /// overtakes them, too.
    ///
    /// ```
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// let threads: Vec<_> = Communicator::local(2).into_iter().map(|mut comm| {
    ///     std::thread::spawn(move || {
    ///         let gradients = comm.bulk().all_reduce(vec![1f32; 1 << 20], ReduceOp::Avg);
    ///         let loss = comm.urgent().all_reduce(vec![0.5f32], ReduceOp::Avg).wait().unwrap();
    ///         assert_eq!(loss, [0.5]);
    ///         gradients.wait().unwrap();
    ///     })
    /// }).collect();
    /// threads.into_iter().for_each(|thread| thread.join().unwrap());
    /// ```
    pub fn urgent(&mut self) -> View<'_> {
        self.plain().urgent()
    }

    /// Options for one call: it moves where nothing else of this rank does, or once it has waited for some turns, so that
    /// it never stands still. For what nobody waits for yet: a checkpoint, or parameters for later. As with
    /// [`urgent`](Self::urgent), only the order of work on this rank changes.
    pub fn bulk(&mut self) -> View<'_> {
        self.plain().bulk()
    }

    /// How often operations of this rank have moved so far, by priority; all its communicators together.
    ///
    /// ```
    /// let comm = hcomm::Communicator::local(1).remove(0);
    /// assert_eq!(comm.scheduler_stats().urgent, 0);
    /// ```
    pub fn scheduler_stats(&self) -> SchedulerStats {
        let moves = self.engine.moves();
        let of = |priority: Priority| moves.moved[priority as usize];
        SchedulerStats {
            urgent: of(Priority::Urgent),
            normal: of(Priority::Normal),
            bulk: of(Priority::Bulk),
            aged: moves.aged,
            waited_max: moves.waited_max,
        }
    }
}

/// How a rank's operations took turns. In one turn an operation moves by two slices of 128 KiB per step of its plan at
/// most; what links write to and read from memory as it comes is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SchedulerStats {
    /// Times that urgent operations moved.
    pub urgent: u64,
    /// Times that normal ones did.
    pub normal: u64,
    /// Times that bulk ones did.
    pub bulk: u64,
    /// Times that an operation went before one of a higher priority, because it had waited for eight turns.
    pub aged: u64,
    /// Turns that an operation which was ready has waited at most, while operations had different priorities. At most
    /// eight, and one for each other operation that was in flight.
    pub waited_max: u64,
}
