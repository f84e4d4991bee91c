//! A panic that is expected and caught leaves no message.
//!
//! tokio can't be asked whether a runtime has IO: it panics when IO is used that was not enabled. So one attempt is made
//! per runtime, here, and the panic hook is kept from telling the user of it. The hook that was there is wrapped once per
//! process, and hears of every other panic.

use std::any::Any;
use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`; a panic in it is an error, and is not reported.
///
/// Where panics abort the process they do so here as well, and then the message is all that the user gets: it is not
/// held back.
pub(crate) fn attempt<R>(act: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    if cfg!(panic = "unwind") && !std::thread::panicking() {
        wrap_hook();
    }
    let before = QUIET.replace(true);
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(act));
    QUIET.set(before);
    outcome
}

fn wrap_hook() {
    static WRAPPED: Once = Once::new();
    WRAPPED.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                hook(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_the_next_one_too() {
        assert_eq!(attempt(|| 1).unwrap(), 1);
        for _ in 0..2 {
            assert!(attempt(|| -> i32 { std::panic::resume_unwind(Box::new(5)) }).is_err());
        }
        assert!(!QUIET.get());
    }
}
