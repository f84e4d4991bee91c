//! Ranks of one process: a peer's memory is read where it lies.
//!
//! An operation publishes a [`Lease`]: the address of every range it lends, how far each may be read, and how far it
//! has been. A reader announces itself, checks that the lease still stands, reads, says how far it came, and leaves.
//! A peer that writes a result there (a *push*) does the same: everything said of readers holds for it.
//!
//! Why no reader touches memory that is gone: the reader stores `reading` and then loads `revoked`; the owner stores
//! `revoked` and then loads `reading`, all sequentially consistent. So either the reader sees the revocation and does
//! not read, or the owner sees the reader and leaves the memory to the lease, which lives as long as the reader's
//! reference to it.
//!
//! A lease may *stand*: peers keep it, and its owner lends by it again ([`arm`](Lease::arm)) instead of sending another
//! one, once all readers are done with the operation before. Who finds it armed for his number has the ranges of that
//! operation: the owner changes them only when this reader, too, is done. One that was revoked never stands again.
//!
//! Why no wake-up is missed: who is about to sleep announces it and then looks at everything once more; who publishes
//! does that first and then looks at the [`Announcement`].

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use crossbeam_utils::CachePadded;

use super::frame::Header;
use crate::buffer::parts::Parts;
use crate::buffer::raw::Raw;
use crate::runtime::announcement::Announcement;
use crate::runtime::sync::{ArrayQueue, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Mutex};

/// Messages that wait for one rank at most; senders keep what does not fit.
const INBOX: usize = 4096;
/// Small message buffers kept for reuse in one process.
const SPARE: usize = 256;

/// What one rank of a process sends to another: a frame as on a byte link, or an operation's lease.
#[derive(Debug)]
pub(crate) struct Message {
    pub from: usize,
    pub header: Header,
    pub payload: Vec<u8>,
    /// What the operation in the header lends.
    pub lease: Option<Arc<Lease>>,
}

/// The ranks of one process.
#[derive(Debug)]
pub(crate) struct Hub {
    ranks: Vec<CachePadded<Port>>,
    /// Buffers of small messages, reused: who sends takes one, who receives gives it back.
    spare: ArrayQueue<Vec<u8>>,
}

#[derive(Debug)]
struct Port {
    inbox: ArrayQueue<Message>,
    /// Changes soon after something was published for this rank: what it watches while it looks, instead of all that its
    /// peers are writing, which would hold them up.
    news: CachePadded<AtomicUsize>,
    sleep: Announcement,
    /// Somebody found the inbox full since its rank last looked.
    refused: AtomicBool,
    /// Thread that drove this rank last: nobody spins for a peer that his own thread must drive.
    driver: AtomicUsize,
    gone: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Hub {
    pub(crate) fn new(ranks: usize) -> Arc<Self> {
        let port = || Port {
            inbox: ArrayQueue::new(INBOX),
            news: CachePadded::new(AtomicUsize::new(0)),
            sleep: Announcement::default(),
            refused: AtomicBool::new(false),
            driver: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            waker: OnceLock::new(),
        };
        Arc::new(Hub {
            ranks: (0..ranks).map(|_| CachePadded::new(port())).collect(),
            spare: ArrayQueue::new(SPARE),
        })
    }

    pub(crate) fn spare(&self) -> Option<Vec<u8>> {
        self.spare.pop()
    }

    pub(crate) fn recycle(&self, bytes: Vec<u8>) {
        // Too many: freed.
        let _ = self.spare.push(bytes);
    }

    /// Who is woken when something comes for `rank` while it sleeps.
    pub(crate) fn attach(&self, rank: usize, waker: Waker) {
        let _ = self.ranks[rank].waker.set(waker);
    }

    /// `rank` will not come back: peers are told by [`gone`](Self::gone).
    pub(crate) fn detach(&self, rank: usize) {
        self.ranks[rank].gone.store(true, Ordering::SeqCst);
        while self.ranks[rank].inbox.pop().is_some() {}
        for peer in 0..self.ranks.len() {
            self.notify(peer);
        }
    }

    pub(crate) fn gone(&self, rank: usize) -> bool {
        self.ranks[rank].gone.load(Ordering::Acquire)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Queues a message; gives it back if the inbox is full.
    pub(crate) fn send(&self, to: usize, message: Message) -> Result<(), Message> {
        if self.gone(to) {
            return Ok(());
        }
        let port = &self.ranks[to];
        port.inbox.push(message).or_else(|message| {
            // Its rank looks at this after it has emptied the inbox: it was full after this was set, or takes this one.
            port.refused.store(true, Ordering::SeqCst);
            port.inbox.push(message)
        })
    }

    /// Whether somebody has found the inbox full, and is to be told that it was emptied.
    pub(crate) fn take_refused(&self, rank: usize) -> bool {
        let refused = &self.ranks[rank].refused;
        refused.load(Ordering::SeqCst) && refused.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn receive(&self, rank: usize) -> Option<Message> {
        self.ranks[rank].inbox.pop()
    }

    pub(crate) fn inbox_is_empty(&self, rank: usize) -> bool {
        self.ranks[rank].inbox.is_empty()
    }

    /// Hints to `to` that something was published for it; `mark` is another one than the last of any rank. Only a hint:
    /// who is told later by [`notify`](Self::notify) is told for certain.
    #[inline]
    pub(crate) fn hint(&self, to: usize, mark: usize) {
        self.ranks[to].news.store(mark, Ordering::Release);
    }

    /// The last hint given to `rank`.
    #[inline]
    pub(crate) fn news(&self, rank: usize) -> usize {
        self.ranks[rank].news.load(Ordering::Acquire)
    }

    /// Something was published for `to`: whether it sleeps and must be woken, which the caller does outside of locks.
    pub(crate) fn must_wake(&self, to: usize) -> bool {
        self.ranks[to].sleep.answer()
    }

    pub(crate) fn wake(&self, to: usize) {
        if let Some(waker) = self.ranks[to].waker.get() {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn notify(&self, to: usize) {
        if self.must_wake(to) {
            self.wake(to);
        }
    }

    /// Announces sleep. The caller looks at everything once more before it sleeps.
    pub(crate) fn park(&self, rank: usize) {
        self.ranks[rank].sleep.make();
    }

    /// Whether nobody has called since the announcement.
    pub(crate) fn is_parked(&self, rank: usize) -> bool {
        self.ranks[rank].sleep.stands()
    }

    pub(crate) fn set_driver(&self, rank: usize, thread: usize) {
        let driver = &self.ranks[rank].driver;
        if driver.load(Ordering::Relaxed) != thread {
            driver.store(thread, Ordering::Relaxed);
        }
    }

    pub(crate) fn driver(&self, rank: usize) -> usize {
        self.ranks[rank].driver.load(Ordering::Relaxed)
    }
}

/// What an operation lends to the other ranks of its process.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) digest: u64,
    /// Its owner will lend by it again, without a message: peers keep it.
    pub(crate) standing: bool,
    slots: Vec<Slot>,
    revoked: AtomicBool,
    /// Memory that was still being read when the operation ended early; freed with the lease.
    quarantine: Mutex<Vec<Parts>>,
}

/// One lent range: one step of the owner's plan, one reader.
#[derive(Debug, Default)]
struct Slot {
    owner: CachePadded<Owner>,
    reader: CachePadded<Reader>,
    /// Of a lease that stands: the last operation whose range its reader is done with, plus one. Apart, since the owner looks
    /// at it all the time, and the reader would fetch the rest of what it writes back from there.
    finished: CachePadded<AtomicU64>,
}

/// Written by the owner only: all that its reader has to fetch.
#[derive(Debug, Default)]
struct Owner {
    start: AtomicPtr<u8>,
    bytes: AtomicUsize,
    /// Readable bytes plus one; 0 before it may start.
    lent: AtomicUsize,
    /// Of a lease that stands: which operation it is for now, plus one, and that one's digest.
    armed: AtomicU64,
    digest: AtomicU64,
}

/// Written by the reader only, so that it stays in the reader's cache.
#[derive(Debug, Default)]
struct Reader {
    reading: AtomicBool,
    /// Bytes read plus one; 0 before the reader has begun.
    taken: AtomicUsize,
}

impl Owner {
    fn set(&self, range: Raw) {
        self.start.store(range.as_ptr(), Ordering::Relaxed);
        self.bytes.store(range.len(), Ordering::Relaxed);
    }

    fn range(&self) -> Raw {
        Raw::new(self.start.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

impl Lease {
    pub(crate) fn new() -> Self {
        Lease {
            digest: 0,
            standing: false,
            slots: Vec::new(),
            revoked: AtomicBool::new(false),
            quarantine: Mutex::new(Vec::new()),
        }
    }

    /// Makes the lease ready for another operation that lends `ranges`; nobody else has it.
    pub(crate) fn reset(&mut self, digest: u64, ranges: impl Iterator<Item = Raw>) {
        self.digest = digest;
        self.standing = false;
        self.revoked.store(false, Ordering::Relaxed);
        for (used, range) in ranges.enumerate() {
            if used == self.slots.len() {
                self.slots.push(Slot::default());
            }
            let Slot { owner, reader, finished } = &self.slots[used];
            owner.set(range);
            owner.lent.store(0, Ordering::Relaxed);
            owner.armed.store(0, Ordering::Relaxed);
            reader.taken.store(0, Ordering::Relaxed);
            finished.store(0, Ordering::Relaxed);
            reader.reading.store(false, Ordering::Relaxed);
        }
    }

    /// Owner: lends `ranges` to the readers for operation `number`, all at once. All are done with the one before.
    pub(crate) fn arm(&self, number: u64, digest: u64, ranges: impl Iterator<Item = Raw>) {
        for (Slot { owner, .. }, range) in self.slots.iter().zip(ranges) {
            owner.set(range);
            owner.digest.store(digest, Ordering::Relaxed);
            owner.armed.store(number + 1, Ordering::Release);
        }
    }

    /// Reader: the digest of operation `number`, if its range is lent.
    pub(crate) fn armed(&self, slot: usize, number: u64) -> Option<u64> {
        let owner = &self.slots.get(slot)?.owner;
        (owner.armed.load(Ordering::Acquire) == number + 1).then(|| owner.digest.load(Ordering::Relaxed))
    }

    /// Reader: it is done with its range of operation `number`, and leaves.
    pub(crate) fn finish(&self, slot: usize, number: u64) {
        let Slot { reader, finished, .. } = &self.slots[slot];
        finished.store(number + 1, Ordering::Release);
        reader.reading.store(false, Ordering::Release);
    }

    /// Owner: whether the reader is done with its range of operation `number`.
    pub(crate) fn is_finished(&self, slot: usize, number: u64) -> bool {
        self.slots[slot].finished.load(Ordering::Acquire) == number + 1
    }

    /// Owner: `bytes` of the range may be read. Says whether that is news.
    pub(crate) fn lend(&self, slot: usize, bytes: usize) -> bool {
        let lent = &self.slots[slot].owner.lent;
        let news = lent.load(Ordering::Relaxed) != bytes + 1;
        if news {
            lent.store(bytes + 1, Ordering::Release);
        }
        news
    }

    /// Owner: how far the reader has come; `None` before it has begun.
    pub(crate) fn taken(&self, slot: usize) -> Option<usize> {
        self.slots[slot].reader.taken.load(Ordering::Acquire).checked_sub(1)
    }

    /// Reader: how far it may read; `None` before the owner lends.
    pub(crate) fn readable(&self, slot: usize) -> Option<usize> {
        self.slots.get(slot)?.owner.lent.load(Ordering::Acquire).checked_sub(1)
    }

    /// Reader: how long the range is, if there is one.
    pub(crate) fn bytes(&self, slot: usize) -> Option<usize> {
        self.slots.get(slot).map(|slot| slot.owner.bytes.load(Ordering::Relaxed))
    }

    /// Reader: the range, to be read before [`leave`](Self::leave); `None` if the lease was revoked.
    pub(crate) fn enter(&self, slot: usize) -> Option<Raw> {
        let Slot { owner, reader, .. } = &self.slots[slot];
        reader.reading.store(true, Ordering::SeqCst);
        if self.revoked.load(Ordering::SeqCst) {
            reader.reading.store(false, Ordering::Release);
            return None;
        }
        Some(owner.range())
    }

    /// Reader: `bytes` of the range are read. Says whether the lease stood all the time.
    pub(crate) fn leave(&self, slot: usize, bytes: usize) -> bool {
        let reader = &self.slots[slot].reader;
        let stood = !self.revoked.load(Ordering::Acquire);
        if stood {
            reader.taken.store(bytes + 1, Ordering::Release);
        }
        reader.reading.store(false, Ordering::Release);
        stood
    }

    /// Reader: it leaves, and is not done.
    pub(crate) fn pass(&self, slot: usize) {
        self.slots[slot].reader.reading.store(false, Ordering::Release);
    }

    /// Owner: nobody may begin to read. Says whether nobody reads any more.
    pub(crate) fn revoke(&self) -> bool {
        self.revoked.store(true, Ordering::SeqCst);
        !self.slots.iter().any(|slot| slot.reader.reading.load(Ordering::SeqCst))
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Owner: leaves memory to the lease because somebody still reads it.
    pub(crate) fn quarantine(&self, parts: Parts) {
        if let Ok(mut kept) = self.quarantine.lock() {
            kept.push(parts);
        }
    }
}
