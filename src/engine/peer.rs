//! Other processes, as far as is known here.

/// What is known about another process.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Host, address and process id.
    pub label: String,
    pub standing: Standing,
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
    pub(crate) fn new(label: String) -> Self {
        Peer { label, standing: Standing::Here, byes: 0, orphans: 0, orphan_bytes: 0 }
    }
}
