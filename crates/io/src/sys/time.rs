//! `clock_gettime`.

use libc::{clockid_t, timespec};

/// Seconds and nanoseconds of a clock; zero for a clock this kernel does not have, which for those used here does not happen.
pub(crate) fn clock_gettime(clock: clockid_t) -> timespec {
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec, a local one.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now
}
