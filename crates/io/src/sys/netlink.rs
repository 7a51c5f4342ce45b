//! The netlink socket, and the interface number behind a name.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{check, check_len};

pub(crate) fn route_socket() -> io::Result<OwnedFd> {
    netlink_socket(libc::NETLINK_ROUTE, 0)
}

pub(crate) fn generic_socket() -> io::Result<OwnedFd> {
    netlink_socket(libc::NETLINK_GENERIC, 0)
}

pub(crate) fn ipsec_socket() -> io::Result<OwnedFd> {
    netlink_socket(libc::NETLINK_XFRM, 0)
}

/// For events: it does not block.
pub(crate) fn event_socket() -> io::Result<OwnedFd> {
    netlink_socket(libc::NETLINK_ROUTE, libc::SOCK_NONBLOCK)
}

fn netlink_socket(protocol: libc::c_int, flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
    // SAFETY: takes integers only.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) })?;
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Subscribes a socket to the events of these groups (RTMGRP_*).
pub(crate) fn subscribe(socket: BorrowedFd<'_>, groups: u32) -> io::Result<()> {
    // SAFETY: integers only: all zeros are valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    // A constant that fits.
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = groups;
    let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes from a live sockaddr_nl.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) }).map(drop)
}

/// A netlink socket without a destination sends to the kernel.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads `message.len()` bytes from a live slice.
    check_len(unsafe {
        libc::send(
            socket.as_raw_fd(),
            message.as_ptr().cast(),
            message.len(),
            0,
        )
    })
}

pub(crate) fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes into a slice that is borrowed
    // exclusively.
    check_len(unsafe {
        libc::recv(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            0,
        )
    })
}

pub(crate) fn if_nametoindex(name: &CStr) -> io::Result<u32> {
    // SAFETY: `name` ends in a zero byte, which is all the call needs to know.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}
