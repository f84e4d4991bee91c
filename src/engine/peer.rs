//! Other processes, as far as is known here.

use std::time::Instant;

/// What is known about another process.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Host, address and process id.
    pub label: String,
    pub standing: Standing,
    /// Since when it stands so.
    pub stands_since: Instant,
    /// Connections on which it said goodbye.
    pub byes: u32,
    /// Frames of it that are kept for communicators not open yet, and their bytes.
    pub orphans: usize,
    pub orphan_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Here,
    /// Said goodbye.
    Left,
    Lost(String),
}

impl Peer {
    pub(crate) fn new(label: String, now: Instant) -> Self {
        Peer { label, standing: Standing::Here, stands_since: now, byes: 0, orphans: 0, orphan_bytes: 0 }
    }

    pub(crate) fn goes(&mut self, standing: Standing, now: Instant) {
        (self.standing, self.stands_since) = (standing, now);
    }
}
