//! TCP: two non-blocking connections to one peer.
//!
//! Frames are written straight from the memory they were lent from and read straight into their sink: no copy beyond
//! the kernel's. A header and a small payload take one system call each way; a stream of large frames takes one per
//! frame, since each read asks for the rest of a payload and the next header together.

use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::frame::{HEADER_BYTES, Header, Outgoing, Payload};
use super::numbers::Numbers;
use super::outbox::Outbox;
use super::{Class, Handler, RunKey, Sink};
use crate::runtime::congestion;
use crate::runtime::tcp_info::tcp_info;

/// Bytes read ahead for headers and small payloads. Large payload is read in place, so this stays small.
const AHEAD: usize = 4096;
/// Frames gathered into one system call.
const GATHER: usize = 8;

/// A frame up to this size is copied rather than gathered, which costs the system more.
pub(crate) const SMALL: usize = 512;
const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Unacknowledged data for this long means that the host has vanished.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// An idle connection is probed after this time, so that a vanished host is noticed without traffic.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// From then on so often, until one of so many is answered: where a tenth of all datagrams gets lost, three in a row do so
/// every few minutes on some connection of a larger world, ten never.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBES: u32 = 10;

/// How networks and this host are to treat what data connections carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quality {
    /// Differentiated services code point (RFC 2474).
    pub dscp: Option<u8>,
    /// Among the packets of this host (`SO_PRIORITY`).
    pub priority: Option<u32>,
}

impl Quality {
    /// Marks a connection. Says what the system has refused, and why.
    pub(crate) fn mark(self, socket: &TcpStream) -> Result<(), (String, std::io::Error)> {
        let of = socket2::SockRef::from(socket);
        if let Some(dscp) = self.dscp {
            // The two bits after it are those of congestion notification.
            let field = u32::from(dscp) << 2;
            let is_v6 = socket.local_addr().is_ok_and(|address| address.is_ipv6());
            let set = if is_v6 { of.set_tclass_v6(field) } else { of.set_tos_v4(field) };
            set.map_err(|error| (format!("DSCP {dscp}"), error))?;
        }
        // After it: a code point brings a priority of its own.
        if let Some(priority) = self.priority {
            of.set_priority(priority).map_err(|error| (format!("socket priority {priority}"), error))?;
        }
        Ok(())
    }
}

/// Sets the options that a data connection needs. What the system refuses stays as it was.
pub(crate) fn tune(socket: &TcpStream, same_host: bool) {
    let of = socket2::SockRef::from(socket);
    let keepalive =
        socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(PROBE_EVERY).with_retries(PROBES);
    let results = [
        of.set_tcp_nodelay(true),
        of.set_tcp_keepalive(&keepalive),
        of.set_tcp_user_timeout(Some(USER_TIMEOUT)),
    ];
    for error in results.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "socket option refused");
    }
    if !same_host {
        congestion::choose_default(of);
    }
}

/// What has gone over a connection, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub sent_frames: u64,
    pub received_frames: u64,
}

impl std::ops::Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic {
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received_bytes: self.received_bytes + other.received_bytes,
            sent_frames: self.sent_frames + other.sent_frames,
            received_frames: self.received_frames + other.received_frames,
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    socket: TcpStream,
    class: Class,
    /// Bytes read and not yet looked at: `ahead[start..end]`.
    ahead: Box<[u8; AHEAD]>,
    start: usize,
    end: usize,
    incoming: Option<Incoming>,
    outbox: Outbox,
    /// Bytes of the first outgoing frame that have left, header included.
    sent: usize,
    numbers: Numbers,
    /// The system said "no more for now" and has not taken it back.
    pub(crate) read_blocked: bool,
    pub(crate) write_blocked: bool,
    /// The system said that the peer writes no more; what it wrote before may not have been read.
    pub(crate) ended: bool,
    shut: bool,
}

#[derive(Debug)]
struct Incoming {
    header: Header,
    sink: Sink,
    received: usize,
}

/// What a look past the queues has found.
#[derive(Debug)]
pub(crate) enum Found {
    /// Not the whole frame.
    Nothing,
    /// The frame, and how many eager bytes its sender has consumed.
    Frame { consumed: u64 },
    /// Another one, which was left to be read in the ordinary way.
    Other,
}

/// Why a connection can't be used any more.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The peer said goodbye and closed.
    Closed,
    /// It ended in the middle, or the system reports an error.
    Lost(String),
    /// The peer sent nonsense.
    Protocol(String),
}

impl Broken {
    /// The peer has closed its side, after a goodbye or in the middle.
    pub(crate) fn end(in_order: bool) -> Self {
        if in_order {
            Broken::Closed
        } else {
            Broken::Lost("its end of the connection was closed without goodbye (process ended?)".into())
        }
    }
}

impl From<Errno> for Broken {
    fn from(error: Errno) -> Self {
        Broken::Lost(std::io::Error::from(error).to_string())
    }
}

impl Conn {
    pub(crate) fn new(socket: TcpStream, class: Class) -> Self {
        Conn {
            socket,
            class,
            ahead: Box::new([0; AHEAD]),
            start: 0,
            end: 0,
            incoming: None,
            outbox: Outbox::default(),
            sent: 0,
            numbers: Numbers::default(),
            read_blocked: false,
            write_blocked: false,
            ended: false,
            shut: false,
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.numbers.traffic
    }

    /// Payload bytes waiting to leave.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.outbox.bytes
    }

    /// Frames waiting to leave.
    pub(crate) fn queued_frames(&self) -> usize {
        self.outbox.frames.len()
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outbox.frames.is_empty()
    }

    pub(crate) fn push(&mut self, frame: Outgoing) {
        if !self.shut {
            self.outbox.push(frame);
        }
    }

    /// Writes until nothing is left, the system blocks, or `budget` bytes have left. `consumed`: eager bytes consumed
    /// from this peer, told in every header.
    pub(crate) fn write(
        &mut self,
        consumed: u64,
        mut budget: usize,
        handler: &mut impl Handler,
    ) -> Result<bool, Broken> {
        let mut progress = false;
        while !self.outbox.frames.is_empty() && budget > 0 {
            match self.write_some(consumed) {
                Ok(bytes) => {
                    progress = true;
                    budget = budget.saturating_sub(bytes);
                    self.numbers.traffic.sent_bytes += bytes as u64;
                    self.retire(bytes, handler);
                }
                Err(Errno::AGAIN) => {
                    self.write_blocked = true;
                    break;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(progress)
    }

    fn write_some(&mut self, consumed: u64) -> Result<usize, Errno> {
        if self.outbox.frames.len() == 1
            && self.sent == 0
            && let Some(frame) = self.outbox.frames.front_mut()
            && frame.header.length as usize <= SMALL
        {
            self.numbers.stamp(&mut frame.header, 0, consumed);
            return send_small(&self.socket, &frame.header, frame.payload.bytes());
        }
        let mut headers = [[0u8; HEADER_BYTES]; GATHER];
        let count = self.outbox.frames.len().min(GATHER);
        for (index, (frame, bytes)) in self.outbox.frames.iter_mut().zip(headers.iter_mut()).enumerate() {
            // A header that has partly left must not change.
            if index > 0 || self.sent == 0 {
                self.numbers.stamp(&mut frame.header, index as u32, consumed);
            }
            *bytes = frame.header.encode();
        }
        let mut slices = [IoSlice::new(&[]); 2 * GATHER];
        let mut used = 0;
        let mut skip = self.sent;
        for (frame, header) in self.outbox.frames.iter().zip(&headers[..count]) {
            for part in [&header[..], frame.payload.bytes()] {
                let gone = skip.min(part.len());
                skip -= gone;
                if gone < part.len() {
                    slices[used] = IoSlice::new(&part[gone..]);
                    used += 1;
                }
            }
        }
        rustix::net::sendmsg(&self.socket, &slices[..used], &mut SendAncillaryBuffer::default(), SEND)
    }

    // --- past the queues

    /// Whether nothing is under way in either direction, as far as is known here.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.outbox.frames.is_empty()
            && self.incoming.is_none()
            && self.start == self.end
            && !(self.write_blocked
                || self.ended
                || self.numbers.said_bye
                || self.outbox.says_bye
                || self.shut)
    }

    /// Sends a frame of up to [`SMALL`] bytes at once, as far as the system takes it. Says how many bytes that were, with the
    /// header that has left, if it was not all: the rest is to be [queued](Self::queue_rest) before anything else.
    pub(crate) fn send_past(
        &mut self,
        mut header: Header,
        payload: &[u8],
        consumed: u64,
    ) -> Result<Option<(Header, usize)>, Errno> {
        header.length = payload.len() as u32;
        self.numbers.stamp(&mut header, 0, consumed);
        let bytes = send_small(&self.socket, &header, payload)?;
        self.numbers.traffic.sent_bytes += bytes as u64;
        if bytes < HEADER_BYTES + payload.len() {
            return Ok(Some((header, bytes)));
        }
        self.numbers.has_sent();
        Ok(None)
    }

    /// The rest of a frame of which so many bytes have left.
    pub(crate) fn queue_rest(&mut self, frame: Outgoing, sent: usize) {
        self.sent = sent;
        self.outbox.bytes += frame.payload.bytes().len() - sent.saturating_sub(HEADER_BYTES);
        self.outbox.frames.push_back(frame);
    }

    /// Looks for a frame like `due`, up to its counters, and copies its payload. What else comes is kept for
    /// [`read`](Self::read), which is due then.
    pub(crate) fn receive_past(&mut self, due: &Header, payload: &mut [u8]) -> Result<Found, Broken> {
        let want = HEADER_BYTES + payload.len();
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let missing = &mut self.ahead[self.end..want];
        let bytes = match rustix::net::recv(&self.socket, missing, RecvFlags::DONTWAIT) {
            Ok((bytes, _)) if bytes > 0 => bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Found::Nothing),
            // What had come before is looked at first.
            _ if self.end > 0 => return Ok(Found::Other),
            Ok(_) => return Err(self.ended()),
            Err(error) => return Err(error.into()),
        };
        self.numbers.traffic.received_bytes += bytes as u64;
        self.end += bytes;
        let Some((head, body)) = self.ahead[..self.end].split_first_chunk::<HEADER_BYTES>() else {
            return Ok(Found::Nothing);
        };
        let fits = |header: &Header| header.is_like(due) && self.numbers.is_due(header);
        let Some(header) = Header::decode(head).ok().filter(fits) else { return Ok(Found::Other) };
        if body.len() < payload.len() {
            return Ok(Found::Nothing);
        }
        payload.copy_from_slice(body);
        self.numbers.has_received(&header, false).map_err(Broken::Protocol)?;
        self.end = 0;
        Ok(Found::Frame { consumed: header.consumed })
    }

    /// `bytes` more have left: releases what is lent, drops finished frames.
    fn retire(&mut self, mut bytes: usize, handler: &mut impl Handler) {
        while let Some(front) = self.outbox.frames.front() {
            let payload = front.payload.bytes().len();
            let before = self.sent;
            let step = bytes.min(HEADER_BYTES + payload - before);
            self.sent += step;
            bytes -= step;
            let released = self.sent.saturating_sub(HEADER_BYTES) - before.saturating_sub(HEADER_BYTES);
            let whole = self.sent == HEADER_BYTES + payload;
            if let Payload::Lent { run, step, .. } = front.payload
                && (released > 0 || whole)
            {
                handler.released(run, step, released);
            }
            self.outbox.bytes -= released;
            if !whole {
                return;
            }
            self.sent = 0;
            self.numbers.has_sent();
            self.outbox.frames.pop_front();
        }
    }

    /// Reads until the system has no more or `budget` bytes were read. Says whether anything came.
    pub(crate) fn read(
        &mut self,
        peer: usize,
        mut budget: usize,
        handler: &mut impl Handler,
    ) -> Result<bool, Broken> {
        let mut progress = false;
        if self.shut {
            return Ok(false);
        }
        self.read_blocked = false;
        loop {
            self.consume_ahead(peer, handler)?;
            if budget == 0 {
                return Ok(progress);
            }
            match self.read_some() {
                Ok((0, _)) => {
                    self.read_blocked = true;
                    return Err(self.ended());
                }
                Ok((bytes, asked)) => {
                    progress = true;
                    budget = budget.saturating_sub(bytes);
                    self.numbers.traffic.received_bytes += bytes as u64;
                    if bytes < asked && !self.ended {
                        // Less than was asked for: there is no more, and what comes next makes an event. But for the
                        // end, if its event came together with that of the last bytes.
                        self.read_blocked = true;
                        self.consume_ahead(peer, handler)?;
                        return Ok(true);
                    }
                }
                Err(Errno::AGAIN) => {
                    self.read_blocked = true;
                    return Ok(progress);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn ended(&self) -> Broken {
        Broken::end(self.numbers.said_bye && self.incoming.is_none() && self.start == self.end)
    }

    /// One system call: the rest of a payload goes to its sink, what follows goes ahead. Returns how many bytes came,
    /// and how many were asked for.
    fn read_some(&mut self) -> Result<(usize, usize), Errno> {
        // At most part of a header is left over.
        self.ahead.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let ahead = match self.class {
            Class::Fast => AHEAD,
            // The next header only: payload behind it is to be read in place.
            Class::Bulk => HEADER_BYTES,
        };
        let Some(incoming) = &mut self.incoming else {
            let free = &mut self.ahead[self.end..ahead];
            let asked = free.len();
            let bytes = rustix::net::recv(&self.socket, free, RecvFlags::DONTWAIT)?.0;
            self.end += bytes;
            return Ok((bytes, asked));
        };
        let want = incoming.header.length as usize - incoming.received;
        let mut asked = want + ahead;
        let bytes = match &mut incoming.sink {
            Sink::Direct(raw, _) => {
                let rest = raw.sub(incoming.received..raw.len()).bytes_mut();
                let mut slices = [IoSliceMut::new(rest), IoSliceMut::new(&mut self.ahead[..ahead])];
                rustix::io::readv(&self.socket, &mut slices)?
            }
            Sink::Owned(vec) => {
                let mut slices = [
                    IoSliceMut::new(&mut vec[incoming.received..]),
                    IoSliceMut::new(&mut self.ahead[..ahead]),
                ];
                rustix::io::readv(&self.socket, &mut slices)?
            }
            Sink::Discard => {
                let some = want.min(AHEAD);
                asked = some;
                rustix::net::recv(&self.socket, &mut self.ahead[..some], RecvFlags::DONTWAIT)?.0
            }
        };
        let payload = bytes.min(want);
        incoming.received += payload;
        self.end = bytes - payload;
        Ok((bytes, asked))
    }

    /// Looks at all bytes that were read ahead.
    fn consume_ahead(&mut self, peer: usize, handler: &mut impl Handler) -> Result<(), Broken> {
        loop {
            if let Some(incoming) = &mut self.incoming {
                let want = incoming.header.length as usize - incoming.received;
                let have = want.min(self.end - self.start);
                let bytes = &self.ahead[self.start..self.start + have];
                incoming.sink.put(incoming.received, bytes);
                incoming.received += have;
                self.start += have;
                if have < want {
                    return Ok(());
                }
                self.finish(peer, handler)?;
            } else if !self.begin(peer, handler)? {
                return Ok(());
            }
        }
    }

    fn begin(&mut self, peer: usize, handler: &mut impl Handler) -> Result<bool, Broken> {
        if self.end - self.start < HEADER_BYTES {
            return Ok(false);
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(&self.ahead[self.start..self.start + HEADER_BYTES]);
        self.start += HEADER_BYTES;
        let header = Header::decode(&bytes).map_err(Broken::Protocol)?;
        self.numbers.has_received(&header, self.sent > 0).map_err(Broken::Protocol)?;
        let sink = handler.begin(peer, &header).map_err(Broken::Protocol)?;
        self.incoming = Some(Incoming { header, sink, received: 0 });
        Ok(true)
    }

    fn finish(&mut self, peer: usize, handler: &mut impl Handler) -> Result<(), Broken> {
        match self.incoming.take() {
            Some(incoming) => handler.end(peer, &incoming.header, incoming.sink).map_err(Broken::Protocol),
            None => Ok(()),
        }
    }

    /// The operation is over: its memory is not touched again. What has begun to leave is finished from a copy.
    /// Returns the lent bytes that will not leave.
    pub(crate) fn forget(&mut self, run: RunKey) -> usize {
        if let Some(incoming) = &mut self.incoming {
            incoming.sink.forget(run);
        }
        self.outbox.forget(run, self.sent > 0)
    }

    /// Nothing is read or written any more.
    pub(crate) fn shut(&mut self) {
        self.shut = true;
        self.read_blocked = true;
        self.outbox.clear();
        self.incoming = None;
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    pub(crate) fn delivered(&self) -> u64 {
        tcp_info(&self.socket).map_or(0, |info| info.acked)
    }

    pub(crate) fn said_bye(&self) -> bool {
        self.numbers.said_bye
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut
    }
}

fn send_small(socket: &TcpStream, header: &Header, payload: &[u8]) -> Result<usize, Errno> {
    let mut bytes = [0; HEADER_BYTES + SMALL];
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    bytes[HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
    rustix::net::send(socket, &bytes[..HEADER_BYTES + payload.len()], SEND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(address: &str) -> [TcpStream; 2] {
        let listener = std::net::TcpListener::bind(address).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [socket, listener.accept().unwrap().0]
    }

    #[test]
    fn a_connection_is_marked_as_asked() {
        for socket in connection("127.0.0.1:0") {
            let of = socket2::SockRef::from(&socket);
            Quality::default().mark(&socket).unwrap();
            assert_eq!(of.tos_v4().unwrap(), 0);
            Quality { dscp: Some(46), priority: None }.mark(&socket).unwrap();
            assert_eq!(of.tos_v4().unwrap(), 46 << 2);
            Quality { dscp: Some(10), priority: Some(5) }.mark(&socket).unwrap();
            assert_eq!((of.tos_v4().unwrap(), of.priority().unwrap()), (10 << 2, 5));
        }
        for socket in connection("[::1]:0") {
            Quality { dscp: Some(18), priority: None }.mark(&socket).unwrap();
            assert_eq!(socket2::SockRef::from(&socket).tclass_v6().unwrap(), 18 << 2);
        }
    }

    /// What finds out that a host has vanished is the system's doing, so it must have been asked for.
    #[test]
    fn a_data_connection_is_probed_and_given_up() {
        for same_host in [true, false] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let accepted = listener.accept().unwrap().0;
            for socket in [socket, accepted] {
                tune(&socket, same_host);
                let of = socket2::SockRef::from(&socket);
                assert!(of.tcp_nodelay().unwrap());
                assert_eq!(of.tcp_user_timeout().unwrap(), Some(Duration::from_secs(20)));
                assert!(of.keepalive().unwrap());
                assert_eq!(of.tcp_keepalive_time().unwrap(), Duration::from_secs(10));
                assert_eq!(of.tcp_keepalive_interval().unwrap(), Duration::from_secs(1));
                assert_eq!(of.tcp_keepalive_retries().unwrap(), 10);
            }
        }
    }
}
