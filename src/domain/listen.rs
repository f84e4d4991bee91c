//! Listening sockets. A port is chosen by binding it, and stays bound: nobody can take it in between.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ops::RangeInclusive;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::interface::Own;
use crate::error::InitError;
use crate::rank::Rank;
use crate::runtime::congestion;

/// Connections that the kernel keeps for us before we accept them; it lowers this to its own limit.
const BACKLOG: i32 = 4096;

/// Binds and listens. The unspecified IPv6 address takes IPv4 as well.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    bind_prepared(address, |_| ())
}

fn bind_prepared(address: SocketAddr, prepare: impl FnOnce(&Socket)) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of an earlier job that wait for stray packets must not keep the port.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    prepare(&socket);
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// The listener of a rank's data connections.
pub(super) fn data(
    own: Own,
    range: Option<&RangeInclusive<u16>>,
    rank: Rank,
) -> Result<TcpListener, InitError> {
    within(own, range, rank.0)
}

/// The root's listener where ranks meet at a file, which tells the others its port: where only a range of ports is
/// open, it must be one of them.
pub(super) fn rendezvous(
    own: Own,
    range: Option<&RangeInclusive<u16>>,
    world: u32,
) -> Result<TcpListener, InitError> {
    // As if it were one rank more.
    within(own, range, world)
}

/// Listens at a free port of the range, the system's choice without one. `place` says where the search begins.
fn within(own: Own, range: Option<&RangeInclusive<u16>>, place: u32) -> Result<TcpListener, InitError> {
    // Most connections come from the same host; the others are told apart later.
    let bind = |address| bind_prepared(address, |socket| congestion::choose_local(socket));
    let Some(range) = range else {
        return bind(at(own, 0)).map_err(|error| refused(own, error));
    };
    // Ranks of one host begin at different ports, so that they seldom try one another's.
    let count = u32::from(range.end() - range.start()) + 1;
    for step in 0..count {
        let port = range.start() + ((place % count + step) % count) as u16;
        match bind(at(own, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result.map_err(|error| refused(own, error)),
        }
    }
    Err(InitError::Limit {
        what: format!("free ports in the range {}-{}", range.start(), range.end()),
        needed: 1,
        available: 0,
        hint: "give a range with at least one port per rank of a host, and one more on rank 0's where ranks meet at a \
               file (HCOMM_PORT_RANGE)"
            .into(),
    })
}

fn refused(own: Own, error: io::Error) -> InitError {
    if error.kind() == io::ErrorKind::AddrInUse {
        return InitError::Limit {
            what: "free ports for listening".into(),
            needed: 1,
            available: 0,
            hint: "widen net.ipv4.ip_local_port_range, or give a range (HCOMM_PORT_RANGE)".into(),
        };
    }
    InitError::Io { what: format!("listening for data connections on {}", own.ip), error }
}

fn at(own: Own, port: u16) -> SocketAddr {
    match own.ip {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => {
            SocketAddrV6::new(ip, port, 0, if ip.is_unicast_link_local() { own.scope } else { 0 }).into()
        }
    }
}
