//! Accepts connections from whoever comes, and lets through who proves the key.
//!
//! Every connection has its own task and deadline, so that a silent one delays nobody. Their number is bounded; where
//! the bound is reached the oldest goes, since a process of the job is through within a few round trips.
//!
//! Each takes a descriptor until it ends. Those that have not proved the key take at most what `limits` leaves to
//! [`Room::visitors`], and the places of those of the job that have yet to come: with each that comes there is one place
//! less, as it goes on taking its descriptor elsewhere. So descriptors for the job and [`Room::visitors`], and one for a
//! connection that is just let in, suffice whoever comes.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::handshake::Refusal;

/// Longest that a connection may take that has not proved the key.
const PROOF_DEADLINE: Duration = Duration::from_secs(5);
/// Pause after the system refuses to accept, mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Shortest time between two warnings about refused connections.
const WARN_INTERVAL: Duration = Duration::from_secs(10);
/// Most reasons that are remembered for a report.
const NOTES_MAX: usize = 4;

/// Listens until it is dropped.
pub(super) struct Gate {
    _tasks: JoinSet<()>,
    refused: Arc<Refused>,
}

/// For how many connections there is room before they have proved the key.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Connections of the job that are to come.
    pub expected: usize,
    /// Others.
    pub visitors: usize,
}

impl Gate {
    /// `handler` proves one connection and hands it on.
    pub(super) fn open<H, F>(listeners: Vec<TcpListener>, deadline: Duration, room: Room, handler: H) -> Gate
    where
        H: Fn(TcpStream, SocketAddr) -> F + Send + 'static,
        F: Future<Output = Result<(), Refusal>> + Send + 'static,
    {
        let refused = Arc::new(Refused::default());
        let mut hall = Hall::new(deadline.min(PROOF_DEADLINE), room, refused.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut turn = 0;
            loop {
                turn += 1;
                match accept(&listeners, turn).await {
                    Ok((stream, peer)) => hall.enter(peer, handler(stream, peer)).await,
                    Err(error) => hall.recover(&error).await,
                }
            }
        });
        Gate { _tasks: tasks, refused }
    }

    /// Who was turned away; empty if nobody was.
    pub(super) fn report(&self) -> String {
        self.refused.report()
    }
}

/// The next connection at any of the listeners, of which another is asked first in each turn.
async fn accept(listeners: &[TcpListener], turn: usize) -> io::Result<(TcpStream, SocketAddr)> {
    poll_fn(|context| {
        for at in 0..listeners.len() {
            if let Poll::Ready(came) = listeners[(turn + at) % listeners.len()].poll_accept(context) {
                return Poll::Ready(came);
            }
        }
        Poll::Pending
    })
    .await
}

/// Connections that have not proved the key.
struct Hall {
    deadline: Duration,
    room: Room,
    /// How many have proved the key.
    proved: Arc<AtomicUsize>,
    pending: JoinSet<()>,
    order: VecDeque<AbortHandle>,
    refused: Arc<Refused>,
}

impl Hall {
    fn new(deadline: Duration, room: Room, refused: Arc<Refused>) -> Hall {
        let proved = Arc::default();
        Hall { deadline, room, proved, pending: JoinSet::new(), order: VecDeque::new(), refused }
    }

    async fn enter(
        &mut self,
        peer: SocketAddr,
        proof: impl Future<Output = Result<(), Refusal>> + Send + 'static,
    ) {
        self.make_place().await;
        let (deadline, refused, proved) = (self.deadline, self.refused.clone(), self.proved.clone());
        self.order.push_back(self.pending.spawn(async move {
            match timeout(deadline, proof).await {
                Ok(Ok(())) => drop(proved.fetch_add(1, Ordering::Relaxed)),
                Ok(Err(refusal)) => refused.note(peer, refusal),
                Err(_) => refused
                    .note(peer, Refusal::Stranger(format!("it said nothing useful for {deadline:.1?}"))),
            }
        }));
    }

    /// Returns when one more may be pending; what had to go has closed its connection by then.
    async fn make_place(&mut self) {
        while self.pending.try_join_next().is_some() {}
        self.order.retain(|task| !task.is_finished());
        while self.pending.len() >= self.places() {
            self.drop_oldest();
            self.pending.join_next().await;
        }
    }

    /// One at least, whatever comes.
    fn places(&self) -> usize {
        let to_come = self.room.expected.saturating_sub(self.proved.load(Ordering::Relaxed));
        (to_come + self.room.visitors).max(1)
    }

    fn drop_oldest(&mut self) {
        if let Some(task) = self.order.pop_front() {
            task.abort();
        }
    }

    async fn recover(&mut self, error: &io::Error) {
        tracing::debug!(%error, "accepting a connection failed");
        self.drop_oldest();
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Counts who was turned away, and warns rarely.
#[derive(Default)]
struct Refused(Mutex<RefusedState>);

#[derive(Default)]
struct RefusedState {
    count: u64,
    warned: Option<Instant>,
    /// Those that spoke the protocol, likely processes of a job: where they are, why, and how often they came.
    notes: Vec<(IpAddr, String, u64)>,
}

impl Refused {
    fn note(&self, peer: SocketAddr, refusal: Refusal) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += 1;
        let text = match refusal {
            Refusal::Stranger(reason) => format!("{peer}: {reason}"),
            Refusal::Key(reason) => {
                let text = format!("{peer} did not prove the token: {reason}");
                let known = state.notes.iter_mut().find(|(at, why, _)| *at == peer.ip() && *why == reason);
                if let Some((_, _, count)) = known {
                    *count += 1;
                } else if state.notes.len() < NOTES_MAX {
                    state.notes.push((peer.ip(), reason, 1));
                }
                text
            }
            Refusal::Version { theirs, .. } => format!("{peer} speaks protocol version {theirs}"),
        };
        if state.warned.is_none_or(|warned| warned.elapsed() >= WARN_INTERVAL) {
            state.warned = Some(Instant::now());
            tracing::warn!(refused = state.count, "turned a connection away: {text}");
        }
    }

    fn report(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = Vec::new();
        if state.count > 0 {
            let noun = if state.count == 1 { "connection was" } else { "connections were" };
            parts.push(format!("{} {noun} turned away", state.count));
        }
        let told = |(at, reason, count): &(IpAddr, String, u64)| {
            let again = if *count == 1 { String::new() } else { format!(" ({count} times)") };
            format!("a process at {at} did not prove the token: {reason}{again}")
        };
        parts.extend(state.notes.iter().map(told));
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Events;
    use std::future::pending;
    use tokio::sync::oneshot;

    const ROOM: Room = Room { expected: 0, visitors: 1024 };

    fn peer() -> SocketAddr {
        "127.0.0.1:5".parse().unwrap()
    }

    /// The oldest silent ones go, and who comes later is heard.
    #[test]
    fn silent_connections_are_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut hall = Hall::new(PROOF_DEADLINE, Room { expected: 1, visitors: 3 }, Arc::default());
            let (oldest, gone) = oneshot::channel::<()>();
            hall.enter(peer(), async move {
                let _oldest = oldest;
                pending().await
            })
            .await;
            for _ in 0..100 {
                hall.enter(peer(), pending()).await;
                assert!(hall.pending.len() <= 4);
            }
            assert!(gone.await.is_err());
            let (sender, heard) = oneshot::channel();
            hall.enter(peer(), async move {
                sender.send(()).unwrap();
                Ok(())
            })
            .await;
            heard.await.unwrap();
            assert_eq!(hall.order.iter().filter(|task| !task.is_finished()).count(), 3);
            // It keeps its descriptor, and nobody else of the job is to come.
            assert_eq!(hall.places(), 3);
            hall.enter(peer(), pending()).await;
            assert_eq!(hall.pending.len(), 3);
        });
    }

    /// Whoever scans the port does not fill the log; how many have come is told all the same.
    #[test]
    fn strangers_are_warned_of_every_ten_seconds_at_most() {
        let events = Events::default();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let turned_away = |reason: &'static str| async move { Err(Refusal::Stranger(reason.into())) };
        events.while_doing(|| {
            runtime.block_on(async {
                let mut hall = Hall::new(PROOF_DEADLINE, ROOM, Arc::default());
                for _ in 0..25 {
                    for _ in 0..40 {
                        hall.enter(peer(), turned_away("it speaks HTTP")).await;
                    }
                    sleep(Duration::from_secs(1)).await;
                }
            });
        });
        let told = events.with("turned a connection away: 127.0.0.1:5: it speaks HTTP");
        let counts: Vec<&str> = told.iter().map(|warning| warning.field("refused")).collect();
        assert_eq!(counts, ["1", "401", "801"], "{told:?}");
        for two in told.windows(2) {
            assert_eq!(two[1].at - two[0].at, WARN_INTERVAL);
        }
    }

    #[test]
    fn a_silent_connection_ends_at_its_deadline_and_is_counted() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let refused = Arc::new(Refused::default());
            let mut hall = Hall::new(PROOF_DEADLINE, ROOM, refused.clone());
            hall.enter(peer(), pending()).await;
            for _ in 0..2 {
                hall.enter(peer(), async { Err(Refusal::Key("it has another token".into())) }).await;
            }
            sleep(PROOF_DEADLINE * 2).await;
            let report = refused.report();
            assert_eq!(
                report,
                "3 connections were turned away; a process at 127.0.0.1 did not prove the token: it has another token (2 times)"
            );
        });
    }
}
