//! Descriptors that were open when the process began.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;

use super::check;

/// Takes a descriptor over, so that children do not get it.
pub(crate) fn own(number: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes integers only; fails if the descriptor is not open.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and the program that started this process has passed it. It is used once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Makes `number`, a standard stream, a copy of the descriptor.
pub(crate) fn duplicate_to(fd: BorrowedFd<'_>, number: c_int) -> io::Result<()> {
    // SAFETY: takes integers only. What `number` was before belongs to nobody: standard streams have no owner.
    check(unsafe { libc::dup2(fd.as_raw_fd(), number) }).map(drop)
}
