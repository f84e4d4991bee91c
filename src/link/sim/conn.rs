//! One stream of the fabric, as an engine holds it: what [`tcp::Conn`](crate::link::tcp::Conn) is for a socket.

use std::sync::Arc;

use super::fabric::Fabric;
use super::stream::Next;
use crate::link::frame::{HEADER_BYTES, Header, Kind, Outgoing, Payload};
use crate::link::outbox::Outbox;
use crate::link::tcp::{Broken, Traffic};
use crate::link::{Class, Handler, RunKey, Sink};

#[derive(Debug)]
pub(crate) struct Conn {
    fabric: Arc<Fabric>,
    line: usize,
    incoming: Option<Incoming>,
    outbox: Outbox,
    /// The payload of the first outgoing frame as far as it has left, once it has begun to.
    leaving: Option<Vec<u8>>,
    frames_sent: u32,
    frames_received: u32,
    traffic: Traffic,
    pub(crate) read_blocked: bool,
    pub(crate) write_blocked: bool,
    said_bye: bool,
    shut: bool,
}

#[derive(Debug)]
struct Incoming {
    header: Header,
    payload: Arc<Vec<u8>>,
    sink: Sink,
    received: usize,
}

impl Conn {
    pub(crate) fn new(fabric: Arc<Fabric>, rank: usize, peer: usize, class: Class) -> Self {
        let line = fabric.line(rank, peer, class);
        Conn {
            fabric,
            line,
            incoming: None,
            outbox: Outbox::default(),
            leaving: None,
            frames_sent: 0,
            frames_received: 0,
            traffic: Traffic::default(),
            read_blocked: false,
            write_blocked: false,
            said_bye: false,
            shut: false,
        }
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.outbox.bytes
    }

    pub(crate) fn queued_frames(&self) -> usize {
        self.outbox.frames.len()
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outbox.frames.is_empty()
    }

    pub(crate) fn push(&mut self, frame: Outgoing) {
        if !self.shut {
            self.outbox.push(frame);
        }
    }

    pub(crate) fn write(
        &mut self,
        consumed: u64,
        mut budget: usize,
        handler: &mut impl Handler,
    ) -> Result<bool, Broken> {
        let mut progress = false;
        while let Some(front) = self.outbox.frames.front()
            && budget > 0
        {
            let gone = self.leaving.as_ref().map_or(0, Vec::len);
            let rest = front.payload.bytes().len() - gone;
            let Some(part) = self.fabric.room(self.line, rest).map_err(Broken::Lost)? else {
                self.write_blocked = true;
                break;
            };
            progress = true;
            budget = budget.saturating_sub(part.max(1));
            self.leave(part, consumed, handler);
        }
        Ok(progress)
    }

    /// `part` bytes more of the first frame leave.
    fn leave(&mut self, part: usize, consumed: u64, handler: &mut impl Handler) {
        let Some(front) = self.outbox.frames.front_mut() else { return };
        // A header that has left must not change.
        let leaving = self.leaving.get_or_insert_with(|| {
            front.header.consumed = consumed;
            Vec::with_capacity(front.payload.bytes().len())
        });
        let payload = front.payload.bytes();
        leaving.extend_from_slice(&payload[leaving.len()..leaving.len() + part]);
        let whole = leaving.len() == payload.len();
        self.outbox.bytes -= part;
        if let Payload::Lent { run, step, .. } = front.payload {
            handler.released(run, step, part);
        }
        if whole
            && let Some(frame) = self.outbox.frames.pop_front()
            && let Some(payload) = self.leaving.take()
        {
            self.frames_sent = self.frames_sent.wrapping_add(1);
            self.traffic.sent_frames += 1;
            self.traffic.sent_bytes += (HEADER_BYTES + payload.len()) as u64;
            self.fabric.send(self.line, frame.header, payload);
        }
    }

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
        while budget > 0 {
            if self.incoming.is_none() {
                match self.fabric.next(self.line) {
                    Next::Frame(header, payload) => self.begin(peer, header, payload, handler)?,
                    Next::Nothing => {
                        self.read_blocked = true;
                        return Ok(progress);
                    }
                    Next::End => {
                        self.read_blocked = true;
                        return Err(self.ended());
                    }
                    Next::Broken(cause) => return Err(Broken::Lost(cause)),
                }
            }
            let Some(incoming) = &mut self.incoming else { continue };
            let want = incoming.payload.len() - incoming.received;
            let Some(part) = self.fabric.arrived(self.line, want) else {
                self.read_blocked = true;
                return Ok(progress);
            };
            progress = true;
            budget = budget.saturating_sub(part.max(1));
            incoming.take(part);
            if part == want
                && let Some(Incoming { header, sink, .. }) = self.incoming.take()
            {
                handler.end(peer, &header, sink).map_err(Broken::Protocol)?;
            }
        }
        Ok(progress)
    }

    fn ended(&self) -> Broken {
        Broken::end(self.said_bye)
    }

    fn begin(
        &mut self,
        peer: usize,
        header: Header,
        payload: Arc<Vec<u8>>,
        handler: &mut impl Handler,
    ) -> Result<(), Broken> {
        if header.frame != self.frames_received || header.length as usize != payload.len() {
            let problem = format!("frame {} where {} was due", header.frame, self.frames_received);
            return Err(Broken::Protocol(problem));
        }
        self.frames_received = self.frames_received.wrapping_add(1);
        self.traffic.received_frames += 1;
        self.traffic.received_bytes += (HEADER_BYTES + payload.len()) as u64;
        self.said_bye |= header.kind == Kind::Bye;
        let sink = handler.begin(peer, &header).map_err(Broken::Protocol)?;
        self.incoming = Some(Incoming { header, payload, sink, received: 0 });
        Ok(())
    }

    pub(crate) fn forget(&mut self, run: RunKey) -> usize {
        if let Some(incoming) = &mut self.incoming {
            incoming.sink.forget(run);
        }
        self.outbox.forget(run, self.leaving.is_some())
    }

    pub(crate) fn shut(&mut self) {
        self.shut = true;
        self.read_blocked = true;
        self.outbox.clear();
        self.leaving = None;
        self.incoming = None;
        self.fabric.close(self.line);
    }

    pub(crate) fn shut_writing(&self) {
        self.fabric.finish(self.line);
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.fabric.delivered(self.line).into()
    }

    pub(crate) fn said_bye(&self) -> bool {
        self.said_bye
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut
    }
}

impl Incoming {
    fn take(&mut self, part: usize) {
        let end = self.received + part;
        self.sink.put(self.received, &self.payload[self.received..end]);
        self.received = end;
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.fabric.close(self.line);
    }
}
