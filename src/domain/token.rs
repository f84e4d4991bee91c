//! The job's secret, and keys derived from it. A key never travels; only keyed hashes over fresh nonces do.

use std::fmt;

use hmac::{Hmac, Mac};
use rustix::rand::GetRandomFlags;
use sha2::Sha256;

use crate::error::InitError;

/// The secret that all processes of one job share: 32 bytes, written as 64 hexadecimal digits.
///
/// Whoever has it can join the job. `Debug` doesn't show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; 32]);

impl Token {
    /// A token from the operating system's random numbers.
    ///
    /// # Errors
    ///
    /// [`InitError::Io`] if the system gives none.
    pub fn random() -> Result<Token, InitError> {
        nonce().map(Token)
    }

    /// Reads what [`Token::to_hex`] wrote.
    ///
    /// # Errors
    ///
    /// [`InitError::Config`] if it isn't 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Token, InitError> {
        from_hex(text.trim()).map(Token).ok_or_else(|| {
            let length = text.trim().chars().count();
            InitError::Config(format!("a token is 64 hexadecimal digits; this one has {length} characters"))
        })
    }

    /// As 64 hexadecimal digits: a secret, so don't log it.
    pub fn to_hex(&self) -> String {
        to_hex(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(not shown)")
    }
}

/// A key for keyed hashes.
#[derive(Clone)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// The key of control connections. Without a token it proves nothing but that both sides mean the same `nonce`
    /// (that of the rendezvous file, or nothing).
    pub(super) fn control(token: Option<&Token>, nonce: &[u8]) -> Key {
        Key(token.map_or([0; 32], |token| token.0)).derive("hcomm control", nonce)
    }

    /// A key from data that is sure to be one.
    #[cfg(test)]
    pub(super) fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    pub(super) fn derive(&self, label: &str, context: &[u8]) -> Key {
        Key(self.prove(label, &[context]))
    }

    pub(super) fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Shows that the writer holds the key; `label` keeps proofs for one purpose from serving another.
    pub(super) fn prove(&self, label: &str, parts: &[&[u8]]) -> [u8; 32] {
        self.hash(label, parts).finalize().into_bytes().into()
    }

    /// Compares in constant time.
    pub(super) fn verify(&self, label: &str, parts: &[&[u8]], proof: &[u8; 32]) -> bool {
        self.hash(label, parts).verify_slice(proof).is_ok()
    }

    fn hash(&self, label: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut hash = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length of key is allowed");
        // Lengths go in as well, so that no two lists of parts give the same bytes.
        for part in std::iter::once(label.as_bytes()).chain(parts.iter().copied()) {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

/// 32 bytes never seen before.
pub(super) fn nonce() -> Result<[u8; 32], InitError> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                return Err(InitError::Io { what: "drawing random bytes".into(), error: errno.into() });
            }
        }
    }
    Ok(bytes)
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> =
        text.chars().map(|digit| digit.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_there_and_back() {
        let token = Token::random().unwrap();
        assert_eq!(Token::from_hex(&token.to_hex()).unwrap(), token);
        assert_eq!(Token::from_hex(&format!(" {}\n", token.to_hex())).unwrap(), token);
        for bad in ["", "ab", &"g".repeat(64), &"a".repeat(63), &"a".repeat(65), &"é".repeat(32)] {
            assert!(matches!(Token::from_hex(bad), Err(InitError::Config(_))), "{bad}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = Token::random().unwrap();
        assert!(!format!("{token:?} {:?}", Key::control(Some(&token), b"")).contains(&token.to_hex()[..8]));
    }

    #[test]
    fn a_proof_serves_one_key_label_and_text() {
        let key = Key::control(Some(&Token([7; 32])), b"");
        let proof = key.prove("a", &[b"bc", b"d"]);
        assert!(key.verify("a", &[b"bc", b"d"], &proof));
        assert!(!key.verify("b", &[b"bc", b"d"], &proof));
        assert!(!key.verify("a", &[b"b", b"cd"], &proof));
        assert!(!Key::control(Some(&Token([7; 32])), b"x").verify("a", &[b"bc", b"d"], &proof));
        assert!(!Key::control(None, b"").verify("a", &[b"bc", b"d"], &proof));
    }
}
