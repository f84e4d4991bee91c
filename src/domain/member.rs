//! One rank's way through set-up: reach the root, introduce itself, connect to the others, be told that all have.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::beside::{self, Door, Link, Terms};
use super::config::{Deadlines, JoinConfig};
use super::handshake::describe;
use super::identity::this_process;
use super::interface::{self, Own};
use super::mesh::{Mesh, MeshConfig};
use super::message::{self, Join, TO_ROOT_BYTES_MAX, Table, ToMember, ToRoot, to_member_bytes_max};
use super::reach::{Reached, Search, Setback};
use super::root::{Control, SLACK};
use super::token::Key;
use super::wait::{First, Patience, first};
use super::{Member, Membership, Phase, limits, listen};
use crate::error::InitError;

/// How long a rank that failed lets the root take its report.
const REPORT: Duration = Duration::from_millis(500);
/// Each pair is tried in one direction, and those that fail in the other.
const ROUNDS: u32 = 2;
const OUT_OF_TURN: &str = "it spoke out of turn";

/// How a rank gets to the root.
pub(super) enum Way {
    /// The root is in this process.
    Own { stream: DuplexStream, own: Own, key: Key },
    /// It must be found.
    Outside,
}

/// A connection to the root that both sides trust.
struct Line {
    stream: Box<dyn Control>,
    /// How messages name the root.
    root: String,
    own: Own,
    key: Key,
}

/// A rank that the root has accepted.
struct Seated {
    config: Arc<JoinConfig>,
    own: Own,
    key: Key,
    listener: TcpListener,
    door: Door,
    line: RootLine,
    /// The root has told its verdict by then.
    decides: Instant,
}

/// The connection to the root, once it may fall silent for long.
struct RootLine {
    root: String,
    phase: Phase,
    words: mpsc::Receiver<Result<ToMember, String>>,
    writer: WriteHalf<Box<dyn Control>>,
    _reader: JoinSet<()>,
}

/// From nothing to a membership.
pub(super) async fn take_part(config: Arc<JoinConfig>, way: Way) -> Result<Membership, InitError> {
    let mut clock = Clock::start();
    let mut seated = match way {
        Way::Own { stream, own, key } => {
            let line = Line { stream: Box::new(stream), root: "the root in this process".into(), own, key };
            introduce(&config, line).await.map_err(own_error)?
        }
        Way::Outside => find_and_introduce(&config).await?,
    };
    let table = seated.await_table().await?;
    clock.end(Phase::Handshake);
    let members = Arc::new(table.members.clone());
    clock.end(Phase::Topology);
    seated.check_facts(&table)?;
    clock.end(Phase::Paths);
    let session = seated.key.derive("hcomm session", &table.nonce);
    let (links, sharing) = seated.connect(&mut clock, members, session.clone()).await?;
    let Table { members, .. } = table;
    let phases = clock.phases;
    Ok(Membership { rank: config.rank, session: session.bytes(), members, links, sharing, phases })
}

/// The times of phases.
struct Clock {
    since: Instant,
    phases: Vec<(Phase, Duration)>,
}

impl Clock {
    fn start() -> Clock {
        Clock { since: Instant::now(), phases: Vec::new() }
    }

    fn end(&mut self, phase: Phase) {
        self.end_at(phase, Instant::now());
    }

    fn end_at(&mut self, phase: Phase, end: Instant) {
        let took = end - self.since;
        tracing::debug!(?phase, ?took, "phase of set-up done");
        self.phases.push((phase, took));
        self.since = end;
    }
}

async fn find_and_introduce(config: &Arc<JoinConfig>) -> Result<Seated, InitError> {
    let mut search = Search::new(config);
    loop {
        let setback = match search.round().await {
            Ok(Reached { stream, root, own, key }) => {
                let root = format!("the root (rank 0) at {root}");
                match introduce(config, Line { stream: Box::new(stream), root, own, key }).await {
                    Ok(seated) => return Ok(seated),
                    Err(setback) => setback,
                }
            }
            Err(setback) => setback,
        };
        search.after(setback).await?;
    }
}

/// The root in this process is there at once or not at all.
fn own_error(setback: Setback) -> InitError {
    match setback {
        Setback::Fatal(error) => error,
        Setback::Later(reason) | Setback::Refused { reason, .. } => InitError::Lost {
            who: "the root in this process".into(),
            phase: phase_name(Phase::Handshake),
            reason,
        },
    }
}

/// Prepares what the others will need, and tells the root.
async fn introduce(config: &Arc<JoinConfig>, mut line: Line) -> Result<Seated, Setback> {
    let (listener, door, join) = match prepare(config, &mut line.own) {
        Ok(ready) => ready,
        Err(error) => return Err(Setback::Fatal(report_failure(config, &mut line, error).await)),
    };
    let later = |error: std::io::Error| Setback::Later(format!("{}: {}", line.root, describe(&error)));
    let bytes = message::encode(&ToRoot::Join(join), TO_ROOT_BYTES_MAX)
        .map_err(|error| Setback::Fatal(InitError::Config(error.to_string())))?;
    line.stream.write_all(&bytes).await.map_err(later)?;
    let bytes_max = to_member_bytes_max(config.world);
    let answer = timeout(config.deadlines.link, message::receive(&mut line.stream, bytes_max)).await;
    let decides_in = match answer {
        Ok(Ok(ToMember::Accepted { decides_in })) => decides_in,
        Ok(Ok(ToMember::Failed(error))) => return Err(Setback::Fatal(error)),
        Ok(Ok(ToMember::Busy { name })) => {
            let ours = &config.name;
            return Err(Setback::Later(format!("{}: it gathers \"{name}\", not \"{ours}\"", line.root)));
        }
        Ok(Ok(_)) => return Err(Setback::Later(format!("{}: it answered out of turn", line.root))),
        Ok(Err(error)) => return Err(later(error)),
        Err(_) => return Err(Setback::Later(format!("{}: no answer to the introduction", line.root))),
    };
    Ok(Seated::new(config, line, (listener, door), decides_in))
}

/// The data listener is open before anybody learns of it.
fn prepare(config: &JoinConfig, own: &mut Own) -> Result<(TcpListener, Door, Join), InitError> {
    limits::check(config)?;
    if let Some(wanted) = &config.interface {
        *own = interface::named(wanted, Some(own.ip))?;
    }
    let listener = listen::data(*own, config.port_range.as_ref(), config.rank)?;
    let address = listener
        .local_addr()
        .map_err(|error| InitError::Io { what: "asking for the port of data connections".into(), error })?;
    config.check_exposure(address, "the address for data connections")?;
    let door = Door::open(config.shared_memory);
    let member = this_process(address, door.sharing.clone());
    let JoinConfig { rank, world, name, device, facts, .. } = config.clone();
    Ok((listener, door, Join { rank, world, name, device, member, facts }))
}

/// Tells the root why this rank can't take part, so that the others don't wait for it. Gives the error back.
async fn report_failure(config: &JoinConfig, line: &mut Line, error: InitError) -> InitError {
    let who = format!("rank {} (pid {}, {})", config.rank, std::process::id(), line.own.ip);
    let told = match &error {
        InitError::Limit { what, needed, available, hint } => InitError::Limit {
            what: format!("{what} for {who}"),
            needed: *needed,
            available: *available,
            hint: hint.clone(),
        },
        other => InitError::Lost { who, phase: phase_name(Phase::Handshake), reason: other.to_string() },
    };
    if let Ok(bytes) = message::encode(&ToRoot::Failed(told), TO_ROOT_BYTES_MAX) {
        let report = async {
            line.stream.write_all(&bytes).await?;
            message::receive::<ToMember, _>(&mut line.stream, to_member_bytes_max(config.world)).await
        };
        let _ = timeout(REPORT, report).await;
    }
    error
}

impl Seated {
    fn new(
        config: &Arc<JoinConfig>,
        line: Line,
        (listener, door): (TcpListener, Door),
        decides_in: Duration,
    ) -> Seated {
        let Line { stream, root, own, key } = line;
        let (reader, writer) = tokio::io::split(stream);
        let (sender, words) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(listen_to_root(reader, to_member_bytes_max(config.world), sender));
        let decides = Instant::now() + decides_in.min(Deadlines::MAX) + SLACK;
        let line = RootLine { root, phase: Phase::Handshake, words, writer, _reader: tasks };
        Seated { config: config.clone(), own, key, listener, door, line, decides }
    }

    async fn await_table(&mut self) -> Result<Table, InitError> {
        let mut patience = Patience::new();
        loop {
            match self.line.next(self.decides.min(patience.next())).await? {
                Some(ToMember::Table(table)) => return self.check_table(table),
                Some(_) => return Err(self.line.lost(OUT_OF_TURN.into())),
                None if Instant::now() >= self.decides => return Err(self.line.silent("rendezvous")),
                None => {}
            }
            if patience.ends() {
                let waited_s = patience.waited().as_secs();
                tracing::warn!(
                    waited_s,
                    root = self.line.root,
                    "rank {} waits for others to come",
                    self.config.rank
                );
            }
        }
    }

    /// The root is trusted to be the root, and not to be free of faults.
    fn check_table(&self, table: Table) -> Result<Table, InitError> {
        if table.members.len() != self.config.world as usize {
            let count = table.members.len();
            return Err(self
                .line
                .lost(format!("its table has {count} ranks instead of {}", self.config.world)));
        }
        Ok(table)
    }

    fn check_facts(&self, table: &Table) -> Result<(), InitError> {
        let mut ours = self.config.facts.clone();
        ours.sort();
        if ours == table.facts {
            return Ok(());
        }
        Err(self.line.lost("the facts it calls agreed are not this rank's".into()))
    }

    /// Makes the connections, and waits until all ranks have; what fails on another rank ends it at once.
    async fn connect(
        self,
        clock: &mut Clock,
        members: Arc<Vec<Member>>,
        session: Key,
    ) -> Result<(Vec<Option<Link>>, Vec<u64>), InitError> {
        let Seated { config, own, listener, door, mut line, .. } = self;
        line.phase = Phase::Resources;
        let link = config.deadlines.link;
        let visitors = limits::visitors(&config);
        let (rank, patience) = (config.rank, link / 2);
        let terms = Terms {
            rank,
            members: members.clone(),
            session: session.clone(),
            wanted: config.shared_memory,
            memory: config.lanes_memory,
            patience,
        };
        let mesh = MeshConfig { rank, members, session, own, patience, visitors };
        let mut mesh = Mesh::open(mesh, listener);
        let mut round = mesh.all();
        for _ in 0..ROUNDS {
            let blocked = match first(mesh.connect(&round), line.words.recv()).await {
                First::Left(blocked) => blocked,
                First::Right(word) => return Err(line.interrupted(word)),
            };
            line.say(&ToRoot::Connected(blocked)).await?;
            let connected = Instant::now();
            // Others may have begun later by as much as the root took to tell them.
            match line.next(Instant::now() + link + 2 * SLACK).await? {
                Some(ToMember::Reverse(failed)) => round = mesh.reversed(&failed),
                Some(ToMember::Share) => {
                    let streams = mesh.finish().map_err(|reason| line.lost(reason))?;
                    let links = line.share(beside::share(terms, door, streams), link).await?;
                    clock.end_at(Phase::Resources, connected);
                    clock.end(Phase::Ready);
                    return Ok(links);
                }
                Some(_) => return Err(line.lost(OUT_OF_TURN.into())),
                None => return Err(line.silent("link")),
            }
        }
        Err(line.lost(OUT_OF_TURN.into()))
    }
}

impl RootLine {
    /// The next word of the root before `until`. A failure that it tells, and its own, are errors.
    async fn next(&mut self, until: Instant) -> Result<Option<ToMember>, InitError> {
        match timeout_at(until, self.words.recv()).await {
            Err(_) => Ok(None),
            Ok(Some(Ok(ToMember::Failed(error)))) => Err(error),
            Ok(Some(Ok(word))) => Ok(Some(word)),
            Ok(word) => Err(self.interrupted(word)),
        }
    }

    /// Sees with whom memory is shared, tells the root how that went, and waits until all may begin.
    async fn share(
        &mut self,
        sharing: impl Future<Output = Result<Vec<Option<Link>>, InitError>>,
        link: Duration,
    ) -> Result<(Vec<Option<Link>>, Vec<u64>), InitError> {
        let links = match first(sharing, self.words.recv()).await {
            First::Left(links) => links,
            First::Right(word) => return Err(self.interrupted(word)),
        };
        let links = match links {
            Ok(links) => links,
            Err(error) => {
                self.say(&ToRoot::Failed(error)).await?;
                // The root tells all the same, which may be what another rank has found first.
                return Err(match self.next(Instant::now() + SLACK).await {
                    Err(error) => error,
                    Ok(_) => self.lost(OUT_OF_TURN.into()),
                });
            }
        };
        self.say(&ToRoot::Shared { with: beside::shared(&links) }).await?;
        match self.next(Instant::now() + link + 2 * SLACK).await? {
            Some(ToMember::Ready { sharing }) => Ok((links, sharing)),
            Some(_) => Err(self.lost(OUT_OF_TURN.into())),
            None => Err(self.silent("link")),
        }
    }

    fn interrupted(&self, word: Option<Result<ToMember, String>>) -> InitError {
        match word {
            Some(Ok(ToMember::Failed(error))) => error,
            Some(Ok(_)) => self.lost(OUT_OF_TURN.into()),
            Some(Err(reason)) => self.lost(reason),
            None => self.lost("the connection ended".into()),
        }
    }

    /// If the root is gone it may have said why before.
    async fn say(&mut self, message: &ToRoot) -> Result<(), InitError> {
        let bytes = message::encode(message, TO_ROOT_BYTES_MAX);
        let bytes = bytes.map_err(|error| InitError::Config(error.to_string()))?;
        match self.writer.write_all(&bytes).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let word = timeout(REPORT, self.words.recv()).await;
                Err(self.interrupted(word.unwrap_or_else(|_| Some(Err(describe(&error))))))
            }
        }
    }

    fn lost(&self, reason: String) -> InitError {
        InitError::Lost { who: self.root.clone(), phase: phase_name(self.phase), reason }
    }

    fn silent(&self, deadline: &str) -> InitError {
        self.lost(format!("it said nothing until {SLACK:.1?} after the {deadline} deadline: is it stopped?"))
    }
}

async fn listen_to_root(
    mut reader: ReadHalf<Box<dyn Control>>,
    bytes_max: usize,
    words: mpsc::Sender<Result<ToMember, String>>,
) {
    loop {
        let word = message::receive(&mut reader, bytes_max).await.map_err(|error| describe(&error));
        let ended = word.is_err();
        if words.send(word).await.is_err() || ended {
            return;
        }
    }
}

fn phase_name(phase: Phase) -> String {
    phase.to_string()
}
