//! `sendto`, `sendmsg`, `sendmmsg`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_uint, mmsghdr, msghdr};

use super::{check_len, direct};
use crate::address::RawAddress;

pub(crate) fn sendto(fd: BorrowedFd<'_>, datagram: &[u8], to: &RawAddress) -> io::Result<usize> {
    // SAFETY: the kernel reads `datagram.len()` bytes of the datagram and `to.len()` bytes of the address, both live.
    check_len(unsafe {
        direct!(
            SYS_sendto,
            fd.as_raw_fd(),
            datagram.as_ptr(),
            datagram.len(),
            0,
            to.as_ptr(),
            to.len(),
        )
    })
}

/// # Safety
/// Name, control and iovecs of `header` must point to readable memory of the lengths they state.
pub(crate) unsafe fn sendmsg(fd: BorrowedFd<'_>, header: &msghdr) -> io::Result<usize> {
    // SAFETY: `header` is a live msghdr, and the caller vouches for the memory it points to.
    check_len(unsafe { direct!(SYS_sendmsg, fd.as_raw_fd(), ptr::from_ref(header), 0) })
}

/// Returns how many of the messages, from the front, were sent; an error is that of the first.
///
/// # Safety
/// As for [`sendmsg`], for every header.
pub(crate) unsafe fn sendmmsg(fd: BorrowedFd<'_>, headers: &mut [mmsghdr]) -> io::Result<usize> {
    // SAFETY: pointer and count describe the slice, whose `msg_len` fields the kernel fills in. The caller guarantees
    // the memory that the headers point to.
    check_len(unsafe {
        direct!(
            SYS_sendmmsg,
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as c_uint,
            0,
        )
    })
}
