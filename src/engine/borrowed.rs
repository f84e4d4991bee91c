//! What another process lends: where it lies there, and here.

use super::io::Io;
use crate::buffer::raw::Raw;
use crate::link::frame::Lent;
use crate::link::shm::{Found, Grant};

#[derive(Debug)]
pub(crate) struct Borrowed {
    place: Lent,
    /// Where it is here, once its segment has come.
    raw: Option<Raw>,
}

impl Borrowed {
    /// So many bytes that a peer says that it lends, in these words.
    pub(crate) fn new(said: &[u8], peer: usize, bytes: usize, io: &mut Io) -> Result<Self, String> {
        let place = Lent::decode(said).ok_or("lends without saying what")?;
        let mut borrowed = Borrowed { place, raw: None };
        borrowed.raw = borrowed.find(peer, bytes, io)?;
        Ok(borrowed)
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant { slot: self.place.slot, number: self.place.number }
    }

    /// Where it is; not, before its segment has come. A peer that lends what it has not is found out.
    pub(crate) fn here(&mut self, peer: usize, bytes: usize, io: &mut Io) -> Option<Raw> {
        if self.raw.is_none() {
            match self.find(peer, bytes, io) {
                Ok(found) => self.raw = found,
                Err(problem) => io.accuse(peer, problem),
            }
            // Nothing tells when a segment comes.
            io.unfinished |= self.raw.is_none();
        }
        self.raw
    }

    /// The same, if it was found before.
    pub(crate) fn raw(&self) -> Option<Raw> {
        self.raw
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
