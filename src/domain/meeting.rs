//! Where the ranks meet: the root's listening sockets, and the addresses that the others try.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpListener, lookup_host};
use tokio::time::{Instant, sleep, timeout};

use super::config::{JoinConfig, Rendezvous, split_host_port};
use super::interface::{self, Own};
use super::listen;
use super::publish::{self, Draft, Notice, Published};
use super::token::{self, Key};
use crate::error::InitError;

/// Pause between two tries to take a port that another rendezvous still holds.
const BIND_PAUSE: Duration = Duration::from_millis(50);

/// The root's side of the meeting place.
pub(super) struct Meeting {
    pub listeners: Vec<TcpListener>,
    /// How messages name it.
    pub shown: String,
    pub key: Key,
    /// The address of the root's own data listener.
    pub own: Own,
    pub published: Option<Published>,
    /// What may be wrong with it, if somebody doesn't come.
    note: Option<String>,
}

impl Meeting {
    /// Listens where the others will look.
    pub(super) async fn open(config: &JoinConfig) -> Result<Meeting, InitError> {
        match &config.rendezvous {
            Rendezvous::Root { address } => at_address(config, address).await,
            Rendezvous::File { path } => at_file(config, path).await,
        }
    }

    /// `report`, with what may be wrong with the place, as a clause of a sentence.
    pub(super) fn with_note(&self, report: String) -> String {
        match (&self.note, report.is_empty()) {
            (None, _) => report,
            (Some(note), true) => note.clone(),
            (Some(note), false) => format!("{report}; {note}"),
        }
    }
}

async fn at_address(config: &JoinConfig, address: &str) -> Result<Meeting, InitError> {
    let places = resolve(config, address).await.map_err(InitError::Config)?;
    for place in &places {
        config.check_exposure(*place, "the root's address")?;
    }
    let listeners = bind_any(config, address, &places).await?;
    let bound: Vec<SocketAddr> = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    let Some(best) = bound.iter().min_by_key(|place| place.ip().is_loopback()) else {
        return Err(InitError::Config(format!("{address}: nothing to listen on")));
    };
    let own = Own::of(*best);
    let note = loopback_note(config, &bound);
    if let Some(note) = &note {
        tracing::warn!("{note}");
    }
    let key = Key::control(config.token.as_ref(), b"");
    Ok(Meeting { listeners, shown: address.into(), key, own, published: None, note })
}

/// A host's own name often stands for a loopback address in its hosts file, which others can't reach.
pub(super) fn loopback_note(config: &JoinConfig, places: &[SocketAddr]) -> Option<String> {
    let address = match &config.rendezvous {
        Rendezvous::Root { address } => address,
        Rendezvous::File { .. } => return file_note(config, places),
    };
    let (host, _) = split_host_port(address).ok()?;
    let meant = host.parse::<IpAddr>().is_ok() || host == "localhost" || host.ends_with(".localhost");
    let first = places.first()?;
    (!meant && places.iter().all(|place| place.ip().is_loopback())).then(|| {
        format!(
            "the name {host} stands for the loopback address {} here, which no other host can reach: \
             give the root's address as a number, or correct the hosts file",
            first.ip()
        )
    })
}

fn file_note(config: &JoinConfig, places: &[SocketAddr]) -> Option<String> {
    let why = if config.token.is_some() { "rank 0's host has no default route" } else { "there is no token" };
    places.first().filter(|place| place.ip().is_loopback() && config.interface.is_none()).map(|place| {
        format!(
            "the file names the loopback address {}, since {why}: for ranks on other hosts give rank 0 an interface \
             (HCOMM_INTERFACE)",
            place.ip()
        )
    })
}

/// Listens on each of the places that is this host's. A port that is taken may be another rendezvous', which gives it
/// free soon; so it is tried until the link deadline.
async fn bind_any(
    config: &JoinConfig,
    address: &str,
    places: &[SocketAddr],
) -> Result<Vec<TcpListener>, InitError> {
    let deadline = Instant::now() + config.deadlines.link.min(config.deadlines.rendezvous);
    loop {
        let (bound, errors): (Vec<_>, Vec<_>) =
            places.iter().map(|place| listen::bind(*place)).partition(Result::is_ok);
        if !bound.is_empty() {
            return Ok(bound.into_iter().flatten().collect());
        }
        let errors: Vec<io::Error> = errors.into_iter().filter_map(Result::err).collect();
        let taken = errors.iter().any(|error| error.kind() == io::ErrorKind::AddrInUse);
        if !taken || Instant::now() + BIND_PAUSE >= deadline {
            return Err(cannot_listen(address, places, &errors, taken));
        }
        sleep(BIND_PAUSE).await;
    }
}

fn cannot_listen(address: &str, places: &[SocketAddr], errors: &[io::Error], taken: bool) -> InitError {
    let each: Vec<String> =
        places.iter().zip(errors).map(|(place, error)| format!("{place}: {error}")).collect();
    let hint = if taken {
        "another program keeps the port: choose another (HCOMM_ROOT_PORT)"
    } else {
        "the address must be one of rank 0's host"
    };
    InitError::Config(format!("rank 0 can't listen on {address} ({}); {hint}", each.join("; ")))
}

async fn at_file(config: &JoinConfig, path: &Path) -> Result<Meeting, InitError> {
    let own = match &config.interface {
        Some(wanted) => interface::named(wanted, None)?,
        None => Own { ip: route_or_loopback(config), scope: 0 },
    };
    let listener = listen::rendezvous(own, config.port_range.as_ref(), config.world)?;
    let address =
        listener.local_addr().map_err(|error| InitError::Io { what: "asking for the port".into(), error })?;
    config.check_exposure(address, "the root's address")?;
    let nonce = token::nonce()?;
    let published = Some(publish(config, Draft::write(path, Notice { address, nonce })?, path).await?);
    let key = Key::control(config.token.as_ref(), &nonce);
    let shown = format!("{address} (file {})", path.display());
    let note = loopback_note(config, &[address]);
    Ok(Meeting { listeners: vec![listener], shown, key, own, published, note })
}

/// A file in use is another rendezvous', which gives it free soon; so it is tried until the link deadline.
async fn publish(config: &JoinConfig, mut draft: Draft, path: &Path) -> Result<Published, InitError> {
    let deadline = Instant::now() + config.deadlines.link.min(config.deadlines.rendezvous);
    loop {
        draft = match draft.publish()? {
            Ok(published) => return Ok(published),
            Err(draft) => draft,
        };
        if Instant::now() + BIND_PAUSE >= deadline {
            let path = path.display();
            return Err(InitError::Config(format!(
                "the file {path} is used by another rendezvous: give each its own"
            )));
        }
        sleep(BIND_PAUSE).await;
    }
}

/// A file is readable by whoever shares the file system, so that the others may be on other hosts, unless that would
/// expose a rendezvous without a token.
fn route_or_loopback(config: &JoinConfig) -> IpAddr {
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    if config.token.is_none() && !config.allow_unauthenticated {
        return loopback;
    }
    interface::default_route().unwrap_or(loopback)
}

/// What a member tries next.
pub(super) struct Target {
    pub places: Vec<SocketAddr>,
    pub key: Key,
}

/// Where the root may be found now: names and files may change while the root starts.
pub(super) async fn find(config: &JoinConfig) -> Result<Target, String> {
    match &config.rendezvous {
        Rendezvous::Root { address } => {
            let places = resolve(config, address).await?;
            Ok(Target { places, key: Key::control(config.token.as_ref(), b"") })
        }
        Rendezvous::File { path } => {
            let notice = publish::read(path)?;
            let key = Key::control(config.token.as_ref(), &notice.nonce);
            Ok(Target { places: vec![notice.address], key })
        }
    }
}

async fn resolve(config: &JoinConfig, address: &str) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = split_host_port(address).map_err(|error| error.to_string())?;
    let limit = config.deadlines.link;
    let hint = config.launcher.how_to_name_the_root();
    let places = match timeout(limit, lookup_host((host, port))).await {
        Ok(places) => places.map_err(|error| format!("looking up {host:?}: {error}: {hint}"))?,
        Err(_) => {
            return Err(format!("looking up {host:?}: no answer within {limit:.1?} (link deadline): {hint}"));
        }
    };
    let mut unique: Vec<SocketAddr> = Vec::new();
    places.for_each(|place| {
        if !unique.contains(&place) {
            unique.push(place)
        }
    });
    if unique.is_empty() { Err(format!("the name {host:?} has no address: {hint}")) } else { Ok(unique) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_stands_for_loopback_is_noticed() {
        let note = |address: &str, places: &[&str]| {
            let places: Vec<SocketAddr> = places.iter().map(|place| place.parse().unwrap()).collect();
            let rendezvous = Rendezvous::Root { address: address.into() };
            loopback_note(&JoinConfig { rendezvous, ..JoinConfig::default() }, &places)
        };
        assert!(note("node0:1", &["127.0.1.1:1"]).unwrap().contains("127.0.1.1"));
        assert_eq!(note("node0:1", &["127.0.1.1:1", "10.0.0.1:1"]), None);
        assert_eq!(note("localhost:1", &["[::1]:1", "127.0.0.1:1"]), None);
        assert_eq!(note("127.0.0.1:1", &["127.0.0.1:1"]), None);
    }
}
