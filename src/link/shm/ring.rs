//! Frames from one process to another: written by one, read by the other, in order.
//!
//! A ring is of lines of 64 bytes. A frame is a line of header, and its payload in the lines that follow; the ring is mapped
//! twice in a row, so that none is ever in two pieces. The first word of a header is written last, and is never zero: that
//! is how the reader knows that the frame is there. For that the writer clears the line where the next frame will be before it
//! publishes this one, since something of the last round is left there.
//!
//! Why the reader never takes old bytes for a header: it looks at a line only after it has read the frame before it, whose
//! publication comes after the clearing of this line. Why the writer never overwrites what is still read: it writes, and
//! clears, below `head` + size only, where the reader has said with release order that he is done with all below `head`.
//!
//! The writer of a long frame writes its header first, but for the first word, and tells in between how far it is: a word beside
//! the ring, of which what it told before is never beyond what was read. Who knows what comes next may copy what is there
//! already; the frame has come when its first word says so.
//!
//! What the other side writes is taken once and bounded: [`Writer`] and [`Reader`] check positions and lengths.

use std::sync::atomic::Ordering;

use super::words::{WORD, Words};
use crate::buffer::raw::Raw;
use crate::link::frame::HEADER_BYTES;

/// What frames begin at: a cache line, and a header.
pub(crate) const LINE: usize = HEADER_BYTES;
const LINE_WORDS: usize = LINE / WORD;
/// Frames with more payload than this are told of while they are written, in such pieces: copying one takes several times as
/// long as telling it.
const PIECE: usize = 8 << 10;

/// A header, word by word; the first is not zero.
pub(crate) type Head = [u64; LINE_WORDS];

/// Bytes of a ring that a frame takes.
pub(super) const fn frame_bytes(payload: usize) -> u64 {
    (LINE + payload.next_multiple_of(LINE)) as u64
}

/// Its words twice in a row, and how many bytes it has: a power of two.
#[derive(Debug)]
pub(super) struct Ring {
    words: Words,
    bytes: u64,
}

impl Ring {
    pub(super) fn new(words: Words, bytes: usize) -> Ring {
        assert!(bytes.is_power_of_two() && bytes >= 4 * LINE, "a ring's size is a power of two");
        Ring { words, bytes: bytes as u64 }
    }

    /// Index of the first word of the line at a position.
    #[inline]
    fn word(&self, position: u64) -> usize {
        (position & (self.bytes - 1)) as usize / WORD
    }
}

/// The side that writes.
#[derive(Debug)]
pub(super) struct Writer {
    ring: Ring,
    tail: u64,
    /// Where the reader says how far he has read, and what he said last.
    heads: Words,
    head_at: usize,
    head: u64,
    /// Where it tells how far it has written what is not published yet.
    ahead: (Words, usize),
}

impl Writer {
    pub(super) fn new(ring: Ring, heads: Words, head_at: usize, ahead: (Words, usize)) -> Writer {
        Writer { ring, tail: 0, heads, head_at, head: 0, ahead }
    }

    /// Whether a frame with so much payload can be written now. An error if the reader claims what can't be.
    #[inline]
    pub(super) fn has_room(&mut self, payload: usize) -> Result<bool, String> {
        // The line after it is cleared.
        let end = self.tail + frame_bytes(payload) + LINE as u64;
        if end - self.head <= self.ring.bytes {
            return Ok(true);
        }
        self.head = self.told().map_err(|head| {
            format!("claims to have read up to {head} after {}, of {}", self.head, self.tail)
        })?;
        Ok(end - self.head <= self.ring.bytes)
    }

    /// How far the reader says that he has read. `Err` if he can't have.
    fn told(&self) -> Result<u64, u64> {
        let head = self.heads.at(self.head_at).load(Ordering::Acquire);
        if (self.head..=self.tail).contains(&head) { Ok(head) } else { Err(head) }
    }

    /// Whether the reader must read before there is room for a frame with so much payload. Not if he says what can't be: then
    /// who writes finds it out.
    pub(super) fn is_full_for(&self, payload: usize) -> bool {
        let end = self.tail + frame_bytes(payload) + LINE as u64;
        self.told().is_ok_and(|head| end - head > self.ring.bytes)
    }

    /// Whether there is room for one for certain.
    pub(super) fn is_free_for(&self, payload: usize) -> bool {
        let end = self.tail + frame_bytes(payload) + LINE as u64;
        self.told().is_ok_and(|head| end - head <= self.ring.bytes)
    }

    /// Grows with what the reader has read, and whatever he says, no further than what was written.
    pub(super) fn delivered(&mut self) -> u64 {
        self.head = self.told().unwrap_or(self.head);
        self.head
    }

    /// Where the payload of the next frame goes, for which there is room.
    #[inline]
    pub(super) fn payload(&self, bytes: usize) -> Raw {
        self.ring.words.raw(self.ring.word(self.tail) * WORD + LINE, bytes)
    }

    /// Publishes a frame with so much payload, which is in place, and for which there is room.
    #[inline]
    pub(super) fn publish(&mut self, head: &Head, payload: usize) {
        let next = self.tail + frame_bytes(payload);
        self.ring.words.at(self.ring.word(next)).store(0, Ordering::Relaxed);
        self.write_header(head);
        self.ring.words.at(self.ring.word(self.tail)).store(head[0], Ordering::Release);
        self.tail = next;
    }

    /// All of it but the first word.
    #[inline]
    fn write_header(&self, head: &Head) {
        let line = self.ring.word(self.tail);
        for (at, word) in head.iter().enumerate().skip(1) {
            self.ring.words.at(line + at).store(*word, Ordering::Relaxed);
        }
    }

    /// Copies payload to where it belongs in the frame with this header, which is then [published](Self::publish).
    #[inline]
    pub(super) fn write(&self, head: &Head, src: Raw) {
        let payload = self.payload(src.len());
        if src.len() <= PIECE {
            payload.claim_and_copy_from(src);
            return;
        }
        let mut start = 0;
        while start < src.len() {
            let end = (start + PIECE).min(src.len());
            payload.sub(start..end).claim_and_copy_from(src.sub(start..end));
            self.tell_ahead(head, end);
            start = end;
        }
    }

    /// So much payload of the next frame is there, as well as its header but for the first word.
    pub(super) fn tell_ahead(&self, head: &Head, payload: usize) {
        self.write_header(head);
        self.ahead.0.at(self.ahead.1).store(self.tail + (LINE + payload) as u64, Ordering::Release);
    }
}

/// The side that reads.
#[derive(Debug)]
pub(super) struct Reader {
    ring: Ring,
    head: u64,
    /// Where it says how far it has read, and what it said last.
    heads: Words,
    head_at: usize,
    told: u64,
    /// Where the writer tells how far it has written what is not published yet.
    ahead: (Words, usize),
}

impl Reader {
    pub(super) fn new(ring: Ring, heads: Words, head_at: usize, ahead: (Words, usize)) -> Reader {
        Reader { ring, head: 0, heads, head_at, told: 0, ahead }
    }

    /// Whether a frame is there.
    #[inline]
    pub(super) fn has_frame(&self) -> bool {
        self.ring.words.at(self.ring.word(self.head)).load(Ordering::Relaxed) != 0
    }

    /// The header of the next frame, if it is there.
    #[inline]
    pub(super) fn peek(&self) -> Option<Head> {
        let line = self.ring.word(self.head);
        let first = self.ring.words.at(line).load(Ordering::Acquire);
        if first == 0 {
            return None;
        }
        let rest = |at| self.ring.words.at(line + at).load(Ordering::Relaxed);
        Some(std::array::from_fn(|at| if at == 0 { first } else { rest(at) }))
    }

    /// How much payload of the next frame is there before that is, if the first words of its header, but for the very first, are
    /// these, and it has `bytes`.
    #[inline]
    pub(super) fn written_ahead(&self, first: &[u64], bytes: usize) -> usize {
        if bytes <= PIECE {
            return 0;
        }
        let written = self.told_of(first);
        // In whole pieces, as an honest writer tells it: who tells less at a time makes nobody look longer.
        usize::try_from(written).map_or(bytes, |written| written / PIECE * PIECE).min(bytes)
    }

    /// How much payload its writer says is there, if the next frame is the one with these words.
    #[inline]
    pub(super) fn told_of(&self, first: &[u64]) -> u64 {
        let told = self.told_ahead();
        let line = self.ring.word(self.head);
        let is_it =
            |(at, word): (usize, &u64)| self.ring.words.at(line + at).load(Ordering::Relaxed) == *word;
        if told > 0 && first.iter().enumerate().skip(1).all(is_it) { told } else { 0 }
    }

    /// How much payload of the next frame its writer says is there.
    #[inline]
    pub(super) fn told_ahead(&self) -> u64 {
        let told = self.ahead.0.at(self.ahead.1).load(Ordering::Acquire);
        told.saturating_sub(self.head + LINE as u64)
    }

    /// The payload of the next frame, which is there. `None` if it can't be so long.
    #[inline]
    pub(super) fn payload(&self, bytes: usize) -> Option<Raw> {
        let fits = frame_bytes(bytes) + LINE as u64 <= self.ring.bytes;
        fits.then(|| self.ring.words.raw(self.ring.word(self.head) * WORD + LINE, bytes))
    }

    /// The next frame, with so much payload, was read. Says whether the writer is told, who may wait for room.
    #[inline]
    pub(super) fn advance(&mut self, payload: usize) -> bool {
        self.head += frame_bytes(payload);
        // Not for every frame: the writer looks at it only where it finds no room.
        let tells = self.head - self.told >= self.ring.bytes / 4;
        if tells {
            self.tell();
        }
        tells
    }

    /// Tells the writer how far it has read.
    #[inline]
    pub(super) fn tell(&mut self) {
        if self.told != self.head {
            self.told = self.head;
            self.heads.at(self.head_at).store(self.head, Ordering::Release);
        }
    }
}
