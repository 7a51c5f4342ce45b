//! The standard output and error of this process.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys::inherit::duplicate_to;

/// Makes standard output and standard error copies of these descriptors, as for a process that takes over from another
/// one.
///
/// # Errors
/// What `dup2` returns; then standard error may be the old one.
pub fn replace(output: BorrowedFd<'_>, error: BorrowedFd<'_>) -> io::Result<()> {
    duplicate_to(output, libc::STDOUT_FILENO)?;
    duplicate_to(error, libc::STDERR_FILENO)
}
