//! Counting, by callgrind and by strace. What the driver marks, and how, is told in its own documentation.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{Ended, Process, command};

/// It takes seconds on an idle machine, and minutes at idle priority beside other stages. Longer than this it hangs.
const RUN_TIMEOUT: Duration = Duration::from_secs(900);

/// Functions named when a budget is exceeded.
const HOT_SPOTS: usize = 8;

/// The functions whose cost is counted: a worker's turn, and functions of the driver that stand for one.
const COUNTED: [&str; 7] = [
    "hairpin_server::local::Local::turn",
    "cost::engine::engine_turn",
    "cost::sip_engine::bed::engine_turn",
    "cost::sip_dialog::proxy_turn",
    "cost::sip_engine::read::read_register",
    "cost::sip_engine::read::read_invite",
    "cost::routes::table::decide",
];

/// What asks the C library for memory.
const ALLOCATING: [&str; 5] = [
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "aligned_alloc",
];

/// What one operation costs.
#[derive(Debug)]
pub(super) struct Cost {
    /// The scenario.
    pub(super) name: String,
    /// Instructions per operation, or allocations or system calls per 1,000 operations.
    pub(super) value: f64,
    /// The cost of each function or system call, the largest share first.
    pub(super) hot: Vec<(String, f64)>,
}

impl Cost {
    /// What was counted, by place, divided by `divisor`.
    fn of(name: String, counted: HashMap<String, u64>, divisor: f64) -> Cost {
        let total: u64 = counted.values().sum();
        Cost {
            name,
            value: total as f64 / divisor,
            hot: ranked(counted, divisor),
        }
    }

    /// Where it is spent, for an error text.
    pub(super) fn hot_spots(&self) -> String {
        let lines = self.hot.iter().take(HOT_SPOTS);
        let lines = lines.map(|(place, value)| format!("\n        {value:10.1}  {place}"));
        lines.collect()
    }
}

/// User-space instructions per operation, and heap allocations per 1,000 operations.
pub(super) fn instructions_and_allocations(
    driver: &Path,
    logs: &Path,
) -> Result<(Vec<Cost>, Vec<Cost>)> {
    let out = logs.join("callgrind.out");
    remove_dumps(logs)?;
    let mut callgrind = command("valgrind");
    callgrind
        .args(["--quiet", "--tool=callgrind", "--compress-strings=no"])
        .args(["--collect-atstart=no", "--dump-before=cost::mark"])
        .args(COUNTED.map(|function| format!("--toggle-collect={function}")))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(driver);
    let scenarios = scenarios(callgrind, "callgrind", logs)?;
    // A dump before each mark: odd ones hold the warm-up, even ones what was measured.
    let dumps = (1..).map(|number| PathBuf::from(format!("{}.{}", out.display(), 2 * number)));
    let (mut instructions, mut allocations) = (Vec::new(), Vec::new());
    for ((name, operations), dump) in scenarios.into_iter().zip(dumps) {
        let text = std::fs::read_to_string(&dump)
            .with_context(|| format!("callgrind did not write {}", dump.display()))?;
        let counted = by_function(&text);
        let cost = Cost::of(name.clone(), counted.instructions, operations);
        ensure!(
            cost.value > 0.0,
            "callgrind counted nothing for {name}: was a marked function inlined?"
        );
        instructions.push(cost);
        let thousands = operations / 1000.0;
        allocations.push(Cost::of(name, counted.allocations, thousands));
    }
    Ok((instructions, allocations))
}

/// System calls per 1,000 operations. The engine makes none, so its scenarios are left out.
pub(super) fn system_calls(driver: &Path, logs: &Path) -> Result<Vec<Cost>> {
    let trace = logs.join("strace.out");
    let mut strace = command("strace");
    strace
        .args([
            "--string-limit=80",
            "--abbrev=none",
            "--verbose=none",
            "--output",
        ])
        .arg(&trace)
        .arg(driver);
    let scenarios = scenarios(strace, "strace", logs)?;
    let text = std::fs::read_to_string(&trace)
        .with_context(|| format!("strace did not write {}", trace.display()))?;
    let mut counted = by_scenario(&text);
    scenarios
        .into_iter()
        .filter(|(name, _)| !name.starts_with("engine: "))
        .map(|(name, operations)| {
            let calls = counted.remove(&name).unwrap_or_default();
            ensure!(!calls.is_empty(), "strace saw no system call for {name}");
            Ok(Cost::of(name, calls, operations / 1000.0))
        })
        .collect()
}

/// Runs the driver under a tool and returns its scenarios with their numbers of operations.
fn scenarios(tool: std::process::Command, name: &str, logs: &Path) -> Result<Vec<(String, f64)>> {
    let mut process = Process::start(name, tool, logs.join(format!("{name}.log")))?;
    match process.wait(RUN_TIMEOUT)? {
        Ended::Exited(status) if status.success() => {}
        Ended::Exited(status) => {
            bail!("{name} ended with {status}; its output: {}", process.tail())
        }
        Ended::Killed => bail!(
            "{name} was still running after {RUN_TIMEOUT:?}: {}",
            process.tail()
        ),
    }
    let output = process.output();
    let lines = output.lines().filter_map(|line| line.split_once('\t'));
    let found = lines.filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?)));
    let found: Vec<(String, f64)> = found.collect();
    ensure!(
        !found.is_empty(),
        "the driver measured nothing: {}",
        process.tail()
    );
    Ok(found)
}

fn remove_dumps(logs: &Path) -> Result<()> {
    for file in std::fs::read_dir(logs)?.flatten() {
        if file
            .file_name()
            .to_string_lossy()
            .starts_with("callgrind.out")
        {
            std::fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

/// What a dump of callgrind says, by function.
#[derive(Default)]
struct CallgrindCounts {
    /// Without those of the functions it calls.
    instructions: HashMap<String, u64>,
    /// How often it asked for memory.
    allocations: HashMap<String, u64>,
}

/// Reads callgrind's file format.
fn by_function(text: &str) -> CallgrindCounts {
    let mut counted = CallgrindCounts::default();
    let (mut function, mut called) = ("", "");
    let mut of_a_call = false;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = name;
        } else if let Some(name) = line.strip_prefix("cfn=") {
            called = name;
        } else if let Some(calls) = line.strip_prefix("calls=") {
            // The next line is what the called function cost.
            of_a_call = true;
            let calls: Option<u64> = calls.split(' ').next().and_then(|word| word.parse().ok());
            if let (Some(calls), true) = (calls, ALLOCATING.contains(&called)) {
                *counted.allocations.entry(function.to_owned()).or_default() += calls;
            }
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost: Option<u64> = line.split(' ').nth(1).and_then(|w| w.parse().ok());
            if let (Some(cost), false) = (cost, std::mem::take(&mut of_a_call)) {
                *counted.instructions.entry(function.to_owned()).or_default() += cost;
            }
        }
    }
    counted
}

/// System calls by name, for each scenario, of what lies between the marks of a turn.
fn by_scenario(trace: &str) -> HashMap<String, HashMap<String, u64>> {
    let mut counted: HashMap<String, HashMap<String, u64>> = HashMap::new();
    let (mut scenario, mut in_turn) = ("end", false);
    for line in trace.lines() {
        if let Some(mark) = quoted_after(line, "/hairpin-mark/") {
            scenario = mark;
        } else if let Some(mark) = quoted_after(line, "/hairpin-turn/") {
            in_turn = mark == "begin";
        } else if in_turn && scenario != "end" {
            let call = line.split('(').next().unwrap_or(line);
            let calls = counted.entry(scenario.to_owned()).or_default();
            *calls.entry(call.to_owned()).or_default() += 1;
        }
    }
    counted
}

fn quoted_after<'a>(line: &'a str, prefix: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(prefix)?;
    rest.split('"').next()
}

/// The largest first, each divided by `divisor`.
fn ranked(counted: HashMap<String, u64>, divisor: f64) -> Vec<(String, f64)> {
    let mut list: Vec<(String, u64)> = counted.into_iter().collect();
    list.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
    let per_operation = list
        .into_iter()
        .map(|(place, count)| (place, count as f64 / divisor));
    per_operation.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_functions_own_instructions_and_allocations_are_counted_and_not_those_it_calls() {
        let dump = "summary: 999\n\nob=x\nfl=a.rs\nfn=alpha\n10 5\n+1 7\ncfn=beta\ncalls=2 0\n+3 100\n* 1\nfn=beta\n-4 90\n\
            cfn=malloc\ncalls=3 0\n* 10\n";
        let counted = by_function(dump);
        let instructions = &counted.instructions;
        assert_eq!((instructions["alpha"], instructions["beta"]), (13, 90));
        assert_eq!(counted.allocations, HashMap::from([("beta".to_owned(), 3)]));
        let cost = Cost::of("x".to_owned(), counted.instructions, 2.0);
        assert_eq!(cost.hot[0], ("beta".to_owned(), 45.0));
        assert!((cost.value - 51.5).abs() < 1e-9);
    }

    #[test]
    fn only_calls_within_a_measured_turn_count() {
        let trace = r#"epoll_wait(4, 0x1, 256, 0) = 1
statx(AT_FDCWD, "/hairpin-mark/hot", 0) = -1
sendmsg(8, 0x1, 0) = 5
statx(AT_FDCWD, "/hairpin-turn/begin", 0) = -1
epoll_wait(4, 0x1, 256, 0) = 1
recvmmsg(4, 0x1, 256, 0) = 1
epoll_wait(4, 0x1, 256, 0) = 0
statx(AT_FDCWD, "/hairpin-turn/end", 0) = -1
recvmmsg(4, 0x1, 256, 0) = 1
statx(AT_FDCWD, "/hairpin-mark/end", 0) = -1
statx(AT_FDCWD, "/hairpin-turn/begin", 0) = -1
epoll_wait(4, 0x1, 256, 0) = 1
"#;
        let counted = by_scenario(trace);
        assert_eq!(counted.len(), 1);
        assert_eq!(
            (counted["hot"]["epoll_wait"], counted["hot"]["recvmmsg"]),
            (2, 1)
        );
    }
}
