//! What a rank uses beyond its callers' buffers, and the limit that it keeps to.

use super::Communicator;
use crate::error::InitError;

/// What a rank uses at present, all its communicators together. Bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resources {
    /// What `HCOMM_MEMORY`, or [`Builder::memory`](super::Builder::memory), allows beyond the callers' buffers: half for
    /// `working`, a quarter for `kept`, a quarter for `pooled`. Ranks of one process share it in equal parts.
    pub limit: usize,
    /// Set aside for what operations in flight work in. Beyond half of the limit, the next collective begins once others
    /// have ended; but one per communicator may always be in flight, so that nothing waits for ever.
    pub working: usize,
    /// Small messages that peers have sent ahead, and nobody has asked for yet.
    pub kept: usize,
    /// Free blocks, kept for reuse.
    pub pooled: usize,
    /// Copies of borrowed slices. They count as the callers' own buffers and not against the limit: a copy is as large
    /// as the slice and lives as long as its operation. Buffers by value, and `hcomm::blocking`, are not copied.
    pub staged: usize,
    /// Bytes of callers' buffers that wait in connections to leave: no memory of their own, at most 1 MiB per connection.
    pub queued: usize,
    /// File descriptors: two per peer that is reached by TCP, and two of the poll set.
    pub descriptors: usize,
    /// Threads: the service thread, one per process for all its ranks.
    pub threads: usize,
    /// Operations in flight.
    pub operations: usize,
    /// Collectives called that wait for room to begin.
    pub delayed: usize,
}

impl Communicator {
    /// What this rank uses at present.
    ///
    /// ```
    /// let comm = hcomm::Communicator::local(1).remove(0);
    /// let used = comm.resources();
    /// assert_eq!((used.limit, used.working, used.operations), (64 << 20, 0, 0));
    /// ```
    pub fn resources(&self) -> Resources {
        let usage = self.engine.usage();
        let pool = self.engine.pool();
        let (pooled, staged) = pool.kept_and_staged();
        Resources {
            limit: pool.memory_limit(),
            working: usage.working,
            kept: usage.kept,
            pooled,
            staged,
            queued: usage.queued,
            descriptors: usage.descriptors,
            threads: 1,
            operations: usage.operations,
            delayed: usage.delayed,
        }
    }
}

const VARIABLE: &str = "HCOMM_MEMORY";

/// What the environment allows, if it says so in a way that can be read.
pub(super) fn memory_of_environment() -> Option<usize> {
    memory_of_environment_checked().unwrap_or_else(|error| {
        tracing::warn!(%error, "the default limit of memory is used");
        None
    })
}

pub(super) fn memory_of_environment_checked() -> Result<Option<usize>, InitError> {
    let Some(text) = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()) else { return Ok(None) };
    let problem = || InitError::Environment {
        message: format!("{VARIABLE} is no number of bytes, as 64M, 512K or 1G"),
        seen: format!("{VARIABLE}={text:?}"),
    };
    bytes(&text).map(Some).ok_or_else(problem)
}

/// A number of bytes, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 1 << 10),
        (at, 'M' | 'm') => (&text[..at], 1 << 20),
        (at, 'G' | 'g') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes(" 64M"), Some(64 << 20));
        assert_eq!((bytes("3k"), bytes("2G")), (Some(3 << 10), Some(2 << 30)));
        for wrong in ["", "M", "-1", "1.5G", "64MB", "99999999999999999999", "99999999999G"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
