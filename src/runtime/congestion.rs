//! Congestion control within one host, where there is no network to share and pacing only costs.
//!
//! It is chosen before a connection is made. Linux goes on pacing a connection that began with a control that paces (BBR),
//! whatever it is given later: on a machine whose default is BBR that costs up to half the rate. So a listener gets it
//! before it listens, since connections inherit it, and those that turn out to come from elsewhere get the system's default
//! back: there, the choice is the administrator's.

use std::sync::OnceLock;

use socket2::{Domain, SockRef, Socket, Type};

/// For a socket that is not connected and does not listen yet. A refusal leaves it as it is.
pub(crate) fn choose_local<'s>(socket: impl Into<SockRef<'s>>) {
    let socket = socket.into();
    // The second one is open to everybody.
    let _ = [&b"cubic"[..], b"reno"].iter().find(|name| socket.set_tcp_congestion(name).is_ok());
}

/// For a connection to another host: undoes what it has inherited from a listener. What came from elsewhere, say from a
/// route, stays.
pub(crate) fn choose_default<'s>(socket: impl Into<SockRef<'s>>) {
    static KNOWN: OnceLock<Option<Known>> = OnceLock::new();
    let Some(known) = KNOWN.get_or_init(Known::ask) else { return };
    let socket = socket.into();
    if known.default != known.local && socket.tcp_congestion().is_ok_and(|name| name == known.local) {
        let _ = socket.set_tcp_congestion(trimmed(&known.default));
    }
}

/// Names, as the system gives them.
struct Known {
    default: Vec<u8>,
    local: Vec<u8>,
}

impl Known {
    fn ask() -> Option<Known> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
        let default = socket.tcp_congestion().ok()?;
        choose_local(&socket);
        Some(Known { default, local: socket.tcp_congestion().ok()? })
    }
}

/// Without what the system fills up with.
fn trimmed(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn name(socket: &TcpStream) -> Vec<u8> {
        trimmed(&SockRef::from(socket).tcp_congestion().unwrap()).to_vec()
    }

    #[test]
    fn connections_inherit_it_and_give_it_back() {
        let known = Known::ask().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        choose_local(&listener);
        let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(name(&accepted), trimmed(&known.local));
        choose_default(&accepted);
        assert_eq!(name(&accepted), trimmed(&known.default));
        choose_default(&dialed);
        assert_eq!(name(&dialed), trimmed(&known.default));
    }
}
