//! `hcomm run`: a command as N ranks.
//!
//! - [`world`]: what is started, with which environment
//! - [`supervise`]: until the last rank has ended
//! - [`output`]: lines of many ranks as one stream
//! - [`guard`]: a process that outlives this one, if it is killed

pub mod guard;
mod output;
mod supervise;
mod world;

use std::ffi::OsString;
use std::process::ExitCode;

pub use world::{Output, World};

use crate::failure::{Failure, Outcome};
use crate::names;

const DETAILS: &str = "\
Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (a free port) as under \
torchrun, and HCOMM_RENDEZVOUS and HCOMM_TOKEN, so that Communicator::from_env() works without further settings.

With HCOMM_REPORT=FILE in the environment, ranks write reports of operations that fail to that file; `hcomm why FILE` \
tells what they say.

Output comes line by line with `[rank] ` before it. Standard input goes to rank 0, unless it is a terminal.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the process group of each rank; a second SIGINT \
or SIGTERM kills. When a rank fails, the others have 2 s to report what they saw; then they get SIGTERM, and 3 s later \
SIGKILL. With --keep-going they go on without it, as after Communicator::rebuild; the exit code is that of the rank that \
failed all the same, also if the others end well. Whatever a rank has started ends with it, unless it moved to a process group of its own.

The exit code is that of the rank that failed first: 128 + the signal's number, if a signal killed it. As ends may be \
seen in another order, a rank that panicked (101) or was killed goes before those that exited with 1 up to 2 s earlier. \
If this command itself is killed, a guard process of its own ends the ranks. Ranks that had ended with 0 before the \
first that failed are named with it: who leaves too early lets others down.

Examples:
  hcomm run -n 4 -- ./train --epochs 3
  hcomm run -n 4 --keep-going -- ./serve   three go on when one fails
  HCOMM_REPORT=r.jsonl hcomm run -n 4 -- ./train; hcomm why r.jsonl
  hcomm run -n 2 env                       see what a rank gets
  hcomm run -n 3 -- sh -c 'exit $RANK'     rank 1 or 2 fails";

/// Starts a command as several ranks on this machine, and watches over them
#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = names::rank_count(), allow_negative_numbers = true)]
    ranks: u32,
    /// Lets the others go on when a rank fails, instead of ending them; the exit code is not 0 all the same
    #[arg(long)]
    keep_going: bool,
    /// The command and its arguments: from it on, options are its own
    // Not `allow_hyphen_values`: an option that there is not would be the command.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command to its end.
pub fn run(args: Args) -> Outcome {
    let Args { ranks, keep_going, command } = args;
    launch(&World { ranks, command, output: Output::Prefixed, keep_going })
}

/// Starts a world and waits until its last rank has ended.
pub fn launch(world: &World) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::other(format!("no runtime: {error}")))?;
    let code = runtime.block_on(supervise::supervise(world))?;
    // Output that nobody takes must not keep this process.
    runtime.shutdown_background();
    Ok(ExitCode::from(code))
}
