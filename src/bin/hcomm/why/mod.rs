//! `hcomm why`: reports of operations that did not end, for people.
//!
//! - [`read`]: reports from a file
//! - [`merge`]: one picture out of those of all ranks
//! - [`tell`]: in words: who waits, for whom, why, and what to do

mod merge;
mod read;
mod tell;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hcomm::Report;

use crate::failure::{Failure, Outcome, print, say};

const DETAILS: &str = "\
Reports come from the environment variable HCOMM_REPORT=FILE, under `hcomm run` or any other launcher, or from \
Communicator::report_to: every operation that fails by its deadline, by a rank that is lost or has left, by calls that \
differ, or by a violation of the protocol is a line of that file. Errors of set-up, and calls that are refused, cancelled \
or given up by another rank, are in the output of the ranks only.

Reads what ranks report about operations that do not end: JSON, one report per line, an array of reports, or \
{\"reports\": [...]}; of one rank or of many. Puts the reports of all ranks together: for each communicator, who waits in which operation \
for whom and since when, how far all have come, what each rank was in, also one that is lost and whose state others \
know, who waits for each other in a circle, links that are down or slow or send again, the likely cause, and what to do \
next.

The first lines name for whom a rank waits in the end: those at whom the chain of waiting ends. An arrow in the list of \
what each rank was in names its direct neighbour in the plan, who may only wait for another himself.

Examples:
  HCOMM_REPORT=report.jsonl hcomm run -n 4 -- ./train
  hcomm why report.jsonl
  hcomm why rank0.jsonl rank1.jsonl
  cat rank*.jsonl | hcomm why -";

/// Where no report is, though something went wrong.
const NO_REPORT: &str = "\
operations write one that fail by their deadline, by a rank that is lost or has left, by calls that differ, or by a violation \
of the protocol. Errors of set-up, and calls that are refused, cancelled or given up by another rank, are in the output of \
the ranks only";

/// What standard input is called on the command line.
const STDIN: &str = "-";

/// So many show what is wrong with a file.
const PROBLEMS_TOLD: usize = 3;

/// Says why an operation did not end, from a report file
#[derive(clap::Args)]
#[command(after_help = DETAILS)]
pub struct Args {
    /// The report file, or several, as of different machines; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Tells of all runs whose reports are in the files, not only of the newest
    #[arg(long)]
    all: bool,
}

/// Reads and tells.
pub fn run(args: &Args) -> Outcome {
    let mut reports = Vec::new();
    for file in &args.files {
        reports.extend(read(file)?);
    }
    if reports.is_empty() {
        let names: Vec<String> = args.files.iter().map(|file| name(file)).collect();
        return Err(Failure::other(format!("no report in {}: {NO_REPORT}", names.join(", "))));
    }
    print(tell::tell(&reports, args.all).trim_end());
    Ok(ExitCode::SUCCESS)
}

/// All reports of a file; what is wrong with it is told.
fn read(file: &Path) -> Result<Vec<Report>, Failure> {
    let name = name(file);
    let mut bytes = Vec::new();
    let read = match file.to_str() {
        Some(STDIN) => std::io::stdin().read_to_end(&mut bytes).map(|_| ()),
        _ => std::fs::read(file).map(|all| bytes = all),
    };
    read.map_err(|error| Failure::usage(format!("can't read {name}: {error}")))?;
    let found = read::reports(&String::from_utf8_lossy(&bytes));
    for problem in found.problems.iter().take(PROBLEMS_TOLD) {
        say(format!("{name}: {problem}"));
    }
    if let Some(more @ 1..) = found.problems.len().checked_sub(PROBLEMS_TOLD) {
        say(format!("{name}: and {more} more of the kind"));
    }
    Ok(found.reports)
}

fn name(file: &Path) -> String {
    if file.to_str() == Some(STDIN) { "standard input".into() } else { file.display().to_string() }
}
