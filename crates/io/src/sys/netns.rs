//! `unshare` and `setns`, for network namespaces.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

pub(crate) fn unshare() -> io::Result<()> {
    // SAFETY: takes a flag; only the calling thread's network namespace changes, no memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

pub(crate) fn setns(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes a descriptor and a flag; only the calling thread's network namespace changes, no memory.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}
