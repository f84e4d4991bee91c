//! What a command is at, for whoever waits at a terminal: one line, written over and over, and erased before a result.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Between two looks of the line: people read no faster, and what is measured should not notice.
const INTERVAL: Duration = Duration::from_millis(100);
/// What takes less long is not worth a line that comes and goes.
const PATIENCE: Duration = Duration::from_millis(300);

/// To the start of the line, and nothing on it.
const ERASE: &str = "\r\x1b[K";

/// The line. It is gone with its owner.
#[derive(Debug)]
pub struct Progress {
    /// When it is written next; never where nobody looks.
    next: Option<Instant>,
    written: bool,
    part: String,
}

impl Progress {
    /// Written to standard error, if that is a terminal and `wanted`.
    pub fn new(wanted: bool) -> Self {
        let next = (wanted && on_terminal()).then(|| Instant::now() + PATIENCE);
        Progress { next, written: false, part: String::new() }
    }

    /// Another part of the work begins, which the line names first.
    pub fn begin(&mut self, part: String) {
        self.part = part;
    }

    /// The work goes on; the text is made only if it is time for it.
    pub fn show<T: Display>(&mut self, text: impl FnOnce() -> T) {
        let Some(next) = self.next else { return };
        let now = Instant::now();
        if now < next {
            return;
        }
        self.next = Some(now + INTERVAL);
        self.written = true;
        let between = if self.part.is_empty() { "" } else { ": " };
        write(&line(format_args!("{}{between}{}", self.part, text())));
    }

    /// Makes room for a result.
    pub fn erase(&mut self) {
        if std::mem::take(&mut self.written) {
            write(ERASE);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.erase();
    }
}

/// Does what tells nothing until it is done, while the line says how long it has been at it.
pub fn during<T>(what: &str, work: impl FnOnce() -> T) -> T {
    if !on_terminal() {
        return work();
    }
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (began, mut progress) = (Instant::now(), Progress::new(true));
            while let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(INTERVAL) {
                progress.show(|| format!("{what}: {} s", began.elapsed().as_secs()));
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// Takes a line away that another process or thread may have left where a message is to go.
pub fn make_way() {
    if on_terminal() {
        write(ERASE);
    }
}

fn on_terminal() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// One line, however narrow the terminal is: what does not fit is not shown, or it could not be erased.
fn line(text: impl Display) -> String {
    format!("{ERASE}\x1b[?7l{text}\x1b[?7h")
}

fn write(text: &str) {
    // Where nobody reads it, nothing is missed.
    let _ = io::stderr().write_all(text.as_bytes());
}
