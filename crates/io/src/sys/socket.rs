//! `socket`, `bind`, `getsockname`, `setsockopt`, `getsockopt`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use libc::{c_int, socklen_t};

use super::check;
use crate::address::RawAddress;

pub(crate) fn socket(family: c_int, kind: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes three integers and no memory.
    let fd = check(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: `socket` has just made this descriptor and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn bind(fd: BorrowedFd<'_>, address: &RawAddress) -> io::Result<()> {
    // SAFETY: the pointer and the length describe a live RawAddress, which is laid out as sockaddr_in or sockaddr_in6.
    check(unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr(), address.len()) }).map(drop)
}

pub(crate) fn getsockname(fd: BorrowedFd<'_>) -> io::Result<RawAddress> {
    let mut address = RawAddress::default();
    let mut len = RawAddress::CAPACITY;
    // SAFETY: the kernel writes at most `len` bytes, the size of the RawAddress it is pointed at.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), address.as_mut_ptr(), &mut len) })?;
    Ok(address)
}

pub(crate) fn setsockopt(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    let len = size_of::<c_int>() as socklen_t;
    // SAFETY: the kernel reads `len` bytes, the size of the integer it is pointed at.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) })
        .map(drop)
}

/// Reads an option of up to `N` words; words the kernel does not fill stay 0.
pub(crate) fn getsockopt<const N: usize>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
) -> io::Result<[u32; N]> {
    let mut words = [0u32; N];
    let mut len = size_of_val(&words) as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of the array, and any bytes are valid integers.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            words.as_mut_ptr().cast(),
            &mut len,
        )
    })?;
    Ok(words)
}

/// The kernel knows UDP_SEGMENT (4.18). Asked once per process.
pub(crate) fn kernel_has_gso() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let probe = socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC)
            .or_else(|_| socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC));
        probe.is_ok_and(|probe| {
            getsockopt::<1>(probe.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
        })
    })
}
