//! `listen`, `accept4`, `connect`, and the `ioctl`s that return how much waits in a stream's buffers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;

use super::check;
use crate::address::RawAddress;

pub(crate) fn listen(fd: BorrowedFd<'_>, backlog: c_int) -> io::Result<()> {
    // SAFETY: takes two integers and no memory.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// The next connection, non-blocking and close-on-exec, and who made it.
pub(crate) fn accept4(fd: BorrowedFd<'_>) -> io::Result<(OwnedFd, RawAddress)> {
    let mut address = RawAddress::default();
    let mut len = RawAddress::CAPACITY;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes at most `len` bytes, the size of the RawAddress it is pointed at.
    let fd =
        check(unsafe { libc::accept4(fd.as_raw_fd(), address.as_mut_ptr(), &mut len, flags) })?;
    // SAFETY: `accept4` has just made this descriptor and nobody else knows its number.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, address))
}

pub(crate) fn connect(fd: BorrowedFd<'_>, address: &RawAddress) -> io::Result<()> {
    // SAFETY: the pointer and the length describe a live RawAddress, which is laid out as sockaddr_in or sockaddr_in6.
    check(unsafe { libc::connect(fd.as_raw_fd(), address.as_ptr(), address.len()) }).map(drop)
}

/// Bytes that were received and not read yet (SIOCINQ).
pub(crate) fn unread(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one integer, which the pointer leads to.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) })?;
    Ok(bytes)
}

/// Bytes that were written and not acknowledged yet (SIOCOUTQ).
pub(crate) fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one integer, which the pointer leads to.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(bytes)
}
