//! Scheduling of other tasks, and what a child process asks for between fork and exec.

use std::io;

use libc::{c_int, pid_t, sched_param};

use super::check;
use super::sched::CpuMask;

pub(crate) fn sched_setaffinity(task: pid_t, mask: &CpuMask) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the mask has.
    check(unsafe { libc::sched_setaffinity(task, size_of::<CpuMask>(), mask.as_ptr().cast()) })
        .map(drop)
}

pub(crate) fn sched_setscheduler(task: pid_t, policy: c_int, priority: c_int) -> io::Result<()> {
    let parameters = sched_param {
        sched_priority: priority,
    };
    // SAFETY: the kernel reads one sched_param from a live local.
    check(unsafe { libc::sched_setscheduler(task, policy, &parameters) }).map(drop)
}

/// The effective user of the calling thread.
pub(crate) fn geteuid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Asks for a signal when the thread that forked this process ends.
pub(crate) fn set_parent_death_signal(signal: c_int) -> io::Result<()> {
    // SAFETY: takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) }).map(drop)
}

/// The next child of the calling thread becomes process 1 of a new PID namespace.
pub(crate) fn unshare_pids() -> io::Result<()> {
    // SAFETY: takes a flag; only where later children are created changes, no memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) }).map(drop)
}

pub(crate) fn gettid() -> pid_t {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() }
}
