//! What the server spends, if it runs on this machine and its process is known.

use std::fs;

use crate::bench::procfs;
use crate::report::ServerUse;

/// A server's processes: one, and all that it has started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watched {
    processes: Vec<u32>,
    cpu_ns: u64,
    resident: u64,
}

impl Watched {
    /// Reads what has been spent so far.
    pub(super) fn begin(process: u32) -> Watched {
        let mut processes = vec![process];
        let parents: Vec<(u32, u32)> = procfs::processes()
            .unwrap_or_default()
            .into_iter()
            .filter_map(|process| Some((process, parent(process)?)))
            .collect();
        let mut at = 0;
        while let Some(&process) = processes.get(at) {
            let children = parents.iter().filter(|(_, parent)| *parent == process);
            processes.extend(children.map(|(child, _)| *child));
            at += 1;
        }
        let mut watched = Watched {
            processes,
            ..Watched::default()
        };
        (watched.cpu_ns, watched.resident) = watched.now();
        watched
    }

    fn now(&self) -> (u64, u64) {
        let cpu = self
            .processes
            .iter()
            .map(|&one| procfs::process_cpu_ns(one));
        // Processes that share pages count them each: what counts is how much it grows.
        let resident = self
            .processes
            .iter()
            .map(|&one| procfs::resident_bytes(one));
        (cpu.sum(), resident.sum())
    }

    /// What it has spent since the beginning, on `units` of work.
    pub(super) fn end(&self, units: u64, wall_ns: u64) -> ServerUse {
        let (cpu_ns, resident) = self.now();
        let cpu_ns = cpu_ns.saturating_sub(self.cpu_ns);
        ServerUse {
            processes: self.processes.len() as u64,
            cpu: cpu_ns as f64 / wall_ns.max(1) as f64,
            cpu_us_per_unit: cpu_ns as f64 / 1e3 / units.max(1) as f64,
            resident_before: self.resident,
            resident_after: resident,
        }
    }
}

/// The process that started `process`: the second word behind its name in parentheses.
fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_children_are_watched() {
        let mut child = std::process::Command::new("sleep")
            .arg("5")
            .spawn()
            .unwrap();
        let watched = Watched::begin(std::process::id());
        let own = watched.processes.contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own, "{watched:?}");
        let used = watched.end(10, 1_000_000);
        assert!(used.resident_before > 0 && used.cpu_us_per_unit >= 0.0);
    }
}
