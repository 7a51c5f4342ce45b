//! One function per system call, nothing else: each takes what the kernel takes, borrowed, and turns -1 into an error.
//!
//! A function here is safe if its types prove all that the kernel assumes. It is `unsafe` if the caller must guarantee
//! the raw pointers inside its arguments.

use std::io;

use libc::c_int;

pub(crate) mod capability;
pub(crate) mod epoll;
pub(crate) mod ethtool;
pub(crate) mod eventfd;
pub(crate) mod ifaddrs;
pub(crate) mod inherit;
pub(crate) mod memory;
pub(crate) mod mount;
pub(crate) mod netlink;
pub(crate) mod netns;
pub(crate) mod passing;
pub(crate) mod perf;
pub(crate) mod pipe;
pub(crate) mod recv;
pub(crate) mod rlimit;
pub(crate) mod sched;
pub(crate) mod send;
pub(crate) mod signal;
pub(crate) mod socket;
pub(crate) mod splice;
pub(crate) mod stream;
pub(crate) mod task;
pub(crate) mod time;

/// -1 means that `errno` says why.
fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A system call by its number, for the data path. In a process with threads, the C library's functions of the same
/// names are cancellation points, which cost 10 ns each. No code here uses cancellation.
macro_rules! direct {
    ($number:ident $(, $argument:expr)* $(,)?) => {
        libc::syscall(libc::$number $(, $argument)*) as isize
    };
}
pub(crate) use direct;

/// The same for calls that return a length.
fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
