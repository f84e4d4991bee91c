//! Queues by key: first in, first out for each, and whatever is in one is found, and taken out, in constant time.

use std::collections::HashMap;
use std::hash::Hash;

/// Where something is in a [`Fifos`]; may be another's by the time it is used.
pub(crate) type Place = u32;

/// No entry.
const NONE: Place = Place::MAX;

#[derive(Debug)]
pub(crate) struct Fifos<K, T> {
    entries: Vec<Entry<K, T>>,
    free: Vec<Place>,
    /// First and last entry of each key that has any.
    ends: HashMap<K, (Place, Place)>,
}

#[derive(Debug)]
struct Entry<K, T> {
    key: K,
    value: Option<T>,
    before: Place,
    after: Place,
}

impl<K, T> Default for Fifos<K, T> {
    fn default() -> Self {
        Fifos { entries: Vec::new(), free: Vec::new(), ends: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash, T> Fifos<K, T> {
    pub(crate) fn push(&mut self, key: K, value: T) -> Place {
        let place = self.free.pop().unwrap_or(self.entries.len() as Place);
        let ends = self.ends.entry(key).or_insert((place, NONE));
        let before = std::mem::replace(&mut ends.1, place);
        let entry = Entry { key, value: Some(value), before, after: NONE };
        match self.entries.get_mut(place as usize) {
            Some(slot) => *slot = entry,
            None => self.entries.push(entry),
        }
        if let Some(last) = self.entries.get_mut(before as usize) {
            last.after = place;
        }
        place
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
    pub(crate) fn take(&mut self) -> impl Iterator<Item = T> + use<K, T> {
        std::mem::take(self).entries.into_iter().filter_map(|entry| entry.value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
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
        let (key, before, after) = (entry.key, entry.before, entry.after);
        if let Some(entry) = self.entries.get_mut(before as usize) {
            entry.after = after;
        }
        if let Some(entry) = self.entries.get_mut(after as usize) {
            entry.before = before;
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
            let mut fifos = Fifos::default();
            let mut list: VecDeque<(u32, u16, Place)> = VecDeque::new();
            for (key, value, act) in acts {
                match act % 4 {
                    0 => {
                        let first = list.iter().position(|(of, ..)| *of == key);
                        let first = first.and_then(|index| list.remove(index)).map(|(_, value, _)| value);
                        prop_assert_eq!(fifos.pop(key), first);
                    }
                    1 if !list.is_empty() => {
                        let (_, value, place) = list.remove(usize::from(value) % list.len()).unwrap();
                        prop_assert_eq!(fifos.remove_if(place, |of| *of != value), None);
                        prop_assert_eq!(fifos.remove_if(place, |of| *of == value), Some(value));
                    }
                    _ => {
                        let place = fifos.push(key, value);
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
