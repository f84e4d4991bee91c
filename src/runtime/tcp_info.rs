//! What the system counts about a TCP connection.

#![allow(unsafe_code)]

use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// A part of `struct tcp_info` of Linux. Older systems tell less: what is missing is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpInfo {
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Segments sent again, since the beginning.
    pub retransmissions: u32,
    /// Bytes that the other side has acknowledged.
    pub acked: u64,
    /// Time in which there was something to be sent or acknowledged. Counted in ticks of up to 10 ms.
    pub busy_us: u64,
    /// That part of it in which the other side had no room, since its program did not read.
    pub reader_us: u64,
}

/// Bytes of the structure up to the last field that is read.
const LENGTH: usize = 184;

pub(crate) fn tcp_info(socket: &TcpStream) -> Option<TcpInfo> {
    let mut bytes = [0u8; LENGTH];
    let mut length = LENGTH as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed, and the system writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
    (result == 0).then(|| TcpInfo {
        rtt_us: word(68),
        retransmissions: word(100),
        acked: long(120),
        busy_us: long(168),
        reader_us: long(176),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_was_sent_is_acknowledged_and_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut other = listener.accept().unwrap().0;
        one.write_all(&[1; 50_000]).unwrap();
        other.read_exact(&mut [0; 50_000]).unwrap();
        other.write_all(&[1]).unwrap();
        one.read_exact(&mut [0]).unwrap();
        let info = tcp_info(&one).unwrap();
        // The first byte counted is that of the handshake.
        assert!((50_000..=50_001).contains(&info.acked), "{info:?}");
        assert!(info.rtt_us > 0 && info.rtt_us < 10_000_000 && info.retransmissions < 1000, "{info:?}");
    }
}
