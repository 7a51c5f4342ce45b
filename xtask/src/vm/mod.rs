//! `cargo xtask vm`: hairpin on kernels that servers run, each booted in QEMU.
//!
//! Debian's kernels are downloaded once into `target/vm` and booted without KVM, 5 s each. The machine has two
//! processors, two network cards on one wire, busybox, iproute2 and the binaries. It runs the list of [`checks`] and
//! switches itself off. The result of each check is compared with the expectation for its kernel. What the kernel must
//! refuse is refused with a reason of one line; everything else works. The output of a machine stays in
//! `target/vm/SUITE/results.txt`.
//!
//! To add a check:
//! 1. A test that exists already: a line `tests(...)` in [`checks::CHECKS`] names the crate and its test binary. Tests
//!    that skip themselves count as failed here.
//! 2. Else a script `guest/checks/NAME.sh` and a line `script(...)`. The script ends each check by `ok NAME DETAIL` or
//!    `fail NAME REASON` of `guest/lib.sh`. That file also has `far`, which runs a command at the other end of the
//!    wire. `ip link add .. type bond` and the like load their modules by themselves.
//! 3. `cargo xtask vm --kernel 6.1 --check NAME` runs it alone, `--kernel 6.1 --shell` gives a shell in the same
//!    machine, where `/checks/NAME.sh` and `/tests.sh /tools/BINARY` do what the checks do. Ctrl-A X ends it.

mod checks;
mod disk;
mod initrd;
mod kernels;
mod machine;
mod results;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::tally::Tally;
use crate::workspace::{self, output_of};
use crate::{cargo, scratch, tools};
use checks::{CHECKS, Check, CheckKind};
pub(crate) use disk::boot as boot_system;
use initrd::GuestBinary;
use kernels::{Kernel, SUITES, Suite};
use machine::SerialOutput;

/// How many machines run in parallel.
const PARALLEL_MACHINES: usize = 2;

/// Which machines to boot, and what to do there.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Boot only this kernel: 5.10, 6.1, 6.12, or its Debian suite (may be repeated).
    #[arg(long, value_name = "VERSION", value_parser = suite)]
    kernel: Vec<Suite>,
    /// Leave out the checks that take minutes in emulation, as the test command does.
    #[arg(long)]
    quick: bool,
    /// Run only this check (may be repeated).
    #[arg(long, value_name = "NAME", value_parser = check)]
    check: Vec<Check>,
    /// Use this hairpin instead of building a release.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Start a shell in the machine of the first kernel instead of the checks.
    #[arg(long)]
    shell: bool,
}

impl Options {
    /// What the test command runs: the oldest kernel and the newest. Each emulated one takes one to five minutes.
    pub(crate) fn quick() -> Options {
        Options {
            quick: true,
            kernel: SUITES
                .first()
                .into_iter()
                .chain(SUITES.last())
                .copied()
                .collect(),
            ..Options::default()
        }
    }
}

fn suite(text: &str) -> Result<Suite, String> {
    Suite::named(text).ok_or_else(|| {
        let known = SUITES.map(|suite| format!("{} ({})", suite.linux, suite.name));
        format!("known are {}", known.join(", "))
    })
}

fn check(text: &str) -> Result<Check, String> {
    let found = CHECKS.iter().find(|check| check.name == text);
    found.copied().ok_or_else(|| {
        let known: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        format!("known are {}", known.join(", "))
    })
}

/// Boots each kernel, and checks its results.
pub(crate) fn run(root: &Path, options: &Options) -> Result<Tally> {
    let mut tally = Tally::default();
    if let Some(reason) = cannot_run() {
        println!("  SKIP  vm: {reason}");
        tally.skipped = 1;
        return Ok(tally);
    }
    let suites = chosen_or_all(&options.kernel, &SUITES);
    let mut checks = chosen_or_all(&options.check, CHECKS);
    if options.quick {
        checks::quick(&mut checks);
    }
    if !machine::has_tun() && checks.iter().any(|check| check.name == "pinning") {
        println!("  SKIP  vm pinning: no /dev/net/tun");
        tally.skipped += 1;
        checks.retain(|check| check.name != "pinning");
    }
    let folder = scratch(root, "vm")?;
    let mut kernels = Vec::new();
    for suite in suites {
        kernels.push(suite.kernel(&folder)?);
    }
    let binaries = binaries(root, &checks, options.binary.as_deref())?;
    if options.shell {
        let kernel = kernels.first().context("no kernel")?;
        let archive = initrd::build(root, kernel, &binaries, &plan(&checks, kernel))?;
        machine::shell(kernel, &archive)?;
        return Ok(tally);
    }
    for (kernel, outcome) in kernels
        .iter()
        .zip(boot_all(root, &kernels, &checks, &binaries))
    {
        judge(kernel, &checks, &outcome?, &mut tally)?;
    }
    Ok(tally)
}

/// Why no machine can be booted here.
fn cannot_run() -> Option<String> {
    if !tools::is_root() {
        // Packages are unpacked with their owners, and the tests inside need root's sockets anyway.
        return Some("not root".to_owned());
    }
    tools::ensure(&[tools::VM])
        .err()
        .map(|error| format!("{error:#}"))
}

fn chosen_or_all<T: Copy>(some: &[T], all: &[T]) -> Vec<T> {
    if some.is_empty() { all } else { some }.to_vec()
}

/// The output of a machine that has switched itself off, and its run time.
struct FinishedMachine {
    output: SerialOutput,
    seconds: f32,
}

/// Boots these kernels, [`PARALLEL_MACHINES`] at a time. The newest come first, because they have the most checks.
fn boot_all(
    root: &Path,
    kernels: &[Kernel],
    checks: &[Check],
    binaries: &[GuestBinary],
) -> Vec<Result<FinishedMachine>> {
    let boot = &|kernel: &Kernel| -> Result<FinishedMachine> {
        let archive = initrd::build(root, kernel, binaries, &plan(checks, kernel))?;
        let begun = Instant::now();
        let mut output = machine::run(kernel, &archive)?;
        if let Some(reason) = output.reason_to_repeat() {
            let lines = output.last_console_lines();
            println!(
                "  {}: {reason}; once more. Its console: {lines}",
                kernel.release
            );
            output = machine::run(kernel, &archive)?;
        }
        let seconds = begun.elapsed().as_secs_f32();
        Ok(FinishedMachine { output, seconds })
    };
    let waiting = &Mutex::new((0..kernels.len()).collect::<Vec<usize>>());
    let next = || {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop()
    };
    let work = || -> Vec<(usize, Result<FinishedMachine>)> {
        std::iter::from_fn(&next)
            .map(|number| (number, boot(&kernels[number])))
            .collect()
    };
    let mut done: BTreeMap<usize, Result<FinishedMachine>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PARALLEL_MACHINES).map(|_| scope.spawn(work)).collect();
        let results = threads.into_iter().filter_map(|thread| thread.join().ok());
        results.flatten().collect()
    });
    (0..kernels.len())
        .map(|number| {
            let failed = || Err(anyhow::anyhow!("the thread of a machine panicked"));
            done.remove(&number).unwrap_or_else(failed)
        })
        .collect()
}

fn judge(
    kernel: &Kernel,
    checks: &[Check],
    booted: &FinishedMachine,
    tally: &mut Tally,
) -> Result<()> {
    let Kernel { suite, release, .. } = kernel;
    let FinishedMachine { output, seconds } = booted;
    let console = output.console_file.display();
    println!("--- Linux {release} (Debian {})", suite.name);
    let (sections, done) = results::parse(&output.results);
    ensure!(
        !sections.is_empty(),
        "Linux {release} did not come up; its console: {console}"
    );
    checks::judge(checks, suite.linux, &sections, tally);
    if !done {
        let lines = output.last_console_lines();
        let error = anyhow::anyhow!("it ended early; {console} ends with: {lines}");
        let name = format!("{} goes through all checks", suite.linux);
        tally.record(&name, &Err(error));
    }
    let times: Vec<String> = sections
        .iter()
        .map(|(name, section)| format!("{name} {} s", section.seconds))
        .collect();
    println!(
        "--- Linux {release}: {seconds:.0} s in all ({}); all of its output: {}",
        times.join(", "),
        output.results_file.display()
    );
    Ok(())
}

/// The list that `guest/init` reads.
fn plan(checks: &[Check], kernel: &Kernel) -> String {
    let fits = |check: &&Check| kernel.suite.linux >= check.since;
    let line = |check: &Check| {
        let (name, seconds) = (check.name, check.seconds);
        match check.run {
            CheckKind::Script => format!("{name} {seconds} sh /checks/{name}.sh\n"),
            CheckKind::Tests {
                package,
                binary,
                arguments,
            } => {
                let arguments = arguments.join(" ");
                format!("{name} {seconds} sh /tests.sh {package}-{binary} {arguments}\n")
            }
        }
    };
    checks.iter().filter(fits).map(line).collect()
}

/// Builds what the checks run.
fn binaries(root: &Path, checks: &[Check], hairpin: Option<&Path>) -> Result<Vec<GuestBinary>> {
    let hairpin = match hairpin {
        Some(file) => file.to_owned(),
        None => cargo::release(root)?,
    };
    let mut binaries = vec![GuestBinary {
        name: "hairpin".to_owned(),
        file: hairpin,
    }];
    let tests = test_binaries(root, checks)?;
    for check in checks {
        if let CheckKind::Tests {
            package, binary, ..
        } = check.run
        {
            let name = format!("{package}-{binary}");
            if binaries.iter().any(|binary| binary.name == name) {
                continue;
            }
            let built = tests.get(&name);
            let file = built.with_context(|| format!("cargo built no test binary {name}"))?;
            binaries.push(GuestBinary {
                name,
                file: file.clone(),
            });
        }
    }
    Ok(binaries)
}

/// The files of test binaries, as `CRATE-BINARY`. With the features of the whole workspace, so that the stage for tests
/// has built them already.
fn test_binaries(root: &Path, checks: &[Check]) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = workspace::cargo();
    command.current_dir(root);
    command.args(["test", "--locked", "--workspace", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    let mut any = false;
    for check in checks {
        if let CheckKind::Tests { binary, .. } = check.run {
            command.args(["--test", binary]);
            any = true;
        }
    }
    if !any {
        return Ok(BTreeMap::new());
    }
    let messages = output_of(&mut command)?;
    Ok(messages.lines().filter_map(test_binary).collect())
}

/// The test binary that a message of cargo's tells of: its file, and the crate's folder and its own name as one name.
fn test_binary(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let file = message["executable"].as_str()?;
    let name = message["target"]["name"].as_str()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let package = manifest.parent()?.file_name()?.to_str()?;
    Some((format!("{package}-{name}"), file.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_is_a_check_and_the_other_way_round() {
        let folder = workspace::root().join("xtask/src/vm/guest/checks");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .map(|entries| {
                let entries = entries.flatten();
                let name =
                    |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
                entries.map(name).collect()
            })
            .unwrap_or_default();
        files.sort();
        let scripts = CHECKS
            .iter()
            .filter(|check| matches!(check.run, CheckKind::Script));
        let mut names: Vec<String> = scripts.map(|check| format!("{}.sh", check.name)).collect();
        names.sort();
        assert_eq!(files, names);
    }

    #[test]
    fn a_test_binary_is_known_by_its_crate_and_its_name() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/x/crates/bpf/Cargo.toml","target":{"name":"relay"},"executable":"/x/target/debug/deps/relay-1"}"#;
        let (name, file) = test_binary(message).unwrap();
        assert_eq!(name, "bpf-relay");
        assert_eq!(file, Path::new("/x/target/debug/deps/relay-1"));
        assert!(test_binary(r#"{"reason":"build-finished"}"#).is_none());
    }
}
