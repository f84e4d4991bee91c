//! Who drives: one at a time, and nobody waits for him.
//!
//! Who wants something done prepares it and then [`ask`](Turns::ask)s for a turn. If somebody else is at it, `asked` is
//! set, and whoever is at it looks at `asked` after unlocking, and takes another turn ([`drive`](Turns::drive)).
//!
//! Why nothing is left undone: `asked` is only ever exchanged, never just stored or loaded, so its exchanges are in one
//! order and each sees all that came before the previous one. Who asks tries the lock once more after setting `asked`.
//! If the holder's look came before that, then its unlocking did too, and the attempt can't fail for it. If it comes
//! after, it finds `asked`, and with it all that was prepared. What one holder takes over, he asks for himself: a chain
//! that ends with a turn.
//!
//! An undisturbed turn costs three locked operations: lock, unlock, and the look.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};

use crate::runtime::sync::{AtomicBool, TryMutex, TryMutexGuard};

/// The right to drive, until it is dropped.
pub(crate) type Turn<'a, T> = TryMutexGuard<'a, T>;

#[derive(Debug)]
pub(crate) struct Turns<T> {
    state: TryMutex<T>,
    asked: AtomicBool,
}

impl<T> Turns<T> {
    pub(crate) fn new(state: T) -> Self {
        Turns { state: TryMutex::new(state), asked: AtomicBool::new(false) }
    }

    /// A turn for what was prepared before; `None` if somebody else is at it, who will see to it.
    #[inline]
    pub(crate) fn ask(&self) -> Option<Turn<'_, T>> {
        self.offer().or_else(|| self.insist())
    }

    #[cold]
    fn insist(&self) -> Option<Turn<'_, T>> {
        self.asked.swap(true, Ordering::AcqRel);
        let turn = self.offer()?;
        // This turn is what was asked for.
        self.asked.swap(false, Ordering::AcqRel);
        Some(turn)
    }

    /// A turn for somebody who wants nothing done, if nobody is at it.
    #[inline]
    pub(crate) fn offer(&self) -> Option<Turn<'_, T>> {
        match self.state.try_lock() {
            Ok(turn) => Some(turn),
            // A panic of another turn: what it left is what there is.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes this turn, and others until nobody asks for more; `act` drops the turn when it needs it no longer. Says
    /// whether it was here that nobody asked: if not, somebody else is at it.
    #[inline]
    pub(crate) fn drive<'a>(&'a self, first: Option<Turn<'a, T>>, mut act: impl FnMut(Turn<'a, T>)) -> bool {
        let mut next = first;
        while let Some(turn) = next {
            act(turn);
            if !self.asked.swap(false, Ordering::AcqRel) {
                return true;
            }
            next = self.ask();
        }
        false
    }

    /// For rare acts that must not fail for the lock; held elsewhere for one turn at most. Who had to ask meanwhile
    /// asked for a turn: one is due afterwards.
    pub(crate) fn wait(&self) -> Turn<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
