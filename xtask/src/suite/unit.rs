//! The stage `unit`: every test binary of the workspace, two at a time, and the documentation tests.
//!
//! Most test binaries wait for timers and packets, so two of them share two processors well. One that measures time or
//! memory runs alone, after the others.

use std::collections::VecDeque;
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

/// How many test binaries run at a time.
const LANES: usize = 2;

/// Longest run of one binary: one that hangs must fail, not hang CI.
const LIMIT: Duration = Duration::from_secs(600);

/// Binaries that measure time, processor time or memory, or that compare rates.
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

/// Binaries that run for longer than 40 s, most of which they wait: they start first.
const FIRST: [&str; 2] = ["abuse", "sip_routes"];

/// A test binary that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    /// The name of cargo's target, such as `abuse` for `tests/abuse.rs`.
    name: String,
    executable: PathBuf,
    /// Folder of the package, in which cargo runs the tests.
    folder: PathBuf,
}

/// Builds and runs them all.
pub(super) fn run(root: &Path) -> Result<Tally> {
    let (alone, mut beside): (Vec<_>, Vec<_>) = build(root)?
        .into_iter()
        .partition(|binary| ALONE.contains(&binary.name.as_str()));
    beside.sort_by_key(|binary| !FIRST.contains(&binary.name.as_str()));
    let skipped = workspace::target_dir(root).join("tests-skipped.txt");
    // That of the last run.
    let _ = std::fs::remove_file(&skipped);
    let logs = scratch(root, "unit")?;
    let mut total = run_all(beside, LANES, &logs, &skipped)?;
    total.add(run_all(alone, 1, &logs, &skipped)?);
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

/// The test binary that a message of cargo reports.
fn binary(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    Some(Binary {
        name: message["target"]["name"].as_str()?.to_owned(),
        executable: message["executable"].as_str()?.into(),
        folder: Path::new(message["manifest_path"].as_str()?)
            .parent()?
            .to_path_buf(),
    })
}

/// Runs binaries, `lanes` at a time, and prints the output of each when it has ended.
fn run_all(binaries: Vec<Binary>, lanes: usize, logs: &Path, skipped: &Path) -> Result<Tally> {
    let queue = Mutex::new(VecDeque::from(binaries));
    let next = || queue.lock().ok()?.pop_front();
    let lane = || -> Result<Tally> {
        let mut tally = Tally::default();
        while let Some(binary) = next() {
            tally.add(run_one(&binary, logs, skipped)?);
        }
        Ok(tally)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        let mut total = Tally::default();
        for thread in threads {
            let tally = thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread that runs tests panicked"))??;
            total.add(tally);
        }
        Ok(total)
    })
}

fn run_one(binary: &Binary, logs: &Path, skipped: &Path) -> Result<Tally> {
    let file = binary.executable.file_name().unwrap_or_default();
    let mut command = process::command(&binary.executable);
    command
        .current_dir(&binary.folder)
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .env(SKIPPED, skipped);
    let started = Instant::now();
    let mut process = Process::start(&binary.name, command, logs.join(file).with_extension("log"))?;
    let ended = process.wait(LIMIT);
    let output = process.output();
    let mut tally = cargo::test_results(&output);
    let mut report = format!(
        "     Ran {} ({}) in {:.1} s\n{output}",
        binary.name,
        file.to_string_lossy(),
        started.elapsed().as_secs_f32()
    );
    // A binary that aborts or hangs fails without any line that says so.
    let failed = match ended {
        Ok(Ended::Exited(status)) if status.success() => None,
        Ok(Ended::Exited(status)) => Some(status.to_string()),
        Ok(Ended::Killed) => Some(format!("killed after {} s", LIMIT.as_secs())),
        Err(error) => Some(format!("{error:#}")),
    };
    if let Some(reason) = failed
        && tally.failed == 0
    {
        report += &format!("  FAIL  {}: {reason}\n", binary.name);
        tally.failed = 1;
    }
    // One write, so that the lines of two lanes do not mix.
    print!("{report}");
    Ok(tally)
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
            executable: "/w/target/debug/deps/netns-1".into(),
            folder: "/w/crates/io".into(),
        };
        assert_eq!(binary(message), Some(expected));
        assert_eq!(binary(&message.replace("true", "false")), None);
        assert_eq!(binary("   Compiling hairpin"), None);
    }
}
