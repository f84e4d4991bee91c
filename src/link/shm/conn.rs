//! A pair's two connections through memory: what [`tcp::Conn`](crate::link::tcp::Conn) is for a socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bell::{Naps, Sleeper};
use super::lane::Ends;
use super::reach::Reach;
use super::ring::{Head, Reader, Writer};
use super::words::{WORD, Words};
use crate::buffer::raw::Raw;
use crate::link::frame::{HEADER_BYTES, Header, Kind, Outgoing, Payload};
use crate::link::numbers::Numbers;
use crate::link::outbox::Outbox;
use crate::link::tcp::{Broken, Traffic};
use crate::link::{Class, Handler, RunKey};

/// Words of a header before those that are stamped.
const STAMPS: usize = 6;

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    writer: Writer,
    reader: Reader,
    outbox: Outbox,
    numbers: Numbers,
    notices: Notices,
    /// The other process has ended, or closed the socket.
    pub(crate) ended: bool,
    /// Its end has been told.
    heard_out: bool,
    shut: bool,
    /// The same for both connections: what goes when both are gone.
    pair: Arc<Pair>,
}

/// How many frames have been written that are no payload of small messages. Who takes payload past the queues learns from it, without
/// looking through the ring, whether something follows that he must be told first.
#[derive(Debug)]
struct Notices {
    /// Where this process says it, and the other one.
    mine: (Words, usize),
    theirs: (Words, usize),
    sent: u64,
    read: u64,
}

impl Notices {
    fn of(ends: &Ends, class: Class) -> Notices {
        let [mine, theirs] = ends.notices(class);
        Notices { mine, theirs, sent: 0, read: 0 }
    }

    fn is_one(kind: Kind) -> bool {
        !matches!(kind, Kind::Data | Kind::Eager)
    }

    /// Before it is published.
    fn tell(&mut self, kind: Kind) {
        if Self::is_one(kind) {
            self.sent += 1;
            self.mine.0.at(self.mine.1).store(self.sent, Ordering::Release);
        }
    }

    fn read(&mut self, kind: Kind) {
        self.read += u64::from(Self::is_one(kind));
    }

    fn are_read(&self) -> bool {
        self.theirs.0.at(self.theirs.1).load(Ordering::Acquire) == self.read
    }
}

/// What a pair's connections have in common.
#[derive(Debug)]
struct Pair {
    socket: Arc<OwnedFd>,
    my_bell: OwnedFd,
}

impl Drop for Pair {
    /// The other process learns it at once, although this one may keep the socket.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }
}

/// Wakes the other process of a pair if it sleeps.
#[derive(Debug)]
pub(crate) struct Bell {
    sleeper: Sleeper,
    fd: OwnedFd,
}

impl Bell {
    /// Whether it looked in vain on this processor just now, too, in the system's milliseconds.
    pub(crate) fn is_on(&self, processor: usize, ms: u64) -> bool {
        self.sleeper.is_on(processor, ms)
    }

    /// Whether it has last called from this processor.
    #[inline]
    pub(crate) fn is_at(&self, processor: usize) -> bool {
        self.sleeper.is_at(processor)
    }

    /// Whether it may sleep.
    pub(crate) fn sleeps(&self) -> bool {
        self.sleeper.sleeps()
    }

    /// After something was published. A system call if it sleeps, and else none.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.sleeper.must_wake() {
            // A counter that is full has rung.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

impl Conn {
    /// Both connections, by class, what wakes the other process, and what is read of its memory. `naps` is told where this one says that it sleeps.
    pub(crate) fn pair(ends: Ends, naps: &mut Naps) -> ([Conn; 2], Bell, Reach) {
        let (words, at) = ends.naps();
        naps.add(words, at);
        let sides = [Class::Fast, Class::Bulk]
            .map(|class| (ends.writer(class), ends.reader(class), Notices::of(&ends, class)));
        let sleeper = ends.sleeper();
        let (grants, lane_bytes) = (ends.grants(), ends.mine.bytes());
        let Ends { socket, my_bell, their_bell, reads, is_read, .. } = ends;
        let socket = Arc::new(socket);
        let reach = Reach::new(lane_bytes, grants, (reads, is_read), socket.clone());
        let pair = Arc::new(Pair { socket, my_bell });
        let conns = sides.map(|(writer, reader, notices)| Conn {
            writer,
            reader,
            notices,
            outbox: Outbox::default(),
            numbers: Numbers::default(),
            ended: false,
            heard_out: false,
            shut: false,
            pair: pair.clone(),
        });
        (conns, Bell { sleeper, fd: their_bell }, reach)
    }

    /// What a poll set watches: the end of the other process, and its ringing.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.pair.socket.as_fd(), self.pair.my_bell.as_fd()]
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.numbers.traffic
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.outbox.bytes
    }

    pub(crate) fn queued_frames(&self) -> usize {
        self.outbox.frames.len()
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outbox.frames.is_empty()
    }

    /// Whether there is nothing to read. The end counts once all is read that came before.
    #[inline]
    pub(crate) fn read_blocked(&self) -> bool {
        self.shut || !self.reader.has_frame() && (self.heard_out || !self.ended && !self.numbers.said_bye)
    }

    /// Its end is known: that is no news any more.
    pub(crate) fn hear_out(&mut self) {
        self.heard_out = true;
    }

    /// Whether there is no room for what is to leave first.
    pub(crate) fn write_blocked(&self) -> bool {
        self.outbox.frames.front().is_some_and(|front| self.writer.is_full_for(front.payload.bytes().len()))
    }

    pub(crate) fn push(&mut self, frame: Outgoing) {
        if !self.shut {
            self.outbox.push(frame);
        }
    }

    /// Writes until nothing is left, the ring is full, or `budget` bytes have left.
    pub(crate) fn write(
        &mut self,
        consumed: u64,
        mut budget: usize,
        handler: &mut impl Handler,
    ) -> Result<bool, Broken> {
        let mut progress = false;
        while budget > 0
            && let Some(frame) = self.outbox.frames.front_mut()
        {
            let bytes = frame.payload.bytes().len();
            if !self.writer.has_room(bytes).map_err(Broken::Protocol)? {
                break;
            }
            self.numbers.stamp(&mut frame.header, 0, consumed);
            let payload = self.writer.payload(bytes);
            match &frame.payload {
                Payload::Lent { raw, .. } => payload.claim_and_copy_from(*raw),
                other => payload.copy_from_slice(other.bytes()),
            }
            self.notices.tell(frame.header.kind);
            self.writer.publish(&words(&frame.header), bytes);
            self.numbers.has_sent();
            self.numbers.traffic.sent_bytes += (HEADER_BYTES + bytes) as u64;
            self.outbox.bytes -= bytes;
            if let Payload::Lent { run, step, .. } = frame.payload {
                handler.released(run, step, bytes);
            }
            self.outbox.frames.pop_front();
            progress = true;
            budget = budget.saturating_sub(HEADER_BYTES + bytes);
        }
        Ok(progress)
    }

    /// Reads until the ring is empty or `budget` bytes were read. Says whether anything came.
    pub(crate) fn read(
        &mut self,
        peer: usize,
        budget: usize,
        handler: &mut impl Handler,
    ) -> Result<bool, Broken> {
        if self.shut {
            return Ok(false);
        }
        // Before the last look: what was written before the end is there by then.
        let ended = self.ended;
        let read = self.read_frames(peer, budget, handler);
        self.reader.tell();
        match read {
            Ok(false) if ended || self.numbers.said_bye => Err(Broken::end(self.numbers.said_bye)),
            read => read,
        }
    }

    fn read_frames(
        &mut self,
        peer: usize,
        mut budget: usize,
        handler: &mut impl Handler,
    ) -> Result<bool, Broken> {
        let mut progress = false;
        while budget > 0
            && let Some(head) = self.reader.peek()
        {
            let header = Header::decode(&bytes(&head)).map_err(Broken::Protocol)?;
            self.numbers.has_received(&header, false).map_err(Broken::Protocol)?;
            self.notices.read(header.kind);
            let length = header.length as usize;
            self.numbers.traffic.received_bytes += (HEADER_BYTES + length) as u64;
            let too_long = || Broken::Protocol(format!("a frame of {length} bytes exceeds its ring"));
            let payload = self.reader.payload(length).ok_or_else(too_long)?;
            if handler.consume(peer, &header, payload).map_err(Broken::Protocol)? {
                self.reader.advance(length);
            } else {
                let mut sink = handler.begin(peer, &header).map_err(Broken::Protocol)?;
                sink.put_raw(payload);
                self.reader.advance(length);
                handler.end(peer, &header, sink).map_err(Broken::Protocol)?;
            }
            progress = true;
            budget = budget.saturating_sub(HEADER_BYTES + length);
        }
        Ok(progress)
    }

    // --- past the queues

    /// Whether a frame with so much payload can go into the ring at once, and nothing is to go before it.
    pub(crate) fn may_send_past(&self, payload: usize) -> bool {
        self.outbox.frames.is_empty()
            && !(self.shut || self.ended || self.outbox.says_bye || self.numbers.said_bye)
            && self.writer.is_free_for(payload)
    }

    /// Sends a frame at once, [where that may be](Self::may_send_past).
    #[inline]
    pub(crate) fn send_past(&mut self, mut header: Header, payload: Raw, consumed: u64) {
        self.numbers.stamp(&mut header, 0, consumed);
        let head = words(&header);
        self.writer.write(&head, payload);
        self.writer.publish(&head, payload.len());
        self.numbers.has_sent();
        self.numbers.traffic.sent_bytes += (HEADER_BYTES + payload.len()) as u64;
    }

    /// Whether the next frame is one like this, up to its counters.
    #[inline]
    pub(crate) fn holds(&self, due: &Header) -> bool {
        self.reader.has_frame()
            && self.reader.peek().is_some_and(|head| head[..STAMPS] == words(due)[..STAMPS])
    }

    /// Whether no frame is there that says something else than payload: it may be that what comes before it was given up.
    #[inline]
    pub(crate) fn has_only_payload(&self) -> bool {
        self.notices.are_read()
    }

    /// How much payload of the next frame can be read, if it is one like this, and whether it [is there](Self::holds).
    #[inline]
    pub(crate) fn holds_payload(&self, due: &Header) -> (usize, bool) {
        let bytes = due.length as usize;
        if self.holds(due) {
            return (bytes, true);
        }
        (self.reader.written_ahead(&words(due)[..STAMPS], bytes), false)
    }

    /// The payload of a frame that is [there](Self::holds), or [will be](Self::holds_payload).
    #[inline]
    pub(crate) fn payload_past(&self, bytes: usize) -> Option<Raw> {
        self.reader.payload(bytes)
    }

    /// Takes a frame that is [there](Self::holds). Returns how many eager bytes its sender has consumed, and whether he is told of
    /// room, for which he may sleep.
    #[inline]
    pub(crate) fn receive_past(&mut self, due: &Header) -> Result<(u64, bool), Broken> {
        // Its sender can write to it still.
        let Some(head) = self.reader.peek().filter(|head| head[..STAMPS] == words(due)[..STAMPS]) else {
            return Err(Broken::Protocol("a frame that has become another one".into()));
        };
        let header = Header::decode(&bytes(&head)).map_err(Broken::Protocol)?;
        self.numbers.has_received(&header, false).map_err(Broken::Protocol)?;
        let length = header.length as usize;
        self.numbers.traffic.received_bytes += (HEADER_BYTES + length) as u64;
        let tells = self.reader.advance(length);
        Ok((header.consumed, tells))
    }

    /// The operation is over: its memory is not touched again. Returns the lent bytes that will not leave.
    pub(crate) fn forget(&mut self, run: RunKey) -> usize {
        self.outbox.forget(run, false)
    }

    /// Nothing is read or written any more.
    pub(crate) fn shut(&mut self) {
        self.shut = true;
        self.outbox.clear();
    }

    pub(crate) fn delivered(&mut self) -> u64 {
        self.writer.delivered()
    }

    pub(crate) fn said_bye(&self) -> bool {
        self.numbers.said_bye
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut
    }
}

fn words(header: &Header) -> Head {
    let bytes = header.encode();
    std::array::from_fn(|at| {
        let word: [u8; WORD] = std::array::from_fn(|byte| bytes[at * WORD + byte]);
        u64::from_le_bytes(word)
    })
}

pub(super) fn bytes(head: &Head) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    for (at, word) in head.iter().enumerate() {
        bytes[at * WORD..][..WORD].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
