//! Whether this process is the one that something was made in, or a child that was forked from it.
//!
//! A page that the system gives to children as zeros: to ask costs one load, on every call.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The least that can be mapped.
const PAGE: usize = 4096;

/// Made where it is asked about.
#[derive(Debug)]
pub(crate) struct Mark {
    /// Not zero at home. Without a page, who is at home is told by its number.
    page: Option<NonNull<AtomicU32>>,
    process: u32,
}

// SAFETY: an atomic in a page of its own, which goes with the mark.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    pub(crate) fn new() -> Self {
        let page = Self::page();
        if let Some(word) = page {
            // SAFETY: mapped, aligned, and zero: an atomic.
            unsafe { word.as_ref() }.store(1, Ordering::Relaxed);
        }
        Mark { page, process: std::process::id() }
    }

    fn page() -> Option<NonNull<AtomicU32>> {
        // SAFETY: new addresses, chosen by the system.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let page = page.ok()?;
        // SAFETY: advice about our own page. A kernel before 4.14 refuses it.
        let wiped = unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) };
        if wiped.is_err() {
            // SAFETY: mapped above, and known to nobody.
            let _ = unsafe { rustix::mm::munmap(page, PAGE) };
            return None;
        }
        NonNull::new(page.cast())
    }

    /// Whether this is another process than the one that made the mark.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        match self.page {
            // SAFETY: the page is there as long as the mark.
            Some(word) => unsafe { word.as_ref() }.load(Ordering::Relaxed) == 0,
            None => std::process::id() != self.process,
        }
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(word) = self.page {
            // SAFETY: mapped by `page`, unmapped once.
            let _ = unsafe { rustix::mm::munmap(word.as_ptr().cast(), PAGE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_made_it_is_at_home() {
        let (mark, other) = (Mark::new(), Mark { page: None, process: std::process::id() + 1 });
        assert!(!mark.is_away() && other.is_away());
        assert!(mark.page.is_some(), "this system has pages that are wiped");
    }
}
