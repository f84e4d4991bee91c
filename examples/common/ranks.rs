//! Ranks to run an example on.

use std::process::ExitCode;

use hcomm::{Builder, Communicator};

/// Ranks where no launcher says how many.
const RANKS: usize = 4;

/// What went wrong on a rank.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs a program as the rank that a launcher has made of this process, or on four threads where there is none.
pub fn run<P>(program: P) -> ExitCode
where
    P: AsyncFn(Communicator) -> Result<(), Failure> + Copy + Send + 'static,
{
    let results = match Builder::from_env() {
        Ok(builder) => vec![block_on(async || program(builder.connect().await?).await)],
        Err(error) if std::env::var_os("RANK").is_some() => vec![Err(error.into())],
        Err(_) => on_threads(program),
    };
    let failures: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    for failure in &failures {
        eprintln!("{failure:?}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn on_threads<P>(program: P) -> Vec<Result<(), Failure>>
where
    P: AsyncFn(Communicator) -> Result<(), Failure> + Copy + Send + 'static,
{
    let start = |comm| std::thread::spawn(move || block_on(async || program(comm).await));
    let ranks: Vec<_> = Communicator::local(RANKS).into_iter().map(start).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| Err("a rank has panicked".into()))).collect()
}

fn block_on(rank: impl AsyncFnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(rank())
}
