//! Which processors a thread may run on.

use std::io;

use crate::sys::sched::{self, CpuMask};

/// The processors that this thread may run on, in ascending order (at most the first 1,024 of the machine).
///
/// # Errors
/// What `sched_getaffinity` returns.
pub fn available() -> io::Result<Vec<usize>> {
    let mask = sched::sched_getaffinity()?;
    Ok((0..mask.len() * 64)
        .filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1)
        .collect())
}

/// Pins the calling thread to one processor.
///
/// # Errors
/// `InvalidInput` if `cpu` is 1,024 or above, is offline, or lies outside the process's cpuset.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    let mut mask: CpuMask = [0; 16];
    *mask.get_mut(cpu / 64).ok_or(io::ErrorKind::InvalidInput)? |= 1 << (cpu % 64);
    sched::sched_setaffinity(&mask)
}

/// Lets the calling thread run on any of these processors. A thread that a pinned thread has started is pinned, too,
/// until it calls this.
///
/// # Errors
/// `InvalidInput` if one is 1,024 or above, or if none of them is online and in the process's cpuset.
pub fn spread_current_thread(cpus: &[usize]) -> io::Result<()> {
    let mut mask: CpuMask = [0; 16];
    for cpu in cpus {
        *mask.get_mut(cpu / 64).ok_or(io::ErrorKind::InvalidInput)? |= 1 << (cpu % 64);
    }
    sched::sched_setaffinity(&mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_on_its_processor_only() {
        let cpus = available().unwrap();
        let last = *cpus.last().unwrap();
        let pinned = std::thread::spawn(move || {
            pin_current_thread(last).unwrap();
            let pinned = available().unwrap();
            let all: Vec<usize> = (0..1024).collect();
            spread_current_thread(&all).unwrap();
            (pinned, available().unwrap())
        });
        let (pinned, spread) = pinned.join().unwrap();
        assert_eq!((pinned, spread), (vec![last], cpus.clone()));
        assert_eq!(available().unwrap(), cpus, "other threads are left alone");
    }

    #[test]
    fn processors_that_do_not_exist_are_refused() {
        assert_eq!(
            pin_current_thread(1024).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(
            pin_current_thread(1023).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
