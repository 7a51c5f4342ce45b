//! Programs that run their cases themselves and print one line for each: `ok NAME: DETAIL` or `FAIL NAME: REASON`.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use crate::process::{Ended, Process};
use crate::tally::Tally;

/// Waits for the program and records its cases. There must be `cases` of them: one that is skipped must not go
/// unnoticed.
pub(crate) fn record(
    name: &str,
    mut process: Process,
    cases: usize,
    limit: Duration,
) -> Result<Tally> {
    let ended = process.wait(limit)?;
    let mut tally = Tally::default();
    for (case, outcome) in process.output().lines().filter_map(case) {
        tally.record(&format!("{name} {case}"), &outcome);
    }
    let complete = all_ran(&process, ended, tally, cases);
    tally.record(&format!("{name} ran all its cases"), &complete);
    Ok(tally)
}

fn all_ran(process: &Process, ended: Ended, tally: Tally, cases: usize) -> Result<String> {
    ensure!(ended != Ended::Killed, "it hung: {}", process.tail());
    let ran = tally.passed + tally.failed;
    ensure!(
        ran as usize == cases,
        "{ran} of {cases} cases were run: {}",
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
