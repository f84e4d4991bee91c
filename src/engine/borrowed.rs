//! What another process lends: where it lies there, and here.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use super::io::Io;
use super::state::State;
use crate::buffer::raw::Raw;
use crate::buffer::segment::Mapping;
use crate::link::RunKey;
use crate::link::frame::Lent;
use crate::link::shm::{self, Found, Grant, Process};

#[derive(Debug)]
pub(crate) struct Borrowed {
    place: Lent,
    /// Where it is here, once its segment has come; not, if it is in none. The mapping stays as long as it is read.
    mapped: Option<(Raw, Arc<Mapping>)>,
    /// Whose memory it is then.
    process: Option<Process>,
}

/// Whether what is lent can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Here {
    Yes,
    NotYet,
    /// Its segment can't be mapped, or the system refuses to read there.
    Never,
}

impl Borrowed {
    /// So many bytes that a peer says that it lends, in these words.
    pub(crate) fn new(said: &[u8], peer: usize, bytes: usize, io: &mut Io) -> Result<Self, String> {
        let place = Lent::decode(said).ok_or("lends without saying what")?;
        let mut borrowed = Borrowed { place, mapped: None, process: None };
        if place.address().is_some() {
            let reach = io.reach(peer).filter(|reach| reach.knows(borrowed.grant()));
            let process = reach.and_then(|reach| reach.process());
            borrowed.process = Some(process.ok_or("lends what can't be read")?);
        } else {
            borrowed.find(peer, bytes, io)?;
        }
        Ok(borrowed)
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant { slot: self.place.slot, number: self.place.number }
    }

    /// Whether it can be read now; `key` is moved again once it may be. A peer that lends what it has not is found out.
    pub(crate) fn is_here(&mut self, (peer, key): (usize, RunKey), bytes: usize, io: &mut Io) -> Here {
        if self.process.is_some() {
            let refused = io.reach(peer).is_some_and(|reach| reach.is_refused());
            return if refused { Here::Never } else { Here::Yes };
        }
        if self.mapped.is_some() {
            return Here::Yes;
        }
        let here = self.find(peer, bytes, io).unwrap_or_else(|problem| {
            io.accuse(peer, problem);
            Here::NotYet
        });
        if here == Here::NotYet {
            io.await_segments(key);
        }
        here
    }

    /// A part of it, where it is mapped.
    pub(crate) fn mapped(&self, part: Range<usize>) -> Option<Raw> {
        Some(self.mapped.as_ref()?.0.sub(part))
    }

    /// Whether it is not mapped, but for which its parts must be [copied](Self::copy).
    pub(crate) fn is_unmapped(&self) -> bool {
        self.process.is_some()
    }

    /// Copies a part of it, in a way that is meant for memory that others have read. Says whether it went well: that it was
    /// lent is another matter.
    pub(crate) fn copy(&self, part: Range<usize>, dst: Raw, peer: usize, io: &mut Io) -> bool {
        let (Some(process), Some(address)) = (self.process, self.place.address()) else {
            return self.mapped(part).map(|src| dst.claim_and_copy_from(src)).is_some();
        };
        let read = shm::read_process(process, address.wrapping_add(part.start as u64), dst);
        match read {
            Ok(()) => {}
            // It has ended, or has taken the memory back: both are told elsewhere.
            Err(error @ (Errno::SRCH | Errno::FAULT)) => {
                tracing::debug!(%error, "memory of another process can't be read");
            }
            // It was allowed when the link was made. What is lent from now on is declined, this first.
            Err(error) => {
                if let Some(reach) = io.reach(peer) {
                    reach.refuse(peer, error);
                }
                io.unfinished = true;
            }
        }
        // The number of a process that has ended may be another one's.
        read.is_ok() && io.reach(peer).is_some_and(|reach| !reach.has_ended())
    }

    fn find(&mut self, peer: usize, bytes: usize, io: &mut Io) -> Result<Here, String> {
        let (Lent { segment, offset, .. }, grant) = (self.place, self.grant());
        let find = |io: &mut Io| {
            let reach = io.reach(peer).filter(|reach| reach.knows(grant));
            reach.map(|reach| reach.find((segment, offset), bytes, grant)).ok_or("lends what it can't lend")
        };
        let mut found = find(io)?;
        if matches!(found, Found::NotYet | Found::Nowhere) {
            let more = io.receive_segments(peer)?;
            found = find(io)?;
            if more && matches!(found, Found::Nowhere) {
                // What is to come may say otherwise.
                return Ok(Here::NotYet);
            }
        }
        match found {
            Found::Here(raw, mapping) => {
                self.mapped = Some((raw, mapping));
                Ok(Here::Yes)
            }
            Found::NotYet | Found::Gone => Ok(Here::NotYet),
            Found::Declined => Ok(Here::Never),
            Found::Nowhere => {
                Err(format!("lends {bytes} bytes from {offset} on of segment {segment}, which has no such"))
            }
        }
    }
}

impl State {
    /// Takes what peers have handed over, and moves who waits for it. Says whether there was any.
    pub(crate) fn take_segments(&mut self) -> bool {
        if self.io.heralds.is_empty() {
            return false;
        }
        for peer in std::mem::take(&mut self.io.heralds) {
            if let Err(problem) = self.io.receive_segments(peer) {
                self.offends(peer, &problem);
            }
        }
        self.touched.extend(self.io.take_waiters());
        true
    }
}
