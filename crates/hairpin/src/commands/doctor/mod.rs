//! `hairpin doctor`: what is wrong on this machine for a server with this configuration, and the command that fixes it.
//!
//! A check reads files and the output of programs only through [`System`]. So tests can run each check on a simulated
//! machine.

mod card;
mod firewall;
mod limits;
mod surroundings;
mod system;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::{input, output};
use crate::cli::doctor::Args;
use crate::config::{self, Config};
use system::System;

/// Status of a usage error, the same as for arguments that do not parse.
const USAGE: u8 = 2;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Good,
    /// It could not be checked.
    Skipped,
    /// It costs speed, or fails under load.
    Warning,
    /// It does not work.
    Wrong,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Level::Good => "ok",
            Level::Skipped => "skipped",
            Level::Warning => "warning",
            Level::Wrong => "error",
        }
    }
}

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    level: Level,
    text: String,
    /// Commands, each a line.
    fix: Vec<String>,
}

impl Finding {
    fn new(level: Level, text: impl Into<String>) -> Self {
        Finding {
            level,
            text: text.into(),
            fix: Vec::new(),
        }
    }

    fn good(text: impl Into<String>) -> Self {
        Finding::new(Level::Good, text)
    }

    fn skipped(text: impl Into<String>) -> Self {
        Finding::new(Level::Skipped, text)
    }

    fn warning(text: impl Into<String>) -> Self {
        Finding::new(Level::Warning, text)
    }

    fn wrong(text: impl Into<String>) -> Self {
        Finding::new(Level::Wrong, text)
    }

    /// Adds a command that fixes it.
    fn fix(mut self, command: impl Into<String>) -> Self {
        self.fix.push(command.into());
        self
    }

    const fn is_bad(&self) -> bool {
        matches!(self.level, Level::Warning | Level::Wrong)
    }
}

/// What checks look at.
struct CheckedHost<'a> {
    system: &'a System,
    config: &'a Config,
    interfaces: Vec<String>,
}

impl CheckedHost<'_> {
    /// Workers of the server.
    fn workers(&self) -> usize {
        let configured = self
            .config
            .workers
            .and_then(|workers| usize::try_from(workers).ok());
        configured.unwrap_or_else(|| self.system.processors().len().max(1))
    }
}

/// A check and its name.
type Check = (&'static str, fn(&CheckedHost<'_>) -> Vec<Finding>);

/// All checks, in the order of docs/doctor.md.
const CHECKS: [Check; 15] = [
    ("files", limits::files),
    ("buffers", limits::buffers),
    ("ports", limits::ports),
    ("conntrack", limits::conntrack),
    ("firewall", firewall::check),
    ("queues", card::queues),
    ("rss", card::rss),
    ("interrupts", card::interrupts),
    ("rps", card::rps),
    ("rings", card::rings),
    ("offload", surroundings::offload),
    ("clock", surroundings::clock),
    ("dns", surroundings::dns),
    ("address", surroundings::address),
    ("certificate", surroundings::certificate),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let loaded = config::load(&input::gather(args.config.as_ref(), Vec::new())?);
    let Some(config) = &loaded.config else {
        eprint!("{}", loaded.diagnostics(input::colour()));
        eprintln!("error: the configuration has mistakes: {}", loaded.count());
        return Ok(ExitCode::from(USAGE));
    };
    if let Some(unknown) = args
        .only
        .iter()
        .find(|name| CHECKS.iter().all(|it| it.0 != **name))
    {
        let names: Vec<_> = CHECKS.iter().map(|(name, _)| *name).collect();
        eprintln!(
            "error: --only: there is no check {unknown}; there are: {}",
            names.join(", ")
        );
        return Ok(ExitCode::from(USAGE));
    }
    let system = match &args.root {
        Some(root) => System::below(root),
        None => System::real(),
    };
    let host = CheckedHost {
        interfaces: match args.interface.is_empty() {
            true => system.default_interfaces(),
            false => args.interface.clone(),
        },
        system: &system,
        config,
    };
    let found = examine(&host, &args.only);
    output::print(&match args.json {
        true => format!("{}\n", as_json(&found)),
        false => as_text(&found),
    })?;
    Ok(match found.iter().any(|(_, finding)| finding.is_bad()) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn examine(host: &CheckedHost<'_>, only: &[String]) -> Vec<(&'static str, Finding)> {
    let wanted = |(name, _): &&Check| only.is_empty() || only.iter().any(|it| it == name);
    let run = |(name, check): &Check| {
        let found = check(host);
        let name = *name;
        found.into_iter().map(move |finding| (name, finding))
    };
    CHECKS.iter().filter(wanted).flat_map(run).collect()
}

fn as_json(found: &[(&'static str, Finding)]) -> Value {
    let one = |(check, finding): &(&str, Finding)| {
        json!({
            "check": check,
            "level": finding.level.name(),
            "text": finding.text,
            "mend": finding.fix,
        })
    };
    json!({
        "ok": !found.iter().any(|(_, finding)| finding.is_bad()),
        "findings": found.iter().map(one).collect::<Vec<_>>(),
    })
}

fn as_text(found: &[(&'static str, Finding)]) -> String {
    let mut text = String::new();
    for (check, finding) in found {
        let level = finding.level.name();
        text.push_str(&format!(
            "{level:<8} {check:<12} {}\n",
            output::printable(&finding.text)
        ));
        for command in &finding.fix {
            text.push_str(&format!("{:21} # {}\n", "", output::printable(command)));
        }
    }
    let bad = found.iter().filter(|(_, finding)| finding.is_bad()).count();
    text.push_str(&match bad {
        0 => "\nNothing is wrong.\n".to_owned(),
        _ => format!("\n{}.\n", config::plural(bad, "finding")),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_shown_with_what_mends_them() {
        let found = [
            ("clock", Finding::good("synchronized")),
            (
                "ports",
                Finding::warning("they overlap").fix("sysctl -w a=b"),
            ),
        ];
        let text = as_text(&found);
        assert!(
            text.starts_with(
                "ok       clock        synchronized\nwarning  ports        they overlap\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("\n                      # sysctl -w a=b\n")
                && text.ends_with("\n1 finding.\n"),
            "{text}"
        );
        let json = as_json(&found);
        assert_eq!(
            (&json["ok"], &json["findings"][1]["mend"][0]),
            (&false.into(), &"sysctl -w a=b".into())
        );
        assert!(as_text(&found[..1]).ends_with("Nothing is wrong.\n"));
    }
}

/// A machine that tests make up.
#[cfg(test)]
mod test_host {
    use std::path::Path;

    use super::*;
    use crate::config::{Inputs, load};

    /// Files below a root, a configuration, and one interface.
    pub(super) struct TestHost {
        pub(super) folder: tempfile::TempDir,
        pub(super) config: Config,
    }

    impl TestHost {
        /// With four processors, and this configuration.
        pub(super) fn new(config: &str) -> Self {
            let made = TestHost {
                folder: tempfile::tempdir().unwrap(),
                config: config_of(config),
            };
            made.file("/sys/devices/system/cpu/online", "0-3\n");
            made
        }

        /// Writes a file.
        pub(super) fn file(&self, path: &str, text: &str) -> &Self {
            let path = self.folder.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
            self
        }

        /// What a program prints.
        pub(super) fn says(&self, command: &str, text: &str) -> &Self {
            self.file(&system::place_of(command), text)
        }

        /// Runs a check for the interface eth0.
        pub(super) fn run(&self, name: &str) -> Vec<Finding> {
            let system = System::below(self.folder.path());
            let host = CheckedHost {
                system: &system,
                config: &self.config,
                interfaces: vec!["eth0".to_owned()],
            };
            let check = CHECKS.iter().find(|(of, _)| *of == name).unwrap();
            check.1(&host)
        }

        /// The only finding.
        pub(super) fn one(&self, name: &str) -> Finding {
            let mut found = self.run(name);
            assert_eq!(found.len(), 1, "{found:?}");
            found.remove(0)
        }
    }

    fn config_of(text: &str) -> Config {
        let loaded = load(&Inputs {
            file: Some(("test".to_owned(), text.to_owned())),
            ..Inputs::default()
        });
        let lines = loaded.one_line_each();
        loaded.config.unwrap_or_else(|| panic!("{lines:?}"))
    }

    /// Asserts a level, a part of the text and the commands.
    pub(super) fn is(found: &Finding, level: Level, part: &str, fix: &[&str]) {
        assert_eq!(found.level, level, "{found:?}");
        assert!(found.text.contains(part), "{found:?}");
        assert_eq!(found.fix, fix, "{found:?}");
    }

    #[test]
    fn a_machine_that_is_empty_is_wrong_nowhere() {
        let made = TestHost::new("");
        let root: &Path = made.folder.path();
        let system = System::below(root);
        let host = CheckedHost {
            system: &system,
            config: &made.config,
            interfaces: system.default_interfaces(),
        };
        let found = examine(&host, &[]);
        let bad: Vec<_> = found
            .iter()
            .filter(|(_, it)| it.level == Level::Wrong)
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
        assert!(found.len() >= CHECKS.len() - 5);
    }
}
