//! A connection to one peer, whichever link it is of.
//!
//! Without the feature `testing` there is one kind, and this costs nothing; with it, one comparison.

use std::net::TcpStream;

use super::frame::Outgoing;
#[cfg(feature = "testing")]
use super::sim;
use super::tcp::{self, Broken, Traffic};
use super::{Handler, RunKey};

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few, and none is ever moved")]
pub(crate) enum Conn {
    Tcp(tcp::Conn),
    #[cfg(feature = "testing")]
    Sim(sim::Conn),
}

/// The same expression on whichever kind it is.
macro_rules! either {
    ($of:expr, $conn:ident => $do:expr) => {
        match $of {
            Conn::Tcp($conn) => $do,
            #[cfg(feature = "testing")]
            Conn::Sim($conn) => $do,
        }
    };
}

impl Conn {
    /// The descriptor that a poll set watches, if there is one.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Conn::Tcp(conn) => Some(conn.socket()),
            #[cfg(feature = "testing")]
            Conn::Sim(_) => None,
        }
    }

    /// Payload bytes waiting to leave.
    #[inline]
    pub(crate) fn queued_bytes(&self) -> usize {
        either!(self, conn => conn.queued_bytes())
    }

    /// Frames waiting to leave.
    #[inline]
    pub(crate) fn queued_frames(&self) -> usize {
        either!(self, conn => conn.queued_frames())
    }

    /// For frames that go past the queues.
    #[inline]
    pub(crate) fn tcp(&mut self) -> Option<&mut tcp::Conn> {
        match self {
            Conn::Tcp(conn) => Some(conn),
            #[cfg(feature = "testing")]
            Conn::Sim(_) => None,
        }
    }

    /// What has gone over it.
    pub(crate) fn traffic(&self) -> Traffic {
        either!(self, conn => conn.traffic())
    }

    #[inline]
    pub(crate) fn has_outgoing(&self) -> bool {
        either!(self, conn => conn.has_outgoing())
    }

    #[inline]
    pub(crate) fn read_blocked(&self) -> bool {
        either!(self, conn => conn.read_blocked)
    }

    #[inline]
    pub(crate) fn write_blocked(&self) -> bool {
        either!(self, conn => conn.write_blocked)
    }

    /// Something happened: it can be read, or written, again; or the peer has `ended` its side.
    #[inline]
    pub(crate) fn unblock(&mut self, readable: bool, writable: bool, ended: bool) {
        match self {
            Conn::Tcp(conn) => conn.ended |= ended,
            #[cfg(feature = "testing")]
            Conn::Sim(_) => {}
        }
        either!(self, conn => {
            conn.read_blocked &= !readable;
            conn.write_blocked &= !writable;
        });
    }

    #[inline]
    pub(crate) fn push(&mut self, frame: Outgoing) {
        either!(self, conn => conn.push(frame));
    }

    /// Writes until nothing is left, the link blocks, or `budget` bytes have left. `consumed`: eager bytes consumed
    /// from this peer, told in every header.
    #[inline]
    pub(crate) fn write(
        &mut self,
        consumed: u64,
        budget: usize,
        handler: &mut impl Handler,
    ) -> Result<bool, Broken> {
        either!(self, conn => conn.write(consumed, budget, handler))
    }

    /// Reads until the link has no more or `budget` bytes were read. Says whether anything came.
    #[inline]
    pub(crate) fn read(
        &mut self,
        peer: usize,
        budget: usize,
        handler: &mut impl Handler,
    ) -> Result<bool, Broken> {
        either!(self, conn => conn.read(peer, budget, handler))
    }

    /// The operation is over: its memory is not touched again. Returns the lent bytes that will not leave.
    pub(crate) fn forget(&mut self, run: RunKey) -> usize {
        either!(self, conn => conn.forget(run))
    }

    /// Nothing is read or written any more.
    pub(crate) fn shut(&mut self) {
        either!(self, conn => conn.shut());
    }

    /// Nothing more will be written.
    pub(crate) fn shut_writing(&self) {
        match self {
            Conn::Tcp(conn) => drop(conn.socket().shutdown(std::net::Shutdown::Write)),
            #[cfg(feature = "testing")]
            Conn::Sim(conn) => conn.shut_writing(),
        }
    }

    /// Grows with what the peer's system has taken; the unit is the link's.
    pub(crate) fn delivered(&self) -> u64 {
        either!(self, conn => conn.delivered())
    }

    /// The peer has said on it that it will send nothing more.
    pub(crate) fn said_bye(&self) -> bool {
        either!(self, conn => conn.said_bye())
    }

    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        either!(self, conn => conn.is_shut())
    }
}
