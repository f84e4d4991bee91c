//! Receives that no message has come for, and messages that no receive has asked for, of one communicator.
//!
//! A receive says from whom and with which tag, or leaves that open; of several that fit, a message goes to the one that was posted
//! first, and a receive takes of several that fit the message that came first. Each is found in constant time: a message is in four
//! queues, one for each way to ask for it.

use std::collections::HashMap;

use super::fifos::{Fifos, Place};
use super::matching::{Content, Unexpected};
use super::trouble::Cause;
use crate::link::RunKey;

/// From whom, and with which tag, a message is asked for; none where that is all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wish {
    pub from: Option<u32>,
    pub tag: Option<u32>,
}

impl Wish {
    pub(crate) const fn exact(from: usize, tag: u32) -> Self {
        Wish { from: Some(from as u32), tag: Some(tag) }
    }

    pub(crate) const fn of_rank(from: usize) -> Self {
        Wish { from: Some(from as u32), tag: None }
    }

    /// From whom, as an index.
    pub(crate) fn from(self) -> Option<usize> {
        self.from.map(|from| from as usize)
    }

    /// All that a message answers.
    const fn answered(from: usize, tag: u32) -> [Wish; 4] {
        let (from, tag) = (Some(from as u32), Some(tag));
        [
            Wish { from, tag },
            Wish { from, tag: None },
            Wish { from: None, tag },
            Wish { from: None, tag: None },
        ]
    }

    pub(crate) fn is_answered(self, from: usize, tag: u32) -> bool {
        self.from().is_none_or(|of| of == from) && self.tag.is_none_or(|of| of == tag)
    }

    const fn is_exact(self) -> bool {
        self.from.is_some() && self.tag.is_some()
    }
}

/// Somebody who waits for a message without taking it as a receive does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watcher {
    pub key: RunKey,
    pub wish: Wish,
    /// He claims it; else he only looks.
    pub claims: bool,
}

#[derive(Debug)]
struct Posted {
    key: RunKey,
    order: u64,
    wish: Wish,
}

#[derive(Debug)]
pub(crate) struct Held {
    pub from: usize,
    pub message: Unexpected,
    /// Counts all messages as they come.
    arrived: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Board {
    posted: Fifos<Wish, Posted>,
    /// Receives among them that leave something open.
    open: usize,
    order: u64,
    held: Fifos<Wish, Held, 4>,
    arrived: u64,
    /// Messages held or claimed, by who has sent them.
    counts: Vec<usize>,
    pub watchers: Vec<Watcher>,
    /// Messages that were claimed, until they are received.
    claimed: HashMap<u64, Held>,
    claims: u64,
}

impl Board {
    pub(crate) fn new(ranks: usize) -> Self {
        Board { counts: vec![0; ranks], ..Board::default() }
    }

    // --- receives

    pub(crate) fn post(&mut self, wish: Wish, key: RunKey) -> Place {
        self.order += 1;
        self.open += usize::from(!wish.is_exact());
        self.posted.push([wish], Posted { key, order: self.order, wish })
    }

    /// The receive that was posted first of those that a message answers, taken out.
    pub(crate) fn take_posted(&mut self, from: usize, tag: u32) -> Option<RunKey> {
        if self.open == 0 {
            return self.posted.pop(Wish::exact(from, tag)).map(|posted| posted.key);
        }
        let firsts = Wish::answered(from, tag).into_iter().filter_map(|wish| self.posted.first(wish));
        let wish = firsts.min_by_key(|posted| posted.order)?.wish;
        self.open -= usize::from(!wish.is_exact());
        self.posted.pop(wish).map(|posted| posted.key)
    }

    /// Whether a receive waits for such a message.
    pub(crate) fn is_asked_for(&self, from: usize, tag: u32) -> bool {
        self.posted.has(Wish::exact(from, tag))
            || self.open > 0 && Wish::answered(from, tag).into_iter().any(|wish| self.posted.has(wish))
    }

    /// All receives that no message has come for, with whom they wait for.
    pub(crate) fn posted(&self) -> impl Iterator<Item = (RunKey, Option<usize>)> {
        let watchers = self.watchers.iter().map(|watcher| (watcher.key, watcher.wish.from()));
        self.posted.iter().map(|posted| (posted.key, posted.wish.from())).chain(watchers)
    }

    // --- messages

    /// A message that has come just now.
    pub(crate) fn arrive(&mut self, from: usize, message: Unexpected) -> Held {
        self.arrived += 1;
        Held { from, message, arrived: self.arrived }
    }

    /// Keeps a message until it is asked for, behind all that came before it.
    pub(crate) fn hold(&mut self, held: Held) -> Place {
        self.counts[held.from] += 1;
        let keys = Wish::answered(held.from, held.message.tag);
        let arrived = held.arrived;
        self.held.insert_before(keys, held, |other| other.arrived > arrived)
    }

    /// The message that came first of those that answer, taken out, with who has sent it.
    pub(crate) fn take_held(&mut self, wish: Wish) -> Option<(usize, Unexpected)> {
        let Held { from, message, .. } = self.held.pop(wish)?;
        self.counts[from] -= 1;
        Some((from, message))
    }

    /// The same, claimed; the claim's number.
    pub(crate) fn claim_held(&mut self, wish: Wish) -> Option<u64> {
        let held = self.held.pop(wish)?;
        self.counts[held.from] -= 1;
        Some(self.claim(held))
    }

    /// The same, left where it is.
    pub(crate) fn first_held(&self, wish: Wish) -> Option<(usize, &Unexpected)> {
        self.held.first(wish).map(|held| (held.from, &held.message))
    }

    /// How many messages of a rank are here, claimed ones among them.
    pub(crate) fn held_of(&self, from: usize) -> usize {
        self.counts[from]
    }

    /// All messages that no receive has asked for, with who has sent them.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (usize, Unexpected)> + use<> {
        self.counts.fill(0);
        let claimed = std::mem::take(&mut self.claimed).into_values();
        self.held.take().chain(claimed).map(|held| (held.from, held.message))
    }

    /// Payload bytes of messages that no receive has asked for.
    pub(crate) fn kept_bytes(&self) -> usize {
        let bytes = |message: &Unexpected| {
            if let Content::Whole(bytes) = &message.content { bytes.len() } else { 0 }
        };
        let held: usize = self.held.iter().map(|held| bytes(&held.message)).sum();
        held + self.claimed.values().map(|held| bytes(&held.message)).sum::<usize>()
    }

    /// The sender of a message in this process has given it up: whoever asks for it is told.
    pub(crate) fn given_up(&mut self, from: usize, number: u64, cause: Cause) {
        let is_it = |held: &&mut Held| {
            held.from == from
                && held.message.number == number
                && matches!(held.message.content, Content::Leased(_))
        };
        let mut all = self.held.iter_mut().chain(self.claimed.values_mut());
        if let Some(held) = all.find(is_it) {
            held.message.content = Content::GivenUp(cause);
        }
    }

    /// Drops a receive, or a message of this very rank, whose operation has ended.
    pub(crate) fn forget(&mut self, key: RunKey, place: Place) {
        if let Some(posted) = self.posted.remove_if(place, |posted| posted.key == key) {
            self.open -= usize::from(!posted.wish.is_exact());
        }
        let is_it = |held: &Held| matches!(held.message.content, Content::Local(of) if of == key);
        if let Some(held) = self.held.remove_if(place, is_it) {
            self.counts[held.from] -= 1;
        }
    }

    /// Drops a message of this very rank that was claimed, and whose send has ended.
    pub(crate) fn forget_claimed(&mut self, key: RunKey) {
        let is_it = |held: &Held| matches!(held.message.content, Content::Local(of) if of == key);
        let counts = &mut self.counts;
        self.claimed.retain(|_, held| {
            let goes = is_it(held);
            counts[held.from] -= usize::from(goes);
            !goes
        });
    }

    // --- claims

    /// Keeps a message for who has claimed it; he has it by this number.
    pub(crate) fn claim(&mut self, held: Held) -> u64 {
        self.counts[held.from] += 1;
        self.claims += 1;
        self.claimed.insert(self.claims, held);
        self.claims
    }

    pub(crate) fn claimed(&self, claim: u64) -> Option<(usize, &Unexpected)> {
        self.claimed.get(&claim).map(|held| (held.from, &held.message))
    }

    pub(crate) fn take_claimed(&mut self, claim: u64) -> Option<Held> {
        let held = self.claimed.remove(&claim)?;
        self.counts[held.from] -= 1;
        Some(held)
    }
}
