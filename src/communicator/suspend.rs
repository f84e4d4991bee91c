//! Pauses that are meant, in which no deadline passes.

use std::fmt;
use std::sync::{Arc, Weak};

use super::Communicator;
use crate::engine::Engine;

impl Communicator {
    /// Suspends the deadlines of this communicator, on *all* its ranks, for as long as the guard lives that it returns: for
    /// a pause that is meant, while one rank writes a checkpoint, compiles or loads data, and the others wait for it.
    ///
    /// Any rank calls it, by itself, and at any time: also while operations are in flight. The others call nothing; they
    /// are told, and what waits there is suspended once they hear of it. Several ranks may pause at the same time, and one
    /// several times: deadlines run again when the last guard of all is gone. An operation's time then goes on where it
    /// was.
    ///
    /// What is suspended: every operation's deadline, and its [`timeout`](super::Operation::timeout), on this communicator, under
    /// its [keys](Self::keyed), and on all that is or will be [`split`](Self::split) or [`dup`](Self::dup)licated from it, as far as this one is
    /// kept on the rank that waits. Not on what it was itself made from, nor on what [`rebuild`](Self::rebuild) makes of it, which
    /// is another one.
    ///
    /// Everything else goes on: operations end as they would; ranks that are lost, leave, cancel or contradict each other
    /// are told of as ever. With a rank that is lost, or closes the communicator, ends what it has suspended. One that lives
    /// and keeps its guard is waited for without limit; a wait of more than 5 s is logged, with who suspends its deadline.
    ///
    /// # Cancel safety
    ///
    /// There is nothing to await. A future that has the guard and is dropped drops it, and deadlines run again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hcomm::{Communicator, ReduceOp};
    ///
    /// let mut ranks = Communicator::local(2);
    /// ranks.iter_mut().for_each(|comm| comm.set_deadline(Duration::from_millis(200)));
    /// let (mut writer, mut waiter) = (ranks.remove(1), ranks.remove(0));
    /// let pause = writer.suspend_deadlines();
    /// let waiting = std::thread::spawn(move || waiter.all_reduce(vec![1u32], ReduceOp::Sum).wait());
    /// // A checkpoint, which takes longer than any operation may.
    /// std::thread::sleep(Duration::from_millis(600));
    /// drop(pause);
    /// assert_eq!(writer.all_reduce(vec![2u32], ReduceOp::Sum).wait().unwrap(), [3]);
    /// assert_eq!(waiting.join().unwrap().unwrap(), [3]);
    /// ```
    pub fn suspend_deadlines(&self) -> SuspendedDeadlines {
        self.engine.hold(self.channel, self.id);
        let (channel, id, name) = (self.channel, self.id, self.name.clone());
        SuspendedDeadlines { engine: Arc::downgrade(&self.engine), channel, id, name }
    }
}

/// Deadlines of a communicator do not run on any of its ranks, until this is dropped: see
/// [`Communicator::suspend_deadlines`].
///
/// It keeps neither communicator nor connections: once they are gone it is of no effect.
#[must_use = "deadlines run again once this is dropped"]
pub struct SuspendedDeadlines {
    engine: Weak<Engine>,
    channel: usize,
    id: u64,
    name: Arc<str>,
}

impl fmt::Debug for SuspendedDeadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuspendedDeadlines").field("of", &self.name).finish_non_exhaustive()
    }
}

impl Drop for SuspendedDeadlines {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.release(self.channel, self.id);
        }
    }
}
