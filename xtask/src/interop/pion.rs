//! pion's TURN client, driven by the Go program in `interop/pion`.
//!
//! The program runs its cases itself and prints one line for each: `ok NAME: DETAIL` or `FAIL NAME: REASON`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use super::Bench;
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

/// How many cases the program has: one that is skipped must not go unnoticed.
const CASES: usize = 16;
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(bench: &Bench) -> Result<Tally> {
    let program = build(&bench.sources.join("pion"), &bench.logs)?;
    let credentials = bench.server.static_credentials()?;
    let mut command = process::command(&program);
    let [v4, v6] = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ]
    .map(|ip| bench.server.address(ip).to_string());
    command.args([
        "-v4",
        &v4,
        "-v6",
        &v6,
        "-user",
        &credentials.user,
        "-password",
        &credentials.password,
    ]);
    let mut process = Process::start("the pion client", command, bench.logs.join("pion.log"))?;
    let ended = process.wait(LIMIT)?;
    let mut tally = Tally::default();
    for (name, outcome) in process.output().lines().filter_map(case) {
        tally.record(&format!("pion {name}"), &outcome);
    }
    tally.record("pion ran all its cases", &all_ran(&process, ended, tally));
    Ok(tally)
}

fn all_ran(process: &Process, ended: Ended, tally: Tally) -> Result<String> {
    ensure!(ended != Ended::Killed, "it hung: {}", process.tail());
    let ran = tally.passed + tally.failed;
    ensure!(
        ran as usize == CASES,
        "{ran} of {CASES} cases were run: {}",
        process.tail()
    );
    Ok(format!("{ran}"))
}

fn case(line: &str) -> Option<(&str, Result<String>)> {
    let (verdict, rest) = line.split_once(' ')?;
    let (name, detail) = rest.split_once(": ")?;
    match verdict {
        "ok" => Some((name, Ok(detail.to_owned()))),
        "FAIL" => Some((name, Err(anyhow!("{detail}")))),
        _ => None,
    }
}

/// Builds the program; `go.sum` pins every module.
fn build(source: &Path, logs: &Path) -> Result<PathBuf> {
    let program = logs.join("pion-client");
    let status = Command::new("timeout")
        .args(["--signal=KILL", "300", "go", "build", "-mod=readonly", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .status()
        .context("cannot run go")?;
    ensure!(
        status.success(),
        "`go build` failed in {}",
        source.display()
    );
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::case;

    #[test]
    fn reads_the_lines_of_the_program() {
        assert!(matches!(
            case("ok binding: 127.0.0.1:4"),
            Some(("binding", Ok(_)))
        ));
        assert!(
            matches!(case("FAIL echo: lost: 3"), Some(("echo", Err(e))) if e.to_string() == "lost: 3")
        );
        assert!(case("turnc DEBUG: something").is_none());
    }
}
