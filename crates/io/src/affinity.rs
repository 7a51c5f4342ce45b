//! Which processors a thread may run on.

use std::io;

/// The processors that this thread may run on, in ascending order (at most the first 1,024 of the machine).
///
/// # Errors
/// What `sched_getaffinity` returns.
pub fn available() -> io::Result<Vec<usize>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Pins the calling thread to one processor.
///
/// # Errors
/// `InvalidInput` if `cpu` is 1,024 or above, is offline, or lies outside the process's cpuset.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    let _ = cpu;
    Err(io::ErrorKind::Unsupported.into())
}
