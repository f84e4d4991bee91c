//! What is started, and with which environment.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, IsTerminal};
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use hcomm::Token;
use tokio::process::Command;

use crate::failure::Failure;

/// N processes of one command.
pub struct World {
    /// How many.
    pub ranks: u32,
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// Where their output goes.
    pub output: Output,
    /// Whether the others go on when a rank fails.
    pub keep_going: bool,
}

/// Where the output of ranks goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// To this process's own, line by line, with the rank before each.
    Prefixed,
    /// Straight to this process's own.
    Inherited,
}

/// Where the ranks of one job meet: secret, and fresh for each.
pub struct Meeting {
    directory: PathBuf,
    token: Token,
    port: u16,
}

impl Meeting {
    /// Makes a directory that only this user can enter, for rank 0 to tell its address in.
    pub fn new() -> Result<Self, Failure> {
        let name = Token::random().map_err(Failure::other)?.to_hex();
        let directory = std::env::temp_dir().join(format!("hcomm-{}", &name[..16]));
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| Failure::other(format!("can't make {}: {error}", directory.display())))?;
        let port = free_port().map_err(|error| Failure::other(format!("no free port: {error}")))?;
        Ok(Meeting { directory, token: Token::random().map_err(Failure::other)?, port })
    }

    /// The directory; the guard removes it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes the directory, where no guard does.
    pub fn remove(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// For programs that use `MASTER_PORT`; hcomm itself meets through a file.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

impl World {
    /// The command that starts one rank, in a process group of its own.
    pub fn rank(&self, rank: u32, meeting: &Meeting) -> Command {
        let mut rendezvous = OsString::from("file:");
        rendezvous.push(meeting.directory.join("rendezvous"));
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .process_group(0)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.ranks.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("LOCAL_WORLD_SIZE", self.ranks.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", meeting.port.to_string())
            .env("HCOMM_RENDEZVOUS", rendezvous)
            .env("HCOMM_TOKEN", meeting.token.to_hex())
            .stdin(if rank == 0 && !io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() });
        if self.output == Output::Prefixed {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command
    }

    /// What to do if the command can't be started.
    pub fn hint(&self, error: &io::Error) -> String {
        let name = self.name();
        let by_path = name.contains('/') || error.kind() != io::ErrorKind::NotFound;
        if by_path { String::new() } else { format!("; one that is not in PATH is given as ./{name}") }
    }

    /// The command's name, for messages.
    pub fn name(&self) -> String {
        self.command[0].to_string_lossy().into_owned()
    }
}
