//! The frozen part of the protocol: what two processes exchange before they know each other's version.
//!
//! ```text
//! connector                       listener
//!   Hello (64 bytes)      ─▶
//!                         ◀─      Hello (64 bytes)
//!   proof (32 bytes)      ─▶                          keyed hash over both hellos
//!                         ◀─      Answer (40 bytes)   verdict, and a keyed hash over both hellos
//! ```
//!
//! All of it has a fixed size and is the same in every version, the proofs included, so that a version mismatch is
//! told to both sides, and is known to come from a process of the job and not from a passer-by.

/// First bytes of every connection; the high bit and the line ending show a transport that isn't clean.
const MAGIC: [u8; 8] = *b"\x89hcomm\r\n";

/// Version of everything that follows the frozen part.
pub(super) const VERSION: u16 = 1;

/// The sender holds a token.
const FLAG_TOKEN: u16 = 1;

/// Who speaks, and for what the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub version: u16,
    /// The speaker has a token.
    pub token: bool,
    pub kind: Kind,
    pub from: u32,
    pub to: u32,
    pub nonce: [u8; 32],
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rendezvous: a member speaks with the root.
    Control,
    /// Data between two ranks: small and urgent messages.
    Fast,
    /// Data between two ranks: everything else.
    Bulk,
    /// Two ranks of one host are to share memory.
    Memory,
}

/// Bytes of a [`Hello`]: magic 8, version 2, flags 2, kind 2, reserved 2, from 4, to 4, reserved 8, nonce 32.
pub(super) const HELLO_BYTES: usize = 64;
const _: () = assert!(8 + 2 + 2 + 2 + 2 + 4 + 4 + 8 + 32 == HELLO_BYTES);

/// Bytes of a proof.
pub(super) const PROOF_BYTES: usize = 32;

/// Bytes of an [`Answer`]: verdict 1, reserved 7, proof 32.
pub(super) const ANSWER_BYTES: usize = 40;
const _: () = assert!(1 + 7 + PROOF_BYTES == ANSWER_BYTES);

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&if self.token { FLAG_TOKEN } else { 0 }.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.kind.code().to_le_bytes());
        bytes[16..20].copy_from_slice(&self.from.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.to.to_le_bytes());
        bytes[32..64].copy_from_slice(&self.nonce);
        bytes
    }

    /// `None` if another program speaks. Reserved bytes and flags that this version doesn't know are left to later
    /// versions.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        if bytes[0..8] != MAGIC {
            return None;
        }
        Some(Hello {
            version: u16_at(bytes, 8),
            token: u16_at(bytes, 10) & FLAG_TOKEN != 0,
            kind: Kind::from_code(u16_at(bytes, 12))?,
            from: u32_at(bytes, 16),
            to: u32_at(bytes, 20),
            nonce: std::array::from_fn(|i| bytes[32 + i]),
        })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Kind {
    fn code(self) -> u16 {
        match self {
            Kind::Control => 1,
            Kind::Fast => 2,
            Kind::Bulk => 3,
            Kind::Memory => 4,
        }
    }

    fn from_code(code: u16) -> Option<Kind> {
        [Kind::Control, Kind::Fast, Kind::Bulk, Kind::Memory].into_iter().find(|kind| kind.code() == code)
    }
}

/// What the listener says to a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub verdict: Verdict,
    pub proof: [u8; PROOF_BYTES],
}

/// Whether a connection is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Welcome,
    /// The proof is wrong: another token, or another job.
    WrongProof,
    /// The listener has a token and the connector has none.
    TokenNeeded,
    /// The connector has a token and the listener has none.
    TokenUnknown,
    /// Right key, but this is not the rank that was meant.
    WrongRank,
}

const VERDICTS: [Verdict; 5] =
    [Verdict::Welcome, Verdict::WrongProof, Verdict::TokenNeeded, Verdict::TokenUnknown, Verdict::WrongRank];

impl Answer {
    pub(super) fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[0] = self.verdict as u8;
        bytes[8..].copy_from_slice(&self.proof);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; ANSWER_BYTES]) -> Option<Answer> {
        let verdict = *VERDICTS.get(usize::from(bytes[0]))?;
        Some(Answer { verdict, proof: std::array::from_fn(|i| bytes[8 + i]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> impl Strategy<Value = Hello> {
        let kind = prop_oneof![Just(Kind::Control), Just(Kind::Fast), Just(Kind::Bulk)];
        let parts = (any::<u16>(), any::<bool>(), kind, any::<u32>(), any::<u32>(), any::<[u8; 32]>());
        parts.prop_map(|(version, token, kind, from, to, nonce)| Hello {
            version,
            token,
            kind,
            from,
            to,
            nonce,
        })
    }

    proptest! {
        #[test]
        fn hello_goes_there_and_back(hello in hello()) {
            prop_assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in any::<[u8; HELLO_BYTES]>(), answer in any::<[u8; ANSWER_BYTES]>()) {
            prop_assert_eq!(Hello::decode(&bytes), None);
            let mut ours = bytes;
            ours[..8].copy_from_slice(&MAGIC);
            Hello::decode(&ours);
            Answer::decode(&answer);
        }

        #[test]
        fn answer_goes_there_and_back(index in 0..VERDICTS.len(), proof in any::<[u8; PROOF_BYTES]>()) {
            let answer = Answer { verdict: VERDICTS[index], proof };
            prop_assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn the_hello_is_frozen() {
        let hello = Hello { version: 1, token: true, kind: Kind::Bulk, from: 2, to: 3, nonce: [9; 32] };
        let mut expected =
            b"\x89hcomm\r\n\x01\0\x01\0\x03\0\0\0\x02\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        expected.extend([9; 32]);
        assert_eq!(hello.encode().to_vec(), expected);
    }
}
