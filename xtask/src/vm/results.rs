//! Reads the results of checks from the output of the guest on its second serial port.

use std::collections::BTreeMap;

/// The results of one check.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CheckResult {
    /// The result of each case: a detail, or the reason of the failure.
    pub(crate) outcomes: Vec<(String, Result<String, String>)>,
    /// The exit status of its command; `None` when the machine ended before.
    pub(crate) status: Option<i32>,
    pub(crate) seconds: String,
    /// The last lines that it printed.
    pub(crate) lines: Vec<String>,
}

/// The exit status of a program that timeout(1) has killed.
const KILLED_STATUS: i32 = 137;

/// The results by the names of the checks, and whether the machine has run all checks.
pub(crate) fn parse(text: &str) -> (BTreeMap<String, CheckResult>, bool) {
    let mut sections = BTreeMap::new();
    let mut current: Option<(String, Vec<String>)> = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("@begin ") {
            finish(&mut sections, current.take(), None);
            current = Some((name.to_owned(), Vec::new()));
        } else if let Some(end) = line.strip_prefix("@end ") {
            finish(&mut sections, current.take(), Some(end));
        } else if let Some((_, lines)) = &mut current {
            lines.push(line.to_owned());
        }
    }
    let done = text.lines().any(|line| line == "@done");
    finish(&mut sections, current, None);
    (sections, done)
}

fn finish(
    sections: &mut BTreeMap<String, CheckResult>,
    current: Option<(String, Vec<String>)>,
    end: Option<&str>,
) {
    let Some((name, lines)) = current else {
        return;
    };
    // The name may have spaces; status and seconds follow it.
    let mut words = end.unwrap_or_default().rsplit(' ');
    let seconds = words.next().unwrap_or_default().to_owned();
    let status = words.next().and_then(|word| word.parse().ok());
    let mut outcomes = of_script(&lines);
    outcomes.extend(of_tests(&lines));
    let problem = match status {
        None => Some("the machine ended before it".to_owned()),
        Some(KILLED_STATUS) => Some("not finished within its time".to_owned()),
        Some(status) if status != 0 && outcomes.iter().all(|(_, outcome)| outcome.is_ok()) => {
            Some(format!("its command ended with status {status}"))
        }
        Some(_) if outcomes.is_empty() => Some("it reports nothing".to_owned()),
        Some(_) => None,
    };
    if let Some(problem) = problem {
        outcomes.push((String::new(), Err(problem)));
    }
    let section = CheckResult {
        outcomes,
        status,
        seconds,
        lines,
    };
    sections.insert(name, section);
}

/// The lines that `ok` and `fail` of `guest/lib.sh` write.
fn of_script(lines: &[String]) -> Vec<(String, Result<String, String>)> {
    let outcome = |line: &String| {
        let (failed, rest) = match line.strip_prefix("@ok ") {
            Some(rest) => (false, rest),
            None => (true, line.strip_prefix("@fail ")?),
        };
        let (name, detail) = rest.split_once(": ").unwrap_or((rest, ""));
        let detail = detail.to_owned();
        let result = if failed { Err(detail) } else { Ok(detail) };
        Some((name.to_owned(), result))
    };
    lines.iter().filter_map(outcome).collect()
}

/// The tests that a test binary has, with what it said of each.
fn of_tests(lines: &[String]) -> Vec<(String, Result<String, String>)> {
    let skipped = lines
        .iter()
        .filter_map(|line| line.strip_prefix("@skipped "))
        .map(|reason| {
            let reason = format!("a test was skipped: {reason}");
            (String::new(), Err(reason))
        });
    let said: BTreeMap<&str, &str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "))
        .collect();
    let tests = lines
        .iter()
        .filter_map(|line| line.strip_prefix("@test "))
        .filter_map(|name| {
            let outcome = match said.get(name).copied() {
                Some("ok") => Ok(String::new()),
                // By its author, with the reason beside it.
                Some(word) if word.starts_with("ignored") => return None,
                Some(_) => Err(panic_message(lines, name)),
                None => Err("it did not end".to_owned()),
            };
            Some((name.to_owned(), outcome))
        });
    tests.chain(skipped).collect()
}

/// What a failed test has panicked with: the line behind the one that says where.
fn panic_message(lines: &[String], name: &str) -> String {
    let header = format!("---- {name} stdout ----");
    let output = lines.iter().skip_while(|line| **line != header).skip(1);
    let mut output = output.take_while(|line| !line.starts_with("---- "));
    let panicked = output.any(|line| line.contains(" panicked at "));
    match output.next() {
        Some(message) if panicked => message.clone(),
        _ => "it failed without a message".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(text: &str) -> Vec<(String, Result<String, String>)> {
        let (mut sections, _) = parse(text);
        sections.remove("it").expect("a section").outcomes
    }

    fn named(name: &str, outcome: Result<&str, &str>) -> (String, Result<String, String>) {
        let text = outcome.map(str::to_owned).map_err(str::to_owned);
        (name.to_owned(), text)
    }

    #[test]
    fn a_script_reports_each_thing_by_itself() {
        let text =
            "@begin it\n@ok tc: relays\nnoise\n@fail xdp: no driver: none\n@end it 0 1.5\n@done\n";
        assert_eq!(
            outcomes(text),
            [
                named("tc", Ok("relays")),
                named("xdp", Err("no driver: none"))
            ]
        );
        let (sections, done) = parse(text);
        assert!(done);
        assert_eq!(sections["it"].seconds, "1.5");
    }

    #[test]
    fn a_test_that_fails_says_what_it_panicked_with() {
        let text = "@begin it\n@test a\n@test b\n@test c\ntest a ... ok\ntest b ... FAILED\n---- b stdout ----\n\
                    thread 'b' (7) panicked at x.rs:1:2:\nneeds Linux 5.12\nnote: run with\n@end it 101 3.0\n@done\n";
        assert_eq!(
            outcomes(text),
            [
                named("a", Ok("")),
                named("b", Err("needs Linux 5.12")),
                named("c", Err("it did not end"))
            ]
        );
    }

    #[test]
    fn skipped_hanging_and_silent_checks_have_failed() {
        let skipped = "@begin it\n@test a\ntest a ... ok\n@skipped no root\n@end it 0 3.0\n@done\n";
        assert_eq!(
            outcomes(skipped)[1],
            named("", Err("a test was skipped: no root"))
        );
        for (text, reason) in [
            (
                "@begin it\n@ok a: b\n@end it 137 3.0\n@done\n",
                "not finished within its time",
            ),
            ("@begin it\n@ok a: b\n", "the machine ended before it"),
            (
                "@begin it\n@ok a: b\n@end it 2 3.0\n@done\n",
                "its command ended with status 2",
            ),
            (
                "@begin it\nhello\n@end it 0 3.0\n@done\n",
                "it reports nothing",
            ),
        ] {
            let all = outcomes(text);
            assert_eq!(all.last(), Some(&named("", Err(reason))), "{text}");
        }
    }
}
