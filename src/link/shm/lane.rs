//! What one process writes for another: a page of words, and a ring for each class of frames.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::attach::{self, Process};
use super::bell::Sleeper;
use super::reach::{GRANTS, Grants};
use super::ring::{LINE, Reader, Ring, Writer};
use super::words::{WORD, Words};
use crate::buffer::raw::Raw;
use crate::buffer::segment::{self, Mapping, PAGE, Part, Segment, Unmapped};
use crate::link::Class;
use crate::link::frame::PAYLOAD_MAX;
use crate::runtime::allowance;

/// Words in a line, so that no two of those below share one.
const APART: usize = LINE / WORD;
/// The first page, by words: in which sleep its owner is, on which processor it was last, and how many notices it has written and
/// where it calls from; how far it has read each of the other's rings; and what shows that the other one sees this memory.
const NAP: usize = 0;
const NOTICES: usize = 2;
const HEADS: [usize; 2] = [APART, 2 * APART];
const NONCE: usize = 3 * APART;
/// How far it has written to the ring for small frames what is not published yet, and to the other one.
const AHEAD: usize = 4 * APART;
/// Behind them: what is lent.
const GRANTED: usize = 5 * APART;
const _: () = assert!((GRANTED + GRANTS) * WORD <= PAGE);
/// Words of the nonce.
const NONCE_WORDS: usize = 2;

/// A ring's least size: it takes the longest frame, and a line.
const RING_MIN: usize = (PAYLOAD_MAX + 2 * LINE).next_power_of_two();
/// More leaves the cache of the core that writes it: twice as large is half as fast at 1 MiB.
const RING_MAX: usize = 512 << 10;

/// Bytes of the rings of a lane, by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes([usize; 2]);

impl Sizes {
    /// Of a rank that may use so much memory for the lanes to all its peers: more where there is room.
    pub(crate) fn within(memory: usize, peers: usize) -> Sizes {
        let each = memory / peers.max(1);
        let rest = each.saturating_sub(PAGE + RING_MIN);
        let bulk = rest.checked_ilog2().map_or(0, |log| 1 << log);
        Sizes([RING_MIN, bulk.clamp(RING_MIN, RING_MAX)])
    }

    /// As another process says; `None` if it can't be.
    pub(crate) fn told(sizes: [u64; 2]) -> Option<Sizes> {
        let fits = |bytes: u64| {
            let bytes = usize::try_from(bytes).ok()?;
            (bytes.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&bytes)).then_some(bytes)
        };
        Some(Sizes([fits(sizes[0])?, fits(sizes[1])?]))
    }

    pub(crate) fn tell(self) -> [u64; 2] {
        self.0.map(|bytes| bytes as u64)
    }

    /// Of the whole lane.
    pub(crate) fn bytes(self) -> usize {
        PAGE + self.0[0] + self.0[1]
    }

    /// Of addresses.
    fn mapped(self) -> usize {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// The first page, and each ring twice.
    fn parts(self) -> [Part; 5] {
        let [fast, bulk] = self.0;
        let (first, second) = ((PAGE as u64, fast), ((PAGE + fast) as u64, bulk));
        [(0, PAGE), first, first, second, second]
    }

    /// Where a ring is mapped.
    fn ring(self, mapping: &Arc<Mapping>, class: Class) -> Ring {
        let [fast, bulk] = self.0;
        let (at, bytes) = match class {
            Class::Fast => (PAGE, fast),
            Class::Bulk => (PAGE + 2 * fast, bulk),
        };
        Ring::new(Words::new(mapping, at, 2 * bytes), bytes)
    }
}

/// One lane, as either side has mapped it.
#[derive(Debug)]
pub(crate) struct Lane {
    mapping: Arc<Mapping>,
    sizes: Sizes,
    words: Words,
}

impl Lane {
    /// One that this process writes, and what the other maps it by. `nonce` shows him that it is this memory. What is too little
    /// for it is told with what is needed and what there is.
    pub(crate) fn new(sizes: Sizes, nonce: [u64; NONCE_WORDS]) -> Result<(Lane, OwnedFd), String> {
        allowance::check_segment(sizes.bytes() as u64, sizes.mapped() as u64)?;
        let Segment { fd, mapping, .. } = Segment::new(sizes.bytes(), &sizes.parts())?;
        let lane = Lane::of(mapping, sizes);
        for (at, word) in nonce.into_iter().enumerate() {
            lane.words.at(NONCE + at).store(word, std::sync::atomic::Ordering::Release);
        }
        Ok((lane, fd))
    }

    /// One that another process writes.
    pub(crate) fn foreign(fd: &OwnedFd, sizes: Sizes) -> Result<Lane, String> {
        allowance::check_addresses(sizes.mapped() as u64)?;
        let mapping = segment::map_foreign(fd, sizes.bytes(), &sizes.parts());
        Ok(Lane::of(mapping.map_err(Unmapped::reason)?, sizes))
    }

    fn of(mapping: Arc<Mapping>, sizes: Sizes) -> Lane {
        let words = Words::new(&mapping, 0, PAGE);
        Lane { mapping, sizes, words }
    }

    /// Where the nonce is in its owner's process.
    pub(crate) fn nonce_address(&self) -> u64 {
        self.mapping.raw(NONCE * WORD, NONCE_WORDS * WORD).as_ptr() as u64
    }

    /// Whether this lane is at that address of that process, which can be read there.
    pub(crate) fn is_at(&self, process: Process, address: u64) -> bool {
        let mut words = vec![0u64; NONCE_WORDS];
        attach::read(process, address, Raw::of_words(&mut words)).is_ok() && words == self.nonce()
    }

    pub(super) fn bytes(&self) -> usize {
        self.sizes.bytes()
    }

    /// What is read there.
    pub(crate) fn nonce(&self) -> [u64; NONCE_WORDS] {
        std::array::from_fn(|at| self.words.at(NONCE + at).load(std::sync::atomic::Ordering::Acquire))
    }
}

/// Both lanes of a pair, and what else its two processes have of each other.
#[derive(Debug)]
pub(crate) struct Ends {
    pub mine: Lane,
    pub theirs: Lane,
    /// Ends with the other process.
    pub socket: OwnedFd,
    /// The other process, if its memory can be read from here; and whether this one's can from there.
    pub reads: Option<Process>,
    pub is_read: bool,
    /// Rings here, and there.
    pub my_bell: OwnedFd,
    pub their_bell: OwnedFd,
}

impl Ends {
    pub(super) fn writer(&self, class: Class) -> Writer {
        let ring = self.mine.sizes.ring(&self.mine.mapping, class);
        let ahead = (self.mine.words.clone(), AHEAD + class as usize);
        Writer::new(ring, self.theirs.words.clone(), HEADS[class as usize], ahead)
    }

    pub(super) fn reader(&self, class: Class) -> Reader {
        let ring = self.theirs.sizes.ring(&self.theirs.mapping, class);
        let (heads, at) = self.heads(class);
        Reader::new(ring, heads, at, (self.theirs.words.clone(), AHEAD + class as usize))
    }

    /// Where this process says how far it has read a ring.
    pub(super) fn heads(&self, class: Class) -> (Words, usize) {
        (self.mine.words.clone(), HEADS[class as usize])
    }

    /// What is lent, here and there.
    pub(super) fn grants(&self) -> [Grants; 2] {
        [&self.mine, &self.theirs].map(|lane| Grants::new(lane.words.clone(), GRANTED))
    }

    /// Where this process says that it sleeps, and where it sees that the other does.
    pub(super) fn naps(&self) -> (Words, usize) {
        (self.mine.words.clone(), NAP)
    }

    /// Where each says how many notices it has written to a ring, here and there.
    pub(super) fn notices(&self, class: Class) -> [(Words, usize); 2] {
        [&self.mine, &self.theirs].map(|lane| (lane.words.clone(), NOTICES + class as usize))
    }

    pub(super) fn sleeper(&self) -> Sleeper {
        Sleeper::new(self.theirs.words.clone(), NAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_as_large_as_memory_allows_and_fit_every_frame() {
        assert_eq!(Sizes::within(32 << 20, 1), Sizes([256 << 10, 512 << 10]));
        assert_eq!(Sizes::within(32 << 20, 63), Sizes([256 << 10, 256 << 10]));
        assert_eq!(Sizes::within(0, 0), Sizes([256 << 10, 256 << 10]));
        for (memory, peers) in [(1 << 20, 1), (2 << 20, 3), (16 << 20, 20), (5 << 20, 7)] {
            let bytes = peers * Sizes::within(memory, peers).bytes();
            assert!(bytes <= memory && bytes > memory / 4, "{bytes} bytes of {memory}");
        }
    }

    #[test]
    fn sizes_of_others_are_bounded() {
        let known = Sizes::within(32 << 20, 2);
        assert_eq!(Sizes::told(known.tell()), Some(known));
        for odd in [0, 1, 4096, 128 << 10, (256 << 10) + 64, 4 << 20, 1 << 40, u64::MAX] {
            assert_eq!(Sizes::told([256 << 10, odd]), None);
            assert_eq!(Sizes::told([odd, 256 << 10]), None);
        }
    }
}
