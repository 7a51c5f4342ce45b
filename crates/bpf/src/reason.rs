//! Why the kernel refuses, in one line of words: the error number, the verifier's last line, the missing capability.

use std::error::Error;
use std::fmt;
use std::io;

/// The oldest kernel that a program or an attachment can work on, as major and minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kernel(pub(crate) u32, pub(crate) u32);

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linux {}.{}", self.0, self.1)
    }
}

impl Kernel {
    /// The version at the start of a release, such as `6.1.0-18-amd64`.
    fn of_release(release: &str) -> Option<Kernel> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut number = || numbers.next()?.parse().ok();
        Some(Kernel(number()?, number()?))
    }
}

/// Release of the running kernel; empty where /proc is not mounted.
pub(crate) fn release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// Whether a kernel of this release is older than `needed`. An unknown release is not.
pub(crate) fn is_older(release: &str, needed: Kernel) -> bool {
    Kernel::of_release(release).is_some_and(|running| running < needed)
}

/// The longest line that is shown of a text from another program, in characters.
const MAX_LINE_CHARS: usize = 240;

/// A text that may have any length and line breaks, as one short line.
pub(crate) fn one_line(text: &str) -> String {
    let words: Vec<&str> = text
        .split(|c: char| c.is_control() || c.is_whitespace())
        .filter(|word| !word.is_empty())
        .collect();
    let line = words.join(" ");
    match line.char_indices().nth(MAX_LINE_CHARS) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

/// The line of a verifier log that says what is wrong: the last one that is not statistics.
pub(crate) fn verdict(log: &str) -> Option<String> {
    const STATISTICS: [&str; 3] = ["processed ", "verification time ", "stack depth "];
    let mut lines = log.lines().rev().map(str::trim);
    let is_verdict =
        |line: &&str| !line.is_empty() && !STATISTICS.iter().any(|start| line.starts_with(start));
    lines.find(is_verdict).map(one_line)
}

/// Describes an error of a bpf or netlink call, and says what to do about it.
pub(crate) fn describe(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => denied(&lacking()),
        Some(libc::ENOMEM) => "out of memory: free some, or lower the limits".to_owned(),
        _ => one_line(&error.to_string()),
    }
}

/// The system's error at the root of an error of the loader.
pub(crate) fn root<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    chain(error).find_map(|cause| cause.downcast_ref())
}

/// An error and its causes.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let this = next?;
        next = this.source();
        Some(this)
    })
}

/// An error of the loader: the words for its root, or its own text and its causes' in one line.
pub(crate) fn of_loader(error: &(dyn Error + 'static)) -> String {
    if let Some(denied) = root(error).filter(|root| is_denial(root)) {
        return describe(denied);
    }
    let mut told = error.to_string();
    for cause in chain(error).skip(1) {
        // Some texts hold the text of their cause.
        let cause = cause.to_string();
        if !told.contains(&cause) {
            told = format!("{told}: {cause}");
        }
    }
    one_line(&told)
}

fn is_denial(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// A capability by its number (linux/capability.h).
const CAPABILITIES: [(u32, &str); 3] =
    [(39, "CAP_BPF"), (12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON")];
const CAP_SYS_ADMIN: u32 = 21;

/// Which capabilities for BPF programs the calling thread lacks. CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON.
pub(crate) fn lacking() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(held) = line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()) else {
        return Vec::new();
    };
    let has = |number: u32| held & (1 << number) != 0;
    let lacks = |number: u32| !has(number) && (number == 12 || !has(CAP_SYS_ADMIN));
    let lacking = CAPABILITIES.iter().filter(|(number, _)| lacks(*number));
    lacking.map(|(_, name)| *name).collect()
}

/// The words for EPERM to a thread that lacks these capabilities.
fn denied(lacking: &[&str]) -> String {
    if lacking.is_empty() {
        return "permission denied although the capabilities are there: check the limit on locked memory (ulimit -l, before \
                Linux 5.11), seccomp filters and security modules"
            .to_owned();
    }
    format!(
        "{} missing: run as root, or grant {} (setcap, or AmbientCapabilities= in the systemd unit)",
        lacking.join(", "),
        if lacking.len() == 1 { "it" } else { "them" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(is_older("5.10.0-28-amd64", Kernel(5, 12)));
        assert!(!is_older("6.1.0", Kernel(5, 12)));
        assert!(!is_older("5.12-rc1", Kernel(5, 12)));
        assert!(!is_older("", Kernel(5, 12)) && !is_older("x.y", Kernel(5, 12)));
    }

    #[test]
    fn the_verdict_is_the_last_line_that_is_not_statistics() {
        let log = "0: R1=ctx()\n; return packet->len;\n1: (85) call bpf_x#26\nR3 min value is outside of the allowed\r\n\
                   verification time 5 usec\nstack depth 0+16\nprocessed 9 insns (limit 1000000)\n\n";
        assert_eq!(
            verdict(log).unwrap(),
            "R3 min value is outside of the allowed"
        );
        assert_eq!(verdict("processed 0 insns\n"), None);
    }

    #[test]
    fn long_texts_become_one_short_line() {
        let long = "a\u{1b}[0m\tb\n".repeat(10_000);
        let line = one_line(&long);
        assert!(line.chars().count() < MAX_LINE_CHARS + 10, "{line}");
        assert!(!line.contains(char::is_control), "{line:?}");
    }

    #[test]
    fn a_denial_names_what_is_missing() {
        assert!(denied(&["CAP_BPF"]).starts_with("CAP_BPF missing: "));
        assert!(denied(&["CAP_BPF", "CAP_PERFMON"]).contains("grant them"));
        assert!(denied(&[]).contains("ulimit -l"));
    }
}
