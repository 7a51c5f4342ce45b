//! `getrlimit`, `setrlimit`, for RLIMIT_NOFILE.

use std::io;

use libc::rlimit;

use super::check;

pub(crate) fn getrlimit() -> io::Result<rlimit> {
    let mut limit = rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one rlimit, a local one.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    Ok(limit)
}

pub(crate) fn setrlimit(limit: &rlimit) -> io::Result<()> {
    // SAFETY: the kernel reads one rlimit, a borrowed one.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }).map(drop)
}
