//! The root: gathers the members, checks them, and tells all the same.
//!
//! It holds one control connection per member from the introduction until all are connected, so that whatever fails
//! on one rank is told to every other. Each connection has a task that reads and one that writes; the root itself
//! never waits for a single member.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::JoinConfig;
use super::frame::{Kind, VERSION, Verdict};
use super::gate::{Gate, Room};
use super::handshake::{self, Refusal, describe};
use super::limits;
use super::meeting::Meeting;
use super::message::{
    self, BLOCKED_MAX, Blocked, Join, TO_ROOT_BYTES_MAX, ToMember, ToRoot, to_member_bytes_max,
};
use super::roster::Roster;
use super::token::{Key, nonce};
use super::wait::Patience;
use crate::error::InitError;
use crate::rank::Rank;

/// After something went wrong, how long the root waits for those on their way, so that they are told as well.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the root lets members take its last message before it closes.
const LINGER: Duration = Duration::from_secs(1);
/// How much later than the others' deadline one's own is: they report first.
pub(super) const SLACK: Duration = Duration::from_secs(2);
/// How much later than the first report of a failed connection the others' may come: all have the same deadline.
const REPORTS_APART: Duration = Duration::from_secs(1);
/// Events that tasks may have waiting; they stop reading when it is full.
const EVENTS_MAX: usize = 256;
/// Messages the root sends to one member in all.
const MESSAGES_MAX: usize = 4;

/// A control connection, whatever it runs over.
pub(super) trait Control: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Control for T {}

/// What happens to the root.
enum Event {
    Arrived {
        stream: Box<dyn Control>,
        peer: String,
        through: Option<IpAddr>,
        first: ToRoot,
    },
    /// One that has the token and speaks another version.
    OtherVersion {
        theirs: u16,
        from: u32,
        peer: SocketAddr,
    },
    Said {
        seat: usize,
        message: ToRoot,
    },
    Gone {
        seat: usize,
        reason: String,
    },
}

/// A control connection that has introduced itself.
struct Seat {
    rank: Option<Rank>,
    who: String,
    outbox: mpsc::Sender<Arc<Vec<u8>>>,
}

pub(super) struct Root {
    config: Arc<JoinConfig>,
    meeting: Meeting,
    session_nonce: [u8; 32],
    /// By rank: with whom it shares memory, once it has said so.
    sharing: Vec<u64>,
    roster: Roster,
    seats: Vec<Seat>,
    tasks: JoinSet<()>,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
    deadline: Instant,
    patience: Patience,
}

/// Serves one rendezvous to its end. `own` is the other half of rank 0's control connection, which needs no network.
pub(super) async fn serve(
    config: Arc<JoinConfig>,
    mut meeting: Meeting,
    session_nonce: [u8; 32],
    own: DuplexStream,
) {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let gate = open_gate(&config, &mut meeting, &sender);
    let mut root = Root {
        roster: Roster::new(config.world),
        seats: Vec::new(),
        tasks: JoinSet::new(),
        deadline: Instant::now() + config.deadlines.rendezvous,
        patience: Patience::new(),
        config,
        meeting,
        session_nonce,
        sharing: Vec::new(),
        events,
        sender,
    };
    root.tasks.spawn(receive_own(own, root.sender.clone()));
    if let Err(error) = root.conduct(gate).await {
        tracing::debug!(%error, "the rendezvous failed");
        root.tell_failure(error);
    }
    root.farewell().await;
}

fn open_gate(config: &JoinConfig, meeting: &mut Meeting, sender: &mpsc::Sender<Event>) -> Gate {
    let (key, secret, sender) = (meeting.key.clone(), config.token.is_some(), sender.clone());
    let listeners = std::mem::take(&mut meeting.listeners);
    let room = Room { expected: config.world as usize - 1, visitors: limits::visitors(config) };
    Gate::open(listeners, config.deadlines.link, room, move |stream, peer| {
        receive_member(stream, peer, key.clone(), secret, sender.clone())
    })
}

async fn receive_member(
    mut stream: TcpStream,
    peer: SocketAddr,
    key: Key,
    secret: bool,
    events: mpsc::Sender<Event>,
) -> Result<(), Refusal> {
    stream.set_nodelay(true)?;
    let fresh = nonce().map_err(|error| Refusal::Stranger(error.to_string()))?;
    let ours = handshake::hello(Kind::Control, secret, 0, 0, fresh);
    let judge = |hello: &super::frame::Hello| match hello.kind {
        Kind::Control if hello.to == 0 => Verdict::Welcome,
        _ => Verdict::WrongRank,
    };
    let event = match handshake::accept(&mut stream, ours, &key, judge).await {
        Ok(_) => {
            let first = message::receive(&mut stream, TO_ROOT_BYTES_MAX).await?;
            let through = Some(stream.local_addr()?.ip());
            Event::Arrived { stream: Box::new(stream), peer: peer.to_string(), through, first }
        }
        Err(Refusal::Version { theirs, from }) => Event::OtherVersion { theirs, from, peer },
        Err(refusal) => return Err(refusal),
    };
    // If nobody takes it the root has made up its mind; the member sees the connection close and tries again.
    let _ = events.send(event).await;
    Ok(())
}

async fn receive_own(mut own: DuplexStream, events: mpsc::Sender<Event>) {
    if let Ok(first) = message::receive(&mut own, TO_ROOT_BYTES_MAX).await {
        let event =
            Event::Arrived { stream: Box::new(own), peer: "this process".into(), through: None, first };
        let _ = events.send(event).await;
    }
}

impl Root {
    async fn conduct(&mut self, gate: Gate) -> Result<(), InitError> {
        self.gather().await;
        let (waited, refused) = (self.patience.waited(), self.meeting.with_note(gate.report()));
        let table = self.roster.decide(self.session_nonce, &self.meeting.shown, waited, refused)?;
        // Nobody else is expected: who comes now belongs to another group and finds the port free or its own root.
        drop(gate);
        self.meeting.published = None;
        self.tell(&ToMember::Table(table));
        self.connect().await?;
        self.tell(&ToMember::Share);
        self.sharing = vec![0; self.config.world as usize];
        self.await_reports().await?;
        let sharing = std::mem::take(&mut self.sharing);
        self.tell(&ToMember::Ready { sharing });
        Ok(())
    }

    /// Until all have come, or something is wrong, or the time is up.
    async fn gather(&mut self) {
        let mut end = self.deadline;
        while !self.roster.is_decided() && Instant::now() < end {
            if let Some(event) = self.next_event(end.min(self.patience.next())).await {
                self.take(event);
            }
            if self.roster.is_faulty() && end == self.deadline {
                end = end.min(Instant::now() + SETTLE);
            }
            if self.patience.ends() {
                self.warn();
            }
        }
    }

    fn warn(&self) {
        let missing = list(&self.roster.missing());
        let (waited_s, note) = (self.patience.waited().as_secs(), self.meeting.with_note(String::new()));
        tracing::warn!(
            root = self.meeting.shown,
            waited_s,
            note,
            "rendezvous still waits for rank(s) {missing}"
        );
    }

    async fn next_event(&mut self, until: Instant) -> Option<Event> {
        timeout_at(until, self.events.recv()).await.ok().flatten()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Arrived { stream, first: ToRoot::Join(join), .. } if join.name != self.config.name => {
                self.send_away(stream);
            }
            Event::Arrived { peer, .. } if self.seats.len() >= self.seats_max() => {
                tracing::debug!(peer, "one too many has come");
            }
            Event::Arrived { stream, peer, through, first } => self.arrive(stream, peer, through, first),
            Event::OtherVersion { theirs, from, peer } => {
                let peer = format!("rank {from} at {peer}");
                self.roster.fault(InitError::Version { ours: VERSION, theirs, peer });
            }
            Event::Said { message: ToRoot::Failed(error), .. } => self.roster.fault(error),
            Event::Said { seat, .. } => {
                let who = self.seats[seat].who.clone();
                self.roster
                    .fault(InitError::Config(format!("{who} spoke out of turn, against the protocol")));
            }
            Event::Gone { seat, reason } => {
                let error = self.lost(seat, "handshake", reason);
                self.roster.fault(error);
            }
        }
    }

    /// More than this many have no business here, whatever they proved.
    fn seats_max(&self) -> usize {
        2 * self.config.world as usize + 16
    }

    fn arrive(&mut self, stream: Box<dyn Control>, peer: String, through: Option<IpAddr>, first: ToRoot) {
        match first {
            ToRoot::Join(join) => {
                let who = format!("rank {} at {}", join.rank, join.member);
                let seat = self.seat(stream, Some(join.rank), who);
                let decides_in = self.deadline.saturating_duration_since(Instant::now());
                self.send(seat, self.encode(&ToMember::Accepted { decides_in }));
                self.enter(join, through);
            }
            ToRoot::Failed(error) => {
                self.seat(stream, None, peer);
                self.roster.fault(error);
            }
            ToRoot::Connected(_) | ToRoot::Shared { .. } => {
                tracing::debug!(peer, "reported connections before it joined");
            }
        }
    }

    fn enter(&mut self, join: Join, through: Option<IpAddr>) {
        tracing::debug!(rank = %join.rank, member = %join.member, "has come");
        if let Some(ip) = through {
            self.roster.reached_through(ip);
        }
        self.roster.admit(join);
    }

    /// For a group of another name that meets at the same address.
    fn send_away(&mut self, mut stream: Box<dyn Control>) {
        let bytes = self.encode(&ToMember::Busy { name: self.config.name.clone() });
        self.tasks.spawn(async move {
            let _ = timeout(LINGER, stream.write_all(&bytes)).await;
        });
    }

    /// Until all have reported that their connections stand. Pairs that failed are tried the other way round, once.
    async fn connect(&mut self) -> Result<(), InitError> {
        let forth = self.await_reports().await?;
        let Some(there) = forth.first() else { return Ok(()) };
        tracing::warn!(from = %there.from, to = %there.to, reason = there.reason, "a pair of ranks could not connect");
        // Where so much fails nothing is gained by the other direction, and the reports are not complete.
        if forth.len() >= BLOCKED_MAX {
            return Err(unreachable(&forth, &[]));
        }
        let pairs: BTreeSet<(Rank, Rank)> = forth.iter().map(|pair| (pair.from, pair.to)).collect();
        self.tell(&ToMember::Reverse(pairs.into_iter().collect()));
        let back = self.await_reports().await?;
        if back.is_empty() { Ok(()) } else { Err(unreachable(&forth, &back)) }
    }

    /// The pairs that failed, once every rank has reported.
    async fn await_reports(&mut self) -> Result<Vec<Blocked>, InitError> {
        let link = self.config.deadlines.link + SLACK;
        let mut end = Instant::now() + link;
        let mut waiting: BTreeSet<Rank> = (0..self.config.world).map(Rank).collect();
        let mut blocked: Vec<Blocked> = Vec::new();
        while let Some(late) = waiting.first() {
            let late = *late;
            match self.next_event(end).await {
                Some(Event::Said { seat, message: ToRoot::Connected(list) }) => {
                    if let Some(rank) = self.seats[seat].rank {
                        waiting.remove(&rank);
                    }
                    if !list.is_empty() {
                        end = end.min(Instant::now() + REPORTS_APART);
                    }
                    blocked.extend(list);
                }
                Some(Event::Said { seat, message: ToRoot::Shared { with } }) => {
                    if let Some(rank) = self.seats[seat].rank {
                        waiting.remove(&rank);
                        self.sharing.iter_mut().skip(rank.index()).take(1).for_each(|of| *of = with);
                    }
                }
                Some(Event::Said { message: ToRoot::Failed(error), .. }) => return Err(error),
                Some(Event::Gone { seat, reason }) => return Err(self.lost(seat, "resources", reason)),
                Some(_) => {}
                None if blocked.is_empty() => return Err(self.silent(late, link)),
                None => return Err(unreachable(&blocked, &[])),
            }
        }
        Ok(blocked)
    }

    fn silent(&self, rank: Rank, link: Duration) -> InitError {
        let reason =
            format!("it did not report its connections within {link:.1?} (link deadline): is it stopped?");
        InitError::Lost { who: self.roster.describe(rank), phase: "resources".into(), reason }
    }

    fn lost(&self, seat: usize, phase: &str, reason: String) -> InitError {
        InitError::Lost { who: self.seats[seat].who.clone(), phase: phase.into(), reason }
    }

    fn seat(&mut self, stream: Box<dyn Control>, rank: Option<Rank>, who: String) -> usize {
        let (reader, writer) = tokio::io::split(stream);
        let (outbox, messages) = mpsc::channel(MESSAGES_MAX);
        let seat = self.seats.len();
        self.tasks.spawn(read_seat(reader, seat, self.sender.clone()));
        self.tasks.spawn(write_seat(writer, messages));
        self.seats.push(Seat { rank, who, outbox });
        seat
    }

    fn encode(&self, message: &ToMember) -> Arc<Vec<u8>> {
        let bytes_max = to_member_bytes_max(self.config.world);
        Arc::new(message::encode(message, bytes_max).unwrap_or_else(|error| {
            let short =
                ToMember::Failed(InitError::Config(format!("the root can't say what it must: {error}")));
            message::encode(&short, bytes_max).expect("a short message fits")
        }))
    }

    fn send(&self, seat: usize, bytes: Arc<Vec<u8>>) {
        // A full outbox is one whose member does not read: it will be reported lost.
        let _ = self.seats[seat].outbox.try_send(bytes);
    }

    fn tell(&self, message: &ToMember) {
        let bytes = self.encode(message);
        (0..self.seats.len()).for_each(|seat| self.send(seat, bytes.clone()));
    }

    fn tell_failure(&mut self, error: InitError) {
        // Some may have come while the verdict was made.
        while let Ok(event) = self.events.try_recv() {
            if let Event::Arrived { stream, peer, .. } = event {
                self.seat(stream, None, peer);
            }
        }
        self.tell(&ToMember::Failed(error));
    }

    /// Lets the last message arrive. Closing while a member's words are unread would reset the connection and could
    /// destroy it; so the readers go on until the members have closed.
    async fn farewell(mut self) {
        self.seats.clear();
        self.events.close();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(LINGER, all).await;
    }
}

async fn read_seat(mut reader: ReadHalf<Box<dyn Control>>, seat: usize, events: mpsc::Sender<Event>) {
    loop {
        match message::receive(&mut reader, TO_ROOT_BYTES_MAX).await {
            // When the root no longer listens, what is left is still read, for the sake of the connection's end.
            Ok(message) => drop(events.send(Event::Said { seat, message }).await),
            Err(error) => {
                let _ = events.send(Event::Gone { seat, reason: describe(&error) }).await;
                return;
            }
        }
    }
}

async fn write_seat(mut writer: WriteHalf<Box<dyn Control>>, mut messages: mpsc::Receiver<Arc<Vec<u8>>>) {
    while let Some(bytes) = messages.recv().await {
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = writer.shutdown().await;
}

/// What failed, and how it went the other way round.
fn unreachable(forth: &[Blocked], back: &[Blocked]) -> InitError {
    // The report of the rank that tried says more than that of the rank that waited for it.
    let best = |pairs: &[Blocked], like: &dyn Fn(&Blocked) -> bool| {
        let fitting = pairs.iter().filter(|pair| like(pair));
        fitting
            .min_by_key(|pair| (pair.reason.starts_with(super::mesh::NOT_SEEN), pair.from, pair.to))
            .cloned()
    };
    let failed_both_ways =
        |pair: &Blocked| back.is_empty() || back.iter().any(|other| other.is_reverse_of(pair));
    let Some(first) = best(forth, &failed_both_ways).or_else(|| best(back, &|_| true)) else {
        return InitError::Config("a pair of ranks could not connect, and no rank said which".into());
    };
    let mut reason = first.reason.clone();
    if let Some(other) = best(back, &|other| other.is_reverse_of(&first)) {
        reason =
            format!("{reason}; nor does rank {} reach it at {}: {}", other.from, other.address, other.reason);
    }
    let pairs: BTreeSet<(Rank, Rank)> = forth.iter().map(|pair| (pair.from, pair.to)).collect();
    if pairs.len() > 1 {
        reason = format!("{reason} (and {} other pairs)", pairs.len() - 1);
    }
    let (from, to, address) = (first.from, format!("rank {}", first.to), first.address.to_string());
    InitError::Unreachable { from, to, address, reason }
}

fn list(ranks: &[Rank]) -> String {
    let names: Vec<String> = ranks.iter().map(Rank::to_string).collect();
    names.join(", ")
}
