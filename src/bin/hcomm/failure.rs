//! What the user reads: results, and what goes wrong.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::progress;

/// How a command ends.
pub type Outcome = Result<ExitCode, Failure>;

/// Exit code of a command that was called wrongly.
pub const USAGE: u8 = 2;

/// A message and an exit code.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// The user asked for what can't be.
    pub fn usage(message: impl Display) -> Self {
        Failure { message: message.to_string(), code: USAGE }
    }

    /// It was well asked, but did not work.
    pub fn other(message: impl Display) -> Self {
        Failure { message: message.to_string(), code: 1 }
    }

    /// Writes the message; gives the code.
    pub fn tell(self) -> ExitCode {
        say(self.message);
        ExitCode::from(self.code)
    }
}

/// Whether a result can be written to this file, which is made: to be told before there is one.
pub fn writable(path: &Path) -> Result<(), Failure> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(|_| ()).map_err(|error| Failure::usage(format!("can't write {}: {error}", path.display())))
}

/// One message of this command itself, apart from what ranks write.
pub fn say(message: impl Display) {
    progress::make_way();
    // Where nobody reads it, there is nobody to tell so.
    let _ = writeln!(io::stderr(), "hcomm: {message}");
}

/// A line or more of a result. A reader who has seen enough (`| head`) is no failure: the rest is left out, and the
/// command does what else it was asked for.
pub fn print(text: impl Display) {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        say(format!("can't write to standard output: {error}"));
        std::process::exit(1);
    }
}
