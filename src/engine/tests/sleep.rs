//! What comes from the only peer is seen before its rank sleeps, on whichever connection.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::super::wait::Wait;
use super::*;

/// Pieces that come, each at another number of looks since the last, and their bytes.
const ROUNDS: usize = 32;
const PIECE: usize = 2048;

/// Whether the waiting program was called.
struct Called(AtomicBool);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Nobody is woken once more for what the poll set has announced before.
#[test]
fn nobody_sleeps_with_something_in_the_poll_set() {
    watched("sleep", || {
        let mut scene = Scene::new();
        let begun = scene.begin(Call::Place(PIECE * (ROUNDS + 1) / 4));
        let (engine, shared) = (scene.engine.clone(), scene.engine.shared.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let called = Arc::new(Called(AtomicBool::new(true)));
        let waker = Waker::from(called.clone());
        let mut wait = Wait::default();
        // Polls as a runtime does, until it sleeps.
        let mut poll = || {
            called.0.store(true, Ordering::Release);
            while called.0.swap(false, Ordering::AcqRel) {
                runtime.block_on(poll_fn(|_| {
                    let polled = engine.poll(&begun.op, &mut wait, &mut Context::from_waker(&waker));
                    assert!(polled.is_pending());
                    Poll::Ready(())
                }));
            }
        };
        poll();
        let mut slept = 0;
        for round in 0..ROUNDS {
            // Long enough for the bulk connection to count as quiet.
            (0..20 + round).for_each(|_| _ = shared.drive());
            poll();
            scene.liar.send(Class::Bulk, begun.data(false, (round * PIECE) as u64), &[0; PIECE]);
            // The runtime is told before the program comes.
            runtime.block_on(async {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
            });
            poll();
            // Somebody else may be at it just now.
            let until = Instant::now() + Duration::from_micros(300);
            while shared.poller.is_ready() && Instant::now() < until {
                std::hint::spin_loop();
            }
            slept += usize::from(shared.poller.is_ready());
        }
        assert!(slept <= ROUNDS / 8, "slept {slept} times of {ROUNDS} with something to read");
    });
}
