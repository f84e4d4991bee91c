//! HOW bytes move between two ranks.
//!
//! - `frame`: the one header of all byte links, and outgoing frames
//! - `tcp`: a pair of non-blocking connections to one peer
//! - `sim`: the same on a simulated network (feature `testing`), and `conn`: any of these
//! - `shm`: a pair of connections through memory that two processes share
//! - `outbox`: frames that wait to leave
//! - `numbers`: what the numbers of frames on a connection must be
//! - `memory`: ranks of one process: leases that peers read directly, and an inbox for frames
//!
//! A link knows neither plans nor communicators: it moves frames, and asks a [`Handler`] where payload goes.

pub(crate) mod conn;
pub(crate) mod frame;
pub(crate) mod memory;
#[cfg(all(test, hcomm_loom))]
mod models;
mod numbers;
mod outbox;
pub(crate) mod shm;
#[cfg(feature = "testing")]
pub(crate) mod sim;
pub(crate) mod tcp;

use crate::buffer::raw::Raw;
use frame::Header;

/// Which of a pair's two connections: small and urgent frames never queue behind large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Fast,
    Bulk,
}

/// Identifies an operation in flight towards links: what to forget when it ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunKey {
    pub index: u32,
    pub generation: u32,
}

/// Where the payload of a frame goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Into memory that the operation owns.
    Direct(Raw, RunKey),
    /// Into memory that the link hands over with the frame.
    Owned(Vec<u8>),
    /// Nowhere: the operation is over.
    Discard,
}

impl Sink {
    /// Payload from byte `at` on.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        let range = at..at + bytes.len();
        match self {
            Sink::Direct(raw, _) => raw.sub(range).copy_from_slice(bytes),
            Sink::Owned(vec) => vec[range].copy_from_slice(bytes),
            Sink::Discard => {}
        }
    }

    /// All of the payload, which another process may write to at any time.
    pub(crate) fn put_raw(&mut self, payload: Raw) {
        match self {
            Sink::Direct(raw, _) => raw.copy_from(payload),
            Sink::Owned(vec) => payload.copy_to_slice(vec),
            Sink::Discard => {}
        }
    }

    /// An operation is over: nothing more goes into its memory.
    pub(crate) fn forget(&mut self, run: RunKey) {
        if matches!(self, Sink::Direct(_, of) if *of == run) {
            *self = Sink::Discard;
        }
    }
}

/// Told what arrives and what has left.
pub(crate) trait Handler {
    /// A header came from `peer`; where does its payload go?
    fn begin(&mut self, peer: usize, header: &Header) -> Result<Sink, String>;
    /// A whole frame is there, its payload in memory that goes when this returns: takes it, if it can be used from where it lies.
    /// Says whether it was.
    fn consume(&mut self, _peer: usize, _header: &Header, _payload: Raw) -> Result<bool, String> {
        Ok(false)
    }
    /// All of a frame's payload is in its sink.
    fn end(&mut self, peer: usize, header: &Header, sink: Sink) -> Result<(), String>;
    /// `bytes` of a lent range were copied out.
    fn released(&mut self, run: RunKey, step: u16, bytes: usize);
}
