//! Where reports are written, and what is added to each there.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use crate::error::Report;

/// To a pipe that is full: whoever reads it has this long, since callers and deadlines wait.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// One JSON object a line, appended to a file; nothing before a file is named.
#[derive(Debug, Default)]
pub(super) struct Log {
    file: OnceLock<(PathBuf, File)>,
    /// Equal on all ranks of the world.
    run: OnceLock<Arc<str>>,
    /// Whoever should read it does not: not waited for again, until he does.
    stuck: AtomicBool,
}

impl Log {
    /// Opens the file. The first that is named is taken for good; to name it again changes nothing.
    pub(super) fn write_to(&self, path: PathBuf) -> Result<(), Error> {
        if self.file.get().is_none() {
            // A pipe that nobody reads is told, and not waited for.
            let flags = OFlags::NONBLOCK.bits() as i32;
            let file = OpenOptions::new().create(true).append(true).custom_flags(flags).open(&path)?;
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

    /// Whether a file is named.
    pub(super) fn is_open(&self) -> bool {
        self.file.get().is_some()
    }

    pub(super) fn name_run(&self, run: Arc<str>) {
        let _ = self.run.set(run);
    }

    pub(super) fn run(&self) -> Arc<str> {
        self.run.get().cloned().unwrap_or_default()
    }

    /// Appends one line, in one write, so that ranks of one host may share the file.
    pub(super) fn write(&self, mut report: Report) {
        let Some((path, file)) = self.file.get() else { return };
        report.run = self.run().to_string();
        report.pid = std::process::id();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        report.unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let written = serde_json::to_vec(&report).map_err(Error::other).and_then(|mut line| {
            line.push(b'\n');
            self.append(file, &line)
        });
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "a report could not be written");
        }
    }

    fn append(&self, mut file: &File, mut line: &[u8]) -> Result<(), Error> {
        while !line.is_empty() {
            match file.write(line) {
                Ok(written) => line = &line[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let stuck = self.stuck.swap(true, Ordering::Relaxed);
                    if stuck || poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(&PATIENCE))? == 0 {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            self.stuck.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_pipe_that_nobody_empties_holds_nobody_up() {
        let path = std::env::temp_dir().join(format!("hcomm-reports-{}", std::process::id()));
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let log = Log::default();
        let unread = log.write_to(path.clone());
        assert!(unread.is_err(), "nobody reads it");
        let mut reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        log.write_to(path).unwrap();
        (0..2000).for_each(|_| log.write(Report::default()));
        let mut first = [0; 2];
        reader.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"{\"");
        std::fs::remove_file(log.file.get().unwrap().0.clone()).unwrap();
    }
}
