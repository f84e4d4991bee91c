//! Memory that other processes read where it lies: segments, cut into lots for buffers.
//!
//! Segments are kept for what is allocated next; each is at least as large as all before it together, so there are few. A lot
//! that is given back joins the free ones beside it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::raw::Raw;
use super::segment::{HUGE_PAGE, Mapping, PAGE, Segment};

/// A segment is at least so large, unless it is the first few, and grows no more beyond that unless one lot needs it: what is
/// taken at once stays small beside what is used.
const SEGMENT_MIN: usize = 1 << 20;
const SEGMENT_MAX: usize = 64 << 20;
/// Others map each of them.
pub(crate) const SEGMENTS_MAX: usize = 512;
/// What lots begin at: a cache line; larger ones, a page.
const LINE: usize = 64;

/// Whether there can be a segment of so many bytes, mapped in so many; else why not.
type Check = fn(u64, u64) -> Result<(), String>;

/// The shared memory of one rank.
#[derive(Debug)]
pub(crate) struct Arena {
    segments: Mutex<Vec<Cut>>,
    check: Check,
}

/// A segment, and what is free in it: where, and how much.
#[derive(Debug)]
struct Cut {
    segment: Arc<Shared>,
    free: BTreeMap<usize, usize>,
}

/// A segment of an arena, as it is named to others.
#[derive(Debug)]
pub(crate) struct Shared {
    pub number: u32,
    pub fd: OwnedFd,
    pub bytes: usize,
    pub huge: bool,
    mapping: Arc<Mapping>,
}

/// A piece of a segment; free again when dropped.
#[derive(Debug)]
pub(crate) struct Lot {
    arena: Arc<Arena>,
    segment: Arc<Shared>,
    offset: usize,
    bytes: usize,
}

impl Arena {
    pub(crate) fn new(check: Check) -> Arc<Arena> {
        Arc::new(Arena { segments: Mutex::default(), check })
    }

    fn segments(&self) -> MutexGuard<'_, Vec<Cut>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many segments there are: each has a descriptor.
    pub(crate) fn segments_made(&self) -> usize {
        self.segments().len()
    }

    /// Bytes of all segments, and of those in huge pages.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let segments = self.segments();
        let all = segments.iter().map(|cut| cut.segment.bytes).sum();
        let huge = segments.iter().filter(|cut| cut.segment.huge).map(|cut| cut.segment.bytes).sum();
        (all, huge)
    }

    /// `bytes` of zeros; or why there are none.
    pub(crate) fn lot(self: &Arc<Self>, bytes: usize) -> Result<Lot, String> {
        let align = if bytes >= PAGE { PAGE } else { LINE };
        let bytes = bytes.max(1).next_multiple_of(align);
        let mut segments = self.segments();
        let found = segments.iter_mut().find_map(|cut| cut.take(bytes, align));
        let (segment, offset, used) = match found {
            Some((segment, offset)) => (segment, offset, true),
            None => {
                let mut cut = self.grow(&segments, bytes)?;
                let (segment, offset) = cut.take(bytes, align).ok_or("a new segment is too small")?;
                segments.push(cut);
                (segment, offset, false)
            }
        };
        drop(segments);
        let lot = Lot { arena: self.clone(), segment, offset, bytes };
        if used {
            lot.raw().fill_zero();
        }
        Ok(lot)
    }

    fn grow(&self, segments: &[Cut], bytes: usize) -> Result<Cut, String> {
        if segments.len() == SEGMENTS_MAX {
            return Err(format!("there are {SEGMENTS_MAX} segments already"));
        }
        let all: usize = segments.iter().map(|cut| cut.segment.bytes).sum();
        let bytes = bytes.max(all.clamp(SEGMENT_MIN, SEGMENT_MAX));
        let bytes = bytes.next_multiple_of(if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE });
        (self.check)(bytes as u64, bytes as u64)?;
        let Segment { fd, mapping, huge } = Segment::large(bytes)?;
        let segment = Arc::new(Shared { number: segments.len() as u32, fd, bytes, huge, mapping });
        Ok(Cut { segment, free: [(0, bytes)].into() })
    }
}

impl Cut {
    /// The first free piece that is large enough.
    fn take(&mut self, bytes: usize, align: usize) -> Option<(Arc<Shared>, usize)> {
        let fits = |(start, length): (&usize, &usize)| {
            let begin = start.next_multiple_of(align);
            (begin + bytes <= start + length).then_some((*start, *length, begin))
        };
        let (start, length, begin) = self.free.iter().find_map(fits)?;
        self.free.remove(&start);
        if begin > start {
            self.free.insert(start, begin - start);
        }
        let rest = start + length - (begin + bytes);
        if rest > 0 {
            self.free.insert(begin + bytes, rest);
        }
        Some((self.segment.clone(), begin))
    }

    fn give(&mut self, mut start: usize, mut bytes: usize) {
        if let Some(after) = self.free.remove(&(start + bytes)) {
            bytes += after;
        }
        if let Some((before, length)) =
            self.free.range(..start).next_back().map(|(at, length)| (*at, *length))
            && before + length == start
        {
            (start, bytes) = (before, bytes + length);
        }
        self.free.insert(start, bytes);
    }
}

impl Lot {
    pub(crate) fn raw(&self) -> Raw {
        self.segment.mapping.raw(self.offset, self.bytes)
    }

    /// Where it is, if it is of this arena.
    pub(crate) fn place(&self, arena: &Arc<Arena>) -> Option<Place> {
        Arc::ptr_eq(&self.arena, arena).then(|| Place { segment: self.segment.clone(), offset: self.offset })
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        // In a forked process the lock may be held for ever, by a thread that is not in it.
        if !self.segment.mapping.is_here() {
            return;
        }
        if let Some(cut) = self.arena.segments().get_mut(self.segment.number as usize) {
            cut.give(self.offset, self.bytes);
        }
    }
}

/// Where memory lies for others.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub segment: Arc<Shared>,
    pub offset: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arc<Arena> {
        Arena::new(|_, _| Ok(()))
    }

    #[test]
    fn lots_are_apart_zero_and_joined_again() {
        let arena = arena();
        let lots: Vec<Lot> = [1, 64, 100, 5000, 300_000].map(|bytes| arena.lot(bytes).unwrap()).into();
        for (number, lot) in lots.iter().enumerate() {
            assert!(lot.raw().bytes_ref().iter().all(|byte| *byte == 0));
            lot.raw().bytes_mut().fill(number as u8 + 1);
        }
        for (number, lot) in lots.iter().enumerate() {
            assert!(lot.raw().bytes_ref().iter().all(|byte| *byte == number as u8 + 1));
        }
        assert_eq!(arena.bytes().0, SEGMENT_MIN);
        drop(lots);
        let free: Vec<_> = arena.segments()[0].free.clone().into_iter().collect();
        assert_eq!(free, [(0, SEGMENT_MIN)]);
        let again = arena.lot(SEGMENT_MIN).unwrap();
        assert!(again.raw().bytes_ref().iter().all(|byte| *byte == 0), "what was in it is not shown");
        assert_eq!(arena.bytes().0, SEGMENT_MIN);
    }

    #[test]
    fn segments_grow_and_are_few() {
        let arena = arena();
        let lots: Vec<Lot> = (0..40).map(|_| arena.lot(1 << 20).unwrap()).collect();
        assert!(arena.bytes().0 <= 64 << 20 && arena.segments().len() <= 8);
        let large = arena.lot(100 << 20).unwrap();
        assert_eq!(large.raw().len(), 100 << 20);
        let place = large.place(&arena).unwrap();
        assert_eq!((place.offset, place.segment.bytes), (0, 100 << 20));
        assert!(large.place(&self::arena()).is_none());
        drop((lots, large));
    }

    #[test]
    fn what_there_can_t_be_is_told() {
        let arena = Arena::new(|bytes, _| Err(format!("{bytes} bytes are too many")));
        assert_eq!(arena.lot(5).unwrap_err(), format!("{SEGMENT_MIN} bytes are too many"));
        assert_eq!(arena.bytes(), (0, 0));
    }
}
