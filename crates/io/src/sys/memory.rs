//! `mmap`, `munmap`, `madvise`, and the allocator's free memory.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, ptr};

use super::check;

/// Maps `len` zeroed bytes that nobody else has. Huge pages are declined: with room set apart for every message, a
/// touched byte would cost two megabytes.
pub(crate) fn map(len: usize) -> io::Result<*mut u8> {
    // SAFETY: without an address asked for, a new mapping disturbs no other.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made. Where the kernel has no huge pages, it refuses and nothing is lost.
    unsafe { libc::madvise(base, len, libc::MADV_NOHUGEPAGE) };
    Ok(base.cast())
}

/// A file of this many bytes in memory, which can never shrink.
pub(crate) fn make_file(bytes: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string that lives forever.
    let number = check(unsafe { libc::memfd_create(c"hairpin".as_ptr(), flags) })?;
    // SAFETY: the kernel has just made this descriptor and nobody else knows its number.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: takes integers only.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), length) })?;
    // SAFETY: takes integers only.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) })?;
    Ok(fd)
}

/// The length in bytes of a file that is sealed against shrinking; `InvalidInput` if it is not.
pub(crate) fn sealed_length(fd: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: takes integers only; fails for what is no such file.
    let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: all fields are integers, for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `stat`, which the pointer leads to.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut status) })?;
    usize::try_from(status.st_size).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Maps `len` bytes of a file of [`make_file`], for reading and writing, shared with all who map it.
pub(crate) fn map_file(fd: BorrowedFd<'_>, len: usize) -> io::Result<*mut u8> {
    // SAFETY: without an address asked for, a new mapping disturbs no other.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(base.cast())
}

/// # Safety
/// `base` and `len` must be those of a mapping of [`map`] or [`map_file`], and nothing may refer to it any more.
pub(crate) unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: the caller's word. It fails only for arguments that are not a mapping.
    unsafe { libc::munmap(base.cast(), len) };
}

/// # Safety
/// Whole pages of a mapping of [`map`], whose contents are no longer needed.
pub(crate) unsafe fn forget(base: *mut u8, len: usize) {
    // SAFETY: the caller's word. Should the kernel refuse, the memory merely stays in use.
    unsafe { libc::madvise(base.cast(), len, libc::MADV_DONTNEED) };
}

/// Bytes in a page of memory.
pub(crate) fn page() -> usize {
    // SAFETY: takes a number and no memory.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // It is never negative; should it be unknown, no page is larger than this.
    usize::try_from(size).unwrap_or(65_536)
}

/// Has the allocator give free pages back to the kernel; says whether there were any.
#[cfg(target_env = "gnu")]
pub(crate) fn malloc_trim() -> bool {
    // SAFETY: it takes a number, and memory that is in use stays where it is.
    unsafe { libc::malloc_trim(0) == 1 }
}

/// Other allocators than that of glibc are left to themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn malloc_trim() -> bool {
    false
}
