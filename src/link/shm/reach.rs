//! Memory of the other process that is read where it lies, and memory of this one that it reads.
//!
//! What is lent has a *grant*: a word of the lender's lane, whose number goes with it. The lender takes it back by counting the
//! word up, whenever the reader is done or the operation is over, and may then write to the memory. A reader looks at the word
//! after he has read, and if it is another one now, he has read nothing: as with a sequence lock, what he read before he saw
//! the number was there before it was taken back.
//!
//! Segments are handed over once, in the order of their numbers, which are of this pair and used once. A reader who can't map
//! one says so to who lends of it, and gets a copy. Once a segment is gone at its owner's, he says that it is no more, and it
//! is unmapped here: not before who reads there is done, so he gets no signal.
//!
//! What an honest peer lends of a segment that is no more was taken back before that: so a grant that stands then is a lie.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::attach::Process;
use super::hand_over::{self, Received};
use super::words::Words;
use crate::buffer::arena::{SEGMENTS_MAX, Shared};
use crate::buffer::raw::Raw;
use crate::buffer::segment::{self, Mapping, PAGE, Unmapped};
use crate::runtime::sync::fence;

/// What is lent to one other process at a time at most; what is more is copied.
pub(super) const GRANTS: usize = 256;
/// Segments that wait to be handed over at most: these stay until they are, whoever drops his buffers in them, and what lies in
/// others is copied meanwhile.
const WAITING_MAX: usize = 8;
/// Segments of the other process at most: beside all that it can have there may be those that are just going.
const MAPPED_MAX: usize = 2 * SEGMENTS_MAX;
/// Messages that are taken from the socket before others get their turn: who fills it holds up nobody.
const MESSAGES_MAX: usize = 64;

/// What says that memory is lent: a word of the lender's lane, and what it is while that is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub slot: u32,
    pub number: u64,
}

/// What is lent to the other process: by which grant, and in which segment as that process numbers it, if it is in one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loan {
    pub grant: Grant,
    pub segment: Option<u32>,
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
    /// Segments that it has, or is to get, by their number in the arena; what it is to get; what is no more; and the number of
    /// the next.
    handed: HashMap<u64, Handed>,
    to_hand: VecDeque<(u32, Arc<Shared>)>,
    to_retire: Vec<u32>,
    next: u32,
    borrowed: Grants,
    /// Its segments, none where one can't be mapped here; and the number of the next.
    segments: HashMap<u32, Option<Arc<Mapping>>>,
    due: u32,
    /// That one can't be was told.
    warned: bool,
    socket: Arc<OwnedFd>,
    /// By what its other memory is read, if it can be; and whether it can read this process's.
    process: Option<Process>,
    is_read: bool,
    /// The system does not let this one read there any more.
    refused: bool,
}

/// A segment of this process, as the other one has it.
#[derive(Debug)]
struct Handed {
    number: u32,
    segment: Weak<Shared>,
    /// It can't be mapped there.
    declined: bool,
}

/// Where memory of the other process is here.
#[derive(Debug)]
pub(crate) enum Found {
    /// Mapped, as long as somebody has the mapping.
    Here(Raw, Arc<Mapping>),
    /// Its segment has not come yet.
    NotYet,
    /// Its segment can't be mapped here.
    Declined,
    /// It is lent no more, and its segment is gone: why will be told.
    Gone,
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
            handed: HashMap::new(),
            to_hand: VecDeque::new(),
            to_retire: Vec::new(),
            next: 0,
            borrowed,
            segments: HashMap::new(),
            due: 0,
            warned: false,
            socket,
            process,
            is_read,
            refused: false,
        }
    }

    /// Lends something of this segment, if it can be read there, and there is a grant left for it.
    pub(crate) fn lend(&mut self, segment: &Arc<Shared>) -> Option<Loan> {
        if self.free.is_empty() {
            return None;
        }
        let number = self.number_of(segment)?;
        let slot = self.free.pop()?;
        Some(Loan { grant: self.lent.now(slot), segment: Some(number) })
    }

    /// As the other process knows a segment, which is handed over if this is the first time.
    fn number_of(&mut self, segment: &Arc<Shared>) -> Option<u32> {
        if let Some(handed) = self.handed.get(&segment.number) {
            return (!handed.declined).then_some(handed.number);
        }
        let next = self.next.checked_add(1).filter(|_| self.to_hand.len() < WAITING_MAX)?;
        let number = std::mem::replace(&mut self.next, next);
        let handed = Handed { number, segment: Arc::downgrade(segment), declined: false };
        self.handed.insert(segment.number, handed);
        self.to_hand.push_back((number, segment.clone()));
        Some(number)
    }

    /// Lends memory that is in no segment, if it can be read all the same, and there is a grant left for it.
    pub(crate) fn lend_unmapped(&mut self) -> Option<Loan> {
        if !self.is_read {
            return None;
        }
        self.free.pop().map(|slot| Loan { grant: self.lent.now(slot), segment: None })
    }

    /// The other process can't map what this is lent in, or can't read what is in no segment, and is lent nothing of it any more.
    /// Says whether that can be.
    pub(crate) fn decline(&mut self, loan: Loan) -> bool {
        if loan.segment.is_none() {
            self.is_read = false;
            return true;
        }
        let sent = self.next - self.to_hand.len() as u32;
        let of = |handed: &&mut Handed| loan.segment == Some(handed.number) && handed.number < sent;
        self.handed.values_mut().find(of).map(|handed| handed.declined = true).is_some()
    }

    /// Finds out which segments are gone: the other process is to unmap them.
    pub(crate) fn retire(&mut self) {
        self.handed.retain(|_, handed| {
            let is_there = handed.segment.strong_count() > 0;
            if !is_there {
                self.to_retire.push(handed.number);
            }
            is_there
        });
    }

    /// The other process, if its memory can be read where it is not mapped.
    pub(crate) fn process(&self) -> Option<Process> {
        self.process
    }

    /// The system refuses to read there, which it allowed before. Told once.
    pub(crate) fn refuse(&mut self, peer: usize, error: Errno) {
        if !std::mem::replace(&mut self.refused, true) {
            tracing::warn!(peer, %error, "memory of another process can't be read any more; it is copied by both instead");
        }
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether the other process has ended. What was read of its memory by its number before was its own, if it has not.
    pub(crate) fn has_ended(&self) -> bool {
        let mut sockets = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(rustix::event::poll(&mut sockets, Some(&now)), Ok(0))
    }

    /// The link is gone: nothing is handed over any more, and what the other process had is unmapped once nobody reads there.
    pub(crate) fn let_go(&mut self) {
        self.to_hand.clear();
        self.to_retire.clear();
        self.segments.clear();
    }

    /// Whether a segment is to be handed over first, or taken back.
    pub(crate) fn has_to_hand(&self) -> bool {
        !self.to_hand.is_empty() || !self.to_retire.is_empty()
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

    /// Says what is no more, and hands over what was lent of for the first time. Says whether all of it has gone: where the
    /// socket is full, it goes once that can be written again, which shows in the poll set. What else the system is short of
    /// shows nowhere, and is tried again whenever something is due.
    pub(crate) fn hand_over(&mut self) -> bool {
        // First, so that there are never more than there can be.
        while let Some(number) = self.to_retire.last() {
            if !self.say([u64::from(*number), 0], None) {
                return false;
            }
            self.to_retire.pop();
        }
        while let Some((number, segment)) = self.to_hand.front() {
            if !self.say([u64::from(*number), segment.bytes as u64], Some(&segment.fd)) {
                return false;
            }
            self.to_hand.pop_front();
        }
        true
    }

    fn say(&self, about: [u64; 2], fd: Option<&OwnedFd>) -> bool {
        let sent = match fd {
            Some(fd) => hand_over::send(&*self.socket, about, &[fd.as_fd()]),
            None => hand_over::send(&*self.socket, about, &[]),
        };
        // Gone, or the other process is: that is told elsewhere.
        !matches!(sent, Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS))
    }

    /// Takes what has come on the socket from this peer. Says whether there may be more.
    pub(crate) fn receive(&mut self, peer: usize) -> Result<bool, String> {
        for _ in 0..MESSAGES_MAX {
            match hand_over::receive(&*self.socket) {
                Ok(Some(message)) => self.take(peer, message)?,
                Err(Errno::INTR) => {}
                // The end, or nothing yet: both show elsewhere.
                Ok(None) | Err(Errno::AGAIN | Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(format!("a segment can't be taken: {error}")),
            }
        }
        Ok(true)
    }

    fn take(&mut self, peer: usize, message: Received) -> Result<(), String> {
        let (Ok(number), Ok(bytes)) = (u32::try_from(message.about[0]), usize::try_from(message.about[1]))
        else {
            return Err("a segment that can't be".into());
        };
        if bytes == 0 && message.fds.is_empty() && !message.is_cut {
            // Who reads there has the mapping, too.
            return match self.segments.remove(&number) {
                Some(_) => Ok(()),
                None => Err(format!("takes segment {number} back, which it has not handed over")),
            };
        }
        let fd = match (message.fds.as_slice(), message.is_cut) {
            ([fd], false) => Ok(fd),
            ([], true) => Err(Unmapped::Refused(segment::no_descriptor())),
            _ => return Err("a segment without its descriptor".into()),
        };
        let fits = bytes > 0 && bytes.is_multiple_of(PAGE) && self.segments.len() < MAPPED_MAX;
        let next = self.due.checked_add(1).filter(|_| fits && number == self.due);
        self.due = next.ok_or_else(|| format!("segment {number} of {bytes} bytes"))?;
        let mapping = match fd.and_then(|fd| segment::map_foreign(fd, bytes, &[(0, bytes)])) {
            Ok(mapping) => Some(mapping),
            Err(Unmapped::Odd(problem)) => return Err(problem),
            Err(Unmapped::Refused(reason)) => {
                self.warn(peer, bytes, &reason);
                None
            }
        };
        self.segments.insert(number, mapping);
        Ok(())
    }

    /// Once: there may be many for the same reason.
    fn warn(&mut self, peer: usize, bytes: usize, reason: &str) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                rank = peer,
                bytes,
                reason,
                "a peer's buffers can't be read where they lie, and are copied"
            );
        }
    }

    #[cfg(all(test, not(hcomm_loom)))]
    pub(crate) fn mapped(&self) -> usize {
        self.segments.len()
    }

    /// So many bytes of its segment from there on, which it lends by this grant.
    pub(crate) fn find(&self, (segment, offset): (u32, u64), bytes: usize, grant: Grant) -> Found {
        let mapping = match self.segments.get(&segment) {
            Some(Some(mapping)) => mapping,
            Some(None) => return Found::Declined,
            None if segment >= self.due => {
                let is_near = ((segment - self.due) as usize) < WAITING_MAX;
                return if is_near { Found::NotYet } else { Found::Nowhere };
            }
            None => return if self.stands(grant) { Found::Nowhere } else { Found::Gone },
        };
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes));
        match end {
            Some(end) if end <= mapping.bytes() => {
                Found::Here(mapping.raw(end - bytes, bytes), mapping.clone())
            }
            _ => Found::Nowhere,
        }
    }
}

#[cfg(all(test, not(hcomm_loom)))]
mod tests {
    use super::super::{Conn, Ends, Naps};
    use super::*;
    use crate::buffer::arena::Arena;

    /// As large as a segment is at least.
    const BYTES: usize = 1 << 20;
    const PEER: usize = 1;

    /// Both sides of a pair: what they have of each other.
    fn both() -> [(Reach, [Conn; 2]); 2] {
        Ends::both().map(|ends| {
            let (conns, _, reach) = Conn::pair(ends, &mut Naps::default());
            (reach, conns)
        })
    }

    fn tables(reach: &Reach) -> [usize; 4] {
        [reach.handed.len(), reach.to_hand.len(), reach.to_retire.len(), reach.segments.len()]
    }

    /// Allocates, lends, lets it be read, takes it back and drops it, so that nothing is kept.
    #[test]
    fn segments_that_come_and_go_leave_nothing() {
        let [(mut lender, _near), (mut reader, _far)] = both();
        let arena = Arena::keeping(0, |_, _| Ok(()));
        for round in 0..300u32 {
            let lot = arena.lot(BYTES).unwrap();
            lot.raw().bytes_mut().fill(round as u8);
            let place = lot.place(&arena).unwrap();
            let Loan { grant, segment } = lender.lend(&place.segment).unwrap();
            assert_eq!(segment, Some(round), "numbers are used once");
            drop(place);
            assert!(lender.hand_over() && !reader.receive(PEER).unwrap());
            let Found::Here(raw, mapping) = reader.find((round, 0), BYTES, grant) else { panic!() };
            assert!(raw.bytes_ref().iter().all(|byte| *byte == round as u8) && reader.stands(grant));
            lender.take_back(grant);
            drop(lot);
            assert!(arena.take_call());
            lender.retire();
            assert!(lender.hand_over() && !reader.receive(PEER).unwrap());
            // Who reads has it still; nobody else does.
            assert_eq!(Arc::strong_count(&mapping), 1);
            assert_eq!(raw.bytes_ref()[BYTES - 1], round as u8);
            assert!(matches!(reader.find((round, 0), BYTES, grant), Found::Gone));
            assert_eq!((tables(&lender), tables(&reader)), ([0; 4], [0; 4]));
        }
        assert_eq!(arena.taken().segments, 0);
        assert_eq!(lender.free.len(), GRANTS);
    }

    /// While the socket takes nothing, few segments wait, and the rest is not lent.
    #[test]
    fn few_segments_wait_to_be_handed_over() {
        let [(mut lender, _near), (mut reader, _far)] = both();
        let arena = Arena::keeping(0, |_, _| Ok(()));
        for _ in 0..3 * WAITING_MAX {
            let lot = arena.lot(BYTES).unwrap();
            let segment = lot.place(&arena).unwrap().segment;
            if let Some(loan) = lender.lend(&segment) {
                assert!(!lender.decline(loan), "it has not come there");
                lender.take_back(loan.grant);
            }
        }
        assert_eq!(tables(&lender), [WAITING_MAX, WAITING_MAX, 0, 0]);
        lender.retire();
        assert!(lender.hand_over() && arena.take_call());
        lender.retire();
        assert!(lender.hand_over() && tables(&lender) == [0; 4]);
        assert!(!reader.receive(PEER).unwrap() && tables(&reader) == [0; 4]);
        let next = arena.lot(BYTES).unwrap();
        let loan = lender.lend(&next.place(&arena).unwrap().segment).unwrap();
        assert_eq!(loan.segment, Some(WAITING_MAX as u32));
        // What the other process can't map it is not lent again.
        assert!(lender.hand_over() && lender.decline(loan));
        assert!(lender.lend(&next.place(&arena).unwrap().segment).is_none());
    }

    /// However much is on the socket, others get their turn.
    #[test]
    fn many_messages_are_taken_a_few_at_a_time() {
        let [(mut lender, _near), (mut reader, _far)] = both();
        let arena = Arena::keeping(0, |_, _| Ok(()));
        for _ in 0..MESSAGES_MAX {
            let lot = arena.lot(BYTES).unwrap();
            let loan = lender.lend(&lot.place(&arena).unwrap().segment).unwrap();
            lender.take_back(loan.grant);
            drop(lot);
            assert!(lender.hand_over());
            lender.retire();
            assert!(lender.hand_over());
        }
        assert!(reader.receive(PEER).unwrap(), "there is more");
        while reader.receive(PEER).unwrap() {}
        assert_eq!(reader.due as usize, MESSAGES_MAX);
        assert_eq!(reader.segments.len(), 0);
    }
}
