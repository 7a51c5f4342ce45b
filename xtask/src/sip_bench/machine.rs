//! Where and with what it was measured.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// The machine and the versions; what cannot be found out is empty.
pub(crate) fn describe(binary: &Path) -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "processor": model.map_or("", |model| model.trim_start_matches([' ', '\t', ':'])),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": kernel.trim(),
        "hairpin": first_line(binary, "--version"),
        "kamailio": first_line(Path::new("kamailio"), "-v"),
    })
}

fn first_line(program: &Path, flag: &str) -> String {
    let output = Command::new(program).arg(flag).output();
    let output = output.map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&output);
    text.lines().next().unwrap_or_default().to_owned()
}
