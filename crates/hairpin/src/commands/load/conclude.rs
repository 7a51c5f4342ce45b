//! The end of a run: summary, files, thresholds, status.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use load::report::{self, Ending, LoadReport, SipReport};

use crate::cli::load::course::Results;
use crate::commands::reports::Destinations;
use crate::commands::{output, status};

/// Flags whose values are secret.
const SECRET_FLAGS: [&str; 3] = ["--user", "--password", "--secret"];

/// Reports what was measured and says whether that is good enough.
pub(super) fn conclude(
    mut report: LoadReport,
    results: &Results,
    places: &Destinations<'_>,
) -> Result<ExitCode> {
    report.run.argv = without_secrets(&report.run.argv);
    let mut summary: String = report
        .to_string()
        .lines()
        .map(|line| output::printable(line) + "\n")
        .collect();
    let passed = judge(&report, results, &mut summary);
    places.summary(&summary)?;
    places.write("--json", || {
        report.to_json().context("cannot write the report")
    })?;
    places.write("--csv", || Ok(report::to_csv(&report)))?;
    places.write("--html", || Ok(report::to_html(&report)))?;
    let failure = failure(&report);
    if let Some(failure) = &failure {
        eprintln!("error: {}", output::printable(failure));
    }
    Ok(status::measured(failure.is_none(), passed))
}

/// Compares the report with the thresholds; each gets a line.
fn judge(report: &LoadReport, results: &Results, summary: &mut String) -> bool {
    let mut passed = true;
    for threshold in &results.fail_if {
        let verdict = threshold.judge(report);
        let word = if verdict.failed { "FAILED" } else { "passed" };
        passed &= !verdict.failed;
        // Writing to a string cannot fail.
        let _ = writeln!(
            summary,
            "{word}: fail if {}: {}",
            verdict.text, verdict.found
        );
    }
    passed
}

/// Why the figures are not those of a whole run, and what to do.
fn failure(report: &LoadReport) -> Option<String> {
    let reason = report.ended_early.as_deref().unwrap_or("nothing came back");
    let total = &report.total;
    let expects_answers = report.run.workload != "garbage";
    if let Some(sip) = &report.sip {
        return sip_failure(report, sip);
    }
    match report.ended {
        Ending::ServerSilent => Some(format!(
            "{reason}: see whether the server still runs and admits these peers, and try `hairpin probe`"
        )),
        Ending::CannotSend => {
            let no_route = report.sending.not_sent.keys().any(|why| why.contains("no route"));
            let advice = if no_route {
                "see whether the interface is up, and what `ip route get` says"
            } else {
                "lower the rate, or raise net.core.wmem_max and the queue of the interface"
            };
            Some(format!("{reason}: {advice}"))
        }
        Ending::Stopped => None,
        _ if total.sent == 0 => Some(
            "nothing was sent in the measured part: raise the rate or the duration".to_owned(),
        ),
        _ if total.received == 0 && expects_answers => Some(
            "nothing came back: see whether the server runs and admits these peers, and try `hairpin probe`"
                .to_owned(),
        ),
        _ => None,
    }
}

/// The same for SIP, where an answer may be a refusal.
fn sip_failure(report: &LoadReport, sip: &SipReport) -> Option<String> {
    let total = &report.total;
    let reason = report.ended_early.as_deref().unwrap_or("nothing came back");
    if sip.sweep.as_ref().is_some_and(|sweep| sweep.peak <= 0.0) {
        return Some(
            "nothing succeeded in a closed loop: there is no peak to sweep from".to_owned(),
        );
    }
    match report.ended {
        Ending::Stopped => None,
        Ending::ServerSilent | Ending::CannotSend => {
            Some(match sip.unreachable + sip.connections_lost {
                0 => format!(
                    "{reason}: see whether the server still runs, and whether a firewall is between"
                ),
                _ => format!("{reason}, and nothing listens there any more: the server has ended"),
            })
        }
        Ending::Complete if total.sent == 0 && sip.withheld > 0 => Some(
            "nothing was begun in the measured part: every server had said Retry-After (--obey off ignores it)".to_owned(),
        ),
        Ending::Complete if total.received == 0 && sip.cancelled > 0 => Some(format!(
            "no call was answered: {} rang until the end, and were cancelled",
            sip.cancelled
        )),
        Ending::Complete if total.sent == 0 => Some(
            "nothing was begun in the measured part: raise the rate or the duration".to_owned(),
        ),
        Ending::Complete if total.received > 0 || sip.sweep.is_some() => None,
        _ if sip.unavailable > 0 => Some(format!(
            "the server answered everything with 503 ({} of them): it is overloaded, or shutting down, or has nobody to forward to",
            sip.unavailable
        )),
        _ => {
            let codes: Vec<_> = report
                .errors
                .keys()
                .filter(|&&code| code != 0)
                .map(u16::to_string)
                .collect();
            Some(match codes.is_empty() {
                true => format!(
                    "{reason}: see whether the server runs, and whether a firewall is between"
                ),
                false => format!(
                    "nothing succeeded: the server answered {}",
                    codes.join(", ")
                ),
            })
        }
    }
}

/// The command line without what must not end up in a report that is passed on.
fn without_secrets(argv: &[String]) -> Vec<String> {
    let mut hide_next = false;
    let hide = |word: &String| {
        if std::mem::take(&mut hide_next) {
            return "...".to_owned();
        }
        if SECRET_FLAGS.contains(&word.as_str()) {
            hide_next = true;
            return word.clone();
        }
        match word.split_once('=') {
            Some((flag, _)) if SECRET_FLAGS.contains(&flag) => format!("{flag}=..."),
            _ => word.clone(),
        }
    };
    argv.iter().map(hide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_get_into_reports() {
        let argv = [
            "hairpin",
            "--secret",
            "abc",
            "--user=alice:x",
            "--size",
            "5",
            "--password",
            "y",
        ]
        .map(str::to_owned);
        let shown = without_secrets(&argv).join(" ");
        assert_eq!(
            shown,
            "hairpin --secret ... --user=... --size 5 --password ..."
        );
    }

    #[test]
    fn refusals_of_a_sip_server_are_named() {
        let mut report = LoadReport::empty();
        report.total.sent = 10;
        report.errors.insert(503, 10);
        report.sip = Some(Box::default());
        assert!(failure(&report).unwrap().contains("answered 503"));
        report.sip.as_mut().unwrap().unavailable = 10;
        assert!(failure(&report).unwrap().contains("overloaded"));
        report.ended = Ending::ServerSilent;
        report.sip.as_mut().unwrap().unreachable = 1;
        assert!(failure(&report).unwrap().contains("nothing listens"));
        report.total.received = 1;
        report.ended = Ending::Complete;
        assert_eq!(failure(&report), None);
    }

    #[test]
    fn silence_is_a_failure_and_a_stop_is_none() {
        let mut report = LoadReport::empty();
        assert!(failure(&report).unwrap().contains("nothing was sent"));
        report.total.sent = 10;
        assert!(failure(&report).unwrap().contains("nothing came back"));
        report.run.workload = "garbage".to_owned();
        assert_eq!(failure(&report), None);
        report.ended = Ending::ServerSilent;
        assert!(failure(&report).unwrap().contains("probe"));
        report.ended = Ending::Stopped;
        assert_eq!(failure(&report), None);
        report.ended = Ending::CannotSend;
        assert!(failure(&report).unwrap().contains("wmem_max"));
        let why = "no route (ENETUNREACH)".to_owned();
        report.sending.not_sent.insert(why, 9);
        assert!(failure(&report).unwrap().contains("ip route"));
    }
}
