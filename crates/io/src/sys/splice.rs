//! `splice` between a socket and a pipe, and the size of a pipe.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_uint};

use super::{check, check_len};

/// Moves at most `len` bytes without copying them. One of the two descriptors is a pipe. Never waits.
pub(crate) fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    const FLAGS: c_uint = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    // SAFETY: takes two descriptors and two numbers; both pointers to offsets are null, as sockets and pipes have none.
    check_len(unsafe {
        libc::splice(
            from.as_raw_fd(),
            ptr::null_mut(),
            to.as_raw_fd(),
            ptr::null_mut(),
            len,
            FLAGS,
        )
    })
}

/// Asks for room for this many bytes in a pipe (F_SETPIPE_SZ). Returns how many there is room for.
pub(crate) fn set_pipe_size(pipe: BorrowedFd<'_>, bytes: c_int) -> io::Result<c_int> {
    // SAFETY: takes two integers and no memory.
    check(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) })
}
