//! Waiting: the first of two futures, and warnings that become rarer.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

/// When a wait is first worth a warning.
const WARN_FIRST: Duration = Duration::from_secs(5);

/// Which of two futures was first, with its output.
pub(super) enum First<A, B> {
    Left(A),
    Right(B),
}

/// Runs two futures until one is ready; the left one if both are. The other is dropped.
pub(super) async fn first<A, B>(
    left: impl Future<Output = A>,
    right: impl Future<Output = B>,
) -> First<A, B> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|context| {
        if let Poll::Ready(output) = left.as_mut().poll(context) {
            return Poll::Ready(First::Left(output));
        }
        right.as_mut().poll(context).map(First::Right)
    })
    .await
}

/// Says when to warn: after 5 s, then each time after twice as long.
pub(super) struct Patience {
    started: Instant,
    next: Duration,
}

impl Patience {
    pub(super) fn new() -> Patience {
        Patience { started: Instant::now(), next: WARN_FIRST }
    }

    pub(super) fn next(&self) -> Instant {
        self.started + self.next
    }

    pub(super) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether a warning is due; the next one is then due after twice the time.
    pub(super) fn ends(&mut self) -> bool {
        let due = Instant::now() >= self.next();
        if due {
            self.next *= 2;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_come_at_5_10_and_20_seconds() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut patience = Patience::new();
            for due in [5, 10, 20] {
                assert!(!patience.ends());
                tokio::time::sleep_until(patience.next()).await;
                assert!(patience.ends());
                assert_eq!(patience.waited().as_secs(), due);
            }
        });
    }
}
