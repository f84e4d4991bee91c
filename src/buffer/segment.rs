//! Memory of several processes: one writes it, others map it to read.
//!
//! A segment has no name, so nothing is left behind whenever its processes end. Before others see it, its size is sealed and
//! so is any further way to write it: a peer that is mad or dying can't take pages away from under those who read.
//! Mappings do not go to the children of a fork.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use super::raw::Raw;

/// What mappings begin and end at.
pub(crate) const PAGE: usize = 4096;
/// The same where the system has set huge pages aside.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// What the system counts the pages of a file in.
const BLOCK: u64 = 512;
/// What both sides of a segment rely on.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

/// Pages somewhere in this process, until it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The addresses that were taken for it, which is where it begins or somewhat before.
    taken: (NonNull<u8>, usize),
    /// Where it is mapped: in a process forked from that one, something else may be there.
    process: u32,
}

// SAFETY: an address range that stays mapped; who may touch what in it is said by those who use it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A part of a file, by offset and length.
pub(crate) type Part = (u64, usize);

impl Mapping {
    /// The parts of `fd` in a row, each of whole pages, which have this size.
    fn of(fd: BorrowedFd<'_>, parts: &[Part], access: ProtFlags, page: usize) -> io::Result<Mapping> {
        let bytes = parts.iter().map(|(_, bytes)| bytes).sum();
        let taken = bytes + page - PAGE;
        // SAFETY: new addresses, chosen by the system.
        let first = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), taken, ProtFlags::empty(), MapFlags::PRIVATE)?
        };
        let first = NonNull::new(first.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: within the addresses that were taken, by their number.
        let start = unsafe { first.add(first.as_ptr().align_offset(page)) };
        let mapping = Mapping { start, bytes, taken: (first, taken), process: std::process::id() };
        let mut at = 0;
        for (offset, bytes) in parts {
            // SAFETY: within the addresses taken above, which nobody else knows yet.
            let place = unsafe { start.as_ptr().add(at) }.cast::<c_void>();
            // SAFETY: as above.
            unsafe {
                rustix::mm::mmap(place, *bytes, access, MapFlags::SHARED | MapFlags::FIXED, fd, *offset)?;
            }
            at += bytes;
        }
        // SAFETY: advice about our own pages.
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// So many bytes from `at` on.
    pub(crate) fn raw(&self, at: usize, bytes: usize) -> Raw {
        Raw::new(self.start.as_ptr(), self.bytes).sub(at..at + bytes)
    }

    /// Not in a process that was forked from the one that has mapped it.
    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Lets pages that are written be there now, and not when they are first touched.
    fn populate(&self) -> io::Result<()> {
        // SAFETY: our own pages, which this process may write.
        let done = unsafe {
            rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, Advice::LinuxPopulateWrite)
        };
        match done {
            // Of a kernel before 5.14: the pages are allotted, and are mapped when they are touched.
            Err(Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        // SAFETY: mapped by `of`, unmapped once; whoever has an address in it keeps the mapping.
        let _ = unsafe { rustix::mm::munmap(self.taken.0.as_ptr().cast(), self.taken.1) };
    }
}

/// A segment that this process writes: where it is mapped, and what others map it by.
#[derive(Debug)]
pub(crate) struct Segment {
    pub fd: OwnedFd,
    pub mapping: Arc<Mapping>,
    /// In huge pages that the system has set aside.
    pub huge: bool,
}

impl Segment {
    /// `bytes` of zeros, of whole pages, in the order of `parts`, a part as often as it is named.
    pub(crate) fn new(bytes: usize, parts: &[Part]) -> Result<Segment, String> {
        let fd = memfd(MemfdFlags::empty()).map_err(no_file)?;
        Self::fill(fd, bytes, parts, PAGE)
    }

    /// `bytes` in one piece, of huge pages where the system has set aside enough.
    pub(crate) fn large(bytes: usize) -> Result<Segment, String> {
        if bytes.is_multiple_of(HUGE_PAGE)
            && let Ok(fd) = memfd(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
            && let Ok(segment) = Self::fill(fd, bytes, &[(0, bytes)], HUGE_PAGE)
        {
            return Ok(segment);
        }
        Self::new(bytes, &[(0, bytes)])
    }

    fn fill(fd: OwnedFd, bytes: usize, parts: &[Part], page: usize) -> Result<Segment, String> {
        rustix::fs::ftruncate(&fd, bytes as u64).map_err(refused("no size for a segment"))?;
        // Now, so that who touches a page later is never refused one.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64)
            .map_err(refused("no pages for a segment"))?;
        let unmapped = |error: io::Error| format!("mapping {bytes} bytes of a segment: {error}");
        let mapping =
            Mapping::of(fd.as_fd(), parts, ProtFlags::READ | ProtFlags::WRITE, page).map_err(unmapped)?;
        mapping.populate().map_err(unmapped)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS | SealFlags::SEAL).map_err(refused("sealing a segment"))?;
        Ok(Segment { fd, mapping: Arc::new(mapping), huge: page > PAGE })
    }
}

/// Why there is no segment where the process may have no more descriptors.
pub(crate) fn no_descriptor() -> String {
    let limit = getrlimit(Resource::Nofile).current.map_or("all".to_string(), |limit| limit.to_string());
    format!("1 descriptor is needed and 0 available of {limit} (RLIMIT_NOFILE, `ulimit -n`)")
}

fn no_file(error: Errno) -> String {
    match error {
        Errno::MFILE => no_descriptor(),
        error => refused("no anonymous file (memfd_create)")(error),
    }
}

fn refused(what: &'static str) -> impl Fn(Errno) -> String {
    move |error| format!("{what}: {}", io::Error::from(error))
}

fn memfd(pages: MemfdFlags) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
    match rustix::fs::memfd_create("hcomm", flags | MemfdFlags::NOEXEC_SEAL) {
        // Of a kernel before 6.3.
        Err(Errno::INVAL) => rustix::fs::memfd_create("hcomm", flags),
        made => made,
    }
}

/// Why a segment of another process is not mapped here.
#[derive(Debug)]
pub(crate) enum Unmapped {
    /// It is none, or not what its owner says.
    Odd(String),
    /// The system grants this process no more: that is not its owner's fault.
    Refused(String),
}

impl Unmapped {
    pub(crate) fn reason(self) -> String {
        let (Unmapped::Odd(reason) | Unmapped::Refused(reason)) = self;
        reason
    }
}

/// Maps the parts of another process's segment to read them, if it is one: of this size, and sealed.
pub(crate) fn map_foreign(fd: &OwnedFd, bytes: usize, parts: &[Part]) -> Result<Arc<Mapping>, Unmapped> {
    let page = page_of_foreign(fd, bytes).map_err(Unmapped::Odd)?;
    let mapping = Mapping::of(fd.as_fd(), parts, ProtFlags::READ, page);
    let refused = |error| Unmapped::Refused(format!("mapping its segment of {bytes} bytes: {error}"));
    Ok(Arc::new(mapping.map_err(refused)?))
}

/// The size of its pages, if it is such a segment.
fn page_of_foreign(fd: &OwnedFd, bytes: usize) -> Result<usize, String> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(refused("it is no segment"))?;
    if !seals.contains(SEALS) {
        return Err("its segment is not sealed".into());
    }
    let file = rustix::fs::fstat(fd).map_err(refused("it is no segment"))?;
    if file.st_size != bytes as i64 {
        return Err(format!("its segment has {} bytes, not {bytes}", file.st_size));
    }
    // A page that is not there yet may be refused to who touches it: with a signal.
    if (file.st_blocks as u64) < bytes as u64 / BLOCK {
        return Err("its segment has holes".into());
    }
    // Its blocks are its pages.
    Ok(if file.st_blksize as usize == HUGE_PAGE { HUGE_PAGE } else { PAGE })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const PARTS: [Part; 3] = [(0, PAGE), (PAGE as u64, PAGE), (PAGE as u64, PAGE)];

    #[test]
    fn what_one_mapping_writes_others_read_also_across_the_seam() {
        let segment = Segment::new(2 * PAGE, &PARTS).unwrap();
        let seen = map_foreign(&segment.fd, 2 * PAGE, &PARTS).unwrap();
        segment.mapping.raw(0, 3).copy_from_slice(b"abc");
        segment.mapping.raw(2 * PAGE - 2, 4).copy_from_slice(b"seam");
        assert_eq!(seen.raw(0, 3).to_vec(), b"abc");
        assert_eq!(seen.raw(2 * PAGE - 2, 4).to_vec(), b"seam");
        assert_eq!(seen.raw(PAGE, 2).to_vec(), b"am", "the second half of the seam is where the ring begins");
    }

    #[test]
    fn nobody_else_can_write_or_resize_it() {
        let segment = Segment::new(2 * PAGE, &PARTS).unwrap();
        let mut file = std::fs::File::from(segment.fd.try_clone().unwrap());
        assert!(file.write(b"x").is_err());
        for size in [0, PAGE as u64, 4 * PAGE as u64] {
            assert!(file.set_len(size).is_err());
        }
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        assert!(Mapping::of(segment.fd.as_fd(), &PARTS, writable, PAGE).is_err());
    }

    #[test]
    fn what_is_no_segment_is_refused() {
        let segment = Segment::new(2 * PAGE, &PARTS).unwrap();
        let odd = |fd, bytes| match map_foreign(fd, bytes, &PARTS) {
            Err(Unmapped::Odd(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let said = odd(&segment.fd, 4 * PAGE);
        assert!(said.contains("8192 bytes, not 16384"), "{said}");
        let unsealed = memfd(MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&unsealed, 2 * PAGE as u64).unwrap();
        assert_eq!(odd(&unsealed, 2 * PAGE), "its segment is not sealed");
        rustix::fs::fallocate(&unsealed, FallocateFlags::empty(), 0, PAGE as u64).unwrap();
        rustix::fs::fcntl_add_seals(&unsealed, SEALS | SealFlags::SEAL).unwrap();
        assert_eq!(odd(&unsealed, 2 * PAGE), "its segment has holes");
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(odd(&file, 2 * PAGE).contains("no segment"));
    }
}
