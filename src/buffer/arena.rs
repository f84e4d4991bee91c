//! Memory that other processes read where it lies: segments, cut into lots for buffers.
//!
//! Each segment is at least as large as all before it together, so there are few. A lot that is given back joins the free ones
//! beside it. Segments that are free as a whole are kept for what is allocated next, up to [`KEPT_MAX`], and beyond that go back
//! to the system. Numbers of segments are not used twice.
//!
//! A segment is gone with its last owner: whose memory is lent owns it, so nothing of a segment that is gone is lent. Then it
//! rings, so that the others unmap it, too: who is called finds all that rang before, since the last owner is gone by then.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use super::raw::Raw;
use super::segment::{HUGE_PAGE, Mapping, PAGE, Segment};

/// A segment is at least so large, unless it is the first few, and grows no more beyond that unless one lot needs it: what is
/// taken at once stays small beside what is used.
const SEGMENT_MIN: usize = 1 << 20;
const SEGMENT_MAX: usize = 64 << 20;
/// Bytes of segments that are free as a whole and kept: one of those that many buffers share, so that who drops and allocates by
/// turns asks the system for nothing. It is what a process uses beyond its callers' buffers by default.
pub(crate) const KEPT_MAX: usize = SEGMENT_MAX;
/// Others map each of them.
pub(crate) const SEGMENTS_MAX: usize = 512;
/// What lots begin at: a cache line; larger ones, a page.
const LINE: usize = 64;

/// Whether there can be a segment of so many bytes, mapped in so many; else why not.
type Check = fn(u64, u64) -> Result<(), String>;

/// The shared memory of one rank.
#[derive(Debug)]
pub(crate) struct Arena {
    segments: Mutex<Segments>,
    check: Check,
    /// Bytes of segments that are free as a whole and kept.
    kept: usize,
    bell: Arc<Bell>,
}

/// Segments by their number, and the number of the next.
#[derive(Debug, Default)]
struct Segments {
    cuts: BTreeMap<u64, Cut>,
    next: u64,
}

/// A segment, and what is free in it: where, and how much.
#[derive(Debug)]
struct Cut {
    segment: Arc<Shared>,
    free: BTreeMap<usize, usize>,
}

/// A segment of an arena.
#[derive(Debug)]
pub(crate) struct Shared {
    pub number: u64,
    pub fd: OwnedFd,
    pub bytes: usize,
    huge: bool,
    mapping: Arc<Mapping>,
    bell: Arc<Bell>,
}

/// Rings when a segment is gone.
#[derive(Debug, Default)]
struct Bell {
    rang: AtomicBool,
    waker: OnceLock<Waker>,
}

/// A piece of a segment; free again when dropped.
#[derive(Debug)]
pub(crate) struct Lot {
    arena: Arc<Arena>,
    segment: Arc<Shared>,
    offset: usize,
    bytes: usize,
}

/// What an arena has of the system: segments, each with a descriptor, their bytes, and of these those in huge pages and those in
/// segments that are free as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub segments: usize,
    pub bytes: usize,
    pub huge: usize,
    pub free: usize,
}

impl Arena {
    pub(crate) fn new(check: Check) -> Arc<Arena> {
        Self::keeping(KEPT_MAX, check)
    }

    /// One that keeps so many bytes of segments that are free as a whole.
    pub(crate) fn keeping(kept: usize, check: Check) -> Arc<Arena> {
        Arc::new(Arena { segments: Mutex::default(), check, kept, bell: Arc::default() })
    }

    /// Whom segments that are gone call; once.
    pub(crate) fn call(&self, waker: Waker) {
        let _ = self.bell.waker.set(waker);
    }

    /// Whether segments are gone since this was asked last.
    #[inline]
    pub(crate) fn take_call(&self) -> bool {
        self.bell.rang.load(Ordering::Relaxed) && self.bell.rang.swap(false, Ordering::AcqRel)
    }

    fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn taken(&self) -> Taken {
        let segments = self.segments();
        let of = |counts: fn(&Cut) -> bool| {
            segments.cuts.values().filter(|cut| counts(cut)).map(|cut| cut.segment.bytes).sum()
        };
        Taken {
            segments: segments.cuts.len(),
            bytes: of(|_| true),
            huge: of(|cut| cut.segment.huge),
            free: of(Cut::is_free),
        }
    }

    /// `bytes` of zeros; or why there are none.
    pub(crate) fn lot(self: &Arc<Self>, bytes: usize) -> Result<Lot, String> {
        let align = if bytes >= PAGE { PAGE } else { LINE };
        let bytes = bytes.max(1).checked_next_multiple_of(align).ok_or("no process has so much memory")?;
        let mut segments = self.segments();
        let found = segments.cuts.values_mut().find_map(|cut| cut.take(bytes, align));
        let (segment, offset, used) = match found {
            Some((segment, offset)) => (segment, offset, true),
            None => {
                let mut cut = self.grow(&segments, bytes)?;
                let (segment, offset) = cut.take(bytes, align).ok_or("a new segment is too small")?;
                segments.next += 1;
                segments.cuts.insert(segment.number, cut);
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

    fn grow(&self, segments: &Segments, bytes: usize) -> Result<Cut, String> {
        if segments.cuts.len() == SEGMENTS_MAX {
            return Err(format!("there are {SEGMENTS_MAX} segments already"));
        }
        let all: usize = segments.cuts.values().map(|cut| cut.segment.bytes).sum();
        let bytes = bytes.max(all.clamp(SEGMENT_MIN, SEGMENT_MAX));
        let page = if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let bytes = bytes.checked_next_multiple_of(page).ok_or("no process has so much memory")?;
        (self.check)(bytes as u64, bytes as u64)?;
        let Segment { fd, mapping, huge } = Segment::large(bytes)?;
        let (number, bell) = (segments.next, self.bell.clone());
        let segment = Arc::new(Shared { number, fd, bytes, huge, mapping, bell });
        Ok(Cut { segment, free: [(0, bytes)].into() })
    }

    /// Takes a lot back. Returns what goes back to the system, which takes its time: whoever calls drops it without the lock.
    fn give(&self, number: u64, offset: usize, bytes: usize) -> Vec<Cut> {
        let mut segments = self.segments();
        let Some(cut) = segments.cuts.get_mut(&number) else { return Vec::new() };
        cut.give(offset, bytes);
        if cut.is_free() { segments.take_surplus(self.kept) } else { Vec::new() }
    }
}

impl Segments {
    /// Takes segments out that are free, until those left have so many bytes at most: the largest first, so few go.
    fn take_surplus(&mut self, kept: usize) -> Vec<Cut> {
        let free = self.cuts.values().filter(|cut| cut.is_free());
        let mut free: Vec<(usize, u64)> = free.map(|cut| (cut.segment.bytes, cut.segment.number)).collect();
        free.sort_unstable();
        let mut bytes: usize = free.iter().map(|(bytes, _)| bytes).sum();
        let mut surplus = Vec::new();
        while bytes > kept
            && let Some((of, number)) = free.pop()
        {
            bytes -= of;
            surplus.extend(self.cuts.remove(&number));
        }
        surplus
    }
}

impl Cut {
    fn is_free(&self) -> bool {
        self.free.get(&0) == Some(&self.segment.bytes)
    }

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
        if self.segment.mapping.is_here() {
            drop(self.arena.give(self.segment.number, self.offset, self.bytes));
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.mapping.is_here() {
            self.bell.ring();
        }
    }
}

impl Bell {
    fn ring(&self) {
        self.rang.store(true, Ordering::Release);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
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
        assert_eq!(arena.taken().bytes, SEGMENT_MIN);
        drop(lots);
        let free: Vec<_> = arena.segments().cuts[&0].free.clone().into_iter().collect();
        assert_eq!(free, [(0, SEGMENT_MIN)]);
        let again = arena.lot(SEGMENT_MIN).unwrap();
        assert!(again.raw().bytes_ref().iter().all(|byte| *byte == 0), "what was in it is not shown");
        assert_eq!(arena.taken().bytes, SEGMENT_MIN);
    }

    #[test]
    fn segments_grow_and_are_few() {
        let arena = arena();
        let lots: Vec<Lot> = (0..40).map(|_| arena.lot(1 << 20).unwrap()).collect();
        assert!(arena.taken().bytes <= 64 << 20 && arena.taken().segments <= 8);
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
        assert_eq!(arena.taken(), Taken::default());
    }

    /// Counts how often it is called.
    #[derive(Default)]
    struct Calls(std::sync::atomic::AtomicUsize);

    impl std::task::Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_free_beyond_what_is_kept_goes_back_and_rings() {
        const MIB: usize = 1 << 20;
        let (arena, calls) = (Arena::keeping(4 * MIB, |_, _| Ok(())), Arc::new(Calls::default()));
        arena.call(calls.clone().into());
        let [first, kept, middle, large] = [1, 4, 8, 16].map(|of| arena.lot(of * MIB).unwrap());
        let is = |bytes, free| {
            let taken = arena.taken();
            assert_eq!((taken.bytes, taken.free), (bytes * MIB, free * MIB), "{taken:?}");
        };
        is(29, 0);
        drop(kept);
        is(29, 4);
        assert!(!arena.take_call(), "there is little free");
        drop(middle);
        is(21, 4);
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert!(arena.take_call() && !arena.take_call());
        let last = large.place(&arena).unwrap().segment;
        // Whoever drops it.
        std::thread::spawn(move || drop(large)).join().unwrap();
        is(5, 4);
        assert!(!arena.take_call(), "it has an owner");
        assert_eq!(rustix::fs::fstat(&last.fd).unwrap().st_size as usize, last.bytes);
        drop(last);
        assert!(arena.take_call());
        drop(first);
        is(1, 1);
        assert_eq!(arena.lot(MIB).unwrap().segment.number, 0, "what is kept is used again");
    }

    #[test]
    fn segments_come_and_go_and_have_numbers_of_their_own() {
        let arena = Arena::keeping(0, |_, _| Ok(()));
        let kept = arena.lot(5).unwrap();
        for round in 1..300 {
            let lot = arena.lot(SEGMENT_MIN).unwrap();
            assert_eq!(lot.segment.number, round);
            assert!(lot.raw().bytes_ref()[..PAGE].iter().all(|byte| *byte == 0));
            lot.raw().bytes_mut().fill(1);
            drop(lot);
            assert_eq!(arena.taken().segments, 1);
        }
        drop(kept);
        assert_eq!(arena.taken(), Taken::default());
    }
}
