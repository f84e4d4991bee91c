//! Communicators under a key of another one, and how they share its fate.
//!
//! A rank opens such a channel by itself, when it first asks for the key. It tells the others which key of which
//! communicator that is (`Key`), before anything else on that channel, and waits for nobody. Who has not asked for the key
//! keeps what comes, within the eager budget and the bounds of whatever comes for a communicator that is not open; the
//! note says what to answer when somebody waits, and what to let go of when the communicator itself ends.
//!
//! - Failure: the members are the same, so who is lost fails all. Who asks for a key of a communicator that has failed
//!   gets one that has failed.
//! - Rebuilding cancels what is in flight under keys; once the members are settled, they are closed.
//! - Closing: each key's `Close` goes out before that of the communicator, on the same connections. So who hears that a
//!   rank has closed the communicator has heard how far it came under each key it had asked for, and knows that it will
//!   call nothing under the others. A key that somebody still has keeps its place until he lets go; what he calls is
//!   refused.

use std::sync::Arc;

use super::call::mix;
use super::channel::Stashed;
use super::state::State;
use super::status::Status;
use super::trouble::encode;
use crate::error::Error;
use crate::link::frame::{ASK, Header, Kind, Outgoing};

/// Bytes of a key at most: a path through a model; it goes into names and reports.
pub(crate) const KEY_BYTES_MAX: usize = 256;

/// Whose key a channel is for.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    /// Identifier of the communicator.
    pub parent: u64,
    pub key: Arc<str>,
}

/// A key as a number, for digests: different for different keys but for one chance in 2⁶⁴.
pub(crate) fn key_word(key: &str) -> u64 {
    let mut word = mix(key.len() as u64 ^ 0x6b65_7965_6420_6279);
    for chunk in key.as_bytes().chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        word = mix(word ^ u64::from_le_bytes(bytes));
    }
    word
}

/// The identifier of a key's channel: equal on all ranks.
pub(crate) fn key_id(parent: u64, key: &str) -> u64 {
    const KEYED: u64 = u64::from_le_bytes(*b"of a key");
    mix(mix(parent ^ KEYED) ^ key_word(key)) | 1
}

/// The key that a note tells, if it is one, and the channel is its own.
fn key_told<'a>(header: &Header, key: &'a [u8]) -> Option<&'a str> {
    let key = std::str::from_utf8(key).ok().filter(|key| key.len() <= KEY_BYTES_MAX)?;
    (key_id(header.offset, key) == header.channel).then_some(key)
}

impl State {
    /// The channels of a communicator's keys.
    pub(super) fn keys_of(&self, parent: u64) -> Vec<usize> {
        let is_key = |index: &usize| {
            let channel = self.channels[*index].as_ref();
            channel.and_then(|channel| channel.family.as_ref()).is_some_and(|family| family.parent == parent)
        };
        (0..self.channels.len()).filter(is_key).collect()
    }

    pub(super) fn keys_on_index(&self, index: usize) -> Vec<usize> {
        self.channels[index].as_ref().map_or_else(Vec::new, |channel| self.keys_of(channel.id))
    }

    /// A channel has been opened: if it is for a key, the others are told, unless its communicator has failed.
    pub(super) fn announce_key(&mut self, index: usize) {
        let Some(channel) = &self.channels[index] else { return };
        let (id, name) = (channel.id, channel.name.clone());
        let Some(Family { parent, key }) = channel.family.clone() else { return };
        let of = self.channel_of(parent).and_then(|index| self.channels[index].as_ref());
        let failed = of.and_then(|of| of.failed.clone()).map(|failed| renamed(failed, name));
        if failed.is_none() {
            let mut header = Header::new(Kind::Key, id, 0);
            header.offset = parent;
            self.broadcast(index, header, key.as_bytes());
        } else if let Some(channel) = self.channels[index].as_mut() {
            channel.failed = channel.failed.take().or(failed);
        }
    }

    /// What came before for a key's channel is there: ranks that have closed the communicator will send no more for it.
    pub(super) fn inherit_closed(&mut self, index: usize) {
        let Some(Family { parent, .. }) = self.channels[index].as_ref().and_then(|of| of.family.clone())
        else {
            return;
        };
        let of = self.channel_of(parent).and_then(|index| self.channels[index].as_ref());
        let closed = of.map_or_else(Vec::new, |of| of.closed.clone());
        for rank in (0..closed.len()).filter(|rank| closed[*rank].is_some()) {
            self.closes_key(index, rank);
        }
    }

    /// A rank has closed a communicator, and with it all of its keys.
    pub(super) fn closes_keys(&mut self, index: usize, rank: usize) {
        for key in self.keys_on_index(index) {
            self.closes_key(key, rank);
        }
    }

    fn closes_key(&mut self, index: usize, rank: usize) {
        if self.channels[index].as_ref().is_some_and(|channel| channel.closed[rank].is_none()) {
            self.on_close(index, rank, 0);
        }
    }

    /// A communicator will not be used again, and so none of its keys.
    pub(super) fn wind_up_keys(&mut self, index: usize) {
        for key in self.keys_on_index(index) {
            if let Some(channel) = self.channels[key].as_mut() {
                channel.winding_up = true;
            }
            self.close_idle(key);
        }
    }

    /// Whether a communicator's own `Close` must wait for that of a key.
    pub(super) fn waits_for_keys(&self, id: u64) -> bool {
        self.keys_of(id).iter().any(|key| self.channels[*key].as_ref().is_some_and(|key| !key.parted))
    }

    /// A key was closed: its communicator may have waited for that.
    pub(super) fn closed_key(&mut self, family: Option<Family>) {
        let parent = family.and_then(|family| self.channel_of(family.parent));
        if let Some(parent) = parent {
            self.close_idle(parent);
        }
    }

    /// A communicator was rebuilt: its keys are closed.
    pub(super) fn replace_keys(&mut self, index: usize) {
        for key in self.keys_on_index(index) {
            if let Some(channel) = self.channels[key].as_mut() {
                channel.failed = Some(Error::Closed { communicator: channel.name.clone() });
            }
            self.cancel_all(key);
            self.discard_kept(key);
        }
    }

    /// Another rank asks for the key of a channel that is open here.
    pub(super) fn check_key(&self, index: usize, header: &Header, key: &[u8]) -> Result<(), String> {
        let channel = self.channels[index].as_ref();
        let family = channel.and_then(|channel| channel.family.as_ref());
        let equal =
            family.is_some_and(|family| family.parent == header.offset && family.key.as_bytes() == key);
        if equal { Ok(()) } else { Err("a key for a communicator that has another name".into()) }
    }

    /// Another rank asks for a key that this one has not asked for. Says whether to keep that in mind.
    pub(super) fn is_news(&mut self, peer: usize, header: &Header, key: &[u8]) -> Result<bool, String> {
        if key_told(header, key).is_none() {
            return Err("a key that does not belong to its communicator".into());
        }
        let parent = self.channel_of(header.offset).and_then(|index| self.channels[index].as_ref());
        if parent.is_some_and(|parent| parent.rank_of(peer).is_none()) {
            return Err("a key of a communicator it is not in".into());
        }
        let over = parent.map_or(self.is_closed(header.offset), |parent| parent.failed.is_some());
        if over {
            self.remember_closed(header.channel);
            self.decline(peer, header.offset);
        }
        Ok(!over)
    }

    /// The communicator whose key a rank has asked for, by the channel's identifier.
    fn announced(&self, peer: usize, id: u64) -> Option<u64> {
        let is_it =
            |of: usize, header: &Header| of == peer && header.kind == Kind::Key && header.channel == id;
        let found = self.orphans.iter().find(|(of, stashed)| is_it(*of, &stashed.header));
        found.map(|(_, stashed)| stashed.header.offset)
    }

    /// A rank that waits under a key asks where this one is, which has not asked for that key. Says whether it was told.
    pub(super) fn answer_unused(&mut self, peer: usize, header: &Header) -> bool {
        if header.kind != Kind::Status || header.flags & ASK == 0 {
            return false;
        }
        let Some(parent) = self.announced(peer, header.channel) else { return false };
        if self.io.may_answer(peer) {
            let elsewhere = self.elsewhere(parent);
            let status = Status { next: 0, current: None, unpolled_ms: self.unpolled_ms(), elsewhere };
            let header = Header::new(Kind::Status, header.channel, 0);
            self.io.control(peer, Outgoing::with_body(header, encode(&status)));
        }
        true
    }

    /// A communicator is closed here, or has failed: nobody will ask for the keys of it that only others have asked for.
    pub(super) fn discard_unused_keys(&mut self, parent: u64) {
        let notes = self.orphans.iter().map(|(_, stashed)| &stashed.header);
        let notes = notes.filter(|header| header.kind == Kind::Key && header.offset == parent);
        let mut ids: Vec<u64> = notes.map(|header| header.channel).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return;
        }
        for (peer, stashed) in std::mem::take(&mut self.orphans) {
            if ids.binary_search(&stashed.header.channel).is_ok() {
                self.uncount_orphan(peer, &stashed);
                stashed.discard(peer, &mut self.io);
            } else {
                self.orphans.push((peer, stashed));
            }
        }
        ids.into_iter().for_each(|id| self.remember_closed(id));
    }

    pub(super) fn discard_unused_keys_on(&mut self, index: usize) {
        if let Some(id) = self.channels[index].as_ref().map(|channel| channel.id) {
            self.discard_unused_keys(id);
        }
    }

    pub(super) fn uncount_orphan(&mut self, peer: usize, stashed: &Stashed) {
        self.peers[peer].orphans -= 1;
        self.peers[peer].orphan_bytes -= stashed.bytes();
    }
}

/// The failure of a communicator, told of one of its keys.
fn renamed(failed: Error, name: Arc<str>) -> Error {
    match failed {
        Error::Closed { .. } => Error::Closed { communicator: name },
        Error::PeerLost { operation, seq, rank, host, cause, .. } => {
            Error::PeerLost { operation, seq, communicator: name, rank, host, cause }
        }
        Error::Left { operation, seq, rank, host, .. } => {
            Error::Left { operation, seq, communicator: name, rank, host }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever was done to a note on its way: what is taken for a key is the one that the channel is for.
        #[test]
        fn a_damaged_key_is_refused(
            key in "\\PC{0,300}",
            parent in any::<u64>(),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in proptest::option::weighted(0.3, any::<prop::sample::Index>()),
        ) {
            let mut header = Header::new(Kind::Key, key_id(parent, &key), 0);
            header.offset = parent;
            let mut body = key.clone().into_bytes();
            for (at, byte) in damage {
                if !body.is_empty() {
                    let at = at.index(body.len());
                    body[at] = byte;
                }
            }
            body.truncate(cut.map_or(body.len(), |at| at.index(body.len() + 1)));
            let good = body == key.as_bytes() && key.len() <= KEY_BYTES_MAX;
            prop_assert_eq!(key_told(&header, &body), good.then_some(key.as_str()));
            header.offset ^= 1;
            prop_assert_eq!(key_told(&header, &body), None);
        }

        #[test]
        fn any_bytes_are_a_key_or_refused(channel in any::<u64>(), body in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(key_told(&Header::new(Kind::Key, channel, 0), &body), None);
        }
    }

    #[test]
    fn keys_and_their_communicators_tell_channels_apart() {
        let keys = ["a", "b", "aa", "a\0", "layer1.weight", "layer2.weight", "layer1.weight\0\0\0"];
        let mut ids: Vec<u64> = keys.iter().flat_map(|key| [0, 1, 77].map(|of| key_id(of, key))).collect();
        ids.extend(keys.iter().map(|key| key_word(key)));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4 * keys.len());
    }
}
