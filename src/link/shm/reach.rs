//! Memory of the other process that is read where it lies, and memory of this one that it reads.
//!
//! What is lent has a *grant*: a word of the lender's lane, whose number goes with it. The lender takes it back by counting the
//! word up, whenever the reader is done or the operation is over, and may then write to the memory. A reader looks at the word
//! after he has read, and if it is another one now, he has read nothing: as with a sequence lock, what he read before he saw
//! the number was there before it was taken back.
//!
//! Segments are handed over once, and stay mapped as long as the link is known: so who reads late reads something, and never
//! gets a signal.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::attach::Process;
use super::hand_over;
use super::words::Words;
use crate::buffer::arena::{SEGMENTS_MAX, Shared};
use crate::buffer::raw::Raw;
use crate::buffer::segment::{self, Mapping, PAGE};
use crate::runtime::sync::fence;

/// What is lent to one other process at a time at most; what is more is copied.
pub(super) const GRANTS: usize = 256;

/// What says that memory is lent: a word of the lender's lane, and what it is while that is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub slot: u32,
    pub number: u64,
}

/// Grants of one direction, in the lane of the lender.
#[derive(Debug)]
pub(super) struct Grants {
    words: Words,
    first: usize,
}

impl Grants {
    pub(super) fn new(words: Words, first: usize) -> Grants {
        Grants { words, first }
    }

    /// Lender: what lends from now on.
    pub(super) fn now(&self, slot: u32) -> Grant {
        let number = self.words.at(self.first + slot as usize).load(Ordering::Relaxed);
        Grant { slot, number }
    }

    /// Lender: from here on the memory may be written.
    pub(super) fn take_back(&self, grant: Grant) {
        self.words.at(self.first + grant.slot as usize).store(grant.number + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Reader: whether what was read until now was lent.
    #[inline]
    pub(super) fn stands(&self, grant: Grant) -> bool {
        fence(Ordering::Acquire);
        self.words.at(self.first + grant.slot as usize).load(Ordering::Acquire) == grant.number
    }
}

/// One other process.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Of the lane that this process writes for the other one.
    pub lane_bytes: usize,
    lent: Grants,
    free: Vec<u32>,
    /// Segments that it has, by number, and those that it is to get.
    handed: Vec<bool>,
    to_hand: Vec<Arc<Shared>>,
    borrowed: Grants,
    /// Its segments.
    segments: HashMap<u32, Arc<Mapping>>,
    socket: Arc<OwnedFd>,
    /// By what its other memory is read, if it can be; and whether it can read this process's.
    process: Option<Process>,
    is_read: bool,
}

/// Where memory of the other process is here.
#[derive(Debug)]
pub(crate) enum Found {
    Here(Raw),
    /// Its segment has not come yet.
    NotYet,
    /// It can't be anywhere.
    Nowhere,
}

impl Reach {
    pub(super) fn new(
        lane_bytes: usize,
        [lent, borrowed]: [Grants; 2],
        (process, is_read): (Option<Process>, bool),
        socket: Arc<OwnedFd>,
    ) -> Reach {
        Reach {
            lane_bytes,
            lent,
            free: (0..GRANTS as u32).rev().collect(),
            handed: Vec::new(),
            to_hand: Vec::new(),
            borrowed,
            segments: HashMap::new(),
            socket,
            process,
            is_read,
        }
    }

    /// Lends something of this segment, if there is a grant left for it.
    pub(crate) fn lend(&mut self, segment: &Arc<Shared>) -> Option<Grant> {
        let slot = self.free.pop()?;
        let number = segment.number as usize;
        if self.handed.len() <= number {
            self.handed.resize(number + 1, false);
        }
        if !std::mem::replace(&mut self.handed[number], true) {
            self.to_hand.push(segment.clone());
        }
        Some(self.lent.now(slot))
    }

    /// Lends memory that is in no segment, if it can be read all the same, and there is a grant left for it.
    pub(crate) fn lend_unmapped(&mut self) -> Option<Grant> {
        if !self.is_read {
            return None;
        }
        self.free.pop().map(|slot| self.lent.now(slot))
    }

    /// The other process, if its memory can be read where it is not mapped.
    pub(crate) fn process(&self) -> Option<Process> {
        self.process
    }

    /// Whether the other process has ended. What was read of its memory by its number before was its own, if it has not.
    pub(crate) fn has_ended(&self) -> bool {
        let mut sockets = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(rustix::event::poll(&mut sockets, Some(&now)), Ok(0))
    }

    /// Whether a segment is to be handed over first.
    pub(crate) fn has_to_hand(&self) -> bool {
        !self.to_hand.is_empty()
    }

    /// Whether there can be such a grant of the other process.
    pub(crate) fn knows(&self, grant: Grant) -> bool {
        (grant.slot as usize) < GRANTS
    }

    /// The memory may be written again.
    pub(crate) fn take_back(&mut self, grant: Grant) {
        self.lent.take_back(grant);
        self.free.push(grant.slot);
    }

    /// Whether what was read until now was lent, by a grant that there [can be](Self::knows).
    #[inline]
    pub(crate) fn stands(&self, grant: Grant) -> bool {
        self.borrowed.stands(grant)
    }

    /// Hands over what was lent of for the first time. Says whether all of it has gone.
    pub(crate) fn hand_over(&mut self) -> bool {
        while let Some(segment) = self.to_hand.first() {
            let about = [u64::from(segment.number), segment.bytes as u64];
            match hand_over::send(&*self.socket, about, &[segment.fd.as_fd()]) {
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS) => return false,
                // Gone, or the other process is: that is told elsewhere.
                _ => drop(self.to_hand.remove(0)),
            }
        }
        true
    }

    /// Takes segments that have come.
    pub(crate) fn receive(&mut self) -> Result<(), String> {
        loop {
            let (about, fds) = match hand_over::receive(&*self.socket) {
                Ok(Some(message)) => message,
                // The end, or nothing yet: both show elsewhere.
                Ok(None) | Err(Errno::AGAIN | Errno::INTR | Errno::CONNRESET) => return Ok(()),
                Err(error) => return Err(format!("a segment can't be taken: {error}")),
            };
            let (Ok(number), Ok(bytes)) = (u32::try_from(about[0]), usize::try_from(about[1])) else {
                return Err("a segment that can't be".into());
            };
            let fits = bytes > 0 && bytes.is_multiple_of(PAGE) && (number as usize) < SEGMENTS_MAX;
            let [fd] = fds.as_slice() else { return Err("a segment without its descriptor".into()) };
            if !fits || self.segments.contains_key(&number) {
                return Err(format!("segment {number} of {bytes} bytes"));
            }
            self.segments.insert(number, segment::map_foreign(fd, bytes, &[(0, bytes)])?);
        }
    }

    /// So many bytes of its segment from there on.
    pub(crate) fn find(&self, segment: u32, offset: u64, bytes: usize) -> Found {
        let Some(mapping) = self.segments.get(&segment) else {
            return if (segment as usize) < SEGMENTS_MAX { Found::NotYet } else { Found::Nowhere };
        };
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes));
        match end {
            Some(end) if end <= mapping.bytes() => Found::Here(mapping.raw(end - bytes, bytes)),
            _ => Found::Nowhere,
        }
    }
}
