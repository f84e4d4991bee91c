//! Working memory: blocks in a few size classes, reused; a bounded number of free ones is kept. Copies of borrowed
//! slices are counted apart: they are as large as what the caller holds himself.

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
    /// Bytes of free blocks, and how many are kept at most.
    kept: AtomicUsize,
    kept_max: usize,
    /// Bytes of copies of borrowed slices.
    staged: AtomicUsize,
    limit: usize,
}

impl Pool {
    /// `limit`: of all memory that the rank uses beyond its callers' buffers; `kept_max`: of free blocks.
    pub(crate) fn new(limit: usize, kept_max: usize) -> Arc<Self> {
        Arc::new(Pool {
            free: KEPT.map(ArrayQueue::new),
            in_use: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            kept_max,
            staged: AtomicUsize::new(0),
            limit,
        })
    }

    pub(crate) fn block(self: &Arc<Self>, bytes: usize) -> Block {
        let class = CLASSES.iter().position(|size| bytes <= *size);
        let free = class.and_then(|class| self.free[class].pop());
        if let Some(memory) = &free {
            self.kept.fetch_sub(memory.capacity(), Ordering::Relaxed);
        }
        let memory = free.unwrap_or_else(|| Memory::zeroed(class.map_or(bytes, |class| CLASSES[class])));
        let used = self.in_use.fetch_add(memory.capacity(), Ordering::Relaxed) + memory.capacity();
        self.peak.fetch_max(used, Ordering::Relaxed);
        Block { memory: Some(memory), class, staged: 0, pool: self.clone() }
    }

    /// A block for a copy of a borrowed slice.
    pub(crate) fn stage(self: &Arc<Self>, bytes: usize) -> Block {
        let mut block = self.block(bytes);
        block.staged = block.raw().len();
        self.staged.fetch_add(block.staged, Ordering::Relaxed);
        block
    }

    pub(crate) fn memory_limit(&self) -> usize {
        self.limit
    }

    /// Bytes of free blocks, and of copies of borrowed slices.
    pub(crate) fn kept_and_staged(&self) -> (usize, usize) {
        (self.kept.load(Ordering::Relaxed), self.staged.load(Ordering::Relaxed))
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
    /// Bytes counted as a copy of a borrowed slice.
    staged: usize,
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
        if self.staged > 0 {
            self.pool.staged.fetch_sub(self.staged, Ordering::Relaxed);
        }
        let Some(class) = self.class else { return };
        let bytes = memory.capacity();
        let kept = self.pool.kept.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Too many, or a full free list: the block is freed.
        if kept > self.pool.kept_max || self.pool.free[class].push(memory).is_err() {
            self.pool.kept.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_reused_and_counted() {
        let pool = Pool::new(64 << 20, 100 << 10);
        let first = pool.block(100);
        let address = first.raw().bytes_ref().as_ptr();
        assert_eq!(pool.usage().0, CLASSES[0]);
        drop(first);
        assert_eq!(pool.usage().0, 0);
        let second = pool.block(4096);
        assert_eq!(second.raw().bytes_ref().as_ptr(), address);
        let staged = pool.stage(60_000);
        assert_eq!(pool.kept_and_staged(), (0, CLASSES[1]));
        drop((staged, pool.block(60_000), pool.block(500_000)));
        assert_eq!(pool.kept_and_staged(), (CLASSES[1], 0), "the larger one was freed");
        let large = pool.block(3 << 20);
        assert!(large.raw().len() >= 3 << 20);
        drop((second, large));
        assert_eq!(pool.usage().0, 0);
        assert!(pool.usage().1 >= 3 << 20);
    }
}
