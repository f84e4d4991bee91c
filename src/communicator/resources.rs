//! What a rank uses beyond its callers' buffers, and the limit that it keeps to.

use super::Communicator;
use crate::engine::room::{MEMORY, Memory};
use crate::error::InitError;

/// What a rank uses at present, all its communicators together. Bytes unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resources {
    /// What `HCOMM_MEMORY`, or [`Builder::memory`](super::Builder::memory), allows beyond the callers' buffers: half for
    /// `working`, a quarter for `kept`, a quarter for `pooled`. Ranks of one process share it in equal parts. Without either
    /// it is 64 MiB, or for more than 16 ranks of one process what they need at least: 257 KiB for each of a rank's peers.
    pub limit: usize,
    /// Set aside for what operations in flight work in. Beyond half of the limit, the next collective begins once others
    /// have ended; but one per communicator may always be in flight, so that nothing waits for ever.
    pub working: usize,
    /// Small messages that peers have sent ahead, and nobody has asked for yet.
    pub kept: usize,
    /// Free blocks, kept for reuse.
    pub pooled: usize,
    /// Copies of borrowed slices. They count as the callers' own buffers and not against the limit: a copy is as large
    /// as the slice and lives as long as its operation. Not copied are buffers by value, and the slices that
    /// [`blocking`](super::blocking) is given to write to: all but that of its `send`.
    pub staged: usize,
    /// What operations really work in at present, copies of borrowed slices included.
    pub in_use: usize,
    /// Most that `in_use` has ever been.
    pub in_use_max: usize,
    /// Bytes of callers' buffers that wait in connections to leave: no memory of their own, at most 1 MiB per connection.
    pub queued: usize,
    /// Segments of [buffers](super::Communicator::alloc) that other processes read where they lie: all that they take of the
    /// system at present. They count as the callers' own buffers.
    pub shared: usize,
    /// Of these, in huge pages.
    pub shared_huge: usize,
    /// Of these, in segments that no buffer is in, which are kept for later ones: at most 64 MiB.
    pub shared_free: usize,
    /// What this process writes for others of its host to read: frames on their way. Up to a quarter of the limit, beside it, and
    /// 516 KiB at least for each that it shares memory with.
    pub lanes: usize,
    /// File descriptors: two per peer that is reached by TCP, three where memory is shared, one per segment of `shared`, and
    /// two of the poll set.
    pub descriptors: usize,
    /// Threads: the service thread, one per process for all its ranks.
    pub threads: usize,
    /// Operations in flight.
    pub operations: usize,
    /// Collectives called that wait to begin: for room, or since very many are in flight.
    pub delayed: usize,
    /// Communicators that are open: this one and those that were split, duplicated, created or rebuilt. They share links, memory
    /// and threads; one more costs its part of `records`, and one plan per kind of call. One that was dropped counts until its
    /// operations have ended.
    pub communicators: usize,
    /// [Keys](super::Communicator::keyed) that were asked for, of all communicators: they cost what a communicator does.
    pub keys: usize,
    /// Records of communicators and keys: what each has for its ranks, and the calls that it remembers to tell who disagrees. They are
    /// beside the limit.
    pub records: usize,
    /// The [last operations](super::Communicator::recent_operations), of all communicators: what they take once so many have been
    /// called. Beside the limit.
    pub recorder: usize,
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
        let (in_use, in_use_max) = pool.usage();
        let taken = self.engine.arena().map(|arena| arena.taken()).unwrap_or_default();
        Resources {
            limit: pool.memory_limit(),
            working: usage.working,
            kept: usage.kept,
            pooled,
            staged,
            in_use,
            in_use_max,
            queued: usage.queued,
            shared: taken.bytes,
            shared_huge: taken.huge,
            shared_free: taken.free,
            lanes: usage.lanes,
            descriptors: usage.descriptors + taken.segments,
            threads: 1,
            operations: usage.operations,
            delayed: usage.delayed,
            communicators: usage.communicators,
            keys: usage.keys,
            records: usage.records,
            recorder: usage.recorder,
        }
    }
}

const VARIABLE: &str = "HCOMM_MEMORY";

/// What each of `ranks` in this process may use, in a world of so many peers: its share of what was asked for, else of what the
/// environment says, else of the default, or what it needs at least.
pub(super) fn memory(asked: Option<usize>, ranks: usize, peers: usize) -> Result<Memory, InitError> {
    let told = match asked {
        Some(bytes) => Some(bytes),
        None => memory_of_environment()?,
    };
    let least = Memory::least(peers);
    let Some(bytes) = told else { return Ok(Memory { limit: (MEMORY / ranks).max(least) }) };
    if bytes / ranks < least {
        return Err(InitError::Limit {
            what: "memory".into(),
            needed: (least * ranks) as u64,
            available: bytes as u64,
            hint: format!("raise {VARIABLE}, or Builder::memory: every peer needs room for a small message"),
        });
    }
    Ok(Memory { limit: bytes / ranks })
}

fn memory_of_environment() -> Result<Option<usize>, InitError> {
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
    let text = text.to_string_lossy();
    let problem = || InitError::Environment {
        message: format!("{VARIABLE} is no number of bytes, as 64M, 512K or 1G"),
        seen: format!("{VARIABLE}={text:?}"),
    };
    bytes(&text).map(Some).ok_or_else(problem)
}

/// A number of bytes, with K, M or G for powers of 1024; as the command reads its sizes.
fn bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "k" | "K" | "KiB" => 1 << 10,
        "m" | "M" | "MiB" => 1 << 20,
        "g" | "G" | "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_process_share_what_there_is_and_have_what_they_need() {
        assert_eq!(memory(Some(40 << 20), 4, 3).unwrap().limit, 10 << 20);
        assert_eq!(memory(Some(Memory::least(3) * 4), 4, 3).unwrap().limit, Memory::least(3));
        let few = memory(Some(Memory::least(3) * 4 - 1), 4, 3).unwrap_err();
        let InitError::Limit { needed, available, .. } = few else { panic!("{few}") };
        assert_eq!((needed, available), (4 * Memory::least(3) as u64, 4 * Memory::least(3) as u64 - 1));
        // By default.
        assert_eq!(memory(None, 1, 0).unwrap().limit, MEMORY);
        assert_eq!(memory(None, 64, 63).unwrap().limit, Memory::least(63));
    }

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes(" 64M"), Some(64 << 20));
        assert_eq!((bytes("3k"), bytes("2G")), (Some(3 << 10), Some(2 << 30)));
        assert_eq!((bytes("7B"), bytes("64MiB")), (Some(7), Some(64 << 20)));
        for wrong in ["", "M", "-1", "1.5G", "64MB", "99999999999999999999", "99999999999G"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
