//! Descriptors that were open when the process began.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libc::c_int;

use super::check;

/// Takes a descriptor over, so that children do not get it.
pub(crate) fn own(number: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes integers only; fails if the descriptor is not open.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and whoever started this process announced it as one that this process is to take. It is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
