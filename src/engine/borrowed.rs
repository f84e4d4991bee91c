//! What another process lends: where it lies there, and here.

use std::ops::Range;

use super::io::Io;
use crate::buffer::raw::Raw;
use crate::link::frame::Lent;
use crate::link::shm::{self, Found, Grant, Process};

#[derive(Debug)]
pub(crate) struct Borrowed {
    place: Lent,
    /// Where it is here, once its segment has come; not, if it is in none.
    raw: Option<Raw>,
    /// Whose memory it is then.
    process: Option<Process>,
}

impl Borrowed {
    /// So many bytes that a peer says that it lends, in these words.
    pub(crate) fn new(said: &[u8], peer: usize, bytes: usize, io: &mut Io) -> Result<Self, String> {
        let place = Lent::decode(said).ok_or("lends without saying what")?;
        let mut borrowed = Borrowed { place, raw: None, process: None };
        if place.address().is_some() {
            let reach = io.reach(peer).filter(|reach| reach.knows(borrowed.grant()));
            let process = reach.and_then(|reach| reach.process());
            borrowed.process = Some(process.ok_or("lends what can't be read")?);
        } else {
            borrowed.raw = borrowed.find(peer, bytes, io)?;
        }
        Ok(borrowed)
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant { slot: self.place.slot, number: self.place.number }
    }

    /// Whether it can be read now. A peer that lends what it has not is found out.
    pub(crate) fn is_here(&mut self, peer: usize, bytes: usize, io: &mut Io) -> bool {
        if self.process.is_none() && self.raw.is_none() {
            match self.find(peer, bytes, io) {
                Ok(found) => self.raw = found,
                Err(problem) => io.accuse(peer, problem),
            }
            // Nothing tells when a segment comes.
            io.unfinished |= self.raw.is_none();
        }
        self.process.is_some() || self.raw.is_some()
    }

    /// A part of it, where it is mapped.
    pub(crate) fn mapped(&self, part: Range<usize>) -> Option<Raw> {
        Some(self.raw?.sub(part))
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
        if let Err(error) = &read {
            // It has ended, or has taken the memory back: both are told elsewhere.
            tracing::debug!(%error, "memory of another process can't be read");
        }
        // The number of a process that has ended may be another one's.
        read.is_ok() && io.reach(peer).is_some_and(|reach| !reach.has_ended())
    }

    fn find(&self, peer: usize, bytes: usize, io: &mut Io) -> Result<Option<Raw>, String> {
        let Lent { segment, offset, .. } = self.place;
        let reach =
            io.reach(peer).filter(|reach| reach.knows(self.grant())).ok_or("lends what it can't lend")?;
        let mut found = reach.find(segment, offset, bytes);
        if matches!(found, Found::NotYet) {
            reach.receive()?;
            found = reach.find(segment, offset, bytes);
        }
        match found {
            Found::Here(raw) => Ok(Some(raw)),
            Found::NotYet => Ok(None),
            Found::Nowhere => {
                Err(format!("lends {bytes} bytes from {offset} on of segment {segment}, which has no such"))
            }
        }
    }
}
