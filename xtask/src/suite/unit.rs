//! The stage `unit`: every test binary of the workspace, two at a time, and the documentation tests.
//!
//! A binary `suite` has the tests of many subjects, a module each. Each module runs in a process of its own, like a
//! binary.
//!
//! Most tests wait for timers and packets, so two processes share two processors well. Those that measure time or
//! memory run alone, after the others.
//!
//! If at most five tests failed, each runs once more, alone. If it passes then, it is counted as passed and named as
//! unsteady. With two busy processors, one or two of 3,500 tests fail in many runs because they get no processor time.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::cargo::{self, SKIPPED};
use crate::process::{self, Ended, Process};
use crate::tally::Tally;
use crate::{scratch, workspace};

/// Binaries of which each module runs in a process of its own.
const SUITE: &str = "suite";

/// How many processes run at a time.
const LANES: usize = 2;

/// Longest run of one process: one that hangs must fail, not hang CI.
const TEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Binaries and modules that measure time, processor time or memory, or that compare rates.
const ALONE: [&str; 16] = [
    "bench",
    "bench_cli",
    "data_paths",
    "generator",
    "load_cli",
    "load_relay",
    "load_sip",
    "load_streams",
    "load_workloads",
    "lying_reflectors",
    "offload",
    "sip_memory",
    "sip_overload",
    "stream_soak",
    "upgrade",
    "upgrade_sip",
];

/// Most failed tests that run once more. If more fail, it is no accident.
const MAX_REPEATED: usize = 5;

/// Binaries and modules that run for longer than 40 s, most of which they wait: they start first.
const FIRST: [&str; 2] = ["abuse", "sip_routes"];

/// A test binary that cargo has built, or the tests of one of its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Binary {
    /// The name of cargo's target or of the module: `stream_soak` for `tests/stream_soak.rs`, `abuse` for
    /// `tests/suite/abuse.rs`.
    name: String,
    /// The full names of the module's tests. Empty: every test of the binary.
    tests: Vec<String>,
    executable: PathBuf,
    /// Folder of the package, in which cargo runs the tests.
    folder: PathBuf,
}

/// Builds and runs them all.
pub(super) fn run(root: &Path) -> Result<Tally> {
    let mut processes = Vec::new();
    for binary in build(root)? {
        if binary.name == SUITE {
            processes.extend(modules(&binary)?);
        } else {
            processes.push(binary);
        }
    }
    let (alone, mut beside): (Vec<_>, Vec<_>) = processes
        .into_iter()
        .partition(|binary| ALONE.contains(&binary.name.as_str()));
    beside.sort_by_key(|binary| !FIRST.contains(&binary.name.as_str()));
    let skipped = workspace::target_dir(root).join("tests-skipped.txt");
    // That of the last run.
    let _ = std::fs::remove_file(&skipped);
    let logs = scratch(root, "unit")?;
    let mut results = run_all(beside, LANES, &logs, &skipped)?;
    results.add(run_all(alone, 1, &logs, &skipped)?);
    let mut total = repeat_failed(results, &logs, &skipped)?;
    cargo::count_skipped(&mut total, &skipped);
    let documentation = ["test", "--locked", "--workspace", "--doc", "--no-fail-fast"];
    total.add(cargo::test(root, &documentation)?);
    let without = "test --locked --lib --no-default-features --package=hairpin-stun";
    total.add(cargo::test(root, &without.split(' ').collect::<Vec<_>>())?);
    Ok(total)
}

/// Builds the test binaries of the workspace.
fn build(root: &Path) -> Result<Vec<Binary>> {
    let output = cargo::bounded(
        root,
        &[
            "test",
            "--locked",
            "--workspace",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ],
        &[],
    )
    .stderr(Stdio::inherit())
    .output()
    .context("cannot run cargo")?;
    ensure!(output.status.success(), "the tests do not compile");
    let binaries: Vec<Binary> = String::from_utf8(output.stdout)?
        .lines()
        .filter_map(binary)
        .collect();
    ensure!(!binaries.is_empty(), "cargo built no test");
    Ok(binaries)
}

/// The modules of a binary that have tests.
fn modules(binary: &Binary) -> Result<Vec<Binary>> {
    let mut command = process::command(&binary.executable);
    command.args(["--list", "--format", "terse"]);
    let output = command.output().context("cannot list tests")?;
    ensure!(output.status.success(), "cannot list tests: {output:?}");
    let list = String::from_utf8(output.stdout)?;
    ensure!(!list.is_empty(), "{} has no test", binary.folder.display());
    Ok(by_module(binary, &list))
}

/// The lines of the list are such as `abuse::floods: test`.
fn by_module(binary: &Binary, list: &str) -> Vec<Binary> {
    let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split("::").next().unwrap_or(test);
        modules.entry(module).or_default().push(test.to_owned());
    }
    let process = |(name, tests): (&str, Vec<String>)| Binary {
        name: name.to_owned(),
        tests,
        ..binary.clone()
    };
    modules.into_iter().map(process).collect()
}

/// The test binary that a message of cargo reports.
fn binary(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    Some(Binary {
        name: message["target"]["name"].as_str()?.to_owned(),
        tests: Vec::new(),
        executable: message["executable"].as_str()?.into(),
        folder: Path::new(message["manifest_path"].as_str()?)
            .parent()?
            .to_path_buf(),
    })
}

/// What a number of processes had as results.
#[derive(Debug, Default)]
struct Results {
    tally: Tally,
    failed: Vec<FailedTest>,
}

/// A test that failed.
#[derive(Debug)]
struct FailedTest {
    /// Its binary, with this test alone.
    binary: Binary,
    test: String,
    /// What it printed.
    output: String,
}

impl Results {
    fn add(&mut self, other: Results) {
        self.tally.add(other.tally);
        self.failed.extend(other.failed);
    }
}

/// Runs binaries, `lanes` at a time, and prints the output of each when it has ended.
fn run_all(binaries: Vec<Binary>, lanes: usize, logs: &Path, skipped: &Path) -> Result<Results> {
    let queue = Mutex::new(VecDeque::from(binaries));
    let next = || queue.lock().ok()?.pop_front();
    let lane = || -> Result<Results> {
        let mut results = Results::default();
        while let Some(binary) = next() {
            results.add(run_one(&binary, logs, skipped)?);
        }
        Ok(results)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        let mut total = Results::default();
        for thread in threads {
            let results = thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread that runs tests panicked"))??;
            total.add(results);
        }
        Ok(total)
    })
}

/// Runs each failed test once more, alone. Prints the tests that failed twice last, where a reader of a log looks
/// first.
fn repeat_failed(results: Results, logs: &Path, skipped: &Path) -> Result<Tally> {
    let Results { mut tally, failed } = results;
    let few = failed.len() <= MAX_REPEATED;
    for FailedTest {
        binary,
        test,
        output,
    } in failed
    {
        if few && run_one(&binary, logs, skipped)?.tally.is_clean() {
            println!("  UNSTEADY  {test} failed, and passed alone. When it failed:\n{output}");
            tally.failed -= 1;
            tally.passed += 1;
        } else {
            println!("  FAIL  {}: {test}\n{output}", binary.name);
        }
    }
    Ok(tally)
}

/// The failed tests that the output of a test binary names, with what each printed.
fn failed_tests(binary: &Binary, output: &str) -> Vec<FailedTest> {
    let failed = |line: &str| {
        let test = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        let printed = output
            .split_once(&format!("---- {test} stdout ----\n"))
            .map_or("", |(_, printed)| printed);
        let end = ["\n---- ", "\nfailures:\n"]
            .iter()
            .filter_map(|next| printed.find(next))
            .min();
        Some(FailedTest {
            binary: Binary {
                tests: vec![test.to_owned()],
                ..binary.clone()
            },
            test: test.to_owned(),
            output: printed[..end.unwrap_or(printed.len())].to_owned(),
        })
    };
    output.lines().filter_map(failed).collect()
}

fn run_one(binary: &Binary, logs: &Path, skipped: &Path) -> Result<Results> {
    let file = binary.executable.file_name().unwrap_or_default();
    let log = format!("{}-{}.log", file.to_string_lossy(), binary.name);
    let mut command = process::command(&binary.executable);
    if !binary.tests.is_empty() {
        command.arg("--exact").args(&binary.tests);
    }
    command
        .current_dir(&binary.folder)
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .env(SKIPPED, skipped);
    let started = Instant::now();
    let mut process = Process::start(&binary.name, command, logs.join(log))?;
    let ended = process.wait(TEST_TIMEOUT);
    let output = process.output();
    let mut tally = cargo::test_results(&output);
    if !binary.tests.is_empty() {
        // The others of the binary run in other processes.
        tally.skipped = 0;
    }
    let mut report = format!(
        "     Ran {} ({}) in {:.1} s\n{output}",
        binary.name,
        file.to_string_lossy(),
        started.elapsed().as_secs_f32()
    );
    let mut failed_tests = failed_tests(binary, &output);
    // A process that did not end by itself has failed, whatever its tests do alone. They do not run again.
    let failed = match ended {
        Ok(Ended::Exited(status)) if status.success() => None,
        Ok(Ended::Exited(status)) => Some(status.to_string()),
        Ok(Ended::Killed) => Some(format!("killed after {} s", TEST_TIMEOUT.as_secs())),
        Err(error) => Some(format!("{error:#}")),
    };
    if let Some(reason) = failed
        && tally.failed == 0
    {
        report += &format!("  FAIL  {}: {reason}\n", binary.name);
        tally.failed = 1;
        failed_tests.clear();
    }
    // One write, so that the lines of two lanes do not mix.
    print!("{report}");
    Ok(Results {
        tally,
        failed: failed_tests,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_cargo_names_a_test_binary() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/io/Cargo.toml","target":{"name":"netns"},
            "profile":{"test":true},"executable":"/w/target/debug/deps/netns-1"}"#;
        let expected = Binary {
            name: "netns".to_owned(),
            tests: Vec::new(),
            executable: "/w/target/debug/deps/netns-1".into(),
            folder: "/w/crates/io".into(),
        };
        assert_eq!(binary(message), Some(expected));
        assert_eq!(binary(&message.replace("true", "false")), None);
        assert_eq!(binary("   Compiling hairpin"), None);
    }

    #[test]
    fn failed_tests_are_found_with_what_they_printed() {
        let all = Binary {
            name: "relay".to_owned(),
            tests: Vec::new(),
            executable: "/w/target/debug/deps/relay-1".into(),
            folder: "/w/crates/server".into(),
        };
        let output = "running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\ntest d ... FAILED\n\nfailures:\n\n\
                      ---- a::c stdout ----\nlost 3\n\n---- d stdout ----\nlate\n\nfailures:\n    a::c\n    d\n";
        let failed = failed_tests(&all, output);
        let seen: Vec<_> = failed
            .iter()
            .map(|failed| (failed.test.as_str(), failed.output.trim()))
            .collect();
        assert_eq!(seen, [("a::c", "lost 3"), ("d", "late")]);
        assert_eq!(failed[0].binary.tests, ["a::c"]);
        assert!(failed_tests(&all, "test a::b ... ok\n").is_empty());
    }

    #[test]
    fn each_module_of_a_list_has_its_tests() {
        let all = Binary {
            name: SUITE.to_owned(),
            tests: Vec::new(),
            executable: "/w/target/debug/deps/suite-1".into(),
            folder: "/w/crates/server".into(),
        };
        let list = "sip::calls: test\nabuse::flood: test\nsip::bench: benchmark\nsip::errors::late: test\n";
        let modules = by_module(&all, list);
        let names: Vec<_> = modules
            .iter()
            .map(|module| (module.name.as_str(), module.tests.join(" ")))
            .collect();
        assert_eq!(
            names,
            [
                ("abuse", "abuse::flood".to_owned()),
                ("sip", "sip::calls sip::errors::late".to_owned())
            ]
        );
    }
}
