//! A connection to one peer, whichever link it is of.
//!
//! This costs a comparison where a socket costs a system call.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use super::frame::Outgoing;
use super::shm;
#[cfg(feature = "testing")]
use super::sim;
use super::tcp::{self, Broken, Traffic};
use super::{Handler, RunKey};

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few, and none is ever moved")]
pub(crate) enum Conn {
    Tcp(tcp::Conn),
    Shm(shm::Conn),
    #[cfg(feature = "testing")]
    Sim(sim::Conn),
}

/// The same expression on whichever kind it is.
macro_rules! either {
    ($of:expr, $conn:ident => $do:expr) => {
        match $of {
            Conn::Tcp($conn) => $do,
            Conn::Shm($conn) => $do,
            #[cfg(feature = "testing")]
            Conn::Sim($conn) => $do,
        }
    };
}

impl Conn {
    /// The socket, if it is one to ask the system about.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Conn::Tcp(conn) => Some(conn.socket()),
            _ => None,
        }
    }

    /// What a poll set watches.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Conn::Tcp(conn) => vec![conn.socket().as_fd()],
            Conn::Shm(conn) => conn.descriptors().into(),
            #[cfg(feature = "testing")]
            Conn::Sim(_) => Vec::new(),
        }
    }

    /// Whether what comes, and room for what is to leave, shows by itself, and no poll set tells it.
    #[inline]
    pub(crate) fn is_looked_at(&self) -> bool {
        matches!(self, Conn::Shm(_))
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
            _ => None,
        }
    }

    /// The same through memory: to look at, and to go past the queues.
    #[inline]
    pub(crate) fn shm(&self) -> Option<&shm::Conn> {
        match self {
            Conn::Shm(conn) => Some(conn),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn shm_mut(&mut self) -> Option<&mut shm::Conn> {
        match self {
            Conn::Shm(conn) => Some(conn),
            _ => None,
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
        match self {
            Conn::Tcp(conn) => conn.read_blocked,
            Conn::Shm(conn) => conn.read_blocked(),
            #[cfg(feature = "testing")]
            Conn::Sim(conn) => conn.read_blocked,
        }
    }

    #[inline]
    pub(crate) fn write_blocked(&self) -> bool {
        match self {
            Conn::Tcp(conn) => conn.write_blocked,
            Conn::Shm(conn) => conn.write_blocked(),
            #[cfg(feature = "testing")]
            Conn::Sim(conn) => conn.write_blocked,
        }
    }

    /// Something happened: it can be read, or written, again; or the peer has `ended` its side.
    #[inline]
    pub(crate) fn unblock(&mut self, readable: bool, writable: bool, ended: bool) {
        match self {
            Conn::Tcp(conn) => {
                conn.ended |= ended;
                conn.read_blocked &= !readable;
                conn.write_blocked &= !writable;
            }
            Conn::Shm(conn) => conn.ended |= ended,
            #[cfg(feature = "testing")]
            Conn::Sim(conn) => {
                conn.read_blocked &= !readable;
                conn.write_blocked &= !writable;
            }
        }
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

    /// The peer has closed it in order, which was told: that is no news any more.
    pub(crate) fn hear_out(&mut self) {
        if let Conn::Shm(conn) = self {
            conn.hear_out();
        }
    }

    /// Nothing is read or written any more.
    pub(crate) fn shut(&mut self) {
        either!(self, conn => conn.shut());
    }

    /// Nothing more will be written.
    pub(crate) fn shut_writing(&self) {
        match self {
            Conn::Tcp(conn) => drop(conn.socket().shutdown(std::net::Shutdown::Write)),
            // Its goodbye is in the ring.
            Conn::Shm(_) => {}
            #[cfg(feature = "testing")]
            Conn::Sim(conn) => conn.shut_writing(),
        }
    }

    /// Grows with what the peer's system has taken; the unit is the link's.
    pub(crate) fn delivered(&mut self) -> u64 {
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
