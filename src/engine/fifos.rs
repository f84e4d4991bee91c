//! Queues by key: first in, first out for each, and whatever is in one is found, and taken out, in constant time. What is in them may
//! be in several, under as many keys.

use std::collections::HashMap;
use std::hash::Hash;

/// Where something is in a [`Fifos`]; may be another's by the time it is used.
pub(crate) type Place = u32;

/// No entry.
const NONE: Place = Place::MAX;

#[derive(Debug)]
pub(crate) struct Fifos<K, T, const N: usize = 1> {
    entries: Vec<Entry<K, T, N>>,
    free: Vec<Place>,
    /// First and last entry of each key that has any.
    ends: HashMap<K, (Place, Place)>,
}

#[derive(Debug)]
struct Entry<K, T, const N: usize> {
    value: Option<T>,
    links: [Link<K>; N],
}

/// Neighbours in the queue of a key.
#[derive(Clone, Copy, Debug)]
struct Link<K> {
    key: K,
    before: Place,
    after: Place,
}

impl<K, T, const N: usize> Default for Fifos<K, T, N> {
    fn default() -> Self {
        Fifos { entries: Vec::new(), free: Vec::new(), ends: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash, T, const N: usize> Fifos<K, T, N> {
    /// Behind all others of its keys, which are all different.
    pub(crate) fn push(&mut self, keys: [K; N], value: T) -> Place {
        self.insert_before(keys, value, |_| false)
    }

    /// In each queue before the last ones of which all are to come later.
    pub(crate) fn insert_before(&mut self, keys: [K; N], value: T, later: impl Fn(&T) -> bool) -> Place {
        let place = self.free.pop().unwrap_or(self.entries.len() as Place);
        let mut at = 0;
        let links = keys.map(|key| {
            let last = self.ends.get(&key).map_or(NONE, |ends| ends.1);
            let (mut before, mut after) = (last, NONE);
            while let Some(entry) = self.entries.get(before as usize)
                && entry.value.as_ref().is_some_and(&later)
            {
                (before, after) = (entry.links[at].before, before);
            }
            at += 1;
            Link { key, before, after }
        });
        let entry = Entry { value: Some(value), links };
        match self.entries.get_mut(place as usize) {
            Some(slot) => *slot = entry,
            None => self.entries.push(entry),
        }
        for (at, Link { key, before, after }) in links.into_iter().enumerate() {
            match self.link(before, at) {
                Some(before) => before.after = place,
                None => self.ends.entry(key).or_insert((place, place)).0 = place,
            }
            match self.link(after, at) {
                Some(after) => after.before = place,
                None => self.ends.entry(key).or_insert((place, place)).1 = place,
            }
        }
        place
    }

    /// An entry's neighbours in the queue of its key number `at`, which neighbours have as the same number.
    fn link(&mut self, place: Place, at: usize) -> Option<&mut Link<K>> {
        Some(&mut self.entries.get_mut(place as usize)?.links[at])
    }

    /// The first of this key.
    pub(crate) fn first(&self, key: K) -> Option<&T> {
        self.entries.get(self.ends.get(&key)?.0 as usize)?.value.as_ref()
    }

    /// The first of this key, taken out.
    pub(crate) fn pop(&mut self, key: K) -> Option<T> {
        let first = self.ends.get(&key)?.0;
        self.remove_if(first, |_| true)
    }

    pub(crate) fn has(&self, key: K) -> bool {
        self.ends.contains_key(&key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All that is in them; they are empty afterwards.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = T> + use<K, T, N> {
        std::mem::take(self).entries.into_iter().filter_map(|entry| entry.value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.value.as_mut())
    }

    /// Takes out what is at a place, if it is what is meant.
    pub(crate) fn remove_if(&mut self, place: Place, meant: impl FnOnce(&T) -> bool) -> Option<T> {
        let entry = self.entries.get_mut(place as usize)?;
        if !entry.value.as_ref().is_some_and(meant) {
            return None;
        }
        let value = entry.value.take();
        for (at, Link { key, before, after }) in entry.links.into_iter().enumerate() {
            if let Some(link) = self.link(before, at) {
                link.after = after;
            }
            if let Some(link) = self.link(after, at) {
                link.before = before;
            }
            if before == NONE && after == NONE {
                self.ends.remove(&key);
            } else if let Some(ends) = self.ends.get_mut(&key) {
                if before == NONE {
                    ends.0 = after;
                }
                if after == NONE {
                    ends.1 = before;
                }
            }
        }
        self.free.push(place);
        value
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain list.
        #[test]
        fn each_keeps_its_order(acts in proptest::collection::vec((0u32..4, any::<u16>(), any::<u8>()), 0..200)) {
            /// A key that all have.
            const EVERY: u32 = 9;
            let mut fifos: Fifos<u32, u16, 2> = Fifos::default();
            let mut list: VecDeque<(u32, u16, Place)> = VecDeque::new();
            for (key, value, act) in acts {
                match act % 4 {
                    0 => {
                        let first = list.iter().position(|(of, ..)| *of == key);
                        let first = first.and_then(|index| list.remove(index)).map(|(_, value, _)| value);
                        prop_assert_eq!(fifos.pop(key), first);
                    }
                    2 if value % 8 == 0 => {
                        prop_assert_eq!(fifos.first(EVERY), list.front().map(|(_, value, _)| value));
                        prop_assert_eq!(fifos.pop(EVERY), list.pop_front().map(|(_, value, _)| value));
                    }
                    1 if !list.is_empty() => {
                        let (_, value, place) = list.remove(usize::from(value) % list.len()).unwrap();
                        prop_assert_eq!(fifos.remove_if(place, |of| *of != value), None);
                        prop_assert_eq!(fifos.remove_if(place, |of| *of == value), Some(value));
                    }
                    3 if value % 4 == 0 => {
                        // Behind the last that is as small, in each queue.
                        let place = fifos.insert_before([key, EVERY], value, |other| *other > value);
                        let all = list.iter().rposition(|(_, other, _)| *other <= value).map_or(0, |at| at + 1);
                        let own = list.iter().rposition(|(of, other, _)| *of == key && *other <= value);
                        // What a list of its own would be for each key: they agree where nothing between them is of this key.
                        let agree = own.map_or(0, |at| at + 1) <= all
                            && list.range(..all).filter(|(of, ..)| *of == key).count()
                                == own.map_or(0, |at| list.range(..=at).filter(|(of, ..)| *of == key).count());
                        if agree {
                            list.insert(all, (key, value, place));
                        } else {
                            prop_assert_eq!(fifos.remove_if(place, |of| *of == value), Some(value));
                        }
                    }
                    _ => {
                        let place = fifos.push([key, EVERY], value);
                        list.push_back((key, value, place));
                    }
                }
                prop_assert_eq!(fifos.ends.is_empty(), list.is_empty());
                prop_assert_eq!(fifos.iter().count(), list.len());
            }
            prop_assert!(fifos.entries.len() <= 200);
        }
    }
}
