//! Point to point: one message between two ranks; `matching` says which receive it is for.
//!
//! A small message goes along with its header, within the eager budget, and is kept by the receiver until it is asked
//! for. A larger one, or one beyond the budget, is offered: only its header waits at the receiver, so a later message
//! with another tag is still found. Headers of both kinds travel on one connection, in order, so that messages with
//! the same tag never overtake each other.

use std::sync::Arc;

use super::borrowed::{Borrowed, Here};
use super::call::{Arrival, CallDesc, Take};
use super::head::Head;
use super::io::{EAGER_MAX, Io, Via};
use super::matching::{Content, Known, Unexpected};
use crate::buffer::parts::Parts;
use crate::buffer::raw::Raw;
use crate::link::frame::{EAGER, Header, Kind, Outgoing, PAYLOAD_MAX, POINT};
use crate::link::memory::Lease;
use crate::link::shm::Loan;
use crate::link::{Class, Sink};

/// In-process copies are made in pieces of this size, so that others get their turn.
const SLICE: usize = 256 << 10;
/// In a process, payload up to this size goes with its header: cheaper than a lease and its return.
const INLINE_MAX: usize = 4 << 10;
/// Messages to one rank that it has not accepted: their headers wait there, so that there is a limit.
pub(crate) const OFFERS_MAX: usize = 131_072;

/// A send or a receive in flight.
#[derive(Debug)]
pub(crate) struct Point {
    pub head: Head,
    /// Rank of the other side; none while a receive from anybody has no message.
    pub peer: Option<usize>,
    pub tag: u32,
    /// This rank.
    pub me: usize,
    pub take: Take,
    /// The message that it got.
    pub arrival: Option<Arrival>,
    parts: Parts,
    /// How many bytes it has, or may have.
    bytes: usize,
    pub side: Side,
    pub known: Known,
}

#[derive(Debug)]
pub(crate) enum Side {
    Send {
        number: u64,
        queued: usize,
        done: usize,
        accepted: bool,
        lease: Option<Arc<Lease>>,
        /// By what a process that shares memory reads it.
        lends: Option<Loan>,
    },
    Receive {
        matched: Option<u64>,
        arrived: usize,
        reading: bool,
        lease: Option<Arc<Lease>>,
        /// Where it lies in the sender's memory; or it was lent, and that can't be mapped here.
        lent: Option<Borrowed>,
        declined: bool,
    },
}

impl Side {
    /// Of a receive that has no message.
    pub(crate) fn receive() -> Side {
        Side::Receive { matched: None, arrived: 0, reading: false, lease: None, lent: None, declined: false }
    }
}

impl Point {
    pub(crate) fn new(head: Head, peer: Option<usize>, tag: u32, parts: Parts, side: Side) -> Self {
        let bytes = parts.raw().len();
        let (take, arrival, known) = (Take::Exact, None, Known::default());
        Point { head, peer, tag, me: 0, take, arrival, parts, bytes, side, known }
    }

    pub(crate) fn raw(&self) -> Raw {
        self.parts.raw().sub(0..self.bytes)
    }

    /// Of a receive without a message it means nothing.
    fn world(&self) -> usize {
        self.head.members[self.peer.unwrap_or(self.me)] as usize
    }

    pub(crate) fn waits_for(&self) -> Vec<usize> {
        match self.peer {
            Some(peer) => vec![peer],
            None => (0..self.head.members.len()).filter(|rank| *rank != self.me).collect(),
        }
    }

    /// Whether a message is what this receive was called for.
    pub(crate) fn takes(&self, message: &Unexpected) -> bool {
        match self.take {
            Take::Exact => message.bytes == self.bytes && message.digest == self.head.digest,
            _ => message.bytes <= self.bytes && self.is_of_type(message),
        }
    }

    fn is_of_type(&self, message: &Unexpected) -> bool {
        let CallDesc { dtype, .. } = self.head.desc;
        let of = CallDesc { count: dtype.elements(message.bytes), ..self.head.desc };
        message.bytes.is_multiple_of(dtype.size()) && of.digest() == message.digest
    }

    /// Whether only its length is what this receive can't take.
    pub(crate) fn is_too_short_for(&self, message: &Unexpected) -> bool {
        self.take != Take::Exact && message.bytes > self.bytes && self.is_of_type(message)
    }

    fn header(&self, kind: Kind, number: u64) -> Header {
        let mut header = Header::new(kind, self.head.channel_id, number);
        header.item = self.tag;
        header.digest = self.head.digest;
        header
    }

    /// Sends the message, or offers it; says whether it was offered over a byte link.
    pub(crate) fn begin_send(&mut self, io: &mut Io) -> bool {
        let (raw, world) = (self.raw(), self.world());
        let Side::Send { number, .. } = self.side else { return false };
        let mut header = self.header(Kind::Eager, number);
        let inline = match io.via(world) {
            Via::Stream => raw.len() <= EAGER_MAX,
            _ => raw.len() <= INLINE_MAX,
        };
        if inline && io.take_eager(world, raw.len()) {
            header.flags = EAGER;
            self.set_accepted(raw.len());
            if io.via(world) == Via::Stream {
                io.lend(world, Class::Fast, header, raw, self.head.key, 0);
            } else {
                header.length = raw.len() as u32;
                let mut bytes = io.spare(raw.len());
                bytes.copy_from_slice(raw.bytes_ref());
                io.message(world, header, bytes, None);
                self.add_done(raw.len());
            }
            return false;
        }
        header.kind = Kind::Offer;
        header.offset = raw.len() as u64;
        if io.via(world) == Via::Memory {
            let lease = io.lease(self.head.digest, std::iter::once(raw), false);
            lease.lend(0, raw.len());
            if let Side::Send { lease: slot, .. } = &mut self.side {
                *slot = Some(lease.clone());
            }
            io.message(world, header, Vec::new(), Some(lease));
            return false;
        }
        io.control(world, Outgoing::control(header));
        true
    }

    fn set_accepted(&mut self, bytes: usize) {
        if let Side::Send { accepted, queued, .. } = &mut self.side {
            *accepted = true;
            *queued = bytes;
        }
    }

    pub(crate) fn add_done(&mut self, bytes: usize) {
        if let Side::Send { done, .. } = &mut self.side {
            *done += bytes;
        }
    }

    /// The receiver takes the offered message.
    pub(crate) fn accepted(&mut self) {
        if let Side::Send { accepted, .. } = &mut self.side {
            *accepted = true;
        }
    }

    /// Moves as far as possible; says whether it is complete.
    pub(crate) fn advance(&mut self, io: &mut Io) -> bool {
        let (raw, world) = (self.raw(), self.world());
        let Side::Send { number, .. } = self.side else { return self.advance_receive(io) };
        let header = self.header(Kind::Body, number);
        let key = self.head.key;
        let Side::Send { queued, done, accepted, lease, lends, .. } = &mut self.side else { return false };
        if let Some(lease) = lease {
            return lease.taken(0) == Some(raw.len());
        }
        if !*accepted {
            return false;
        }
        if *queued == 0
            && raw.len() > 0
            && let Some((loan, lent)) = io.lend_all(world, &self.parts)
        {
            (*lends, *queued) = (Some(loan), raw.len());
            let mut header = Header { kind: Kind::Lend, flags: POINT, ..header };
            header.offset = raw.len() as u64;
            io.control(world, Outgoing::placed(header, lent));
        }
        // A small one that was beyond the budget travels as small ones do, where its receiver looks without being woken.
        let class = if raw.len() <= EAGER_MAX { Class::Fast } else { Class::Bulk };
        while *queued < raw.len() && io.has_room(world, class) {
            let end = (*queued + PAYLOAD_MAX).min(raw.len());
            let mut header = header;
            header.offset = *queued as u64;
            io.lend(world, class, header, raw.sub(*queued..end), key, 0);
            *queued = end;
        }
        *done == raw.len()
    }

    fn advance_receive(&mut self, io: &mut Io) -> bool {
        let (raw, world) = (self.raw(), self.world());
        if matches!(self.side, Side::Receive { lent: Some(_), .. }) {
            return self.advance_borrowed(io);
        }
        let Side::Receive { matched, arrived, lease, .. } = &mut self.side else { return false };
        if let Some(lease) = lease {
            let end = (*arrived + SLICE).min(raw.len());
            let Some(src) = lease.enter(0) else { return false };
            raw.sub(*arrived..end).copy_from(src.sub(*arrived..end));
            if !lease.leave(0, end) {
                return false;
            }
            *arrived = end;
            io.unfinished |= end < raw.len();
            io.publish(world);
        }
        matched.is_some() && *arrived == raw.len()
    }

    /// Copies a message from where its sender lends it.
    fn advance_borrowed(&mut self, io: &mut Io) -> bool {
        let (raw, world, key) = (self.raw(), self.world(), self.head.key);
        let Side::Receive { matched: Some(number), arrived, lent: Some(lent), .. } = &mut self.side else {
            return false;
        };
        let number = *number;
        match lent.is_here((world, key), raw.len(), io) {
            Here::Yes => {}
            Here::NotYet => return false,
            Here::Never => {
                self.decline(number, io);
                return false;
            }
        }
        let end = (*arrived + SLICE).min(raw.len());
        if !lent.copy(*arrived..end, raw.sub(*arrived..end), world, io) || !io.stands(world, lent.grant()) {
            return false;
        }
        *arrived = end;
        io.unfinished |= end < raw.len();
        if end == raw.len() {
            io.pulled(world, end);
            let taken = Header { flags: POINT, ..self.header(Kind::Taken, number) };
            io.control(world, Outgoing::control(taken));
        }
        end == raw.len()
    }

    /// The message can't be read where it lies: its sender is to send it.
    fn decline(&mut self, number: u64, io: &mut Io) {
        let Side::Receive { lent, declined, arrived, .. } = &mut self.side else { return };
        (*lent, *declined) = (None, true);
        let offset = *arrived as u64;
        let declined = Header { flags: POINT, offset, ..self.header(Kind::Declined, number) };
        io.control(self.world(), Outgoing::control(declined));
    }

    /// The sender lets this rank read the message in its memory.
    pub(crate) fn borrow(&mut self, header: &Header, bytes: &[u8], io: &mut Io) -> Result<(), String> {
        let (raw, world) = (self.raw(), self.world());
        let Side::Receive { arrived: 0, reading: false, lent: lent @ None, declined: false, .. } =
            &mut self.side
        else {
            return Err("lends a message that is sent, or lent".into());
        };
        if header.offset != raw.len() as u64 {
            return Err(format!("lends {} of {} bytes", header.offset, raw.len()));
        }
        *lent = Some(Borrowed::new(bytes, world, raw.len(), io)?);
        Ok(())
    }

    /// The receiver has read what is lent.
    pub(crate) fn taken(&mut self, io: &mut Io) -> Result<(), String> {
        let (raw, world) = (self.raw(), self.world());
        let Side::Send { done, lends, .. } = &mut self.side else { return Err("has read a receive".into()) };
        let loan = lends.take().ok_or("has read a message that is not lent")?;
        io.take_back(world, loan.grant);
        *done = raw.len();
        Ok(())
    }

    /// The receiver can't read further than `upto` in what is lent: the rest is sent as others are.
    pub(crate) fn declined(&mut self, upto: u64, io: &mut Io) -> Result<(), String> {
        let (world, bytes) = (self.world(), self.raw().len());
        let Side::Send { queued, done, lends, .. } = &mut self.side else {
            return Err("declines a receive".into());
        };
        let upto = usize::try_from(upto).ok().filter(|upto| *upto < bytes);
        let upto = upto.ok_or("declines a message that is read")?;
        let loan = lends.take().ok_or("declines a message that is not lent")?;
        (*queued, *done) = (upto, upto);
        io.decline(world, loan)
    }

    /// The message for this receive is found. `Err` is what is wrong with it.
    pub(crate) fn take_message(&mut self, from: usize, message: Unexpected, io: &mut Io) {
        let Unexpected { tag, bytes, digest, .. } = message;
        (self.peer, self.tag, self.bytes) = (Some(from), tag, bytes);
        self.arrival = Some(Arrival { from, tag, bytes, digest, claim: 0 });
        let (raw, world) = (self.raw(), self.world());
        let accept = self.header(Kind::Accept, message.number);
        let Side::Receive { matched, arrived, lease, .. } = &mut self.side else { return };
        *matched = Some(message.number);
        match message.content {
            Content::Whole(bytes) => {
                raw.copy_from_slice(&bytes);
                *arrived = raw.len();
                io.recycle(bytes);
            }
            Content::Offered => io.control(world, Outgoing::control(accept)),
            Content::Leased(of) => *lease = Some(of),
            Content::Local(_) | Content::GivenUp(_) => {}
        }
    }

    /// The number of the message, if the other side works on it; and whether this is its sender.
    pub(crate) fn engaged(&self) -> Option<(u64, bool)> {
        match &self.side {
            Side::Send { number, accepted, lease, .. } => {
                (*accepted || lease.is_some()).then_some((*number, true))
            }
            Side::Receive { matched, .. } => matched.map(|number| (number, false)),
        }
    }

    /// Whether this is a receive whose message is known.
    pub(crate) fn is_arriving(&self) -> bool {
        matches!(self.side, Side::Receive { matched: Some(_), .. })
    }

    /// Whether this is a receive that no message has come for.
    pub(crate) fn is_posted(&self) -> bool {
        matches!(self.side, Side::Receive { matched: None, .. })
    }

    /// This receive gets its bytes from a send of the same rank.
    pub(crate) fn take_local(&mut self, src: Raw) {
        self.raw().copy_from(src);
        let all = src.len();
        if let Side::Receive { arrived, .. } = &mut self.side {
            *arrived = all;
        }
    }

    /// Where payload of the accepted message goes.
    pub(crate) fn sink(&mut self, header: &Header) -> Result<Sink, String> {
        let Side::Receive { arrived, reading, .. } = self.side else {
            return Err("payload for a send".into());
        };
        if reading || self.is_borrowed() {
            return Err("a message on both connections at once".into());
        }
        let end = (header.offset as usize).checked_add(header.length as usize);
        let end = end.filter(|end| *end <= self.raw().len() && header.offset as usize == arrived);
        let end = end.ok_or_else(|| format!("payload at {} where {arrived} was due", header.offset))?;
        if let Side::Receive { reading, .. } = &mut self.side {
            *reading = true;
        }
        Ok(Sink::Direct(self.raw().sub(arrived..end), self.head.key))
    }

    fn is_borrowed(&self) -> bool {
        matches!(self.side, Side::Receive { lent: Some(_), .. })
    }

    pub(crate) fn arrived(&mut self, bytes: usize) {
        if let Side::Receive { arrived, reading, .. } = &mut self.side {
            *arrived += bytes;
            *reading = false;
        }
    }

    /// Whether peers of this process move it, so that it must be looked at.
    pub(crate) fn is_polled(&self) -> bool {
        match &self.side {
            Side::Send { lease, .. } | Side::Receive { lease, .. } => lease.is_some(),
        }
    }

    /// Ends it: gives back its buffer unless somebody still reads it.
    pub(crate) fn end(&mut self, complete: bool, io: &mut Io) -> Option<Parts> {
        let parts = std::mem::replace(&mut self.parts, Parts::NONE);
        if let Side::Send { lends, .. } = &mut self.side
            && let Some(loan) = lends.take()
        {
            io.take_back(self.world(), loan.grant);
        }
        if let Side::Send { lease, .. } = &mut self.side
            && let Some(lease) = lease.take()
        {
            let mut free = complete || lease.revoke();
            while !free && parts.is_lent() {
                // Its owner waits, and a reader is at it for one slice at most.
                std::hint::spin_loop();
                free = lease.revoke();
            }
            if free {
                io.recycle_lease(lease);
            } else {
                lease.quarantine(parts);
                return None;
            }
        }
        Some(parts)
    }
}
