//! Control messages of rendezvous. They are read only from a peer that has proved the token, and are bounded all the
//! same: four bytes of length, then postcard.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::Member;
use crate::error::InitError;
use crate::rank::Rank;

/// Longest message to the root: an introduction with all its facts.
pub(super) const TO_ROOT_BYTES_MAX: usize = 64 << 10;

/// Longest message to a member: a table, or a report that names every rank.
pub(super) const fn to_member_bytes_max(world: u32) -> usize {
    (64 << 10) + 768 * world as usize
}

/// Longest host name and host id in bytes; the kernel's own limit for names is 64.
pub(super) const HOST_BYTES_MAX: usize = 128;

/// Most blocked connections that one rank reports.
pub(super) const BLOCKED_MAX: usize = 16;

/// What a member says to the root.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToRoot {
    Join(Join),
    /// This rank can't take part, and all should know why.
    Failed(InitError),
    /// Its data connections stand, except these.
    Connected(Vec<Blocked>),
    /// It knows with which ranks, a bit each, it shares memory.
    Shared {
        with: u64,
    },
}

/// A member introduces itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Join {
    pub rank: Rank,
    pub world: u32,
    pub name: String,
    pub device: Option<u32>,
    pub member: Member,
    pub facts: Vec<(String, String)>,
}

/// A connection that could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Blocked {
    pub from: Rank,
    pub to: Rank,
    pub address: SocketAddr,
    pub reason: String,
}

impl Blocked {
    pub(super) fn is_reverse_of(&self, other: &Blocked) -> bool {
        self.from == other.to && self.to == other.from
    }
}

/// What the root says to a member.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToMember {
    /// Heard; a table or a failure follows by then.
    Accepted { decides_in: Duration },
    /// The root gathers another group. Try again later.
    Busy { name: String },
    /// All are here.
    Table(Table),
    /// These pairs (who connected, to whom) failed: try them the other way round.
    Reverse(Vec<(Rank, Rank)>),
    /// All are connected: those of one host may see with whom they share memory.
    Share,
    /// All may begin, and know with which ranks each of them shares memory.
    Ready { sharing: Vec<u64> },
    /// It will not be.
    Failed(InitError),
}

/// Who takes part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Table {
    /// Makes the session key, together with the token.
    pub nonce: [u8; 32],
    pub members: Vec<Member>,
    /// The facts that all agree on, sorted by key.
    pub facts: Vec<(String, String)>,
}

/// Bytes to send.
pub(super) fn encode<T: Serialize>(message: &T, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = bytes.len() - 4;
    if length > bytes_max {
        return Err(io::Error::other(format!(
            "a message of {length} bytes exceeds the limit of {bytes_max}"
        )));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// Reads one message. Nothing is reserved before its length is known to be within the bound.
pub(super) async fn receive<T: DeserializeOwned, S: AsyncRead + Unpin>(
    stream: &mut S,
    bytes_max: usize,
) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        let problem = format!("a message of {length} bytes was announced; the limit is {bytes_max}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    postcard::from_bytes(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::super::Sharing;
    use super::*;
    use crate::domain::processors::Processors;
    use proptest::prelude::*;

    fn read<T: DeserializeOwned>(mut bytes: &[u8], bytes_max: usize) -> io::Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(receive(&mut bytes, bytes_max))
    }

    fn framed(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_le_bytes(), body].concat()
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(tag in 0u8..7, body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let body = [&[tag], body.as_slice()].concat();
            let _ = read::<ToRoot>(&framed(&body), TO_ROOT_BYTES_MAX);
            let _ = read::<ToMember>(&framed(&body), to_member_bytes_max(4));
            let _ = read::<ToMember>(&body, to_member_bytes_max(4));
        }

        /// Lengths within a message are claims, too: nothing is reserved that did not come.
        #[test]
        fn a_damaged_message_is_decoded_or_refused(
            which in 0usize..7,
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            claim in proptest::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = valid()[which].clone();
            if let Some(at) = claim {
                let at = 4 + at.index(bytes.len() - 4);
                bytes.splice(at..=at, [0xff, 0xff, 0xff, 0xff, 0x0f]);
            }
            for (at, byte) in damage {
                let at = 4 + at.index(bytes.len() - 4);
                bytes[at] = byte;
            }
            let body = framed(&bytes[4..]);
            if let Ok(ToMember::Table(table)) = read::<ToMember>(&body, to_member_bytes_max(4)) {
                prop_assert!(table.members.len() <= body.len() && table.facts.len() <= body.len());
            }
            if let Ok(ToRoot::Join(join)) = read::<ToRoot>(&body, TO_ROOT_BYTES_MAX) {
                prop_assert!(join.facts.len() <= body.len() && join.name.len() <= body.len());
            }
        }

        #[test]
        fn a_cut_message_is_refused(cut in 0usize..20) {
            let bytes = encode(&ToMember::Busy { name: "a group's name".into() }, 100).unwrap();
            prop_assert!(read::<ToMember>(&bytes[..cut.min(bytes.len() - 1)], 100).is_err());
        }
    }

    /// One of each kind.
    fn valid() -> [Vec<u8>; 7] {
        let member = Member {
            address: "10.0.0.1:29500".parse().unwrap(),
            hostname: "node0".into(),
            pid: 77,
            host: "boot/net".into(),
            processors: Processors::of_this_process(),
            sharing: Sharing::By([7; 16]),
        };
        let facts = vec![("ranks".to_string(), "4".to_string())];
        let blocked = Blocked {
            from: Rank(0),
            to: Rank(1),
            address: "[::1]:5".parse().unwrap(),
            reason: "refused".into(),
        };
        let join = Join {
            rank: Rank(1),
            world: 4,
            name: "world".into(),
            device: Some(3),
            member: member.clone(),
            facts: facts.clone(),
        };
        let table = Table { nonce: [7; 32], members: vec![member; 4], facts };
        let limit =
            InitError::Limit { what: "descriptors".into(), needed: 9, available: 3, hint: "more".into() };
        [
            encode(&ToRoot::Join(join), 1000),
            encode(&ToRoot::Failed(limit), 1000),
            encode(&ToRoot::Connected(vec![blocked]), 1000),
            encode(&ToMember::Table(table), 1000),
            encode(&ToMember::Accepted { decides_in: Duration::from_secs(3) }, 1000),
            encode(&ToMember::Reverse(vec![(Rank(0), Rank(1))]), 1000),
            encode(&ToMember::Busy { name: "another".into() }, 1000),
        ]
        .map(Result::unwrap)
    }

    #[test]
    fn four_gigabytes_are_refused_unread() {
        let error = read::<ToRoot>(&u32::MAX.to_le_bytes(), TO_ROOT_BYTES_MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(encode(&ToMember::Busy { name: "x".repeat(101) }, 100).is_err());
    }

    #[test]
    fn a_failure_goes_there_and_back() {
        let errors = [
            InitError::WorldSize { claims: "rank 0 says 4; rank 1 says 5".into() },
            InitError::DuplicateDevice {
                device: 3,
                host: "node0".into(),
                first: Rank(0),
                second: Rank(1),
                first_process: "10.0.0.1:5 (host node0, pid 7)".into(),
                second_process: "10.0.0.1:6 (host node0, pid 8)".into(),
            },
        ];
        for error in errors {
            let text = error.to_string();
            let bytes = encode(&ToMember::Failed(error), 1000).unwrap();
            let ToMember::Failed(error) = read(&bytes, 1000).unwrap() else { panic!("another message") };
            assert_eq!(error.to_string(), text);
        }
    }
}
