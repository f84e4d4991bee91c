//! Staging memory: blocks in a few size classes, reused; a bounded number of free ones is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use super::owned::Memory;
use super::raw::Raw;

/// Sizes of blocks: small messages, eager messages, staging windows. Larger requests get a block of their own,
/// which is freed and not kept.
const CLASSES: [usize; 3] = [4 << 10, 64 << 10, 512 << 10];
/// How many free blocks of a class are kept.
const KEPT: [usize; 3] = [64, 32, 32];

#[derive(Debug)]
pub(crate) struct Pool {
    free: [ArrayQueue<Memory>; 3],
    in_use: AtomicUsize,
    peak: AtomicUsize,
}

impl Pool {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Pool {
            free: KEPT.map(ArrayQueue::new),
            in_use: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        })
    }

    pub(crate) fn block(self: &Arc<Self>, bytes: usize) -> Block {
        let class = CLASSES.iter().position(|size| bytes <= *size);
        let memory = class
            .and_then(|class| self.free[class].pop())
            .unwrap_or_else(|| Memory::zeroed(class.map_or(bytes, |class| CLASSES[class])));
        let used = self.in_use.fetch_add(memory.capacity(), Ordering::Relaxed) + memory.capacity();
        self.peak.fetch_max(used, Ordering::Relaxed);
        Block { memory: Some(memory), class, pool: self.clone() }
    }

    /// Bytes handed out at present, and at most so far.
    pub(crate) fn usage(&self) -> (usize, usize) {
        (self.in_use.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed))
    }
}

/// A piece of pool memory; goes back when dropped.
#[derive(Debug)]
pub(crate) struct Block {
    memory: Option<Memory>,
    class: Option<usize>,
    pool: Arc<Pool>,
}

impl Block {
    pub(crate) fn raw(&self) -> Raw {
        self.memory.as_ref().map_or(Raw::EMPTY, |memory| Raw::new(memory.as_ptr(), memory.capacity()))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        self.pool.in_use.fetch_sub(memory.capacity(), Ordering::Relaxed);
        if let Some(class) = self.class {
            // A full free list frees the block.
            let _ = self.pool.free[class].push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_reused_and_counted() {
        let pool = Pool::new();
        let first = pool.block(100);
        let address = first.raw().bytes_ref().as_ptr();
        assert_eq!(pool.usage().0, CLASSES[0]);
        drop(first);
        assert_eq!(pool.usage().0, 0);
        let second = pool.block(4096);
        assert_eq!(second.raw().bytes_ref().as_ptr(), address);
        let large = pool.block(3 << 20);
        assert!(large.raw().len() >= 3 << 20);
        drop((second, large));
        assert_eq!(pool.usage().0, 0);
        assert!(pool.usage().1 >= 3 << 20);
    }
}
