//! The poll set: one epoll instance for all descriptors of an engine.
//!
//! Edge-triggered: sockets are read and written directly while anyone drives, and the set is asked only before
//! sleep and after waking.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

/// Wakes one thread that waits, blocked. Only that thread takes the call, so it can't be taken by others who look at
/// the same poll set.
#[derive(Debug, Clone)]
pub(crate) struct Alarm(Arc<OwnedFd>);

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Alarm(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Blocks until it rings.
    pub(crate) fn wait(&self) {
        let fd = PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN);
        // Interrupted by a signal or not: callers look again in any case.
        let _ = rustix::event::poll(&mut [fd], None);
    }

    /// Forgets earlier calls.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl std::task::Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// Token of the descriptor that interrupts a sleeper.
const INTERRUPT: u64 = u64::MAX;

#[derive(Debug, Clone)]
pub(crate) struct Poller {
    set: Arc<OwnedFd>,
    interrupt: Arc<OwnedFd>,
}

impl Poller {
    /// Descriptors that one holds: the set, and one that interrupts.
    pub(crate) const DESCRIPTORS: usize = 2;

    pub(crate) fn new() -> io::Result<Self> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let interrupt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&set, &interrupt, EventData::new_u64(INTERRUPT), EventFlags::IN | EventFlags::ET)?;
        Ok(Poller { set: Arc::new(set), interrupt: Arc::new(interrupt) })
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.set, fd, EventData::new_u64(token), flags)?)
    }

    pub(crate) fn remove(&self, fd: impl AsFd) {
        // A socket that is already gone is not in the set.
        let _ = epoll::delete(&self.set, fd);
    }

    /// Takes what happened since the last call, without waiting: `found(token, readable, writable, ended)`. What was
    /// sent before the end may still have to be read; the end itself makes no other event.
    pub(crate) fn collect(&self, mut found: impl FnMut(u64, bool, bool, bool)) {
        loop {
            let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let Ok((seen, _)) = epoll::wait(&self.set, &mut events, Some(&now)) else { return };
            for event in seen.iter() {
                let flags = event.flags;
                let token = event.data.u64();
                if token != INTERRUPT {
                    let ended = EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP;
                    let readable = flags.intersects(EventFlags::IN | ended);
                    let writable = flags.intersects(EventFlags::OUT | ended);
                    found(token, readable, writable, flags.intersects(ended));
                }
            }
            if seen.len() < 64 {
                return;
            }
        }
    }

    /// Blocks until something happens or the alarm rings. Nothing is taken.
    pub(crate) fn wait(&self, alarm: &Alarm) {
        let fds = [&self.set, &alarm.0].map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
        // Interrupted by a signal or not: callers look again in any case.
        let _ = rustix::event::poll(&mut { fds }, None);
    }

    /// Blocks until something happens in this set or any of the others, or the time is up. Nothing is taken.
    pub(crate) fn wait_any<'a>(&'a self, others: impl Iterator<Item = &'a Poller>, timeout: Duration) {
        /// More sets than this at once allocate.
        const INLINE: usize = 16;
        let limit = timespec(timeout);
        let watch = |set: &'a Poller| PollFd::from_borrowed_fd(set.set.as_fd(), PollFlags::IN);
        let mut few = [const { None }; INLINE];
        let mut many = Vec::new();
        let mut used = 0;
        for set in std::iter::once(self).chain(others) {
            match few.get_mut(used) {
                Some(slot) => *slot = Some(watch(set)),
                None => many.push(watch(set)),
            }
            used += 1;
        }
        if many.is_empty() {
            // Slots that are not used watch this set once more.
            let mut fds = few.map(|slot| slot.unwrap_or_else(|| watch(self)));
            let _ = rustix::event::poll(&mut fds[..used], Some(&limit));
        } else {
            many.extend(few.into_iter().flatten());
            let _ = rustix::event::poll(&mut many, Some(&limit));
        }
    }

    /// Whether something has happened that was not taken.
    pub(crate) fn is_ready(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.set.as_fd(), PollFlags::IN)];
        let now = timespec(Duration::ZERO);
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
    }

    /// Ends a [`wait_any`](Self::wait_any), the present or the next one.
    pub(crate) fn interrupt(&self) {
        let _ = rustix::io::write(&self.interrupt, &1u64.to_ne_bytes());
    }

    pub(crate) fn set(&self) -> SetFd {
        SetFd(self.set.clone())
    }
}

fn timespec(time: Duration) -> rustix::event::Timespec {
    rustix::event::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// The poll set as one descriptor, for a runtime to watch.
#[derive(Debug)]
pub(crate) struct SetFd(Arc<OwnedFd>);

impl AsRawFd for SetFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for SetFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
