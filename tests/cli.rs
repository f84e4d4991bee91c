//! The command `hcomm`, as a user calls it.
#![cfg(feature = "cli")]

#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/look.rs"]
mod look;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/why.rs"]
mod why;

use std::path::PathBuf;
use std::process::{Command, Output};

const HCOMM: &str = env!("CARGO_BIN_EXE_hcomm");

/// The command, outside of any launcher.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(HCOMM);
    command.args(arguments).env_remove("RANK").env_remove("WORLD_SIZE");
    command
}

fn hcomm(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// What it prints when all goes well.
fn prints(arguments: &[&str]) -> String {
    let output = hcomm(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    stdout(&output)
}

/// A file of this test process alone.
fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{}-{name}", std::process::id()))
}
