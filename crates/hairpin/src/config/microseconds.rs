//! Short lengths of time, and the old names of their keys.

use std::time::Duration;

use load::measure::parse_duration;

use super::diagnostics::{Diagnostic, Report};
use super::key::{ENV_PREFIX, Key};
use super::node::{Node, Raw};
use super::schema::{Settings, key};
use super::setting::{Setting, quote, wrong_type};
use super::source::Location;

/// A length of time to the microsecond, from `MIN` to `MAX` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Microseconds<const MIN: u64, const MAX: u64>(pub(crate) Duration);

impl<const MIN: u64, const MAX: u64> Setting for Microseconds<MIN, MAX> {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Some(text) = node.text() else {
            let unit = node.integer().and_then(Result::ok);
            let unit = unit.map(|n| format!("say the unit: \"{n}ms\""));
            let expected = "a length of time like \"500ms\", \"1.5s\" or \"50us\"";
            report.push(wrong_type(node, expected).help_if(unit));
            return None;
        };
        let Ok(time) = parse_duration(text) else {
            let message = format!("`{text}` is not a length of time");
            let help = "the units are s, ms and us, as in \"1.5s\", \"500ms\" or \"50us\"";
            report.push(Diagnostic::error(&node.at, message).help(help));
            return None;
        };
        let (min, max) = (Duration::from_micros(MIN), Duration::from_micros(MAX));
        if !(min..=max).contains(&time) {
            let nearest = write(if time < min { min } else { max });
            let message = format!(
                "out of range: must be from {} to {}",
                write(min),
                write(max)
            );
            report.push(
                Diagnostic::error(&node.at, message).help(format!("the nearest is \"{nearest}\"")),
            );
            return None;
        }
        Some(Self(time))
    }

    fn write(&self, _reveal: bool) -> String {
        quote(&write(self.0))
    }
}

/// In the largest unit in which it is a whole number.
fn write(time: Duration) -> String {
    let us = time.as_micros();
    match (us % 1_000_000, us % 1_000) {
        (0, _) => format!("{}s", us / 1_000_000),
        (_, 0) => format!("{}ms", us / 1_000),
        _ => format!("{us}us"),
    }
}

/// Section, old name, and the unit that the name ends with. The new name has no unit.
const OLD: [(&str, &str, &str); 5] = [
    ("server", "busy_poll_us", "us"),
    ("limits", "stream_queue_age_ms", "ms"),
    ("sip", "tolerance_ms", "ms"),
    ("sip", "service_time_us", "us"),
    ("sip", "t1_ms", "ms"),
];

/// A key by its old name. Its value is a number.
#[derive(Clone, Copy)]
pub(super) struct OldKey {
    key: &'static Key,
    name: &'static str,
    unit: &'static str,
}

impl OldKey {
    /// By section and name.
    pub(super) fn find(section: &str, name: &str) -> Option<OldKey> {
        let found = OLD.iter().find(|old| old.0 == section && old.1 == name);
        let &(section, name, unit) = found?;
        let new = name.strip_suffix(unit)?.strip_suffix('_')?;
        let key = key(section, new)?;
        Some(OldKey { key, name, unit })
    }

    /// By `section.name`.
    pub(super) fn find_path(path: &str) -> Option<OldKey> {
        let (section, name) = path.split_once('.')?;
        OldKey::find(section, name)
    }

    /// By the environment variable.
    pub(super) fn find_variable(variable: &str) -> Option<OldKey> {
        let path = variable.strip_prefix(ENV_PREFIX)?.to_ascii_lowercase();
        let (section, name) = path.split_once("__")?;
        OldKey::find(section, name)
    }

    /// The key by its new name.
    pub(super) fn key(self) -> &'static Key {
        self.key
    }

    /// Reads the number into the key, with a warning that has the new name. `before` is the place where another file
    /// has set it.
    pub(super) fn read(
        self,
        node: &Node<'_>,
        before: Option<&Location>,
        settings: &mut Settings,
        report: &mut Report,
    ) {
        let Some(Ok(number)) = node.integer() else {
            report.push(wrong_type(node, "a whole number").help(self.hint("500ms")));
            return;
        };
        let text = format!("{number}{}", self.unit);
        let value = Node {
            raw: Raw::Plain(&text),
            at: node.at.clone(),
        };
        let errors = report.errors();
        let slot = (self.key.slot)(settings);
        match before {
            Some(before) => slot.read_more(&value, before, report),
            None => slot.read(&value, report),
        }
        if report.errors() > errors {
            return;
        }
        settings.by_old_name.push(node.at.clone());
        let message = format!("`{}` is an old name", self.name);
        report.push(Diagnostic::warning(&node.at, message).help(self.hint(&text)));
    }

    fn hint(self, value: &str) -> String {
        format!("write {} = \"{value}\"", self.key.name)
    }
}

/// Reports a key that one layer sets by both of its names. `before` is where the layer has set it already, `is_old`
/// whether `at` has the old name. Returns whether this is so.
pub(super) fn is_set_by_both_names(
    key: &Key,
    (at, is_old): (&Location, bool),
    before: Option<&Location>,
    settings: &Settings,
    report: &mut Report,
) -> bool {
    let old = OLD.iter().find(|(section, name, unit)| {
        let new = name.strip_suffix(unit).and_then(|it| it.strip_suffix('_'));
        *section == key.section && new == Some(key.name)
    });
    let (Some((_, old, _)), Some(before)) = (old, before) else {
        return false;
    };
    if settings.by_old_name.contains(before) == is_old {
        return false;
    }
    let message = format!("`{}` and its old name `{old}` are both set", key.name);
    let help = format!("keep `{}`", key.name);
    report.push(
        Diagnostic::error(at, message)
            .see(before, "first here")
            .help(help),
    );
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_written_in_the_largest_unit() {
        for text in ["0s", "5s", "500ms", "1500ms", "50us", "1500us"] {
            assert_eq!(write(parse_duration(text).unwrap()), text);
        }
    }

    #[test]
    fn every_old_name_leads_to_a_key() {
        for (section, name, _) in OLD {
            let variable = format!("{ENV_PREFIX}{section}__{name}").to_uppercase();
            let found = OldKey::find_path(&format!("{section}.{name}"));
            assert!(found.is_some_and(|old| old.key.section == section));
            assert!(OldKey::find_variable(&variable).is_some(), "{variable}");
        }
        assert!(OldKey::find("sip", "t1").is_none());
    }
}
