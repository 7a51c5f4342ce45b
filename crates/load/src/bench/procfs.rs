//! What /proc says about tasks, memory and the machine.

use std::fs;
use std::io;

/// Numbers of all processes that this process can see.
pub(crate) fn processes() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

/// A task's name; `None` if it has ended.
pub(crate) fn name(task: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{task}/comm"))
        .ok()
        .map(|name| name.trim_end().to_owned())
}

/// Processes whose main thread is in the network namespace with this inode number.
pub(crate) fn processes_in(namespace: u64) -> io::Result<Vec<u32>> {
    let wanted = format!("net:[{namespace}]");
    let inside = |process: &u32| {
        fs::read_link(format!("/proc/{process}/ns/net"))
            .is_ok_and(|link| link.as_os_str() == wanted.as_str())
    };
    Ok(processes()?.into_iter().filter(inside).collect())
}

/// Numbers of the threads of a process; none if it has ended.
pub(crate) fn threads(process: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{process}/task"));
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.map_or_else(
        |_| Vec::new(),
        |all| all.flatten().filter_map(number).collect(),
    )
}

/// Processor time of all threads of a process, in nanoseconds; 0 if it has ended.
pub(crate) fn process_cpu_ns(process: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return 0;
    };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|line| first_number(&line))
        .sum()
}

/// Processor time of one thread of this process, or of a kernel thread, in nanoseconds; 0 if it is
/// gone.
pub(crate) fn task_cpu_ns(task: u32) -> u64 {
    let line = fs::read_to_string(format!("/proc/self/task/{task}/schedstat"))
        .or_else(|_| fs::read_to_string(format!("/proc/{task}/schedstat")));
    line.ok().and_then(|line| first_number(&line)).unwrap_or(0)
}

/// Resident memory of a process, in bytes; 0 if it has ended.
pub(crate) fn resident_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    kilobytes(&status, "VmRSS:").unwrap_or(0) * 1024
}

/// Kernel memory in slabs on the whole machine, in bytes: where sockets, files and their tables
/// live.
pub(crate) fn slab_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kilobytes(&meminfo, "Slab:").unwrap_or(0) * 1024
}

/// The default sizes of socket buffers, to receive and to send.
pub(crate) fn default_buffers() -> String {
    let read = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/core/{name}_default"));
        text.unwrap_or_default().trim_end().to_owned()
    };
    format!("{} and {} bytes", read("rmem"), read("wmem"))
}

/// Release of the running kernel.
pub(crate) fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim_end()
        .to_owned()
}

/// Model name of the first processor.
pub(crate) fn processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':'))
        .map_or_else(String::new, |(_, model)| model.trim().to_owned())
}

fn first_number(line: &str) -> Option<u64> {
    line.split_whitespace().next()?.parse().ok()
}

fn kilobytes(table: &str, field: &str) -> Option<u64> {
    table
        .lines()
        .find_map(|line| first_number(line.strip_prefix(field)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_and_uses_time_and_memory() {
        let own = std::process::id();
        assert!(processes().unwrap().contains(&own));
        assert!(threads(own).contains(&::io::tasks::current()));
        assert!(process_cpu_ns(own) > 0);
        assert!(resident_bytes(own) > 100_000);
        assert!(slab_bytes() > 0);
        assert!(name(own).is_some());
        assert!(!kernel().is_empty());
        assert_eq!((process_cpu_ns(u32::MAX), task_cpu_ns(u32::MAX)), (0, 0));
    }

    #[test]
    fn fields_are_read_by_name() {
        let table = "VmSize:\t 10 kB\nVmRSS:\t  1234 kB\n";
        assert_eq!(kilobytes(table, "VmRSS:"), Some(1234));
        assert_eq!(kilobytes(table, "VmSwap:"), None);
    }
}
