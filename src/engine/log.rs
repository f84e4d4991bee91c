//! Where reports are written, and what is added to each there.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::error::Report;

/// One JSON object a line, appended to a file; nothing before a file is named.
#[derive(Debug, Default)]
pub(super) struct Log {
    file: OnceLock<(PathBuf, File)>,
    /// Equal on all ranks of the world.
    run: OnceLock<String>,
}

impl Log {
    /// Opens the file. The first that is named is taken for good; to name it again changes nothing.
    pub(super) fn write_to(&self, path: PathBuf) -> Result<(), Error> {
        if self.file.get().is_none() {
            let file = OpenOptions::new().create(true).append(true).open(&path)?;
            // Another thread may have named one meanwhile.
            let _ = self.file.set((path.clone(), file));
        }
        match self.file.get() {
            Some((taken, _)) if *taken != path => {
                let problem = format!("reports go to {} already", taken.display());
                Err(Error::new(ErrorKind::AlreadyExists, problem))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn name_run(&self, run: String) {
        let _ = self.run.set(run);
    }

    /// Appends one line, in one write, so that ranks of one host may share the file.
    pub(super) fn write(&self, mut report: Report) {
        let Some((path, file)) = self.file.get() else { return };
        report.run = self.run.get().cloned().unwrap_or_default();
        report.pid = std::process::id();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        report.unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let written = serde_json::to_vec(&report).map_err(Error::other).and_then(|mut line| {
            line.push(b'\n');
            (&*file).write_all(&line)
        });
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "a report could not be written");
        }
    }
}
