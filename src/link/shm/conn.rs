//! A pair's two connections through memory: what [`tcp::Conn`](crate::link::tcp::Conn) is for a socket.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bell::{Naps, Sleeper};
use super::lane::Ends;
use super::reach::Reach;
use super::ring::{Head, Reader, Writer};
use super::words::WORD;
use crate::link::frame::{HEADER_BYTES, Header, Kind, Outgoing, Payload, take_back};
use crate::link::numbers::Numbers;
use crate::link::tcp::{Broken, Traffic};
use crate::link::{Class, Handler, RunKey};

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    writer: Writer,
    reader: Reader,
    outgoing: VecDeque<Outgoing>,
    queued_bytes: usize,
    numbers: Numbers,
    /// Its goodbye is the last frame that this side sends.
    bye_queued: bool,
    /// The other process has ended, or closed the socket.
    pub(crate) ended: bool,
    shut: bool,
    /// The same for both connections: what goes when both are gone.
    pair: Arc<Pair>,
}

/// What a pair's connections have in common.
#[derive(Debug)]
struct Pair {
    socket: Arc<OwnedFd>,
    my_bell: OwnedFd,
}

/// Wakes the other process of a pair if it sleeps.
#[derive(Debug)]
pub(crate) struct Bell {
    sleeper: Sleeper,
    fd: OwnedFd,
}

impl Bell {
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
        let sides = [Class::Fast, Class::Bulk].map(|class| (ends.writer(class), ends.reader(class)));
        let sleeper = ends.sleeper();
        let [lent, borrowed] = ends.grants();
        let Ends { socket, my_bell, their_bell, .. } = ends;
        let socket = Arc::new(socket);
        let reach = Reach::new(lent, borrowed, socket.clone());
        let pair = Arc::new(Pair { socket, my_bell });
        let conns = sides.map(|(writer, reader)| Conn {
            writer,
            reader,
            outgoing: VecDeque::with_capacity(16),
            queued_bytes: 0,
            numbers: Numbers::default(),
            bye_queued: false,
            ended: false,
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
        self.queued_bytes
    }

    pub(crate) fn queued_frames(&self) -> usize {
        self.outgoing.len()
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether there is nothing to read. The end counts once all is read that came before.
    #[inline]
    pub(crate) fn read_blocked(&self) -> bool {
        self.shut || !self.reader.has_frame() && !self.ended && !self.numbers.said_bye
    }

    /// Whether there is no room for what is to leave first.
    pub(crate) fn write_blocked(&self) -> bool {
        self.outgoing.front().is_some_and(|front| self.writer.is_full_for(front.payload.bytes().len()))
    }

    pub(crate) fn push(&mut self, frame: Outgoing) {
        if self.shut || self.bye_queued {
            return;
        }
        self.bye_queued = frame.header.kind == Kind::Bye;
        self.queued_bytes += frame.payload.bytes().len();
        self.outgoing.push_back(frame);
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
            && let Some(frame) = self.outgoing.front_mut()
        {
            let bytes = frame.payload.bytes().len();
            if !self.writer.has_room(bytes).map_err(Broken::Protocol)? {
                break;
            }
            self.numbers.stamp(&mut frame.header, 0, consumed);
            if bytes > 0 {
                self.writer.payload(bytes).copy_from_slice(frame.payload.bytes());
            }
            self.writer.publish(&words(&frame.header), bytes);
            self.numbers.has_sent();
            self.numbers.traffic.sent_bytes += (HEADER_BYTES + bytes) as u64;
            self.queued_bytes -= bytes;
            if let Payload::Lent { run, step, .. } = frame.payload {
                handler.released(run, step, bytes);
            }
            self.outgoing.pop_front();
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
            let length = header.length as usize;
            self.numbers.traffic.received_bytes += (HEADER_BYTES + length) as u64;
            let too_long = || Broken::Protocol(format!("a frame of {length} bytes exceeds its ring"));
            let payload = self.reader.payload(length).ok_or_else(too_long)?;
            let mut sink = handler.begin(peer, &header).map_err(Broken::Protocol)?;
            sink.put_raw(payload);
            self.reader.advance(length);
            handler.end(peer, &header, sink).map_err(Broken::Protocol)?;
            progress = true;
            budget = budget.saturating_sub(HEADER_BYTES + length);
        }
        Ok(progress)
    }

    /// The operation is over: its memory is not touched again. Returns the lent bytes that will not leave.
    pub(crate) fn forget(&mut self, run: RunKey) -> usize {
        let gone = take_back(&mut self.outgoing, run, false);
        self.queued_bytes -= gone;
        gone
    }

    /// Nothing is read or written any more.
    pub(crate) fn shut(&mut self) {
        self.shut = true;
        self.outgoing.clear();
        self.queued_bytes = 0;
    }

    pub(crate) fn delivered(&self) -> u64 {
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

fn bytes(head: &Head) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    for (at, word) in head.iter().enumerate() {
        bytes[at * WORD..][..WORD].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
