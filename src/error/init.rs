//! Why a communicator could not be made.

use std::fmt;
use std::time::Duration;

use crate::rank::Rank;

/// Why a communicator could not be made.
///
/// `Debug` is as `Display`, here and for [`Error`](super::Error): it is what a `main` that returns an error prints.
#[derive(thiserror::Error, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum InitError {
    /// An environment variable is missing, unreadable, or contradicts another.
    #[error("{message}; seen: {seen}")]
    #[non_exhaustive]
    Environment {
        /// What is wrong, and what to do.
        message: String,
        /// Of the variables that say who this process is and where ranks meet, those that are set, with their values; of the token
        /// only that it is. Where the limit of memory is what is wrong, that one alone.
        seen: String,
    },
    /// A setting that can't work.
    #[error("{0}")]
    Config(String),
    /// Not everybody came before the deadline.
    #[error("rendezvous at {root}: after {waited:.1?} still missing {}; present: {present}{}; see whether the missing were started with this address and what they say, or allow \
         more time (.rendezvous_deadline())", list_ranks(.missing), clause(.refused))]
    #[non_exhaustive]
    MissingRanks {
        /// Where the root listens.
        root: String,
        /// Who has not come.
        missing: Vec<Rank>,
        /// Who has, with addresses.
        present: String,
        /// How long was waited.
        waited: Duration,
        /// Who was turned away meanwhile and why; empty if nobody was.
        refused: String,
    },
    /// Two processes claim one rank.
    #[error(
        "rank {rank} was claimed by two processes: {first} and {second}; give each process a rank of its own (RANK), and each \
         job an address of its own"
    )]
    #[non_exhaustive]
    DuplicateRank {
        /// The rank claimed twice.
        rank: Rank,
        /// Address, host and process id of the first.
        first: String,
        /// Address, host and process id of the second.
        second: String,
    },
    /// Two ranks claim one device.
    #[error(
        "ranks {first} and {second} both claim device {device} of host {host}: rank {first} is at {first_process}, rank {second} \
         at {second_process}; give each rank of a host another (.device())"
    )]
    #[non_exhaustive]
    DuplicateDevice {
        /// Device index.
        device: u32,
        /// Its host.
        host: String,
        /// One rank.
        first: Rank,
        /// The other.
        second: Rank,
        /// Address, host and process id of the first.
        first_process: String,
        /// Address, host and process id of the second.
        second_process: String,
    },
    /// Processes disagree on how many there are.
    #[error(
        "world size disagreement: {claims}; give all the same number of ranks (WORLD_SIZE), and each job an address of its own"
    )]
    #[non_exhaustive]
    WorldSize {
        /// Which ranks claim which size, most first; the others with addresses.
        claims: String,
    },
    /// A fact that plans are chosen from differs between ranks.
    #[error("ranks disagree on {key}: {values}; run the same program with the same settings on all")]
    #[non_exhaustive]
    FactsDiffer {
        /// The fact.
        key: String,
        /// Which ranks hold which value, most first; the others with addresses.
        values: String,
    },
    /// The other side speaks another version.
    #[error(
        "protocol version mismatch: this is {ours}, {peer} has {theirs}; run the same version of hcomm on all"
    )]
    #[non_exhaustive]
    Version {
        /// Ours.
        ours: u16,
        /// Theirs.
        theirs: u16,
        /// Who.
        peer: String,
    },
    /// The job token was not proved.
    #[error(
        "{peer} did not prove the job's token: {reason}; give all ranks the same token (HCOMM_TOKEN), and each job an address of \
         its own"
    )]
    #[non_exhaustive]
    Authentication {
        /// Who.
        peer: String,
        /// What was wrong.
        reason: String,
    },
    /// Nobody answers at an address.
    #[error("rank {from} can't reach {to} at {address}: {reason}")]
    #[non_exhaustive]
    Unreachable {
        /// Who tried.
        from: Rank,
        /// Whom ("the root", "rank 3").
        to: String,
        /// Where.
        address: String,
        /// Last error, how often and how long was tried.
        reason: String,
    },
    /// A member or the root went away during set-up.
    #[error("{who} went away during {phase}: {reason} (see what its own output says)")]
    #[non_exhaustive]
    Lost {
        /// Who ("the root (rank 0) at 10.0.0.1:29500").
        who: String,
        /// In which phase.
        phase: String,
        /// What was seen.
        reason: String,
    },
    /// The machine grants too little of something.
    #[error("not enough {what}: {needed} needed, {available} available; {hint}")]
    #[non_exhaustive]
    Limit {
        /// Of what.
        what: String,
        /// Need.
        needed: u64,
        /// Have.
        available: u64,
        /// What to do.
        hint: String,
    },
    /// Two ranks of one host can't share memory, which was required.
    #[error(
        "ranks {first} and {second} of one host can't share memory: {reason}; see to that, or allow TCP between them \
         (.shared_memory(SharedMemory::Auto), HCOMM_SHARED_MEMORY=auto)"
    )]
    #[non_exhaustive]
    SharedMemory {
        /// The lower one.
        first: Rank,
        /// The other.
        second: Rank,
        /// What is in the way.
        reason: String,
    },
    /// The operating system refused. Other ranks are told in words, as [`InitError::Lost`].
    // The last one: variants are sent by number, and who reads does not count one that is not sent.
    #[error("{what}: {error}")]
    #[serde(skip)]
    #[non_exhaustive]
    Io {
        /// What was tried.
        what: String,
        /// Its answer. The sentence ends with it, so it is not told as its source once more.
        error: std::io::Error,
    },
}

impl fmt::Debug for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn clause(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; {text}") }
}

/// "rank 1", "ranks 0, 2".
pub(crate) fn list_ranks(list: &[Rank]) -> String {
    let names: Vec<String> = list.iter().map(Rank::to_string).collect();
    format!("rank{} {}", if list.len() == 1 { "" } else { "s" }, names.join(", "))
}
