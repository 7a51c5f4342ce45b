//! `pipe2`, `read`, `write`, `poll`: for pipes and event counters.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, pollfd};

use super::{check, check_len};

/// Reader and writer, both non-blocking.
pub(crate) fn pipe2() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: the kernel writes two integers into the array of two.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: `pipe2` has just made both descriptors and nobody else knows their numbers.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to the buffer.
    check_len(unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) })
}

pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads `bytes.len()` bytes of the slice.
    check_len(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
}

/// Waits until `fd` can be read; milliseconds, -1 waits forever.
pub(crate) fn poll(fd: BorrowedFd<'_>, timeout_ms: c_int) -> io::Result<bool> {
    let mut watched = pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the kernel reads and writes one pollfd, a local one.
    Ok(check(unsafe { libc::poll(&mut watched, 1, timeout_ms) })? > 0)
}
