//! Rendezvous by file: rank 0 writes where it listens, the others poll.
//!
//! A file may be left over from an earlier job, or be another job's. It therefore carries a nonce that goes into the
//! proof of every control connection: whoever listens at a stale address can't prove it, and the reader reads again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::token::{from_hex, to_hex};
use crate::error::InitError;

const FIRST_LINE: &str = "hcomm rendezvous 1";
/// Most bytes of a file that are read.
const BYTES_MAX: u64 = 512;

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub address: SocketAddr,
    pub nonce: [u8; 32],
}

/// The file, as long as it is needed; removed when dropped.
pub(super) struct Published {
    path: PathBuf,
    notice: Notice,
}

impl Published {
    /// Readers see all of it or nothing, and only the same user can read it.
    pub(super) fn write(path: &Path, notice: Notice) -> Result<Published, InitError> {
        let failed = |source: io::Error| InitError::Io {
            what: format!("writing the rendezvous file {}", path.display()),
            source,
        };
        let mut name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?.to_owned();
        // The nonce makes the temporary name one's own, on every host that shares the directory.
        name.push(format!(".{}", to_hex(&notice.nonce[..8])));
        let temporary = path.with_file_name(name);
        let written = write_new(&temporary, &notice.text()).and_then(|()| fs::rename(&temporary, path));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(failed(error));
        }
        Ok(Published { path: path.into(), notice })
    }
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

impl Drop for Published {
    fn drop(&mut self) {
        // Another job may have replaced it meanwhile.
        if read(&self.path).is_ok_and(|notice| notice == self.notice) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Reads the file; the error says why there is nothing to use yet.
pub(super) fn read(path: &Path) -> Result<Notice, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| format!("opening the file: {error}"))?;
    file.take(BYTES_MAX).read_to_string(&mut text).map_err(|error| format!("reading the file: {error}"))?;
    Notice::parse(&text).ok_or_else(|| "the file is not a rendezvous file".into())
}

impl Notice {
    fn text(&self) -> String {
        format!("{FIRST_LINE}\naddress {}\nnonce {}\n", self.address, to_hex(&self.nonce))
    }

    fn parse(text: &str) -> Option<Notice> {
        let mut lines = text.lines();
        lines.next().filter(|line| *line == FIRST_LINE)?;
        let address = lines.next()?.strip_prefix("address ")?.parse().ok()?;
        let nonce = from_hex(lines.next()?.strip_prefix("nonce ")?)?;
        Some(Notice { address, nonce })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            Notice::parse(&text);
            Notice::parse(&format!("{FIRST_LINE}\naddress {text}"));
            Notice::parse(&format!("{FIRST_LINE}\naddress 127.0.0.1:1\nnonce {text}"));
        }
    }

    #[test]
    fn text_goes_there_and_back() {
        let notice = Notice { address: "[fe80::1%3]:5".parse().unwrap(), nonce: [7; 32] };
        assert_eq!(Notice::parse(&notice.text()), Some(notice));
    }
}
