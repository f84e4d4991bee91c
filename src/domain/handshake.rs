//! Proves both ways that the two ends of a connection hold one key, before anything of variable length is read.
//!
//! Each proof covers both hellos, and so both nonces, the kind, the ranks and the versions: it can't be replayed,
//! reflected, or moved to another connection. The connector proves first, so that a passer-by learns nothing.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frame::{ANSWER_BYTES, Answer, HELLO_BYTES, Hello, PROOF_BYTES, VERSION, Verdict};
use super::token::Key;

const CONNECTOR: &str = "hcomm connector";
const LISTENER: &str = "hcomm listener";

/// Why two ends did not come together.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Not a program like this one, or a broken connection.
    Stranger(String),
    /// The key was not proved.
    Key(String),
    /// The key was proved, and the versions differ.
    Version { theirs: u16, from: u32 },
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Stranger(describe(&error))
    }
}

/// What an error during set-up means, in plain words.
pub(super) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the other side closed the connection".into(),
        _ => error.to_string(),
    }
}

/// The connector's side. Returns the listener's hello.
pub(super) async fn connect<S>(stream: &mut S, ours: Hello, key: &Key) -> Result<Hello, Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let sent = ours.encode();
    stream.write_all(&sent).await?;
    let seen = read::<HELLO_BYTES, S>(stream).await?;
    let theirs =
        Hello::decode(&seen).ok_or_else(|| Refusal::Stranger("it is not an hcomm process".into()))?;
    stream.write_all(&key.prove(CONNECTOR, &[&sent, &seen])).await?;
    let answer = read::<ANSWER_BYTES, S>(stream).await?;
    let answer = Answer::decode(&answer).ok_or_else(|| Refusal::Stranger("its answer is unknown".into()))?;
    if let Some(reason) = complaint(answer.verdict) {
        return Err(Refusal::Key(reason.into()));
    }
    if !key.verify(LISTENER, &[&sent, &seen], &answer.proof) {
        return Err(Refusal::Key("it accepts our proof but can't give its own".into()));
    }
    check_version(&ours, theirs)
}

fn complaint(verdict: Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Welcome => None,
        Verdict::WrongProof => Some("it has another token, or belongs to another rendezvous"),
        Verdict::TokenNeeded => Some("this process has no token and it has one"),
        Verdict::TokenUnknown => Some("this process has a token and it has none"),
        Verdict::WrongRank => Some("it is another rank than the one that was meant"),
    }
}

/// The listener's side. `judge` may refuse a hello whose key is right. Returns the connector's hello.
pub(super) async fn accept<S>(
    stream: &mut S,
    ours: Hello,
    key: &Key,
    judge: impl Fn(&Hello) -> Verdict,
) -> Result<Hello, Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let seen = read::<HELLO_BYTES, S>(stream).await?;
    let theirs =
        Hello::decode(&seen).ok_or_else(|| Refusal::Stranger("it is not an hcomm process".into()))?;
    let sent = ours.encode();
    stream.write_all(&sent).await?;
    let proof = read::<PROOF_BYTES, S>(stream).await?;
    let verdict = match (ours.token, theirs.token) {
        (true, false) => Verdict::TokenNeeded,
        (false, true) => Verdict::TokenUnknown,
        _ if !key.verify(CONNECTOR, &[&seen, &sent], &proof) => Verdict::WrongProof,
        _ => judge(&theirs),
    };
    let proof = match verdict {
        Verdict::Welcome => key.prove(LISTENER, &[&seen, &sent]),
        _ => [0; PROOF_BYTES],
    };
    stream.write_all(&Answer { verdict, proof }.encode()).await?;
    let reason = match verdict {
        Verdict::Welcome => return check_version(&ours, theirs),
        Verdict::TokenNeeded => "it has no token and this process has one",
        Verdict::TokenUnknown => "it has a token and this process has none",
        Verdict::WrongRank => "it looked for another rank",
        Verdict::WrongProof => "it has another token, or looked for another job",
    };
    Err(Refusal::Key(reason.into()))
}

fn check_version(ours: &Hello, theirs: Hello) -> Result<Hello, Refusal> {
    if theirs.version == ours.version {
        return Ok(theirs);
    }
    Err(Refusal::Version { theirs: theirs.version, from: theirs.from })
}

async fn read<const N: usize, S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// This process's hello; a version other than this one's is for tests only.
pub(super) fn hello(
    kind: super::frame::Kind,
    key_is_secret: bool,
    from: u32,
    to: u32,
    nonce: [u8; 32],
) -> Hello {
    Hello { version: VERSION, token: key_is_secret, kind, from, to, nonce }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Kind;
    use super::*;

    fn run(
        ours: Hello,
        ours_key: Key,
        theirs: Hello,
        theirs_key: Key,
    ) -> (Result<Hello, Refusal>, Result<Hello, Refusal>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut left, mut right) = tokio::io::duplex(256);
            tokio::join!(
                connect(&mut left, ours, &ours_key),
                accept(&mut right, theirs, &theirs_key, |hello| if hello.to == 9 {
                    Verdict::WrongRank
                } else {
                    Verdict::Welcome
                })
            )
        })
    }

    fn plain(version: u16, token: bool, to: u32) -> Hello {
        Hello { version, token, kind: Kind::Control, from: 1, to, nonce: [version as u8; 32] }
    }

    #[test]
    fn one_key_is_welcome_and_two_are_not() {
        let (a, b) = run(plain(1, true, 0), Key::new([1; 32]), plain(1, true, 1), Key::new([1; 32]));
        assert!(a.is_ok() && b.is_ok());
        let (a, b) = run(plain(1, true, 0), Key::new([1; 32]), plain(1, true, 1), Key::new([2; 32]));
        assert!(matches!((a, b), (Err(Refusal::Key(_)), Err(Refusal::Key(_)))));
    }

    #[test]
    fn a_token_on_one_side_only_is_told() {
        let (a, _) = run(plain(1, false, 0), Key::new([1; 32]), plain(1, true, 1), Key::new([1; 32]));
        assert!(matches!(a, Err(Refusal::Key(reason)) if reason.contains("this process has no token")));
        let (a, _) = run(plain(1, true, 0), Key::new([1; 32]), plain(1, false, 1), Key::new([1; 32]));
        assert!(matches!(a, Err(Refusal::Key(reason)) if reason.contains("it has none")));
    }

    #[test]
    fn versions_are_told_to_both() {
        let (a, b) = run(plain(1, true, 0), Key::new([1; 32]), plain(2, true, 1), Key::new([1; 32]));
        assert!(matches!(a, Err(Refusal::Version { theirs: 2, .. })));
        assert!(matches!(b, Err(Refusal::Version { theirs: 1, from: 1 })));
    }

    #[test]
    fn another_rank_than_meant_is_told() {
        let (a, b) = run(plain(1, true, 9), Key::new([1; 32]), plain(1, true, 1), Key::new([1; 32]));
        assert!(matches!((a, b), (Err(Refusal::Key(_)), Err(Refusal::Key(_)))));
    }
}
