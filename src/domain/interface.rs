//! Which of its own addresses a process tells the others.
//!
//! By default the one that the kernel routes to the root from: it is known to work, which nothing about an
//! interface's name or place in a list is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::error::InitError;

/// One address of one interface.
#[derive(Clone, Debug)]
struct Candidate {
    name: String,
    ip: IpAddr,
    /// Scope of link-local addresses.
    index: u32,
    up: bool,
}

/// An own address; `scope` says on which interface a link-local one is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub ip: IpAddr,
    pub scope: u32,
}

impl Own {
    pub(super) fn of(address: SocketAddr) -> Own {
        let scope = match address {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(address) => address.scope_id(),
        };
        Own { ip: address.ip().to_canonical(), scope }
    }

    /// With a port; a link-local address gets this one's scope, which means nothing on another host.
    pub(super) fn scoped(&self, mut address: SocketAddr) -> SocketAddr {
        if let SocketAddr::V6(address) = &mut address
            && address.ip().is_unicast_link_local()
        {
            address.set_scope_id(self.scope);
        }
        address
    }
}

/// The address that the user asked for, by exact interface name or address. Of several addresses of an interface,
/// one of the same family as `like` wins.
pub(super) fn named(wanted: &str, like: Option<IpAddr>) -> Result<Own, InitError> {
    select(&candidates()?, wanted, like)
}

/// Every address of this host.
pub(super) fn all() -> Vec<IpAddr> {
    candidates().unwrap_or_default().into_iter().map(|candidate| candidate.ip).collect()
}

/// The address that the default route leaves from, if there is one. Connecting a datagram socket sends nothing.
pub(super) fn default_route() -> Option<IpAddr> {
    // Addresses reserved for documentation: routed like any other that isn't near.
    let v4 = (IpAddr::from(Ipv4Addr::UNSPECIFIED), "203.0.113.1:9");
    let v6 = (IpAddr::from(Ipv6Addr::UNSPECIFIED), "[2001:db8::1]:9");
    [v4, v6].into_iter().find_map(|(any, far)| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(far).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
    })
}

fn candidates() -> Result<Vec<Candidate>, InitError> {
    let list = if_addrs::get_if_addrs()
        .map_err(|error| InitError::Io { what: "listing the network interfaces".into(), error })?;
    let each = list.into_iter().map(|interface| Candidate {
        up: interface.is_oper_up() || interface.is_loopback(),
        ip: interface.ip(),
        index: interface.index.unwrap_or(0),
        name: interface.name,
    });
    Ok(each.collect())
}

fn select(candidates: &[Candidate], wanted: &str, like: Option<IpAddr>) -> Result<Own, InitError> {
    let address: Option<IpAddr> = wanted.parse().ok();
    let rank = |candidate: &Candidate| {
        let other_family = like.is_some_and(|like| like.is_ipv4() != candidate.ip.is_ipv4());
        (!candidate.up, other_family, link_local(candidate.ip))
    };
    candidates
        .iter()
        .filter(|candidate| candidate.name == wanted || Some(candidate.ip) == address)
        .min_by_key(|candidate| rank(candidate))
        .map(|candidate| Own { ip: candidate.ip, scope: candidate.index })
        .or_else(|| address.filter(IpAddr::is_loopback).map(|ip| Own { ip, scope: 0 }))
        .ok_or_else(|| InitError::Config(not_found(candidates, wanted)))
}

fn not_found(candidates: &[Candidate], wanted: &str) -> String {
    let each: Vec<String> = candidates
        .iter()
        .map(|candidate| {
            let Candidate { name, ip, up, .. } = candidate;
            let mut reasons =
                vec![if name.starts_with(wanted) { "the name only begins alike" } else { "differs" }];
            reasons.extend((!up).then_some("down"));
            reasons.extend(ip.is_loopback().then_some("loopback"));
            reasons.extend(link_local(*ip).then_some("link-local"));
            format!("{name} {ip} ({})", reasons.join(", "))
        })
        .collect();
    format!("no interface has exactly the name or address \"{wanted}\"; there are: {}", each.join("; "))
}

fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Vec<Candidate> {
        [
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("bond0.100", "10.1.0.1"),
            ("bond1", "fe80::1"),
            ("bond1", "10.2.0.1"),
            ("bond1", "fd00::1"),
        ]
        .iter()
        .zip(1..)
        .map(|((name, ip), index)| Candidate {
            name: (*name).into(),
            ip: ip.parse().unwrap(),
            index,
            up: true,
        })
        .collect()
    }

    #[test]
    fn a_name_must_match_exactly() {
        let error = select(&host(), "bond0", None).unwrap_err().to_string();
        assert!(error.contains("bond0.100 10.1.0.1 (the name only begins alike)"), "{error}");
        assert!(
            error.contains("docker0") && error.contains("loopback") && error.contains("link-local"),
            "{error}"
        );
        assert_eq!(select(&host(), "bond0.100", None).unwrap().ip.to_string(), "10.1.0.1");
    }

    #[test]
    fn the_root_s_family_is_preferred_and_link_local_is_not() {
        let pick = |like: &str| select(&host(), "bond1", Some(like.parse().unwrap())).unwrap().ip.to_string();
        assert_eq!(pick("10.0.0.9"), "10.2.0.1");
        assert_eq!(pick("fd00::9"), "fd00::1");
    }

    #[test]
    fn an_address_must_be_an_own_one() {
        assert_eq!(select(&host(), "fe80::1", None).unwrap().scope, 4);
        assert!(select(&host(), "10.2.0.2", None).is_err());
        assert!(select(&host(), "127.0.0.9", None).is_ok());
    }

    #[test]
    fn this_host_has_loopback() {
        assert!(all().iter().any(IpAddr::is_loopback));
    }

    #[test]
    fn a_link_local_address_gets_the_own_scope() {
        let own = Own { ip: "fe80::1".parse().unwrap(), scope: 7 };
        assert_eq!(Own::of(own.scoped("[fe80::2]:5".parse().unwrap())).scope, 7);
        assert_eq!(Own::of(own.scoped("[fd00::2]:5".parse().unwrap())).scope, 0);
    }
}
