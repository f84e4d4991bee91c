//! What a process says about itself.

use std::fmt;
use std::fs;
use std::net::SocketAddr;

use super::message::HOST_BYTES_MAX;
use super::processors::Processors;
use super::{Member, Sharing};

/// This process, reachable at `address`, and by those who share its memory.
pub(super) fn this_process(address: SocketAddr, sharing: Sharing) -> Member {
    let system = rustix::system::uname();
    Member {
        address,
        hostname: bounded(system.nodename().to_string_lossy().into_owned()),
        pid: std::process::id(),
        host: bounded(host_id()),
        processors: Processors::of_this_process(),
        sharing,
    }
}

/// Boot id and network namespace. Names and addresses may be equal on two machines; two containers of one machine
/// have their own loopback, and so are two hosts for sockets.
fn host_id() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    if boot.trim().is_empty() || namespace.as_os_str().is_empty() {
        // Unknown must not look equal to another process's unknown.
        return format!("unknown, pid {}", std::process::id());
    }
    format!("{} {}", boot.trim(), namespace.display())
}

fn bounded(mut text: String) -> String {
    while text.len() > HOST_BYTES_MAX {
        text.pop();
    }
    text
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (host {}, pid {})", self.address, self.hostname, self.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_itself() {
        let member = this_process("127.0.0.1:5".parse().unwrap(), Sharing::Unwanted);
        assert_eq!(member.pid, std::process::id());
        assert!(!member.hostname.is_empty() && member.host.contains("net:["), "{member:?}");
    }
}
