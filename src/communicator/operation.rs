//! The future of every operation.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop::poll_proceed;

use crate::buffer::lend::{Guard, Lend, Lent};
use crate::engine::wait::Wait;
use crate::engine::{Arrival, Engine, Op, Submitted};
use crate::error::OpError;

/// An operation in flight: it has begun, and is driven whether this is polled or not.
///
/// In a tokio runtime it sleeps on the runtime's IO: `enable_io()` or `enable_all()`, as `#[tokio::main]` has it. Without
/// IO it works, and every sleep takes about a millisecond longer; if panics abort the process, it ends with tokio's
/// message that says so, because a runtime can't be asked. Other executors do as well as one without IO.
///
/// Gives back the buffer that was handed in, with the result in it; for a borrowed one, nothing, with the result in the
/// borrowed memory.
///
/// # Cancel safety
///
/// Dropping this *detaches*: the operation goes on to its end and no peer is harmed. The buffer is freed then; a
/// borrowed one is left as it was. To give an operation up, use [`cancel`](Self::cancel).
///
/// So a timer of the runtime, as `tokio::time::timeout`, gives nothing up: it drops the future, and buffer and report with it,
/// while the operation goes on. [`timeout`](Self::timeout) is the limit that all ranks learn of, and gives the buffer back
/// where no peer is in it.
///
/// # Panics
///
/// If it is polled again after it has ended, as other futures do.
#[must_use = "an operation has begun, but its result and its errors come from awaiting it"]
pub struct Operation<B: Lend> {
    engine: Arc<Engine>,
    /// `None` once its outcome is taken.
    call: Option<Submitted>,
    guard: Option<B::Guard>,
    wait: Wait,
    /// How long it may take at most, whatever it is given.
    left: Option<Duration>,
    /// Where somebody traces.
    span: Option<Box<tracing::Span>>,
}

impl<B: Lend> Operation<B> {
    pub(crate) fn new(
        engine: Arc<Engine>,
        call: Submitted,
        guard: B::Guard,
        left: Option<Duration>,
        span: Option<Box<tracing::Span>>,
    ) -> Self {
        Operation { engine, call: Some(call), guard: Some(guard), wait: Wait::default(), left, span }
    }

    /// As long as it may be in flight.
    fn op(&self) -> Option<&Arc<Op>> {
        match &self.call {
            Some(Submitted::Flying(op)) => Some(op),
            Some(Submitted::Over(_)) | None => None,
        }
    }

    /// Gives the operation `limit` of time, from its call on, instead of the communicator's deadline. Expiry gives the
    /// operation up on all ranks that have not done it; the error names who is late and gives the buffer back, unless a peer
    /// is in it just then. Those that have the result keep it, so
    /// [agree on where to go on](crate::Error#after-an-error-that-is-not-fatal) before a step is tried again. `Duration::MAX` is a limit of many years.
    /// What is called [within](crate::within) a limit has no longer than that.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit(limit);
        self
    }

    /// Gives the operation up, on all ranks: they get [`Aborted`](crate::Error::Aborted), or keep their result if they have it already.
    /// Await this to get [`Cancelled`](crate::Error::Cancelled) and the buffer, unless a peer is in it. Before a step is tried again,
    /// [agree on where to go on](crate::Error#after-an-error-that-is-not-fatal).
    pub fn cancel(&self) {
        if let Some(op) = self.op() {
            self.engine.cancel(op);
        }
    }

    /// Waits for the end on this thread, without a runtime.
    ///
    /// In async code it blocks the thread with all its tasks; where a peer is a task of the same thread, until the
    /// deadline. Await the operation there.
    ///
    /// # Errors
    ///
    /// As awaiting it.
    ///
    /// # Panics
    ///
    /// In a simulated world (feature `testing`), which stands still while a rank waits like this.
    pub fn wait(mut self) -> Result<B::Returned, OpError<B::Returned>> {
        self.block();
        self.take_all().0
    }

    /// Waits for the end.
    pub(super) fn block(&self) {
        let _entered = self.span.as_ref().map(|span| span.enter());
        self.engine.allow_blocking();
        if let Some(op) = self.op() {
            self.engine.block_on(op);
        }
    }

    pub(super) fn limit(&mut self, limit: Duration) {
        let limit = self.left.map_or(limit, |left| limit.min(left));
        if let Some(op) = self.op() {
            self.engine.limit(op, limit);
        }
    }

    /// Ends it if it still looks for a message, and lets go of one that it has claimed.
    pub(super) fn give_up_look(&mut self, channel: usize) {
        if let Some(Submitted::Flying(op)) = &self.call {
            self.engine.give_up_look(channel, op);
        }
    }

    /// What came of it, and which message it got, if it has received or seen one.
    #[allow(clippy::type_complexity)]
    pub(super) fn take_all(&mut self) -> (Result<B::Returned, OpError<B::Returned>>, Option<Arrival>) {
        let (Some(call), Some(guard)) = (self.call.take(), self.guard.take()) else {
            panic!("an operation was polled again after it had ended");
        };
        let span = self.span.take();
        let op = match call {
            Submitted::Over(parts) => return (Ok(guard.give_back(Lent(parts))), None),
            Submitted::Flying(op) => op,
        };
        let outcome = op.take_outcome();
        self.engine.recycle(op);
        let Some(outcome) = outcome else { unreachable!("it was waited for") };
        let result = match (outcome.result, outcome.parts) {
            (Ok(()), Some(parts)) => Ok(guard.give_back(Lent(parts))),
            (Ok(()), None) => unreachable!("what went well is touched by nobody any more"),
            (Err(error), parts) => {
                if let Some(span) = span {
                    span.record("error", tracing::field::display(&error));
                }
                Err(OpError { error, buffer: parts.map(|parts| guard.give_up(Lent(parts))) })
            }
        };
        (result, outcome.arrival)
    }

    /// Whether it is over; whoever polls is woken at its end. It does not drive: something else that is polled beside it has to.
    pub(super) fn is_over(&self, cx: &Context<'_>) -> bool {
        let Some(op) = self.op() else { return true };
        op.register(cx.waker());
        op.is_done()
    }

    /// Polls it; once it is over, [`take_all`](Self::take_all) has what came of it.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A loop of calls that are over at once would keep its runtime's other tasks waiting.
        let budget = ready!(poll_proceed(cx));
        let _entered = self.span.as_ref().map(|span| span.enter());
        if let Some(Submitted::Flying(op)) = &self.call
            && self.engine.poll(op, &mut self.wait, cx).is_pending()
        {
            return Poll::Pending;
        }
        budget.made_progress();
        Poll::Ready(())
    }
}

impl<B: Lend> fmt::Debug for Operation<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.op().is_none_or(|op| op.is_done());
        f.debug_struct("Operation").field("ended", &ended).finish_non_exhaustive()
    }
}

impl<B: Lend> Future for Operation<B> {
    type Output = Result<B::Returned, OpError<B::Returned>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.poll_end(cx));
        Poll::Ready(self.take_all().0)
    }
}

impl<B: Lend> Drop for Operation<B> {
    fn drop(&mut self) {
        if let Some(op) = self.op() {
            self.engine.detach(op);
        }
    }
}
