//! Finding the root: it may start later, elsewhere, or be another group's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::config::{JoinConfig, Rendezvous};
use super::frame::{Kind, VERSION};
use super::handshake::{self, Refusal, describe};
use super::interface::Own;
use super::meeting::{self, Target};
use super::token::{Key, nonce};
use super::wait::Patience;
use crate::error::InitError;

/// Pauses between two rounds of tries: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// Attempts are never rarer than this.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a refused token is tried again: another job may hold the port for the moment that it gathers.
const REFUSED_RETRY: Duration = Duration::from_secs(2);
/// Most different reasons that an error lists.
const REASONS_MAX: usize = 6;

/// A proven connection to the root.
pub(super) struct Reached {
    pub stream: TcpStream,
    pub root: SocketAddr,
    /// The own address that routes to the root.
    pub own: Own,
    pub key: Key,
}

/// Why one try failed, and whether another may help.
pub(super) enum Setback {
    /// The root isn't there yet, or busy.
    Later(String),
    /// The token was refused.
    Refused { peer: SocketAddr, reason: String },
    /// Trying again won't help.
    Fatal(InitError),
}

/// The search, with what has been seen: one per rank and rendezvous, so that the deadline covers all of it.
pub(super) struct Search<'a> {
    config: &'a JoinConfig,
    started: Instant,
    deadline: Instant,
    pause: Duration,
    tries: u32,
    reasons: BTreeMap<String, u32>,
    last: String,
    refused_since: Option<Instant>,
    patience: Patience,
    warned_exposure: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(config: &'a JoinConfig) -> Search<'a> {
        let started = Instant::now();
        Search {
            config,
            started,
            deadline: started + config.deadlines.rendezvous,
            pause: PAUSE_FIRST,
            tries: 0,
            reasons: BTreeMap::new(),
            last: "nothing was tried".into(),
            refused_since: None,
            patience: Patience::new(),
            warned_exposure: false,
        }
    }

    /// One round over all places where the root may be.
    pub(super) async fn round(&mut self) -> Result<Reached, Setback> {
        let target = meeting::find(self.config).await.map_err(Setback::Later)?;
        let mut setback = Setback::Later("no address".into());
        for place in &target.places {
            self.check_exposure(*place)?;
            self.tries += 1;
            let limit =
                self.config.deadlines.link.min(self.deadline.saturating_duration_since(Instant::now()));
            setback = match timeout(limit, self.reach(*place, &target)).await {
                Ok(Ok(reached)) => return Ok(reached),
                Ok(Err(fatal @ Setback::Fatal(_))) => return Err(fatal),
                Ok(Err(setback)) => setback,
                Err(_) => Setback::Later(format!("{place}: no answer within {limit:.1?} (link deadline)")),
            };
        }
        Err(setback)
    }

    fn check_exposure(&mut self, place: SocketAddr) -> Result<(), Setback> {
        // What is allowed is warned of once, and not for every try.
        if self.config.allow_unauthenticated && self.warned_exposure {
            return Ok(());
        }
        self.config.check_exposure(place, "the root's address").map_err(Setback::Fatal)?;
        self.warned_exposure |= !place.ip().to_canonical().is_loopback();
        Ok(())
    }

    async fn reach(&self, place: SocketAddr, target: &Target) -> Result<Reached, Setback> {
        let later = |error: std::io::Error| Setback::Later(format!("{place}: {}", describe(&error)));
        let mut stream = TcpStream::connect(place).await.map_err(later)?;
        stream.set_nodelay(true).map_err(later)?;
        let own = Own::of(stream.local_addr().map_err(later)?);
        let fresh = nonce().map_err(Setback::Fatal)?;
        let ours = handshake::hello(Kind::Control, self.config.token.is_some(), self.config.rank.0, 0, fresh);
        match handshake::connect(&mut stream, ours, &target.key).await {
            Ok(_) => Ok(Reached { stream, root: place, own, key: target.key.clone() }),
            Err(Refusal::Stranger(reason)) => Err(Setback::Later(format!("{place}: {reason}"))),
            Err(Refusal::Key(reason)) => Err(Setback::Refused { peer: place, reason }),
            Err(Refusal::Version { theirs, .. }) => Err(Setback::Fatal(InitError::Version {
                ours: VERSION,
                theirs,
                peer: format!("the root (rank 0) at {place}"),
            })),
        }
    }

    /// Waits before the next round, or gives up.
    pub(super) async fn after(&mut self, setback: Setback) -> Result<(), InitError> {
        match setback {
            Setback::Fatal(error) => return Err(error),
            Setback::Refused { peer, reason } => {
                let since = *self.refused_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= REFUSED_RETRY.min(self.config.deadlines.link)
                    || Instant::now() + self.pause >= self.deadline
                {
                    return Err(InitError::Authentication { peer: format!("the root at {peer}"), reason });
                }
                self.note(format!("{peer}: {reason}"));
            }
            Setback::Later(reason) => {
                self.refused_since = None;
                self.note(reason);
            }
        }
        if Instant::now() + self.pause >= self.deadline {
            return Err(self.give_up().await);
        }
        if self.patience.ends() {
            let (waited_s, last) = (self.patience.waited().as_secs(), &self.last);
            tracing::warn!(
                waited_s,
                tries = self.tries,
                last,
                "rank {} can't reach the root yet",
                self.config.rank
            );
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    fn note(&mut self, reason: String) {
        if self.reasons.len() < REASONS_MAX || self.reasons.contains_key(&reason) {
            *self.reasons.entry(reason.clone()).or_default() += 1;
        }
        self.last = reason;
    }

    async fn give_up(&self) -> InitError {
        let waited = self.started.elapsed();
        let each: Vec<String> =
            self.reasons.iter().map(|(reason, count)| format!("{count} × {reason}")).collect();
        let mut reason =
            format!("tried {} times in {waited:.1?} (rendezvous deadline): {}", self.tries, each.join("; "));
        let address = match &self.config.rendezvous {
            Rendezvous::Root { address } => address.clone(),
            Rendezvous::File { path } => path.display().to_string(),
        };
        let places = meeting::find(self.config).await.map(|target| target.places).unwrap_or_default();
        if let Some(note) = meeting::loopback_note(self.config, &places) {
            reason = format!("{reason}; {note}");
        }
        reason.push_str("; is rank 0 started there, and is no firewall in between?");
        InitError::Unreachable { from: self.config.rank, to: "the root (rank 0)".into(), address, reason }
    }
}
