//! What stands in for atomics, locks and queues in models. Nothing here is stronger than what it stands for, so a
//! protocol that holds here holds there; but for what is said at each item.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, TryLockError, TryLockResult};
use std::task::Waker;

use loom::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};
pub(crate) use loom::sync::atomic::fence;
pub(crate) use loom::sync::{Mutex, MutexGuard};

loom::lazy_static! {
    /// The one order of all sequentially consistent accesses, which loom does not have: such a store goes on record
    /// here when it is made, and such a load looks at the record first. A load that is not sequentially consistent
    /// gains nothing by a store before it that is.
    static ref RECORD: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
}

fn go_on_record() {
    RECORD.fetch_add(1, Release);
}

fn look_at_record() {
    RECORD.fetch_add(1, Acquire);
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        impl $name {
            pub(crate) fn load(&self, order: Ordering) -> $value {
                if order != SeqCst {
                    return self.0.load(order);
                }
                look_at_record();
                self.0.load(Acquire)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                if order != SeqCst {
                    return self.0.store(value, order);
                }
                self.0.store(value, Release);
                go_on_record();
            }

            #[allow(dead_code, reason = "not all of them are swapped")]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                if order != SeqCst {
                    return self.0.swap(value, order);
                }
                look_at_record();
                let was = self.0.swap(value, AcqRel);
                go_on_record();
                was
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        AtomicBool(loom::sync::atomic::AtomicBool::new(value))
    }
}

impl AtomicUsize {
    pub(crate) fn new(value: usize) -> Self {
        AtomicUsize(loom::sync::atomic::AtomicUsize::new(value))
    }
}

/// A lock that may be found taken although it has just been released: an attempt that fails is a plain load, which may
/// be late.
#[derive(Debug)]
pub(crate) struct TryMutex<T> {
    taken: AtomicBool,
    lock: Mutex<T>,
}

#[derive(Debug)]
pub(crate) struct TryMutexGuard<'a, T> {
    taken: &'a AtomicBool,
    guard: MutexGuard<'a, T>,
}

impl<T> TryMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        TryMutex { taken: AtomicBool::new(false), lock: Mutex::new(value) }
    }

    pub(crate) fn try_lock(&self) -> TryLockResult<TryMutexGuard<'_, T>> {
        if self.taken.load(Relaxed) {
            return Err(TryLockError::WouldBlock);
        }
        match self.lock.try_lock() {
            Ok(guard) => Ok(self.take(guard)),
            Err(_) => Err(TryLockError::WouldBlock),
        }
    }

    pub(crate) fn lock(&self) -> LockResult<TryMutexGuard<'_, T>> {
        match self.lock.lock() {
            Ok(guard) => Ok(self.take(guard)),
            Err(poisoned) => Ok(self.take(poisoned.into_inner())),
        }
    }

    fn take<'a>(&'a self, guard: MutexGuard<'a, T>) -> TryMutexGuard<'a, T> {
        self.taken.store(true, Relaxed);
        TryMutexGuard { taken: &self.taken, guard }
    }
}

impl<T> Drop for TryMutexGuard<'_, T> {
    fn drop(&mut self) {
        self.taken.store(false, Release);
    }
}

impl<T> Deref for TryMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for TryMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A bounded queue that may be found empty although something has just been put in.
#[derive(Debug)]
pub(crate) struct ArrayQueue<T> {
    capacity: usize,
    length: loom::sync::atomic::AtomicUsize,
    items: Mutex<VecDeque<T>>,
}

impl<T> ArrayQueue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let length = loom::sync::atomic::AtomicUsize::new(0);
        ArrayQueue { capacity, length, items: Mutex::new(VecDeque::new()) }
    }

    fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut items = self.items();
        if items.len() == self.capacity {
            return Err(item);
        }
        items.push_back(item);
        self.length.fetch_add(1, Release);
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let item = self.items().pop_front()?;
        self.length.fetch_sub(1, Release);
        Some(item)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(Acquire) == 0
    }
}

/// Keeps the newest waker; who registers after a wake sees what came before it.
#[derive(Debug, Default)]
pub(crate) struct AtomicWaker(Mutex<Option<Waker>>);

impl AtomicWaker {
    fn kept(&self) -> MutexGuard<'_, Option<Waker>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn register(&self, waker: &Waker) {
        *self.kept() = Some(waker.clone());
    }

    pub(crate) fn take(&self) -> Option<Waker> {
        self.kept().take()
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.take() {
            waker.wake();
        }
    }
}

/// Memory that is read and written without a lock; a model fails where that is a race.
#[derive(Debug)]
pub(crate) struct Memory(loom::cell::UnsafeCell<()>);

// SAFETY: nothing is stored in it; it only notes who touches it when.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new() -> Self {
        Memory(loom::cell::UnsafeCell::new(()))
    }

    pub(crate) fn read(&self) {
        self.0.with(|_| ());
    }

    pub(crate) fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
