//! `clock_gettime`, and `prctl` for how late a sleeper may be woken.

use std::io;

use libc::{c_ulong, clockid_t, timespec};

use super::check;

/// Seconds and nanoseconds of a clock; zero for a clock this kernel does not have, which for those used here does not
/// happen.
pub(crate) fn clock_gettime(clock: clockid_t) -> timespec {
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec, a local one.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now
}

/// By how many nanoseconds the kernel may delay timers of the calling thread; 0 restores the default of 50,000.
pub(crate) fn set_timer_slack(nanoseconds: c_ulong) -> io::Result<()> {
    // SAFETY: takes integers only, and changes when this thread is woken, no memory.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds) }).map(drop)
}
