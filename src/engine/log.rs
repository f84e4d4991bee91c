//! Where reports are written, and what is added to each there.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::error::Report;

/// One JSON object a line, appended to a file; nothing before a file is named.
#[derive(Debug, Default)]
pub(super) struct Log {
    path: OnceLock<PathBuf>,
    /// Equal on all ranks of the world.
    run: OnceLock<String>,
}

impl Log {
    /// The first file that is named is taken.
    pub(super) fn write_to(&self, path: PathBuf) {
        let _ = self.path.set(path);
    }

    pub(super) fn name_run(&self, run: String) {
        let _ = self.run.set(run);
    }

    /// Appends one line, in one write, so that ranks of one host may share the file.
    pub(super) fn write(&self, mut report: Report) {
        let Some(path) = self.path.get() else { return };
        report.run = self.run.get().cloned().unwrap_or_default();
        report.pid = std::process::id();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        report.unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let written = serde_json::to_vec(&report).map_err(std::io::Error::other).and_then(|mut line| {
            line.push(b'\n');
            OpenOptions::new().create(true).append(true).open(path)?.write_all(&line)
        });
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "a report could not be written");
        }
    }
}
