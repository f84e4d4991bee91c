//! A process that ends the ranks if the launcher itself is killed.
//!
//! The launcher holds the only write end of the guard's standard input, and writes there which process groups there
//! are (`+ID`) and which are over (`-ID`). However the launcher ends, the kernel closes its end; what is left then
//! is ended, and the meeting place removed.
//!
//! A rank is unknown to the guard for the moment between its start and the line that tells of it; a launcher killed
//! in that moment leaves it alone. Killing the guard as well leaves all of them alone.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::failure::{Failure, Outcome};

/// What the command line calls it.
pub const NAME: &str = "__guard";
/// How long orphaned ranks have to end by themselves.
const GRACE: Duration = Duration::from_secs(2);

/// Not for users
#[derive(clap::Args)]
pub struct Args {
    /// Removed at the end.
    directory: PathBuf,
}

/// The launcher's side.
pub struct Guard {
    process: Child,
}

impl Guard {
    /// Starts the guard, out of reach of the terminal's signals.
    pub fn start(directory: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::other(format!("can't start the guard process: {error}"));
        let this = std::env::current_exe().map_err(failed)?;
        let process = Command::new(this)
            .arg(NAME)
            .arg(directory)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        Ok(Guard { process })
    }

    /// There is this process group.
    pub fn watch(&mut self, group: Pid) {
        self.tell('+', group);
    }

    /// This process group is over.
    pub fn forget(&mut self, group: Pid) {
        self.tell('-', group);
    }

    fn tell(&mut self, what: char, group: Pid) {
        if let Some(pipe) = &mut self.process.stdin {
            // A guard that is gone guards nothing; the job itself goes on.
            let _ = writeln!(pipe, "{what}{}", group.as_raw_nonzero());
        }
    }
}

impl Drop for Guard {
    /// Closes the pipe and waits.
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The guard's side.
pub fn run(args: &Args) -> Outcome {
    let mut groups = BTreeSet::new();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Some((what, id)) = line.split_at_checked(1) else { continue };
        let Ok(id) = id.parse::<i32>() else { continue };
        match what {
            "+" => groups.insert(id),
            _ => groups.remove(&id),
        };
    }
    if !groups.is_empty() {
        signal(&groups, Signal::TERM);
        sleep(GRACE);
        signal(&groups, Signal::KILL);
    }
    let _ = fs::remove_dir_all(&args.directory);
    Ok(ExitCode::SUCCESS)
}

fn signal(groups: &BTreeSet<i32>, signal: Signal) {
    for group in groups.iter().filter_map(|id| Pid::from_raw(*id)) {
        // One that is over already needs no signal.
        let _ = kill_process_group(group, signal);
    }
}
