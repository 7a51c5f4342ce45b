//! `epoll_create1`, `epoll_ctl`, `epoll_wait`, `epoll_pwait2`, and the `ioctl` of an epoll.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::{c_int, epoll_event, epoll_params, sigset_t, timespec};

use super::{check, direct};

pub(crate) fn epoll_create1() -> io::Result<OwnedFd> {
    // SAFETY: takes a flag and no memory.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: `epoll_create1` has just made this descriptor and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn epoll_ctl(
    epoll: BorrowedFd<'_>,
    operation: c_int,
    fd: BorrowedFd<'_>,
    mut event: epoll_event,
) -> io::Result<()> {
    // SAFETY: the kernel reads one epoll_event, a local one, and keeps a copy.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) })
        .map(drop)
}

/// Milliseconds; -1 waits forever. Replaces what `events` holds, up to its capacity.
pub(crate) fn epoll_wait(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<epoll_event>,
    timeout_ms: c_int,
) -> io::Result<()> {
    events.clear();
    let capacity = c_int::try_from(events.capacity()).unwrap_or(c_int::MAX);
    // SAFETY: the kernel writes at most `capacity` events into the vector's own allocation, and reads no signal mask,
    // whose pointer is null.
    let result = unsafe {
        direct!(
            SYS_epoll_pwait,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            capacity,
            timeout_ms,
            ptr::null::<sigset_t>(),
            0usize,
        )
    };
    let ready = check(result as c_int)?;
    // SAFETY: the kernel has filled the first `ready` events, at most the capacity.
    unsafe { events.set_len(ready as usize) };
    Ok(())
}

/// `None` waits forever. Kernels before 5.11 answer ENOSYS. glibc before 2.35 has no wrapper, so this calls `syscall`.
pub(crate) fn epoll_pwait2(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<epoll_event>,
    timeout: Option<timespec>,
) -> io::Result<()> {
    events.clear();
    let capacity = c_int::try_from(events.capacity()).unwrap_or(c_int::MAX);
    let timeout_at = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the kernel writes at most `capacity` events into the vector's own allocation. It reads the timespec,
    // which is live, if there is one. It reads no signal mask, because the pointer is null.
    let result = unsafe {
        direct!(
            SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            capacity,
            timeout_at,
            ptr::null::<sigset_t>(),
            0usize,
        )
    };
    let ready = check(result as c_int)?;
    // SAFETY: the kernel has filled the first `ready` events, at most the capacity.
    unsafe { events.set_len(ready as usize) };
    Ok(())
}

/// EPIOCSPARAMS, since Linux 6.9.
pub(crate) fn set_params(epoll: BorrowedFd<'_>, params: &epoll_params) -> io::Result<()> {
    // SAFETY: the kernel reads one epoll_params, which is what this request takes and `params` refers to.
    check(unsafe {
        libc::ioctl(
            epoll.as_raw_fd(),
            libc::EPIOCSPARAMS,
            std::ptr::from_ref(params),
        )
    })
    .map(drop)
}
