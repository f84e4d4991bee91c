//! What goes wrong, as the user reads it.

use std::fmt::Display;
use std::process::ExitCode;

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

/// One message of this command itself, apart from what ranks write.
pub fn say(message: impl Display) {
    eprintln!("hcomm: {message}");
}
