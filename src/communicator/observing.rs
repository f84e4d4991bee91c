//! What a rank has done last.

use super::Communicator;
use crate::observe::OperationRecord;

impl Communicator {
    /// The last 2048 operations of this rank, on all its communicators and under all keys, and all that are in flight or
    /// wait to begin, in the order in which they were called. They are always kept; what is split, duplicated or rebuilt from this
    /// one has the same. Where a report is [written](Self::report_to), the last of them are in it.
    ///
    /// Reading them takes as long as some large operations, and delays what is in flight as long.
    ///
    /// ```
    /// use hcomm::{Communicator, Outcome, ReduceOp, Seq};
    ///
    /// let mut comm = Communicator::local(1).remove(0);
    /// comm.all_reduce(vec![1f32; 1000], ReduceOp::Sum).wait().unwrap();
    /// let recent = comm.recent_operations();
    /// let last = recent.last().unwrap();
    /// assert_eq!((last.operation.as_str(), last.seq, last.bytes()), ("all_reduce", Seq(0), 4000));
    /// assert_eq!(last.outcome, Outcome::Ok);
    /// // all_reduce #0 on "world" (1000 × f32, sum, mesh-two-shot), called 8.1µs ago: ok in 1.3µs
    /// println!("{last}");
    /// ```
    pub fn recent_operations(&self) -> Vec<OperationRecord> {
        self.engine.recent_operations()
    }
}
