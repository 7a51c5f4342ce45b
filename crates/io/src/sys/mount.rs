//! A mount namespace with its own view of /sys.

use std::ffi::CStr;
use std::io;
use std::ptr;

use super::check;

/// Gives the calling thread a mount namespace (and a current directory) of its own.
pub(crate) fn unshare_mounts() -> io::Result<()> {
    // SAFETY: takes a flag; only the calling thread's view of the file system changes, no memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map(drop)
}

/// Stops mounts below / from reaching the namespace that this one was copied from.
pub(crate) fn make_private() -> io::Result<()> {
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the target is a terminated string; the null pointers stand for what this operation
    // does not read.
    check(unsafe {
        libc::mount(
            c"none".as_ptr(),
            c"/".as_ptr(),
            ptr::null(),
            flags,
            ptr::null(),
        )
    })
    .map(drop)
}

/// Mounts a sysfs, which shows the network namespace of the calling thread.
pub(crate) fn mount_sysfs(at: &CStr) -> io::Result<()> {
    let kind = c"sysfs".as_ptr();
    // SAFETY: all strings are terminated; sysfs takes no data.
    check(unsafe { libc::mount(kind, at.as_ptr(), kind, 0, ptr::null()) }).map(drop)
}
