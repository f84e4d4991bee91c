//! Limits of time that operations inherit from whatever they are called for, and operations that end with it.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Operation;
use crate::buffer::lend::Lend;
use crate::error::OpError;
use crate::runtime::clock::Clock;

thread_local! {
    /// When what this thread calls at present has to be over.
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Limits all operations that are called in a future by the time that is left of `limit`, from this call on: what is done for a request
/// ends with the time that the request has, however many operations it takes and wherever they are called.
///
/// It holds for what is called while the future is polled, of all communicators: for collectives, messages and looks, splitting and
/// closing. Each is limited by what is left then, or by its communicator's deadline or its [`timeout`](Operation::timeout) if that is
/// shorter. Of several around each other the first to be over holds. What the future spawns is a task of its own, with its own time.
///
/// It is for operations only. What else the future waits for goes on, and so does an operation that was called before.
///
/// Expiry is what it is for each operation: it is given up on all ranks ([`Error::Deadline`](crate::Error::Deadline)). So of a
/// collective, one rank's limit is the limit of all.
///
/// # Cancel safety
///
/// That of the future.
///
/// ```
/// use std::time::Duration;
/// use hcomm::{Communicator, Error, ReduceOp};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// let mut ranks = Communicator::local(2);
/// let (_late, mut comm) = (ranks.pop().unwrap(), ranks.pop().unwrap());
/// // Does not know of any limit.
/// let mut answer = async || comm.all_reduce(vec![1.0f32], ReduceOp::Sum).await;
/// let failed = hcomm::within(Duration::from_millis(50), answer()).await.unwrap_err();
/// assert!(failed.error.is_deadline());
/// # });
/// ```
pub fn within<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    scoped(now().checked_add(limit), future)
}

/// The same, until an instant: for a deadline that a request has brought along.
pub fn until<F: Future>(deadline: Instant, future: F) -> impl Future<Output = F::Output> {
    scoped(Some(deadline), future)
}

async fn scoped<F: Future>(until: Option<Instant>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _scope = Scope::enter(until);
        future.as_mut().poll(cx)
    })
    .await
}

/// See [`within`](crate::within), for what a thread calls in a function.
///
/// ```
/// use std::time::Duration;
/// use hcomm::{Communicator, blocking};
///
/// let mut ranks = Communicator::local(2);
/// let failed = blocking::within(Duration::from_millis(50), || blocking::barrier(&mut ranks[0]));
/// assert!(failed.unwrap_err().is_deadline());
/// ```
pub fn within_on_this_thread<R>(limit: Duration, act: impl FnOnce() -> R) -> R {
    let _scope = Scope::enter(now().checked_add(limit));
    act()
}

/// The time that limits go by: the engines' own, which is tokio's where tests may have stopped that.
fn now() -> Instant {
    #[cfg(feature = "testing")]
    return Clock::SIMULATED.now();
    #[cfg(not(feature = "testing"))]
    Clock::REAL.now()
}

/// What is left for a call at this time, where there is a limit.
pub(super) fn left(now: impl FnOnce() -> Instant) -> Option<Duration> {
    /// What comes too late takes its number all the same, and has its deadline.
    const LEAST: Duration = Duration::from_millis(1);
    UNTIL.get().map(|until| until.saturating_duration_since(now()).max(LEAST))
}

/// What is called here outlives whatever it is called within, and has its own limit.
pub(super) fn unlimited<R>(act: impl FnOnce() -> R) -> R {
    let _scope = Scope { before: UNTIL.take() };
    act()
}

/// The limit that holds, until it is dropped.
struct Scope {
    before: Option<Instant>,
}

impl Scope {
    fn enter(until: Option<Instant>) -> Scope {
        let before = UNTIL.get();
        UNTIL.set(before.into_iter().chain(until).min());
        Scope { before }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        UNTIL.set(self.before);
    }
}

impl<B: Lend> Operation<B> {
    /// Ties the operation to its future: dropping that [cancels](Self::cancel) it on all ranks, where it would go on otherwise. For what
    /// is done for somebody who may go away, as the client of a request, and is of use to nobody else.
    ///
    /// Other ranks get [`Error::Aborted`](crate::Error::Aborted), or keep the result if they have it; the communicator can be used on.
    ///
    /// ```
    /// use hcomm::{Communicator, Error, ReduceOp};
    ///
    /// let mut ranks = Communicator::local(2);
    /// drop(ranks[0].all_reduce(vec![1.0f32], ReduceOp::Sum).cancel_on_drop());
    /// let failed = ranks[1].all_reduce(vec![1.0f32], ReduceOp::Sum).wait().unwrap_err();
    /// assert!(matches!(failed.error, Error::Aborted { .. }));
    /// ```
    pub fn cancel_on_drop(self) -> CancelOnDrop<B> {
        CancelOnDrop { operation: self }
    }
}

/// The future of [`Operation::cancel_on_drop`].
#[must_use = "what is dropped is cancelled"]
pub struct CancelOnDrop<B: Lend> {
    operation: Operation<B>,
}

impl<B: Lend> Future for CancelOnDrop<B> {
    type Output = Result<B::Returned, OpError<B::Returned>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.operation).poll(cx)
    }
}

impl<B: Lend> Drop for CancelOnDrop<B> {
    fn drop(&mut self) {
        // Nothing is in flight any more where it has ended.
        self.operation.cancel();
    }
}

impl<B: Lend> fmt::Debug for CancelOnDrop<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelOnDrop").field(&self.operation).finish()
    }
}
