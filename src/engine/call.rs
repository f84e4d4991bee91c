//! One call, as its caller and the engine share it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::board::Wish;
use super::order::Priority;
use super::program::Program;
use crate::buffer::parts::{Cuts, Parts};
use crate::element::{DType, ReduceOp};
use crate::error::{CallInfo, Counts, Error};
use crate::kernel::Reduction;
use crate::path::Post;
use crate::rank::{Rank, Tag};
use crate::runtime::sync::{ArrayQueue, AtomicBool, AtomicU64, AtomicWaker, Mutex, MutexGuard};

/// Where a message has it in place of a plan's fingerprint, its round is the other half. Of messages without a round it is 0.
const ROUNDS: u64 = 0x726f_756e;

/// With which tag a call is of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tagged {
    Of(Tag),
    /// A receive or a look that leaves it open.
    Any,
}

/// Everything about a call that must be equal on all ranks, without allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallDesc {
    pub operation: &'static str,
    pub dtype: DType,
    pub count: usize,
    pub op: Option<ReduceOp>,
    pub root: Option<Rank>,
    /// Of a message.
    pub tag: Option<Tagged>,
    pub algorithm: &'static str,
    pub fingerprint: u64,
    /// The count is this rank's own, and others have others.
    pub own_count: bool,
}

impl CallDesc {
    /// A call without root, tag, reduction and plan.
    pub(crate) const fn new(operation: &'static str, dtype: DType, count: usize) -> CallDesc {
        let (op, root, tag, own_count) = (None, None, None, false);
        CallDesc { operation, dtype, count, op, root, tag, algorithm: "", fingerprint: 0, own_count }
    }

    pub(crate) fn info(&self) -> CallInfo {
        CallInfo {
            operation: self.operation.into(),
            dtype: self.dtype,
            count: self.count as u64,
            op: self.op,
            root: self.root,
            tag: self.known_tag(),
            algorithm: self.algorithm.into(),
            plan: self.fingerprint,
            counts: self.own_count.then(|| Counts::Own { sent: Vec::new(), taken: Vec::new() }),
        }
    }

    /// Of a collective: the size of the whole vector.
    pub(crate) const fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    pub(super) fn known_tag(&self) -> Option<Tag> {
        match self.tag {
            Some(Tagged::Of(tag)) => Some(tag),
            Some(Tagged::Any) | None => None,
        }
    }

    /// The tag of a message, where it is known.
    pub(crate) fn tag_word(&self) -> u32 {
        self.known_tag().map_or(0, |tag| tag.0)
    }

    /// What the sender of a message has called, for a receive that was called like this: its digest says of which type.
    pub(crate) fn of_message(&self, bytes: usize, digest: u64) -> CallDesc {
        let of = |dtype: &DType| CallDesc { dtype: *dtype, count: dtype.elements(bytes), ..*self };
        let plain = |dtype: &DType| CallDesc { fingerprint: 0, ..of(dtype) };
        let each = || DType::ALL.iter();
        let told = each().map(of).chain(each().map(plain)).find(|desc| desc.digest() == digest);
        let of_round = |desc: CallDesc| desc.round_of(digest).map(|round| desc.of_round(round));
        told.or_else(|| each().map(plain).find_map(of_round)).unwrap_or_else(|| of(&self.dtype))
    }

    pub(crate) const fn is_of_round(&self) -> bool {
        self.fingerprint >> 32 == ROUNDS
    }

    /// How it reduces among so many ranks; `post`: whether a reduction is the last of its elements.
    pub(crate) fn reduction(&self, post: Post, ranks: usize) -> Reduction {
        let divisor = match (self.op, post) {
            (Some(ReduceOp::Avg), Post::Finish) => ranks as u32,
            _ => 1,
        };
        Reduction { dtype: self.dtype, op: self.op.unwrap_or(ReduceOp::Sum), divisor }
    }

    /// Of a message that belongs to a round; its digest says so.
    pub(crate) const fn of_round(self, round: u32) -> CallDesc {
        CallDesc { fingerprint: ROUNDS << 32 | round as u64, ..self }
    }

    /// The round of a message with such a digest, if it belongs to one and is else what was called like this. Of one that is not, a
    /// round is found by one chance in 2³².
    pub(crate) fn round_of(&self, digest: u64) -> Option<u32> {
        let fingerprint = unmix(digest) ^ self.digest_without_plan();
        let of_round = CallDesc { fingerprint, ..*self };
        of_round.is_of_round().then_some(fingerprint as u32)
    }

    /// Equal for equal calls, and different for different ones but for one chance in 2⁶⁴. Point to point leaves the
    /// peer out: it is another one on each side.
    pub(crate) fn digest(&self) -> u64 {
        mix(self.digest_without_plan() ^ self.fingerprint)
    }

    fn digest_without_plan(&self) -> u64 {
        let peer = if self.tag.is_some() { 0 } else { self.root.map_or(0, |root| u64::from(root.0) + 1) };
        // A message is a send on one side and a receive on the other.
        let operation = if self.tag.is_some() { "message" } else { self.operation };
        let words = [
            operation.bytes().fold(0u64, |word, byte| word.wrapping_mul(31).wrapping_add(byte.into())),
            self.dtype as u64,
            if self.own_count { u64::MAX } else { self.count as u64 },
            self.op.map_or(0, |op| op as u64 + 1),
            peer,
        ];
        words.iter().fold(0x9e37_79b9_7f4a_7c15, |digest, word| mix(digest ^ word))
    }
}

/// A bijective scramble (the finalizer of splitmix64; Steele, Lea, Flood 2014).
pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// What [`mix`] has made a word of.
fn unmix(mut word: u64) -> u64 {
    word = (word ^ (word >> 31) ^ (word >> 62)).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    word = (word ^ (word >> 27) ^ (word >> 54)).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    word ^ (word >> 30) ^ (word >> 60)
}

/// What undoes multiplication by an odd number, by Newton's method: each step doubles the bits that are right, of three.
const fn inverse(odd: u64) -> u64 {
    let (mut inverse, mut bits) = (odd, 3);
    while bits < u64::BITS {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
}

/// What the engine is asked to do.
#[derive(Debug)]
pub(crate) struct Request {
    pub channel: usize,
    pub seq: u64,
    pub desc: CallDesc,
    pub digest: u64,
    pub work: Work,
    pub parts: Parts,
    pub deadline: Duration,
    pub priority: Priority,
}

impl Request {
    /// Where its parts are, if they are not equal, and the program that has them.
    pub(super) fn cut(&self) -> Option<(Arc<Program>, Cuts)> {
        match &self.work {
            Work::Collective(program) => self.parts.cuts().map(|cuts| (program.clone(), cuts.clone())),
            _ => None,
        }
    }

    /// Moved out from behind a reference; what is left is of no use.
    pub(crate) fn take(&mut self) -> Request {
        let work = std::mem::replace(&mut self.work, Work::Rebuild);
        let parts = std::mem::replace(&mut self.parts, Parts::NONE);
        let Request { channel, seq, desc, digest, deadline, priority, .. } = *self;
        Request { channel, seq, desc, digest, work, parts, deadline, priority }
    }
}

#[derive(Debug)]
pub(crate) enum Work {
    Collective(Arc<Program>),
    Send {
        to: usize,
    },
    Recv {
        wish: Wish,
        take: Take,
    },
    /// The message that was claimed under this number, of this rank.
    Claimed {
        claim: u64,
        from: u32,
        take: Take,
    },
    /// Wait until a collective that is called begins at once.
    Admit,
    /// Agree with the ranks that are left on who they are.
    Rebuild,
    /// It is known to be wrong: it takes its number, fails, and the others are told.
    Refuse(Box<Error>),
    /// It ended while it waited to begin, and all know: it takes its number.
    GivenUp,
}

/// What is done with the message that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// It is received, and must have the type and count of the buffer.
    Exact,
    /// It is received, and has at most as many elements as the buffer.
    UpTo,
    /// It is looked at.
    Look,
    /// It is kept for whoever asks for it by the number that it gets.
    Claim,
}

/// The message that a receive got, or that was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub from: usize,
    pub tag: u32,
    pub bytes: usize,
    pub digest: u64,
    /// Under which number it was claimed.
    pub claim: u64,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub result: Result<(), Error>,
    /// `None` while somebody may still touch the memory.
    pub parts: Option<Parts>,
    /// Of a message.
    pub arrival: Option<Arrival>,
}

/// A call in flight, shared by the future that waits for it and the engine.
#[derive(Debug, Default)]
pub(crate) struct Op {
    done: AtomicBool,
    cancelled: AtomicBool,
    /// Milliseconds from the call on, where the caller limits this call by itself; 0 where not.
    limit_ms: AtomicU64,
    /// Nobody waits for it any more.
    abandoned: AtomicBool,
    /// In the list of sleepers.
    listed: AtomicBool,
    waker: AtomicWaker,
    request: Mutex<Option<Request>>,
    outcome: Mutex<Option<Outcome>>,
}

impl Op {
    /// Makes a pooled record ready for another call. Nobody else has it.
    pub(crate) fn renew(&self) {
        self.done.store(false, Ordering::Relaxed);
        self.cancelled.store(false, Ordering::Relaxed);
        self.abandoned.store(false, Ordering::Relaxed);
        self.limit_ms.store(0, Ordering::Relaxed);
        *lock(&self.outcome) = None;
    }

    /// Keeps what is asked for until somebody begins it.
    pub(crate) fn hold(&self, request: Request) {
        *lock(&self.request) = Some(request);
    }

    pub(crate) fn take_request(&self) -> Option<Request> {
        lock(&self.request).take()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn take_outcome(&self) -> Option<Outcome> {
        lock(&self.outcome).take()
    }

    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    pub(crate) fn wake(&self) {
        contained(|| self.waker.wake());
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn limit(&self, limit: Duration) {
        // Never before its time.
        let ms = u64::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1);
        self.limit_ms.store(ms, Ordering::Release);
    }

    /// The caller's own limit if it is known and was not taken yet.
    pub(crate) fn limit_or(&self, deadline: Duration) -> Duration {
        match self.limit_ms.load(Ordering::Acquire) {
            0 => deadline,
            ms => Duration::from_millis(ms),
        }
    }

    /// The caller's own limit, once.
    pub(crate) fn take_limit(&self) -> Option<Duration> {
        // At most times there is none, and a look costs less. One that comes meanwhile is taken, or stays.
        match self.limit_ms.load(Ordering::Relaxed) {
            0 => None,
            _ => {
                Some(self.limit_ms.swap(0, Ordering::AcqRel)).filter(|ms| *ms > 0).map(Duration::from_millis)
            }
        }
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        drop(self.waker.take());
    }

    /// Whether its waker leads to somebody who would drive.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.is_done() && !self.abandoned.load(Ordering::Acquire)
    }

    /// Notes whether it is in the list of sleepers; says whether it was.
    pub(crate) fn set_listed(&self, listed: bool) -> bool {
        self.listed.swap(listed, Ordering::AcqRel)
    }

    /// Whether somebody has gone to sleep over it and still waits for it.
    pub(crate) fn is_asleep(&self) -> bool {
        self.listed.load(Ordering::Acquire) && self.is_waited_for()
    }

    /// Stores the outcome. The waker is left for [`wake`](Self::wake), outside of locks.
    pub(crate) fn finish(&self, outcome: Outcome) {
        *lock(&self.outcome) = Some(outcome);
        self.done.store(true, Ordering::Release);
    }
}

/// Runs what is not ours: a waker, or the end of an owner of bytes. Its panic is not to keep others from being woken, nor the
/// service thread from its deadlines.
fn contained(foreign: impl FnOnce()) {
    // Models end by panics.
    if cfg!(hcomm_loom) {
        foreign();
    } else if catch_unwind(AssertUnwindSafe(foreign)).is_err() {
        tracing::error!("a waker, or the owner of bytes to be sent, has panicked");
    }
}

/// Wakes whoever waits for a call, and lets go of it, and of what it was lent where nobody else has it.
pub(super) fn wake(op: Arc<Op>) {
    op.wake();
    contained(|| drop(op));
}

/// Records of ended calls, for reuse.
#[derive(Debug)]
pub(crate) struct Records(ArrayQueue<Arc<Op>>);

impl Records {
    /// Records kept; more than this at once are made and freed.
    const KEPT: usize = 256;

    pub(crate) fn new() -> Self {
        Records(ArrayQueue::new(Self::KEPT))
    }

    pub(crate) fn give(&self, op: Arc<Op>) {
        let _ = self.0.push(op);
    }

    /// A record that nobody else has any more: one that has ended may still be in a list of sleepers.
    pub(crate) fn take(&self) -> Arc<Op> {
        /// Records looked at; making another one is cheaper than looking at many.
        const LOOKS: usize = 8;
        for _ in 0..LOOKS {
            match self.0.pop() {
                Some(op) if Arc::strong_count(&op) == 1 => return op,
                Some(op) => drop(self.0.push(op)),
                None => break,
            }
        }
        Arc::default()
    }
}

/// A panic while such a lock is held leaves nothing half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(hcomm_loom)))]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Of all else a digest tells nothing but whether it is equal.
    #[test]
    fn a_round_is_read_from_the_digest_of_a_call_that_has_one() {
        let desc = CallDesc {
            root: Some(Rank(3)),
            tag: Some(Tagged::Of(Tag(5))),
            ..CallDesc::new("contribute", DType::F32, 1000)
        };
        for word in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(unmix(mix(word)), word);
        }
        let receiver = CallDesc { operation: "reduce_first", root: Some(Rank(7)), ..desc };
        for round in [0, 1, 77, u32::MAX] {
            let digest = desc.of_round(round).digest();
            assert_eq!(receiver.round_of(digest), Some(round));
            for other in [CallDesc { count: 999, ..receiver }, CallDesc { dtype: DType::U32, ..receiver }] {
                assert_eq!(other.round_of(digest), None);
            }
            let told = CallDesc { dtype: DType::U8, ..receiver }.of_message(4000, digest);
            assert_eq!((told.dtype, told.count, told.is_of_round()), (DType::F32, 1000, true));
        }
        assert_eq!(receiver.round_of(desc.digest()), None, "a plain message");
    }

    /// Whoever keeps deadlines may take one limit while the caller sets another.
    #[test]
    fn the_last_limit_that_was_set_is_taken() {
        const ROUNDS: u64 = 100_000;
        let (op, taken) = (Arc::new(Op::default()), Arc::new(std::sync::atomic::AtomicU64::new(0)));
        let keeper = {
            let (op, taken) = (op.clone(), taken.clone());
            std::thread::spawn(move || {
                while taken.load(Ordering::Acquire) < 2 * ROUNDS {
                    match op.take_limit() {
                        Some(limit) => taken.store(limit.as_millis() as u64, Ordering::Release),
                        None => std::hint::spin_loop(),
                    }
                }
            })
        };
        for round in 1..=ROUNDS {
            op.limit(Duration::from_millis(2 * round - 1));
            op.limit(Duration::from_millis(2 * round));
            let begun = Instant::now();
            while taken.load(Ordering::Acquire) != 2 * round {
                assert!(begun.elapsed() < Duration::from_secs(60), "limit {} is lost", 2 * round);
                std::thread::yield_now();
            }
        }
        keeper.join().unwrap();
    }
}
