//! Memory of another process that is not mapped here: the system copies from it, where it allows that.

#![allow(unsafe_code)]

use rustix::io::Errno;

use crate::buffer::raw::Raw;

/// A process as the system numbers it here.
pub(crate) type Process = u32;

/// Fills `dst` from this address of the other process. What is there may be anything by then; an address that it has not is an error,
/// and no signal.
pub(crate) fn read(process: Process, address: u64, dst: Raw) -> Result<(), Errno> {
    let mut done = 0;
    while done < dst.len() {
        let rest = dst.sub(done..dst.len());
        let local = libc::iovec { iov_base: rest.as_ptr().cast(), iov_len: rest.len() };
        let from = address.wrapping_add(done as u64);
        let remote = libc::iovec { iov_base: from as usize as *mut libc::c_void, iov_len: rest.len() };
        let pid = libc::pid_t::try_from(process).map_err(|_| Errno::SRCH)?;
        // SAFETY: writes to `rest` only, which this rank alone may touch; the other address is not used in this process.
        let bytes = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(bytes) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(bytes) => done += bytes,
            Err(_) => {
                let error = std::io::Error::last_os_error();
                return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_and_gets_errors_and_no_signals() {
        let there = [3u64, 5, 8, 13];
        let mut here = vec![0u64; 4];
        let address = there.as_ptr() as u64;
        let me = std::process::id();
        match read(me, address, Raw::of_words(&mut here)) {
            // Forbidden here: then it is done without.
            Err(Errno::PERM | Errno::NOSYS) => return,
            read => read.unwrap(),
        }
        assert_eq!(here, there);
        assert_eq!(read(me, 16, Raw::of_words(&mut here)), Err(Errno::FAULT));
        assert_eq!(read(u32::MAX, address, Raw::of_words(&mut here)), Err(Errno::SRCH));
        assert!(read(i32::MAX as u32, address, Raw::of_words(&mut here)).is_err());
    }
}
