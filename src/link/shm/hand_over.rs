//! Descriptors from one process to another, over a local socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Two numbers that say what the descriptors are.
pub(crate) type About = [u64; 2];

const ABOUT_BYTES: usize = size_of::<About>();
/// Descriptors in one message at most.
const DESCRIPTORS_MAX: usize = 2;

/// One message.
#[derive(Debug)]
pub(crate) struct Received {
    pub about: About,
    pub fds: Vec<OwnedFd>,
    /// There were more descriptors than this process could take: it may have no more.
    pub is_cut: bool,
}

/// Sends all of it, or nothing.
pub(crate) fn send(socket: impl AsFd, about: About, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let bytes = about.map(u64::to_le_bytes).concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)? {
        ABOUT_BYTES => Ok(()),
        // The system takes so few bytes as a whole.
        _ => Err(Errno::MSGSIZE),
    }
}

/// Takes the next message, if it is there; `None` at the end.
pub(crate) fn receive(socket: impl AsFd) -> Result<Option<Received>, Errno> {
    let mut bytes = [0; ABOUT_BYTES];
    let mut fds: Vec<OwnedFd> = Vec::new();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = part {
            fds.extend(came);
        }
    }
    match message.bytes {
        0 => Ok(None),
        ABOUT_BYTES => {
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
            let is_cut = message.flags.contains(ReturnFlags::CTRUNC);
            Ok(Some(Received { about: [number(0), number(8)], fds, is_cut }))
        }
        _ => Err(Errno::PROTO),
    }
}
