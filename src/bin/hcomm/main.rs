//! The command `hcomm`: starts ranks, measures them, draws plans and reads reports.
//!
//! - [`run`]: a command as N ranks, watched over
//! - [`bench`]: operations checked and timed
//! - [`plan`]: a plan as text and as a picture
//! - [`why`]: reports of operations that did not end, for people
//! - [`names`]: what the command line calls things
//! - [`failure`]: what is printed, and how it all goes wrong
//! - [`progress`]: what it is at, at a terminal

#![warn(missing_docs)]

mod bench;
mod failure;
mod names;
mod plan;
mod progress;
mod run;
mod why;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use failure::{Failure, USAGE};

const EXAMPLES: &str = "\
Examples:
  hcomm bench all_reduce -n 4                 how fast, between 4 processes
  hcomm bench all_reduce -n 2 --link memory   or threads of one process
  hcomm run -n 4 -- ./train --epochs 3        a program of yours as 4 ranks
  hcomm plan all_reduce -n 4 --svg plan.svg   who sends what to whom, and when
  hcomm why report.jsonl                      why an operation did not end

`hcomm COMMAND --help` says more about each.";

/// Collective communication: start ranks, measure them, look into them.
#[derive(Parser)]
#[command(name = "hcomm", version, after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Bench(bench::Args),
    Plan(plan::Args),
    Why(why::Args),
    #[command(name = run::guard::NAME, hide = true)]
    Guard(run::guard::Args),
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return told_by_clap(&error),
    };
    let outcome = match command {
        Command::Run(args) => run::run(args),
        Command::Bench(args) => bench::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Guard(args) => run::guard::run(&args),
    };
    outcome.unwrap_or_else(Failure::tell)
}

/// Help and versions are no errors; errors look like all others.
fn told_by_clap(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(USAGE)
        }
        _ => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            Failure::usage(text.trim_end()).tell()
        }
    }
}
