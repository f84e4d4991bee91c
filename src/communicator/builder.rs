//! How processes become a communicator.

use std::fs::OpenOptions;
use std::future::Future;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use super::Communicator;
use super::local::WORLD;
use super::resources::memory;
use crate::domain::{
    JoinConfig, JoinFuture, Link, Membership, Processors, Rendezvous, SharedMemory, Token, VERSION_FACT,
    from_env, is_launched, join, join_blocking,
};
use crate::engine::room::Memory;
use crate::engine::{Engine, PeerLink};
use crate::error::InitError;
use crate::link::tcp::{self, Quality};
use crate::path::{Facts, Order, PlanCache, RANKS_MAX};
use crate::rank::Rank;
use crate::runtime::spin::SpinPolicy;

/// A code point has six bits.
const DSCP_MAX: u8 = 63;

/// Settings of a communicator between processes.
///
/// Made by [`Communicator::builder`], it takes two things from the environment: the limit of memory from `HCOMM_MEMORY`, unless
/// [`memory`](Self::memory) is called, and the file for reports from `HCOMM_REPORT`. All else is set by calls, also what has a variable:
/// made by [`from_env`](Self::from_env), it has read them all. Where two calls set the same, as [`root`](Self::root) and
/// [`file`](Self::file) do, the last one holds.
///
/// ```no_run
/// # async fn connect() -> Result<(), hcomm::InitError> {
/// let comm = hcomm::Communicator::builder()
///     .rank(0)
///     .world(4)
///     .root("10.0.0.1:29500")
///     .token(hcomm::Token::from_hex(&std::env::var("JOB_TOKEN").expect("the job's secret"))?)
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "settings do nothing before connect()"]
pub struct Builder {
    config: JoinConfig,
    /// What has no default: a rank that leaves one out would be alone.
    rank: Option<Rank>,
    world: Option<u32>,
    rendezvous: Option<Rendezvous>,
    order: Order,
    operation_deadline: Option<Duration>,
    memory: Option<usize>,
    quality: Quality,
}

impl Communicator {
    /// Joins the world that the environment describes, as `hcomm run`, torchrun, `mpirun` of Open MPI, `mpiexec` of MPICH, Slurm's
    /// `srun` or an indexed job of Kubernetes set it: [`launchers`](crate::launchers) has how to use each, and which holds where
    /// there are several. Set-up begins at the call. [`Builder::from_env`] is the same with more to be set.
    ///
    /// | Variable | Meaning |
    /// |---|---|
    /// | `RANK`, `WORLD_SIZE` | who this process is, and how many there are; else what its launcher says |
    /// | `LOCAL_RANK` | its number within the host (optional; checked only) |
    /// | `MASTER_ADDR`, `MASTER_PORT` | where rank 0 listens; else what its launcher says |
    /// | `HCOMM_ROOT_PORT` | rank 0's port, instead of `MASTER_PORT` |
    /// | `HCOMM_RENDEZVOUS` | `tcp:HOST:PORT` or `file:PATH`, instead of address and port |
    /// | `HCOMM_TOKEN` | the job's secret, 64 hexadecimal digits |
    /// | `HCOMM_INTERFACE` | exact interface name, or address, that the others are told |
    /// | `HCOMM_PORT_RANGE` | `FIRST-LAST`, ports where ranks listen: see [`Builder::ports`] |
    /// | `HCOMM_MEMORY` | memory beyond callers' buffers; see [`Builder::memory`] |
    /// | `HCOMM_SHARED_MEMORY` | `auto`, `require` or `never`; see [`Builder::shared_memory`] |
    /// | `HCOMM_REPORT` | file for reports of failed operations; see [`report_to`](Self::report_to) |
    ///
    /// Under torchrun, whose own store occupies `MASTER_PORT`, rank 0 listens on the next port unless `HCOMM_ROOT_PORT` is
    /// set.
    ///
    /// # Errors
    ///
    /// [`InitError::Environment`], which shows the variables that are set; and those of [`Builder::connect`]. All ranks are told
    /// what is wrong and who is missing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends set-up; the other ranks are told.
    pub fn from_env() -> Connect {
        match from_env() {
            Ok(config) => Builder::from_config(config).connect(),
            Err(error) => Connect::failed(error),
        }
    }

    /// As [`from_env`](Self::from_env), for a thread that waits.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    pub fn from_env_blocking() -> Result<Communicator, InitError> {
        Builder::from_config(from_env()?).connect_blocking()
    }

    /// Whether a launcher has started this process as one of its ranks, as [`from_env`](Self::from_env) understands it: where it says
    /// so in part only, or contradicts itself, that is `true` as well, and `from_env` has what is wrong. For programs that also
    /// run alone, or start their ranks themselves.
    ///
    /// ```
    /// use hcomm::{Communicator, InitError};
    ///
    /// fn ranks() -> Result<Vec<Communicator>, InitError> {
    ///     match Communicator::is_launched() {
    ///         true => Ok(vec![Communicator::from_env_blocking()?]),
    ///         false => Communicator::try_local(4),
    ///     }
    /// }
    /// # if !Communicator::is_launched() { assert_eq!(ranks().unwrap().len(), 4) }
    /// ```
    pub fn is_launched() -> bool {
        is_launched()
    }

    /// Settings for a world of processes: at least [`rank`](Builder::rank), [`world`](Builder::world) and
    /// [`root`](Builder::root) or [`file`](Builder::file); without one of them, joining fails. A world of one needs no
    /// meeting place.
    pub fn builder() -> Builder {
        Builder {
            config: JoinConfig::default(),
            rank: None,
            world: None,
            rendezvous: None,
            order: Order::Fixed,
            operation_deadline: None,
            memory: None,
            quality: Quality::default(),
        }
    }
}

impl Builder {
    fn from_config(config: JoinConfig) -> Self {
        let mut builder = Communicator::builder();
        builder.rank = Some(config.rank);
        builder.world = Some(config.world);
        builder.rendezvous = Some(config.rendezvous.clone());
        builder.config = config;
        builder
    }

    /// The settings that the environment describes, for more to be set: see [`Communicator::from_env`].
    ///
    /// # Errors
    ///
    /// As [`Communicator::from_env`], for what the variables say.
    ///
    /// ```no_run
    /// # fn connect() -> Result<(), hcomm::InitError> {
    /// use hcomm::Builder;
    /// let comm = Builder::from_env()?.name("training").connect_blocking()?;
    /// # Ok(()) }
    /// ```
    pub fn from_env() -> Result<Builder, InitError> {
        from_env().map(Builder::from_config)
    }

    /// Which rank this process is: from 0 to one less than [`world`](Self::world). Must be set.
    pub fn rank(mut self, rank: impl Into<Rank>) -> Self {
        self.rank = Some(rank.into());
        self
    }

    /// How many processes there are, from 1 to 64; equal on all. Must be set.
    pub fn world(mut self, ranks: u32) -> Self {
        self.world = Some(ranks);
        self
    }

    /// Where rank 0 listens, as `host:port`; equal on all.
    pub fn root(mut self, address: impl Into<String>) -> Self {
        self.rendezvous = Some(Rendezvous::Root { address: address.into() });
        self
    }

    /// A file that all can read and rank 0 can write, through which rank 0 tells its address; equal on all.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.rendezvous = Some(Rendezvous::File { path: path.into() });
        self
    }

    /// The job's secret; equal on all. Without one only loopback addresses are allowed.
    pub fn token(mut self, token: Token) -> Self {
        self.config.token = Some(token);
        self
    }

    /// Allows other than loopback addresses without a token: whoever reaches the port can take part.
    pub fn allow_unauthenticated(mut self) -> Self {
        self.config.allow_unauthenticated = true;
        self
    }

    /// The interface whose address others are told: its exact name, or an address. By default the one that routes to
    /// the root.
    pub fn interface(mut self, interface: impl Into<String>) -> Self {
        self.config.interface = Some(interface.into());
        self
    }

    /// The differentiated services code point (RFC 2474), from 0 to 63, that data connections of this world are marked with, on this
    /// rank's side: what all communicators send that are made from it. 46 is expedited forwarding, 10 the lowest class that
    /// is assured. By default they are not marked.
    ///
    /// The system may refuse it, which ends set-up with [`InitError::Io`]. Shared memory has no use for it.
    pub fn dscp(mut self, dscp: u8) -> Self {
        self.quality.dscp = Some(dscp);
        self
    }

    /// The priority of what data connections of this world send among the packets of this host (`SO_PRIORITY`): from 0 to 6, or more
    /// where the process may administer the network. Queueing disciplines and switches with priority flow control go by it.
    ///
    /// The system may refuse it, which ends set-up with [`InitError::Io`].
    pub fn socket_priority(mut self, priority: u32) -> Self {
        self.quality.priority = Some(priority);
        self
    }

    /// The ports where ranks listen, for firewalls: one for the data connections of each rank of a host, and one more on
    /// rank 0's host where ranks meet at a [`file`](Self::file), or where the port of [`root`](Self::root) is one of them.
    /// By default the system chooses.
    pub fn ports(mut self, range: RangeInclusive<u16>) -> Self {
        self.config.port_range = Some(range);
        self
    }

    /// The device that this rank uses. It is compared only: two ranks of one host that name the same are an error.
    pub fn device(mut self, device: u32) -> Self {
        self.config.device = Some(device);
        self
    }

    /// The communicator's name in errors and reports, of 1 to 255 bytes; equal on all. "world" by default.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// Whether the order of sums may depend on more than world and operation; equal on all. [`Order::Any`] allows faster
    /// plans for large vectors on many ranks, and a sum's bits then depend on its place and the count.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// How long all ranks may take to come: 60 s by default, a day at most.
    pub fn rendezvous_deadline(mut self, limit: Duration) -> Self {
        self.config.deadlines.rendezvous = limit;
        self
    }

    /// How long a connection between two ranks may take: 10 s by default, a day at most.
    pub fn link_deadline(mut self, limit: Duration) -> Self {
        self.config.deadlines.link = limit;
        self
    }

    /// How long an operation may take: 300 s by default.
    pub fn operation_deadline(mut self, limit: Duration) -> Self {
        self.operation_deadline = Some(limit);
        self
    }

    /// Memory that this process may use beyond its callers' buffers, in bytes; equal on all ranks. By default what
    /// `HCOMM_MEMORY` says, or 64 MiB. See [`Communicator::resources`].
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Whether ranks of one host share memory: where they can, by default. See
    /// [`links`](Communicator::links) for what came of it. It needs no more than one user and one network namespace; containers
    /// that have these share memory, too.
    pub fn shared_memory(mut self, wanted: SharedMemory) -> Self {
        self.config.shared_memory = wanted;
        self
    }

    /// Joins. All ranks call it. Set-up begins at the call, on a thread of its own, not when the future is first polled.
    ///
    /// # Errors
    ///
    /// All ranks are told what is wrong, also where it is wrong on one:
    ///
    /// - [`InitError::Config`] for settings that can't work, or are not there; [`InitError::Environment`] if `HCOMM_MEMORY` can't
    ///   be read;
    /// - [`InitError::MissingRanks`] naming who has not come by the [deadline](Self::rendezvous_deadline), and
    ///   [`InitError::Unreachable`] where the root, or another rank, can't be reached;
    /// - [`InitError::DuplicateRank`], [`InitError::DuplicateDevice`], [`InitError::WorldSize`], [`InitError::FactsDiffer`] and
    ///   [`InitError::Version`] where ranks contradict each other; [`InitError::Authentication`] where tokens differ;
    /// - [`InitError::SharedMemory`] if two ranks of a host can't share memory and [must](SharedMemory::Require);
    /// - [`InitError::Lost`] if a rank, or the root, goes away meanwhile;
    /// - [`InitError::Limit`] if memory, descriptors or threads are too few, with need and available; [`InitError::Io`] if the
    ///   system refuses something else, or the file of `HCOMM_REPORT` can't be opened.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends set-up; the other ranks are told.
    pub fn connect(self) -> Connect {
        match self.finish() {
            Ok((config, rest)) => Connect { state: State::Joining(join(config), rest) },
            Err(error) => Connect::failed(error),
        }
    }

    /// As [`connect`](Self::connect), for a thread that waits.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_blocking(self) -> Result<Communicator, InitError> {
        let (config, rest) = self.finish()?;
        Communicator::between_processes(join_blocking(config)?, &rest)
    }

    /// Adds what must be equal, for the root to compare: what plans are chosen from, how much a peer may send ahead, and of
    /// which version the program is.
    fn finish(mut self) -> Result<(JoinConfig, Rest), InitError> {
        self.complete()?;
        let memory = memory(self.memory, 1, self.config.world as usize - 1)?;
        if let Some(path) = report_file() {
            // Said before the others are met, who need not end because of it.
            let opened = OpenOptions::new().create(true).append(true).open(&path);
            opened.map_err(|error| InitError::Io { what: report_failed(&path), error })?;
        }
        let facts = facts(self.config.world, self.order);
        let entries = facts.entries().into_iter().map(|(key, value)| (key.to_string(), value));
        self.config.facts.extend(entries);
        self.config.facts.push(("HCOMM_MEMORY".into(), memory.limit.to_string()));
        self.config.facts.push((VERSION_FACT.into(), env!("CARGO_PKG_VERSION").into()));
        self.config.lanes_memory = memory.lanes();
        let name = self.config.name.clone();
        if let Some(dscp) = self.quality.dscp.filter(|dscp| *dscp > DSCP_MAX) {
            return Err(InitError::Config(format!("DSCP {dscp}: a code point is from 0 to {DSCP_MAX}")));
        }
        let (order, deadline, quality) = (self.order, self.operation_deadline, self.quality);
        let rest = Rest { name, order, deadline, memory, quality };
        Ok((self.config, rest))
    }

    /// Takes over what has no default.
    fn complete(&mut self) -> Result<(), InitError> {
        let alone = self.world == Some(1);
        let missing: Vec<&str> = [
            (self.rank.is_none(), "the rank: call .rank(r)"),
            (self.world.is_none(), "the number of ranks: call .world(n)"),
            (
                self.rendezvous.is_none() && !alone,
                "the meeting place: call .root(\"host:port\") with rank 0's address, or .file(path) on a shared file system",
            ),
        ]
        .into_iter()
        .filter_map(|(missing, what)| missing.then_some(what))
        .collect();
        if !missing.is_empty() {
            return Err(InitError::Config(format!("not set: {}", missing.join("; "))));
        }
        self.config.rank = self.rank.unwrap_or_default();
        self.config.world = self.world.unwrap_or_default();
        if let Some(rendezvous) = self.rendezvous.take() {
            self.config.rendezvous = rendezvous;
        }
        if !(1..=RANKS_MAX).contains(&(self.config.world as usize)) {
            let problem = format!("a world has 1 to {RANKS_MAX} ranks, not {}", self.config.world);
            return Err(InitError::Config(problem));
        }
        Ok(())
    }
}

/// Settings that matter once all have joined.
#[derive(Clone, Debug)]
struct Rest {
    quality: Quality,
    name: String,
    order: Order,
    deadline: Option<Duration>,
    memory: Memory,
}

/// Where `HCOMM_REPORT` wants reports.
fn report_file() -> Option<PathBuf> {
    std::env::var_os("HCOMM_REPORT").filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn report_failed(path: &Path) -> String {
    format!("HCOMM_REPORT={}", path.display())
}

fn facts(world: u32, order: Order) -> Facts {
    Facts::new(world).order(order)
}

/// The future of joining.
#[derive(Debug)]
#[must_use = "dropping it ends set-up"]
pub struct Connect {
    state: State,
}

impl Connect {
    fn failed(error: InitError) -> Self {
        Connect { state: State::Failed(Some(error)) }
    }
}

#[derive(Debug)]
enum State {
    Joining(JoinFuture, Rest),
    Failed(Option<InitError>),
}

impl Future for Connect {
    type Output = Result<Communicator, InitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            State::Failed(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => panic!("set-up was polled again after it had ended"),
            },
            State::Joining(joining, rest) => {
                Pin::new(joining).poll(cx).map(|joined| Communicator::between_processes(joined?, rest))
            }
        }
    }
}

impl Communicator {
    fn between_processes(membership: Membership, rest: &Rest) -> Result<Communicator, InitError> {
        let (run, hosts) = (membership.run(), membership.hosts());
        let Membership { rank, members, links, sharing, phases, .. } = membership;
        let me = rank.index();
        let here = || members.iter().zip(&hosts).filter(|(_, host)| **host == hosts[me]);
        let (ranks_here, processors) =
            (here().count(), Processors::together(here().map(|(member, _)| &member.processors)));
        let policy = SpinPolicy::choose(ranks_here, processors);
        let crowded = ranks_here == members.len() && ranks_here > processors;
        let mut labels = Vec::new();
        let mut peers = Vec::new();
        let mut reasons = Vec::new();
        for ((index, member), link) in members.iter().enumerate().zip(links) {
            labels.push(format!(
                "host {}, address {}, process {}",
                member.hostname,
                member.address.ip(),
                member.pid
            ));
            peers.push(match link {
                None => PeerLink::Myself,
                Some(Link::Shm(ends)) => PeerLink::Shm(ends),
                Some(Link::Tcp { streams, instead }) => {
                    for stream in [&streams.fast, &streams.bulk] {
                        tcp::tune(stream, streams.same_host);
                        let refused = |(what, error)| InitError::Io { what, error };
                        rest.quality.mark(stream).map_err(refused)?;
                    }
                    reasons.extend(instead.map(|reason| (index, reason)));
                    PeerLink::Tcp { fast: streams.fast, bulk: streams.bulk }
                }
            });
        }
        let io = |error| InitError::Io { what: "poll set and service thread".into(), error };
        let engine = Engine::new(me, peers, labels, None, policy, rest.memory).map_err(io)?;
        engine.name_run(run);
        engine.set_sharing(sharing);
        engine.set_hosts(hosts);
        for (peer, reason) in reasons {
            engine.explain_link(peer, format!("shared memory is not used: {reason}"));
        }
        let all = (0..members.len() as u32).collect();
        let plans = Arc::new(Mutex::new(PlanCache::new()));
        let facts = facts(members.len() as u32, rest.order).crowded(crowded);
        let mut comm = Self::open(engine, WORLD, rest.name.as_str().into(), all, me, facts, plans);
        comm.phases = phases.into();
        if let Some(path) = report_file() {
            comm.report_to(&path).map_err(|error| InitError::Io { what: report_failed(&path), error })?;
        }
        if let Some(deadline) = rest.deadline {
            comm.set_deadline(deadline);
        }
        Ok(comm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: Builder) -> String {
        let awaited = futures_util::FutureExt::now_or_never(builder.clone().connect());
        let error = builder.connect_blocking().unwrap_err();
        let Some(Err(same)) = awaited else { panic!("connect() did not refuse at once") };
        assert_eq!(error.to_string(), same.to_string());
        assert!(matches!(error, InitError::Config(_)), "{error}");
        error.to_string()
    }

    #[test]
    fn what_has_no_default_must_be_set() {
        let builder = Communicator::builder;
        let cases = [
            (builder(), &[".rank(r)", ".world(n)", ".root("][..]),
            (builder().rank(0).root("127.0.0.1:29999"), &[".world(n)"]),
            (builder().world(2).root("127.0.0.1:29999"), &[".rank(r)"]),
            (builder().rank(1).world(2), &[".root(", ".file("]),
            (builder().world(1), &[".rank(r)"]),
        ];
        for (builder, calls) in cases {
            let said = refused(builder);
            for call in [".rank(r)", ".world(n)", ".root("] {
                assert_eq!(said.contains(call), calls.contains(&call), "{said}");
            }
        }
        let alone = builder().rank(0).world(1).dscp(63).connect_blocking().unwrap();
        assert_eq!(alone.size(), 1);
        let said = refused(builder().rank(0).world(1).dscp(64));
        assert_eq!(said, "DSCP 64: a code point is from 0 to 63");
    }

    #[test]
    fn what_must_be_equal_is_compared() {
        let alone = Communicator::builder().rank(0).world(1).memory(1 << 20);
        let (config, _) = alone.finish().unwrap();
        let value =
            |key: &str| config.facts.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        assert_eq!(value(VERSION_FACT), Some(env!("CARGO_PKG_VERSION")));
        assert_eq!(value("HCOMM_MEMORY"), Some("1048576"));
        assert_eq!(value("flat_tree_bytes_max"), Some("16384"));
    }

    #[test]
    fn worlds_are_as_large_as_plans_can_be() {
        for ranks in [0, 65] {
            let said = refused(Communicator::builder().rank(0).world(ranks).root("127.0.0.1:29999"));
            assert!(said.contains("1 to 64 ranks"), "{said}");
            assert!(
                Communicator::try_local(ranks as usize).unwrap_err().to_string().contains("1 to 64 ranks")
            );
        }
    }
}
