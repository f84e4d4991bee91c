//! Sleeping inside a tokio runtime: the poll set is one `AsyncFd` of whichever runtime polls.
//!
//! Runtimes come and go under a communicator. The registration belongs to the runtime that made it; another runtime
//! makes its own, and a runtime that is shut down takes its registration with it.

#![allow(unsafe_code)]

use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use super::poller::{Poller, SetFd};

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
            // A runtime without IO enabled panics when asked; users of `enable_all` never see this.
            let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // SAFETY: `SetFd` shares ownership of the poll set, which stays open and the same while it exists.
                unsafe { AsyncFd::register_with_interest(poller.set(), Interest::READABLE) }
            }));
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
