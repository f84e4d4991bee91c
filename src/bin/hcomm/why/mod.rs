//! `hcomm why`: reports of operations that did not end, for people.
//!
//! - [`read`]: reports from a file
//! - [`merge`]: one picture out of those of all ranks
//! - [`tell`]: in words: who waits, for whom, why, and what to do

mod merge;
mod read;
mod tell;

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::{Failure, Outcome, print, say};

const DETAILS: &str = "\
Reports come from the environment variable HCOMM_REPORT=FILE, under `hcomm run` or any other launcher, or from \
Communicator::report_to: every operation that fails, also by its deadline, is a line of that file.

Reads what ranks report about operations that do not end: JSON, one report per line, an array of reports, or \
{\"reports\": [...]}; of one rank or of many. Puts the reports of all ranks together: for each communicator, who waits in which operation \
for whom and since when, how far all have come, what each rank was in, also one that is lost and whose state others \
know, who waits for each other in a circle, links that are down or slow or send again, the likely cause, and what to do \
next.

Examples:
  HCOMM_REPORT=report.jsonl hcomm run -n 4 -- ./train
  hcomm why report.jsonl
  cat rank*.jsonl | hcomm why -";

/// So many show what is wrong with a file.
const PROBLEMS_TOLD: usize = 3;

/// Says why an operation did not end, from a report file
#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    /// The report file; - for standard input
    file: PathBuf,
    /// Tells of all runs whose reports are in the file, not only of the newest
    #[arg(long)]
    all: bool,
}

/// Reads and tells.
pub fn run(args: &Args) -> Outcome {
    let name = args.file.display();
    let mut bytes = Vec::new();
    let read = match args.file.as_os_str().as_encoded_bytes() {
        b"-" => std::io::stdin().read_to_end(&mut bytes).map(|_| ()),
        _ => std::fs::read(&args.file).map(|all| bytes = all),
    };
    read.map_err(|error| Failure::usage(format!("can't read {name}: {error}")))?;
    let found = read::reports(&String::from_utf8_lossy(&bytes));
    for problem in found.problems.iter().take(PROBLEMS_TOLD) {
        say(format!("{name}: {problem}"));
    }
    if let Some(more @ 1..) = found.problems.len().checked_sub(PROBLEMS_TOLD) {
        say(format!("{name}: and {more} more of the kind"));
    }
    if found.reports.is_empty() {
        return Err(Failure::other(format!(
            "{name} has no report in it: no operation has failed; errors of set-up are in the output of the ranks only"
        )));
    }
    print(tell::tell(&found.reports, args.all).trim_end());
    Ok(ExitCode::SUCCESS)
}
