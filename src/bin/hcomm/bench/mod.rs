//! `hcomm bench`: operations, checked and timed.
//!
//! - [`settings`]: what is measured, from the arguments
//! - [`pattern`]: inputs, and what must come out
//! - [`call`]: one call of the operation on its buffers
//! - [`measure`]: check, warm-up, iterations
//! - [`table`]: what is printed and written

mod call;
mod measure;
mod pattern;
mod settings;
mod table;

use std::ffi::OsString;
use std::process::ExitCode;

use hcomm::{Builder, Communicator, DType, Element, Error, LinkKind};

pub use settings::Args;
use settings::Settings;
use table::Table;

use crate::failure::{Failure, Outcome, writable};
use crate::names::{Link, counted};
use crate::progress::Progress;
use crate::run::{Output, World, launch};

/// Measures, as all ranks or as one of them.
pub fn run(args: &Args) -> Outcome {
    let settings = Settings::new(args)?;
    let launched = Communicator::is_launched();
    if !launched || settings.link == Link::Memory {
        // Before ranks start, so that it is told once.
        settings.counts()?;
    }
    // Last, so that what is refused leaves no empty file.
    settings.json.as_deref().map_or(Ok(()), writable)?;
    match settings.link {
        Link::Memory if launched => alone(&settings),
        Link::Memory => memory(&settings),
        Link::Auto | Link::Shm | Link::Tcp if launched => one_of_many(settings),
        Link::Auto | Link::Shm | Link::Tcp => many(&settings),
    }
}

/// All ranks, as processes of this command.
fn many(settings: &Settings) -> Outcome {
    let this = std::env::current_exe().map_err(Failure::other)?;
    let arguments = std::env::args_os().skip(1);
    let command: Vec<OsString> = std::iter::once(this.into()).chain(arguments).collect();
    launch(&World { ranks: settings.ranks as u32, command, output: Output::Inherited, keep_going: false })
}

/// Under a launcher, as long as that has started no other beside: it would be slowed down by the others' measurements.
fn alone(settings: &Settings) -> Outcome {
    match joined(settings)?.size() {
        1 => memory(settings),
        started => Err(Failure::usage(format!(
            "--link memory is between threads of one process, but the launcher has started {}: leave --link out, or call \
             it without a launcher",
            counted(started, "rank")
        ))),
    }
}

/// All ranks, as threads of this process.
fn memory(settings: &Settings) -> Outcome {
    let ends: Vec<Outcome> = std::thread::scope(|scope| {
        let ranks = Communicator::local(settings.ranks).into_iter();
        let threads: Vec<_> =
            ranks.map(|comm| scope.spawn(|| runtime()?.block_on(rank(settings, comm)))).collect();
        let panicked = |_| Err(Failure::other("a rank panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let mut first = Ok(ExitCode::SUCCESS);
    for (rank, end) in ends.into_iter().enumerate().rev() {
        if rank == 0 || end.is_err() {
            first = end;
        }
    }
    first
}

/// The world of a launcher.
fn joined(settings: &Settings) -> Result<Communicator, Failure> {
    let mut builder = Builder::from_env().map_err(Failure::other)?;
    // What the environment says counts unless the command line says otherwise.
    if matches!(settings.link, Link::Shm | Link::Tcp) {
        builder = builder.shared_memory(settings.link.shared_memory());
    }
    builder.connect_blocking().map_err(Failure::other)
}

/// One rank, started by a launcher. A shell may be the only task of one, as `srun --pty` starts it; ranks that are asked for there
/// are started as anywhere else.
fn one_of_many(mut settings: Settings) -> Outcome {
    let comm = joined(&settings)?;
    let size = comm.size();
    match settings.ranks {
        asked if !settings.ranks_given || asked == size => {}
        _ if size == 1 => {
            drop(comm);
            settings.counts()?;
            return many(&settings);
        }
        asked => {
            return Err(Failure::usage(format!(
                "-n {asked}, but the launcher has started {}: leave -n out",
                counted(size, "rank")
            )));
        }
    }
    settings.ranks = size;
    runtime()?.block_on(rank(&settings, comm))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::other(format!("no runtime: {error}")))
}

/// One rank's part, whatever links it to the others.
async fn rank(settings: &Settings, mut comm: Communicator) -> Outcome {
    let number = comm.rank();
    let counts = &settings.counts()?;
    let wrong = match settings.dtype {
        DType::F32 => sizes::<f32>(settings, counts, &mut comm).await,
        DType::F64 => sizes::<f64>(settings, counts, &mut comm).await,
        DType::F16 => sizes::<half::f16>(settings, counts, &mut comm).await,
        DType::BF16 => sizes::<half::bf16>(settings, counts, &mut comm).await,
        DType::I8 => sizes::<i8>(settings, counts, &mut comm).await,
        DType::I16 => sizes::<i16>(settings, counts, &mut comm).await,
        DType::I32 => sizes::<i32>(settings, counts, &mut comm).await,
        DType::I64 => sizes::<i64>(settings, counts, &mut comm).await,
        DType::U8 => sizes::<u8>(settings, counts, &mut comm).await,
        DType::U16 => sizes::<u16>(settings, counts, &mut comm).await,
        DType::U32 => sizes::<u32>(settings, counts, &mut comm).await,
        DType::U64 => sizes::<u64>(settings, counts, &mut comm).await,
        other => return Err(Failure::usage(format!("there is no benchmark of {other}"))),
    };
    let wrong = wrong.map_err(|error| Failure::other(format!("rank {number}: {error}")))?;
    // One rank tells it for all.
    Ok(ExitCode::from(u8::from(wrong > 0 && number.0 == 0)))
}

/// Every size in turn; gives how many elements were wrong, on all ranks.
async fn sizes<T: Element>(
    settings: &Settings,
    counts: &[usize],
    comm: &mut Communicator,
) -> Result<u64, Failed> {
    let mut table = (comm.rank().0 == 0).then(|| Table::new(settings, &links(comm)));
    let mut progress = Progress::new(table.is_some());
    let mut wrong = 0;
    for (at, count) in counts.iter().copied().enumerate() {
        let bytes = count * settings.dtype.size();
        progress.begin(format!("{bytes} B, size {} of {}", at + 1, counts.len()));
        let point = measure::point::<T>(settings, comm, count, &mut progress).await?;
        wrong += point.wrong;
        progress.erase();
        if let Some(table) = &mut table {
            table.row(point);
        }
    }
    if let Some(table) = table {
        table.finish().map_err(Failed::File)?;
    }
    Ok(wrong)
}

/// The kinds of links that this rank has.
fn links(comm: &Communicator) -> String {
    let mut kinds: Vec<LinkKind> = comm.links().into_iter().map(|link| link.kind).collect();
    kinds.retain(|kind| *kind != LinkKind::Myself);
    kinds.dedup();
    let kinds: Vec<String> = kinds.iter().map(LinkKind::to_string).collect();
    if kinds.is_empty() { "none".into() } else { kinds.join(" and ") }
}

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Operation(#[from] Error),
    #[error("{0}")]
    File(String),
}

impl<B> From<hcomm::OpError<B>> for Failed {
    fn from(error: hcomm::OpError<B>) -> Self {
        Failed::Operation(error.error)
    }
}
