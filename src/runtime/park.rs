//! Sleeping inside a tokio runtime: the poll set is one `AsyncFd` of whichever runtime polls.
//!
//! Runtimes come and go under a communicator. The registration belongs to the runtime that made it; another runtime
//! makes its own, and a runtime that is shut down takes its registration with it.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use super::poller::{Poller, SetFd};
use super::quiet;

#[derive(Debug, Default)]
pub(crate) struct Park {
    registration: Mutex<Option<(Id, AsyncFd<SetFd>)>>,
}

/// Whether a runtime will wake the waker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// It will, once something happens.
    Yes,
    /// Something has happened already.
    Ready,
    /// There is no runtime with IO here.
    No,
}

impl Park {
    /// Asks the current runtime to wake `waker` when something happens in the poll set.
    pub(crate) fn arm(&self, poller: &Poller, waker: &Waker) -> Armed {
        let Ok(handle) = Handle::try_current() else { return Armed::No };
        let Ok(mut registration) = self.registration.lock() else { return Armed::No };
        let id = handle.id();
        if registration.as_ref().is_none_or(|(of, _)| *of != id) {
            *registration = None;
            if is_without_io(id) {
                return Armed::No;
            }
            let made = quiet::attempt(|| {
                // SAFETY: `SetFd` shares ownership of the poll set, which stays open and the same while it exists.
                unsafe { AsyncFd::register_with_interest(poller.set(), Interest::READABLE) }
            });
            if made.is_err() {
                remember_without_io(id);
            }
            let Ok(Ok(fd)) = made else { return Armed::No };
            *registration = Some((id, fd));
        }
        let Some((_, fd)) = registration.as_ref() else { return Armed::No };
        let armed = match fd.poll_read_ready(&mut Context::from_waker(waker)) {
            Poll::Pending => Armed::Yes,
            Poll::Ready(Ok(mut guard)) => {
                guard.clear_ready();
                Armed::Ready
            }
            Poll::Ready(Err(_)) => Armed::No,
        };
        if armed == Armed::No {
            *registration = None;
        }
        armed
    }
}

/// Runtimes remembered; one that falls out is asked once more.
const WITHOUT_IO_MAX: usize = 64;
/// Runtimes that panic when asked for IO.
static WITHOUT_IO: Mutex<VecDeque<Id>> = Mutex::new(VecDeque::new());

fn is_without_io(id: Id) -> bool {
    WITHOUT_IO.lock().is_ok_and(|known| known.contains(&id))
}

fn remember_without_io(id: Id) {
    let Ok(mut known) = WITHOUT_IO.lock() else { return };
    if known.len() == WITHOUT_IO_MAX {
        known.pop_front();
    }
    known.push_back(id);
    tracing::warn!(
        "this tokio runtime has no IO, so that every wait takes about a millisecond longer: call enable_io() or \
         enable_all() on its builder"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_without_io_is_asked_once() {
        let (park, poller) = (Park::default(), Poller::new().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let id = runtime.handle().id();
        assert!(!is_without_io(id));
        for _ in 0..2 {
            assert_eq!(runtime.block_on(async { park.arm(&poller, Waker::noop()) }), Armed::No);
            assert!(is_without_io(id));
        }
        let known = WITHOUT_IO.lock().unwrap().iter().filter(|known| **known == id).count();
        assert_eq!(known, 1);
        let other = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        assert_ne!(other.block_on(async { park.arm(&poller, Waker::noop()) }), Armed::No);
    }
}
