//! Collective communication: ranks that sum, gather and share vectors, as an async library.
//!
//! A *rank* is one participant: a process, or a thread or task of one. Ranks form a [`Communicator`], which is an
//! ordered stream of calls: all ranks call the same operations in the same order, each with its own part of the data.
//! Three types matter: [`Communicator`], whose methods are the operations; [`Operation`], the future of a call; and
//! [`Buffer`], memory for the fastest paths, where a `Vec` or a slice does as well.
//!
//! # Ranks in one process
//!
//! [`Communicator::local`] makes them, one thread each here; several as tasks of one runtime work too.
//!
//! ```
//! use hcomm::{Communicator, OpError, ReduceOp};
//!
//! async fn step(mut comm: Communicator) -> Result<Vec<f32>, OpError<Vec<f32>>> {
//!     let gradient = vec![comm.rank().0 as f32; 1000];
//!     comm.all_reduce(gradient, ReduceOp::Avg).await
//! }
//!
//! let ranks: Vec<_> = Communicator::local(3).into_iter().map(|comm| {
//!     std::thread::spawn(|| {
//!         let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//!         runtime.block_on(step(comm)).unwrap()
//!     })
//! }).collect();
//! for rank in ranks {
//!     assert_eq!(rank.join().unwrap(), [1.0; 1000]);
//! }
//! ```
//!
//! # Ranks as processes
//!
//! Under `hcomm run -n 4 -- PROGRAM`, torchrun, `mpirun`, `mpiexec`, `srun` or Kubernetes each process joins what its environment
//! describes; [`launchers`] has how for each. The command comes with the feature `cli`: `cargo install --path . --features cli`.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use hcomm::{Buffer, Communicator, ReduceOp};
//!
//! let mut comm = Communicator::from_env().await?;
//! let mut weights = Buffer::<f32>::zeroed(1 << 20);
//! weights = comm.broadcast(weights, 0).await?;
//! weights = comm.all_reduce(weights, ReduceOp::Sum).await?;
//! # Ok(()) }
//! ```
//!
//! Without a launcher, [`Communicator::builder`] takes rank, world and address.
//!
//! # What a call does
//!
//! - **It begins at the call**, takes its number then, and goes on whether its future is polled or not. `join!` and
//!   `select!` can't reorder calls. Whoever awaits drives; a service thread does where nobody does.
//! - **Buffers come back.** A `Vec`, `Box` or [`Buffer`] is handed in by value, without a copy, and comes back with the
//!   result, or inside the [`OpError`], unless a peer might still be in it then. A `&mut [T]` is copied in and out.
//! - **Dropping the future detaches** the operation: it goes on, and no peer is harmed. [`Operation::cancel`] and
//!   [`Operation::timeout`] give it up on all ranks; [`Operation::cancel_on_drop`] ties it to its future, and [`within`] limits all that
//!   is called for something.
//! - **Nothing hangs in silence.** Every wait has a deadline, and its end is an [`Error`] that names who is late, has
//!   crashed ([`Error::PeerLost`]), has left in order ([`Error::Left`]), or called something else: on all ranks, with the
//!   last known state of each. [`Error::blamed`] and [`Error::is_fatal`] answer for a program.
//! - **Same bits.** All ranks get identical results, the same from run to run. How sums are associated depends on the
//!   number of ranks and not on the count, unless [`path::Order::Any`] allows it; [`Communicator::explain`] says more.
//! - **No thread is needed to wait**; tokio runtimes need IO (`enable_io`), which `#[tokio::main]` has. A thread that
//!   waits can do without: [`Operation::wait`] and [`blocking`] need no runtime.
//!
//! # Algorithms
//!
//! What moves, from whom to whom, is a [`path::Plan`]: data, written by a function, and proved before it runs, by playing
//! all ranks together. [`path`] has the built-in ones, the builder for others, and the proof; [`Communicator::with_plan`] runs
//! what was proved.
//!
//! # Platforms
//!
//! Linux on little-endian machines: elsewhere it does not compile. Elements are sent as they lie in memory, so all ranks have the
//! same byte order. All ranks need the same version of this crate: plans and messages are those of a version.
//!
//! A communicator belongs to the process that made it. In a child that was forked from it calls end with
//! [`Error::Forked`], dropping it says nothing to the other ranks, and the parent is not harmed; buffers of
//! [`Communicator::alloc`] are not in the child's memory, which must not touch them. Start programs
//! (`std::process::Command`), which inherit nothing of it.
//!
//! # Features
//!
//! `cli`: the command `hcomm` (`run`, `bench`, `plan`, `why`). The library is the same with and without it.
//!
//! `testing`: the module `testing`, ranks on a simulated network for tests of your own. For dev-dependencies.

#[cfg(not(target_os = "linux"))]
compile_error!("hcomm runs on Linux only: it waits by epoll and asks for TCP_INFO");

#[cfg(not(target_endian = "little"))]
compile_error!("hcomm runs on little-endian machines only: elements are sent as they lie in memory");

mod buffer;
mod communicator;
mod domain;
mod element;
mod engine;
mod error;
#[cfg(test)]
#[path = "../tests/common/events.rs"]
mod events;
mod group;
mod kernel;
#[doc = include_str!("../docs/launchers.md")]
pub mod launchers {}
mod link;
mod observe;
pub mod path;
mod rank;
mod runtime;
#[cfg(feature = "testing")]
pub mod testing;

pub use buffer::{Buffer, Lend, LendMut, Nothing, Pair};
pub use communicator::{
    Builder, CancelOnDrop, Close, Communicator, Connect, Contributions, Dup, Incoming, Keyed, MatchedProbe,
    Message, Neighborhood, Neighbors, Operation, Parameters, Prepared, Probe, Pulled, Ready, Rebuild,
    Receive, Received, ReduceFirst, Reduced, Resources, ScatterV, Scattered, SchedulerStats, SendRecv,
    ServedParameters, Source, Split, State, Status, SuspendedDeadlines, Tags, Update, View, blocking, until,
    within,
};
pub use domain::{Phase, SharedMemory, Token};
pub use element::{DType, Element, ReduceOp, UnknownName};
pub use error::{
    CallInfo, Counts, Error, InitError, LinkKind, LinkReport, LinkState, OpError, RankReport, Report,
    ReportKind,
};
pub use group::Group;
pub use observe::{OperationRecord, Outcome, Priority};
pub use rank::{Rank, Seq, Tag};
/// Its types are element types and buffers here; `half::f16` of another version is another type.
pub use {bytes, half};

/// The instruction set that reductions use on this machine, for reports: "avx512", "avx2", "sse2", "neon" or "baseline".
pub fn instruction_set() -> &'static str {
    kernel::level()
}

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
