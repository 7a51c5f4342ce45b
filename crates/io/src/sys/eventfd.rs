//! `eventfd`.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::check;

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes a number and flags and no memory.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: `eventfd` has just made this descriptor and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
