//! How many system calls another process makes, as the kernel counts them.

use std::fs::File;
use std::io::{self, Read as _};

use crate::sys::perf;

/// Counts the system calls of some threads, and of the threads that these start, until it is dropped.
///
/// The kernel counts at its trace point `raw_syscalls:sys_enter`. Each system call of these threads then takes longer
/// (about 100 ns), so times that are measured meanwhile are not the usual ones.
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// let counter = hairpin_io::SystemCallCounter::start(&[1234])?;
/// std::thread::sleep(std::time::Duration::from_secs(1));
/// println!("{} system calls in a second", counter.total()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SystemCallCounter {
    counters: Vec<File>,
}

impl SystemCallCounter {
    /// Starts to count. `threads` are thread numbers; one that has ended is left out.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_PERFMON` and `CAP_SYS_ADMIN`. ENODEV or ENOENT if the kernel has no tracefs or
    /// no trace point for system calls (`CONFIG_FTRACE_SYSCALLS`). EMFILE if too many files are open.
    pub fn start(threads: &[u32]) -> io::Result<SystemCallCounter> {
        let number = perf::read_below(&perf::tracefs()?, c"events/raw_syscalls/sys_enter/id")?;
        let number = number
            .trim()
            .parse()
            .map_err(|_| io::Error::other("the trace point for system calls has no number"))?;
        let mut counters = Vec::with_capacity(threads.len());
        for thread in threads {
            match perf::count_trace_point(number, thread.cast_signed()) {
                Ok(counter) => counters.push(File::from(counter)),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(SystemCallCounter { counters })
    }

    /// System calls since the start.
    ///
    /// # Errors
    /// If a counter can't be read.
    pub fn total(&self) -> io::Result<u64> {
        let mut total = 0;
        for mut counter in &self.counters {
            let mut count = [0; 8];
            counter.read_exact(&mut count)?;
            total += u64::from_ne_bytes(count);
        }
        Ok(total)
    }
}
