//! The processor and the scheduling class of a task.
//!
//! A task is a thread; kernel threads (such as those that poll a network interface) count too. A
//! number of 0 is the calling thread.

use std::io;

use crate::sys::sched::CpuMask;
use crate::sys::task;

/// The calling thread's number.
#[must_use]
pub fn current() -> u32 {
    task::gettid().unsigned_abs()
}

/// The effective user of the calling thread, 0 for root.
#[must_use]
pub fn effective_user() -> u32 {
    task::geteuid()
}

/// Lets `task` run on one processor only.
///
/// # Errors
/// `InvalidInput` if there is no such processor, `PermissionDenied` without CAP_SYS_NICE, ESRCH if
/// there is no such task.
pub fn pin(task: u32, cpu: usize) -> io::Result<()> {
    task::sched_setaffinity(number(task)?, &mask(&[cpu])?)
}

/// Lets `task` run before every ordinary one (SCHED_FIFO), as an interrupt does.
///
/// # Errors
/// As [`pin`]; `InvalidInput` for a priority outside 1..=99.
pub fn make_realtime(task: u32, priority: u8) -> io::Result<()> {
    task::sched_setscheduler(number(task)?, libc::SCHED_FIFO, priority.into())
}

/// Lets `task` run before every ordinary one, and take turns with others of its kind (SCHED_RR,
/// lowest priority).
///
/// # Errors
/// As [`pin`].
pub fn make_preferred(task: u32) -> io::Result<()> {
    task::sched_setscheduler(number(task)?, libc::SCHED_RR, 1)
}

/// Lets `task` run only when its processor has nothing else to do (SCHED_IDLE).
///
/// # Errors
/// As [`pin`].
pub fn make_idle(task: u32) -> io::Result<()> {
    task::sched_setscheduler(number(task)?, libc::SCHED_IDLE, 0)
}

/// A mask with these processors in it.
pub(crate) fn mask(cpus: &[usize]) -> io::Result<CpuMask> {
    let mut mask: CpuMask = [0; 16];
    for cpu in cpus {
        *mask.get_mut(cpu / 64).ok_or(io::ErrorKind::InvalidInput)? |= 1 << (cpu % 64);
    }
    Ok(mask)
}

fn number(task: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(task).map_err(|_| io::ErrorKind::InvalidInput.into())
}
