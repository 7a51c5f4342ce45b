//! The process, under the names that all Prometheus clients use, and the times of its threads. What /proc does not say
//! is left out.

use std::fs;

use super::text::{Page, nanoseconds};

/// How long a thread ran and waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// On a processor, in nanoseconds.
    pub(super) ran_ns: u64,
    /// Ready to run, and not running, in nanoseconds.
    pub(super) waited_ns: u64,
}

/// The times of one of our threads.
pub(super) fn thread_times(thread: u32) -> Option<Times> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    schedstat(&text)
}

fn schedstat(text: &str) -> Option<Times> {
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    Some(Times {
        ran_ns: numbers.next()?.ok()?,
        waited_ns: numbers.next()?.ok()?,
    })
}

/// Linux counts times in /proc in hundredths of a second, regardless of the kernel's own tick.
const TICKS_PER_SECOND: u64 = 100;

/// What /proc/self/stat says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    /// Since the machine started.
    start_ticks: u64,
    virtual_bytes: u64,
}

fn stat(text: &str) -> Option<Stat> {
    // The second field is the name in parentheses, which may contain anything; the third follows.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // proc_pid_stat(5) counts from 1, and these begin with the third.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: field(14)? + field(15)?,
        threads: field(20)?,
        start_ticks: field(22)?,
        virtual_bytes: field(23)?,
    })
}

/// A line `Name:  123 kB` of /proc/self/status, in bytes.
fn kilobytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let number = line.trim_start_matches(':').split_whitespace().next()?;
    Some(number.parse::<u64>().ok()? * 1024)
}

/// Resident memory of the process in bytes.
pub(crate) fn resident_bytes() -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS")
}

/// The number after `btime` in /proc/stat: when the machine started.
fn boot_unix_s(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

fn open_files() -> Option<u64> {
    let directory = "/proc/self/fd";
    // Since Linux 6.2 the directory's size is their number; counting a hundred thousand of them takes a while.
    let counted = fs::metadata(directory).ok()?.len();
    if counted > 0 {
        return Some(counted);
    }
    // Less the one that is open for counting.
    Some((fs::read_dir(directory).ok()?.count() as u64).saturating_sub(1))
}

fn max_open_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

pub(super) fn write(page: &mut Page) {
    let read = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
    if let Some(stat) = stat(&read("self/stat")) {
        let ns = stat.cpu_ticks * (1_000_000_000 / TICKS_PER_SECOND);
        page.counter(
            "process_cpu_seconds_total",
            "Processor time of the process, user and system.",
            nanoseconds(ns),
        );
        page.gauge(
            "process_virtual_memory_bytes",
            "Virtual memory.",
            stat.virtual_bytes,
        );
        page.gauge("process_threads", "Threads.", stat.threads);
        if let Some(boot) = boot_unix_s(&read("stat")) {
            page.gauge(
                "process_start_time_seconds",
                "When the process started, in seconds since 1970.",
                boot as f64 + stat.start_ticks as f64 / TICKS_PER_SECOND as f64,
            );
        }
    }
    let gauges = [
        (
            "process_resident_memory_bytes",
            "Resident memory in bytes, without kernel memory of sockets.",
            kilobytes(&read("self/status"), "VmRSS"),
        ),
        ("process_open_fds", "Open file descriptors.", open_files()),
        (
            "process_max_fds",
            "Limit of open file descriptors; each relayed address uses one.",
            max_open_files(&read("self/limits")),
        ),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strange_name_does_not_shift_the_fields() {
        let text = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 4 0 900 4096 12 0";
        let expected = Stat {
            cpu_ticks: 200,
            threads: 4,
            start_ticks: 900,
            virtual_bytes: 4096,
        };
        assert_eq!(stat(text), Some(expected));
        assert_eq!(stat("7 (a) R 1"), None);
    }

    #[test]
    fn the_own_process_is_read() {
        let mut page = Page::default();
        write(&mut page);
        let text = page.finish();
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_max_fds",
            "process_start_time_seconds",
        ] {
            assert!(text.contains(&format!("\n{name} ")), "{text}");
        }
    }

    #[test]
    fn files_of_proc_are_read() {
        assert_eq!(
            kilobytes("Name:\tx\nVmRSS:\t  2048 kB\n", "VmRSS"),
            Some(2 << 20)
        );
        assert_eq!(boot_unix_s("cpu 1\nbtime 17\n"), Some(17));
        assert_eq!(
            max_open_files(
                "Limit Soft\nMax open files            1024                 4096                 files\n"
            ),
            Some(1024)
        );
        assert_eq!(
            schedstat("12 34 5\n"),
            Some(Times {
                ran_ns: 12,
                waited_ns: 34
            })
        );
    }
}
