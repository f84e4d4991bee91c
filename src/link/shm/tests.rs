//! The far side of a pair, in the hands of a test: it writes what it likes, where it may.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::bell::{Naps, Sleeper};
use super::conn::bytes;
use super::hand_over;
use super::lane::{Ends, Lane, Sizes};
use super::reach::{Grant, Grants};
use super::ring::{Head, Reader, Writer};
use super::words::WORD;
use crate::link::Class;
use crate::link::frame::{HEADER_BYTES, Header, Kind};

#[derive(Debug)]
pub(crate) struct Far {
    writers: [Writer; 2],
    readers: [Reader; 2],
    naps: Naps,
    /// Of the near side, as it is seen here.
    sleeper: Sleeper,
    lent: Grants,
    borrowed: Grants,
    /// Frames written that are no payload, by class.
    notices: [u64; 2],
    ends: Ends,
}

impl Ends {
    /// Both sides of a pair.
    pub(crate) fn both() -> [Ends; 2] {
        let sizes = Sizes::within(0, 1);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let bells = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let lanes = [1, 2].map(|nonce| Lane::new(sizes, [nonce; 2]).unwrap());
        let seen = [0, 1].map(|of: usize| Lane::foreign(&lanes[of].1, sizes).unwrap());
        let [(mine, _), (theirs, _)] = lanes;
        let [mine_seen, theirs_seen] = seen;
        let copies = [0, 1].map(|of: usize| bells[of].try_clone().unwrap());
        let ([near_bell, far_bell], [near_copy, far_copy]) = (bells, copies);
        [
            Ends {
                mine,
                theirs: theirs_seen,
                socket: near,
                my_bell: near_bell,
                their_bell: far_copy,
                reads: None,
                is_read: false,
            },
            Ends {
                mine: theirs,
                theirs: mine_seen,
                socket: far,
                my_bell: far_bell,
                their_bell: near_copy,
                reads: None,
                is_read: false,
            },
        ]
    }
}

impl Far {
    pub(crate) fn new(ends: Ends) -> Far {
        let mut naps = Naps::default();
        let (words, at) = ends.naps();
        naps.add(words, at);
        let [lent, borrowed] = ends.grants();
        let both = [Class::Fast, Class::Bulk];
        Far {
            writers: both.map(|class| ends.writer(class)),
            readers: both.map(|class| ends.reader(class)),
            naps,
            sleeper: ends.sleeper(),
            lent,
            borrowed,
            notices: [0; 2],
            ends,
        }
    }

    /// Whether a frame with so much payload has room.
    pub(crate) fn has_room(&mut self, class: Class, payload: usize) -> bool {
        self.writers[class as usize].has_room(payload).unwrap()
    }

    /// Publishes a frame, whatever its header says, and does not ring.
    pub(crate) fn publish(&mut self, class: Class, header: &[u8; HEADER_BYTES], payload: &[u8]) {
        if !Header::decode(header).is_ok_and(|header| matches!(header.kind, Kind::Data | Kind::Eager)) {
            self.tell_notices(class, self.notices[class as usize] + 1);
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at * WORD + byte]));
        let head: Head = std::array::from_fn(word);
        let writer = &mut self.writers[class as usize];
        writer.payload(payload.len()).copy_from_slice(payload);
        writer.publish(&head, payload.len());
    }

    /// Says that it has written so many frames that are no payload.
    pub(crate) fn tell_notices(&mut self, class: Class, count: u64) {
        self.notices[class as usize] = count;
        let [(words, at), _] = self.ends.notices(class);
        words.at(at).store(count, Ordering::Release);
    }

    /// Writes a frame as far as this part of its payload, and says that so many bytes of that are there.
    pub(crate) fn write_ahead(&mut self, class: Class, header: &Header, payload: &[u8], told: usize) {
        let header = header.encode();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at * WORD + byte]));
        let head: Head = std::array::from_fn(word);
        let writer = &mut self.writers[class as usize];
        writer.payload(payload.len()).copy_from_slice(payload);
        writer.tell_ahead(&head, told);
    }

    /// The first frame of a ring gets another header.
    pub(crate) fn overwrite_first(&mut self, class: Class, header: &[u8; HEADER_BYTES]) {
        let (writer, first) = (&mut self.writers[class as usize], self.ends.writer(class));
        let written = std::mem::replace(writer, first);
        self.publish(class, header, &[]);
        self.writers[class as usize] = written;
    }

    /// Whether the near side sleeps, and is to be rung for now.
    pub(crate) fn must_wake(&self) -> bool {
        self.sleeper.must_wake()
    }

    pub(crate) fn ring(&self) {
        rustix::io::write(&self.ends.their_bell, &1u64.to_ne_bytes()).unwrap();
    }

    /// How often the near side has rung since this was asked last.
    pub(crate) fn rung(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.ends.my_bell, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    /// Says that it sleeps.
    pub(crate) fn sleep(&self) {
        self.naps.announce();
    }

    /// The next frame, which is taken from the ring.
    pub(crate) fn read(&mut self, class: Class) -> Option<(Header, Vec<u8>)> {
        let reader = &mut self.readers[class as usize];
        let header = Header::decode(&bytes(&reader.peek()?)).unwrap();
        let length = header.length as usize;
        let payload = reader.payload(length).unwrap().to_vec();
        reader.advance(length);
        reader.tell();
        Some((header, payload))
    }

    /// Says that it has read the other's ring so far.
    pub(crate) fn claim(&self, class: Class, head: u64) {
        let (heads, at) = self.ends.heads(class);
        heads.at(at).store(head, Ordering::Release);
    }

    /// Lends by this slot from now on.
    pub(crate) fn lend(&self, slot: u32) -> Grant {
        self.lent.now(slot)
    }

    pub(crate) fn take_back(&self, grant: Grant) {
        self.lent.take_back(grant);
    }

    /// Whether the near side still lends.
    pub(crate) fn stands(&self, grant: Grant) -> bool {
        self.borrowed.stands(grant)
    }

    /// Something on the socket.
    pub(crate) fn say(&self, bytes: &[u8]) {
        rustix::net::send(&self.ends.socket, bytes, rustix::net::SendFlags::NOSIGNAL).unwrap();
    }

    pub(crate) fn hand_over(&self, about: [u64; 2], fds: &[BorrowedFd<'_>]) {
        hand_over::send(&self.ends.socket, about, fds).unwrap();
    }

    /// A segment that the near side has handed over, or that it takes back.
    pub(crate) fn receive(&self) -> Option<hand_over::Received> {
        hand_over::receive(&self.ends.socket).ok().flatten()
    }

    /// Whether the near side has no more to do with this one.
    pub(crate) fn is_cut_off(&self) -> bool {
        let mut byte = [0];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(&self.ends.socket, &mut byte, flags), Ok((0, _)))
    }

    /// As when its process ends.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(self.ends.socket.as_fd(), rustix::net::Shutdown::Both);
    }
}
