//! `recvfrom`, `recvmsg` (also from the error queue), `recvmmsg`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_uint, mmsghdr, msghdr};

use super::{check_len, direct};
use crate::address::RawAddress;

/// Returns the datagram's real length, which exceeds `buffer.len()` if it was cut off.
pub(crate) fn recvfrom(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    from: &mut RawAddress,
) -> io::Result<usize> {
    let mut len = RawAddress::CAPACITY;
    // SAFETY: the kernel writes at most `buffer.len()` bytes to the buffer, and at most `len` bytes, the size of a
    // RawAddress, to `from`. MSG_TRUNC changes only the returned length.
    check_len(unsafe {
        direct!(
            SYS_recvfrom,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
            libc::MSG_TRUNC,
            from.as_mut_ptr(),
            &raw mut len,
        )
    })
}

/// # Safety
/// Name, control and iovec of `header` must point to memory that may be written to for the lengths that they state.
/// Nothing else may refer to this memory during the call.
pub(crate) unsafe fn recvmsg(fd: BorrowedFd<'_>, header: &mut msghdr) -> io::Result<usize> {
    // SAFETY: `header` is a live msghdr, and the caller vouches for the memory it points to.
    check_len(unsafe { direct!(SYS_recvmsg, fd.as_raw_fd(), ptr::from_mut(header), 0) })
}

/// Takes a message from the socket's error queue.
///
/// # Safety
/// As for [`recvmsg`].
pub(crate) unsafe fn recvmsg_error(fd: BorrowedFd<'_>, header: &mut msghdr) -> io::Result<usize> {
    // SAFETY: `header` is a live msghdr, and the caller vouches for the memory it points to.
    check_len(unsafe { libc::recvmsg(fd.as_raw_fd(), header, libc::MSG_ERRQUEUE) })
}

/// # Safety
/// As for [`recvmsg`], for every header.
pub(crate) unsafe fn recvmmsg(fd: BorrowedFd<'_>, headers: &mut [mmsghdr]) -> io::Result<usize> {
    // SAFETY: pointer and count describe the slice, the caller vouches for the memory its headers point to, and a null
    // timeout means none.
    check_len(unsafe {
        direct!(
            SYS_recvmmsg,
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as c_uint,
            FLAGS,
            ptr::null_mut::<libc::timespec>(),
        )
    })
}

/// The sockets are non-blocking; this spares the kernel from asking after each message.
const FLAGS: c_int = libc::MSG_DONTWAIT;
