//! Rendezvous by file: rank 0 writes where it listens, the others poll.
//!
//! A file may be left over from an earlier job, or be another job's. It therefore carries a nonce that goes into the
//! proof of every control connection: whoever listens at a stale address can't prove it, and the reader reads again.
//! The writer keeps the file locked, and a lock ends with its process: so another rank 0 knows whether the file is
//! left over, which it replaces, or in use, and then waits. A draft of the file that its writer could not remove, since it
//! was killed, is removed by the next writer, who knows it by the same lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::token::{from_hex, to_hex};
use crate::error::InitError;

const FIRST_LINE: &str = "hcomm rendezvous 1";
/// Most bytes of a file that are read.
const BYTES_MAX: u64 = 512;
/// Hexadecimal digits that a draft's name has after that of the file.
const DRAFT_DIGITS: usize = 16;
/// A draft that is still empty after this time is left over: its writer would have locked and filled it at once.
const EMPTY_MAX: Duration = Duration::from_secs(60);

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
    _locked: File,
}

/// The file under a name of its own, until it has its place.
pub(super) struct Draft {
    path: PathBuf,
    temporary: PathBuf,
    notice: Notice,
    locked: File,
}

impl Draft {
    /// Only the same user can read it.
    pub(super) fn write(path: &Path, notice: Notice) -> Result<Draft, InitError> {
        let mut name =
            path.file_name().ok_or_else(|| failed(path, io::ErrorKind::InvalidInput.into()))?.to_owned();
        // The nonce makes the temporary name one's own, on every host that shares the directory.
        name.push(format!(".{}", to_hex(&notice.nonce[..DRAFT_DIGITS / 2])));
        let temporary = path.with_file_name(name);
        let locked = write_new(&temporary, &notice.text()).map_err(|error| failed(path, error))?;
        // By the clock that gives files their times, which may be another host's.
        if let Ok(now) = locked.metadata().and_then(|about| about.modified()) {
            remove_left_over(path, now);
        }
        Ok(Draft { path: path.into(), temporary, notice, locked })
    }

    /// Gives it its place: readers see all of it or nothing. Comes back if another rendezvous uses the place.
    pub(super) fn publish(self) -> Result<Result<Published, Draft>, InitError> {
        match self.take_place() {
            Ok(true) => {
                let (path, notice) = (self.path.clone(), self.notice.clone());
                let _locked = self.locked.try_clone().map_err(|error| failed(&path, error))?;
                Ok(Ok(Published { path, notice, _locked }))
            }
            Ok(false) => Ok(Err(self)),
            Err(error) => Err(failed(&self.path, error)),
        }
    }

    fn take_place(&self) -> io::Result<bool> {
        // A link fails where a file is, and so is taken by one only.
        match fs::hard_link(&self.temporary, &self.path) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Not every file system has links.
            Err(_) if !self.path.exists() => return fs::rename(&self.temporary, &self.path).map(|()| true),
            Err(error) => return Err(error),
        }
        let old = match OpenOptions::new().read(true).write(true).open(&self.path) {
            Ok(old) => old,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if flock(&old, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Ok(false);
        }
        if read(&self.path).is_err() && old.metadata()?.len() > 0 {
            return Err(io::Error::other("there is a file that is not a rendezvous file: give another path"));
        }
        // Whoever held the lock before may have replaced the file that was opened here.
        if !is_at(&old, &self.path)? {
            return Ok(false);
        }
        fs::rename(&self.temporary, &self.path).map(|()| true)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.temporary);
    }
}

fn failed(path: &Path, error: io::Error) -> InitError {
    InitError::Io { what: format!("writing the rendezvous file {}", path.display()), error }
}

/// Whether this file is the one under that name.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (mine, there) = (file.metadata()?, fs::metadata(path)?);
    Ok((mine.dev(), mine.ino()) == (there.dev(), there.ino()))
}

/// Removes drafts for this place whose writers are gone.
fn remove_left_over(path: &Path, now: SystemTime) {
    let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else { return };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let found = entry.file_name();
        let digits = found.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        let digits = digits.and_then(|rest| rest.strip_prefix(b"."));
        let is_draft = digits.is_some_and(|digits| {
            digits.len() == DRAFT_DIGITS
                && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        });
        if is_draft && let Ok(Some(_locked)) = left_over(&entry.path(), now) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A draft whose writer is gone, locked: who writes it after all sees that it is removed once he has the lock.
fn left_over(draft: &Path, now: SystemTime) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).open(draft)?;
    let about = file.metadata()?;
    let age = now.duration_since(about.modified()?).unwrap_or_default();
    // One that is new and empty is not even tried: its writer is about to lock it.
    let settled = if about.len() == 0 { age > EMPTY_MAX } else { read(draft).is_ok() };
    let gone = settled && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    Ok(Some(file).filter(|_| gone))
}

fn write_new(path: &Path, text: &str) -> io::Result<File> {
    /// Each time, another job would have to come upon it before it is locked, long after it was made.
    const TRIES: usize = 64;
    for _ in 0..TRIES {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        // Before anything is in it: who finds something in a draft, and no lock, knows that its writer is gone. Where locks
        // are not supported two jobs at one file are not told apart; their tokens still are.
        let _ = flock(&file, FlockOperation::LockExclusive);
        // Whoever has removed it meanwhile, as one that was left over, had the lock.
        if is_at(&file, path).is_ok_and(|is_there| is_there) {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            return Ok(file);
        }
    }
    Err(io::Error::other("other jobs have removed it each time"))
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

    proptest! {
        #[test]
        fn a_damaged_file_is_read_or_refused(at in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 0..9)) {
            let path = place("damaged");
            let mut text = notice(1).text().into_bytes();
            let at = at.index(text.len());
            text.splice(at..(at + bytes.len()).min(text.len()), bytes);
            fs::write(&path, &text).unwrap();
            let _ = read(&path);
            fs::remove_file(&path).unwrap();
        }
    }

    fn notice(seed: u8) -> Notice {
        Notice { address: "127.0.0.1:5".parse().unwrap(), nonce: [seed; 32] }
    }

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("hcomm-publish-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_place_in_use_is_left_alone_until_it_is_free() {
        let path = place("busy");
        let first = Draft::write(&path, notice(1)).unwrap().publish().unwrap().ok().unwrap();
        let waiting = Draft::write(&path, notice(2)).unwrap().publish().unwrap().err().unwrap();
        assert_eq!(read(&path).unwrap(), notice(1));
        drop(first);
        let second = waiting.publish().unwrap().ok().unwrap();
        assert_eq!(read(&path).unwrap(), notice(2));
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_left_over_is_replaced_and_another_s_is_not() {
        let path = place("old");
        fs::write(&path, notice(1).text()).unwrap();
        let published = Draft::write(&path, notice(2)).unwrap().publish().unwrap().ok().unwrap();
        assert_eq!(read(&path).unwrap(), notice(2));
        drop(published);
        fs::write(&path, "somebody's thesis").unwrap();
        let error = Draft::write(&path, notice(3)).unwrap().publish().err().unwrap();
        assert!(error.to_string().contains("not a rendezvous file"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's thesis");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn drafts_of_writers_that_are_gone_are_removed() {
        let path = place("drafts");
        let beside = |rest: &str| PathBuf::from(format!("{}{rest}", path.display()));
        let old = beside(".0123456789abcdef");
        fs::write(&old, notice(1).text()).unwrap();
        // About to be filled; another file with such a name; other names.
        let kept = [
            ".00000000000000ee",
            ".00000000000000ff",
            ".0123456789abcde",
            ".0123456789abcdeg",
            "0.0123456789abcdef",
        ]
        .map(|rest| (beside(rest), rest));
        for (path, rest) in &kept {
            let text = if rest.ends_with("ee") { String::new() } else { notice(2).text() };
            fs::write(path, if rest.ends_with("ff") { "thesis".into() } else { text }).unwrap();
        }
        let waiting = Draft::write(&path, notice(3)).unwrap();
        assert!(!old.exists());
        let published = Draft::write(&path, notice(4)).unwrap().publish().unwrap().ok().unwrap();
        assert!(waiting.temporary.exists(), "its writer holds the lock");
        // Empty for long: its writer is gone, too.
        let empty = File::options().write(true).open(&kept[0].0).unwrap();
        empty.set_modified(SystemTime::now() - 2 * EMPTY_MAX).unwrap();
        drop(Draft::write(&path, notice(5)).unwrap());
        assert!(!kept[0].0.exists());
        for (path, rest) in &kept[1..] {
            fs::remove_file(path).unwrap_or_else(|error| panic!("{rest}: {error}"));
        }
        drop((waiting, published));
    }

    #[test]
    fn the_age_of_a_draft_is_told_by_the_clock_of_its_files() {
        let draft = place("clock");
        let made = SystemTime::now() - 1000 * EMPTY_MAX;
        File::create(&draft).unwrap().set_modified(made).unwrap();
        for (now, gone) in
            [(made + EMPTY_MAX / 2, false), (made - EMPTY_MAX * 2, false), (made + EMPTY_MAX * 2, true)]
        {
            assert_eq!(left_over(&draft, now).unwrap().is_some(), gone);
        }
        fs::remove_file(&draft).unwrap();
    }

    /// To one whose clock is fast every draft looks old: what has not been locked in time is written again.
    #[test]
    fn a_draft_that_is_taken_for_one_left_over_is_written_again() {
        let path = place("taken");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    remove_left_over(&path, SystemTime::now() + 10 * EMPTY_MAX);
                }
            });
            let drafts = (0..3000u32).map(|round| {
                let nonce = std::array::from_fn(|at| round.to_le_bytes()[at % 4]);
                let draft = Draft::write(&path, Notice { nonce, ..notice(1) })?;
                Ok(draft.temporary.exists())
            });
            let drafts: Vec<Result<bool, InitError>> = drafts.collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            for draft in drafts {
                assert!(draft.unwrap(), "a draft is gone that its writer has locked");
            }
        });
    }

    #[test]
    fn text_goes_there_and_back() {
        let notice = Notice { address: "[fe80::1%3]:5".parse().unwrap(), nonce: [7; 32] };
        assert_eq!(Notice::parse(&notice.text()), Some(notice));
    }
}
