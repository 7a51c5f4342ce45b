//! How a value of each type is read from a [`Node`] and written back as TOML.
//!
//! Readers report and return `None`; they never stop the load.

use std::fmt;
use std::time::Duration;

use load::measure::parse_duration;

use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::source::{Located, Location};

/// A value that the user did not give as it should be.
pub(crate) struct Mistake {
    message: String,
    help: Option<String>,
}

impl Mistake {
    /// A mistake without advice.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: None,
        }
    }

    /// Adds what to do about it.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same, in a text that the configuration only names: `FILE:LINE: message`.
    pub(crate) fn within(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// One line for a log: `message (help)`.
    pub(crate) fn one_line(&self) -> String {
        match &self.help {
            Some(help) => format!("{} ({help})", self.message),
            None => self.message.clone(),
        }
    }

    /// The complaint about it at `at`.
    pub(crate) fn at(self, at: &Location) -> Diagnostic {
        Diagnostic::error(at, self.message).help_if(self.help)
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let help = self.help.as_ref().map(|help| format!(" ({help})"));
        write!(f, "{}{}", self.message, help.unwrap_or_default())
    }
}

/// A type that a key of the configuration can have.
pub(crate) trait Setting: Sized {
    /// Reads it, or reports what is wrong with it.
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self>;
    /// The same value as TOML; secrets are only written out if `reveal`.
    fn write(&self, reveal: bool) -> String;
    /// Adds the elements of another list. Returns whether both are lists.
    fn append(&mut self, _other: Self) -> bool {
        false
    }
}

/// A [`Setting`] that is written as a text.
pub(crate) trait FromText: Sized {
    /// `an address like "192.0.2.1:3478"`: completes "expected ..".
    const EXPECTED: &'static str;
    /// Whether the text is to be kept out of sight.
    const SECRET: bool = false;
    /// Reads the text.
    fn from_text(text: &str) -> Result<Self, Mistake>;
    /// The text that [`FromText::from_text`] would read back.
    fn to_text(&self) -> String;
}

impl<T: FromText> Setting for T {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Some(text) = node.text() else {
            let help = quoting(node).filter(|_| !T::SECRET);
            report.push(wrong_type(node, T::EXPECTED).help_if(help));
            return None;
        };
        T::from_text(text)
            .map_err(|mistake| report.push(mistake.at(&node.at)))
            .ok()
    }

    fn write(&self, reveal: bool) -> String {
        if T::SECRET && !reveal {
            "\"***\"".to_owned()
        } else {
            quote(&self.to_text())
        }
    }
}

/// `expected X, found Y`, at the value.
pub(crate) fn wrong_type(node: &Node<'_>, expected: &str) -> Diagnostic {
    Diagnostic::error(
        &node.at,
        format!("expected {expected}, found {}", node.kind()),
    )
}

/// The same for a table. A text of the environment is not shown: it may have a secret.
pub(crate) fn not_a_table(node: &Node<'_>, expected: &str) -> Diagnostic {
    match &node.raw {
        Raw::Plain(_) => Diagnostic::error(&node.at, format!("expected {expected}, found a text")),
        _ => wrong_type(node, expected),
    }
}

fn quoting(node: &Node<'_>) -> Option<String> {
    match (&node.raw, node.integer(), node.boolean()) {
        (Raw::Toml(_), Some(Ok(number)), _) => Some(format!("write it in quotes: \"{number}\"")),
        (Raw::Toml(_), _, Some(truth)) => Some(format!("write it in quotes: \"{truth}\"")),
        _ => None,
    }
}

fn unquoting(node: &Node<'_>) -> Option<String> {
    let number = node
        .text()?
        .replace(['_', ' ', ','], "")
        .parse::<u32>()
        .ok()?;
    Some(format!("leave out the quotes: {number}"))
}

/// A TOML basic string.
pub(crate) fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

impl Setting for bool {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let truth = node.boolean();
        if truth.is_none() {
            let help = node.text().and_then(|text| match text {
                "true" | "false" => Some(format!("leave out the quotes: {text}")),
                _ => None,
            });
            report.push(wrong_type(node, "true or false").help_if(help));
        }
        truth
    }

    fn write(&self, _reveal: bool) -> String {
        self.to_string()
    }
}

/// A list; each element keeps its place, so that a clash between two of them can point at both.
pub(crate) type List<T> = Vec<Located<T>>;

impl<T: Setting> Setting for List<T> {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Some(items) = node.items() else {
            // The help shows the text as one element. It hides a secret, and a text that is not a valid element.
            let item = node.text().map(|_| T::read(node, &mut Report::default()));
            let item = item.map(|item| item.map_or("..".to_owned(), |item| item.write(false)));
            let help = item.map(|item| format!("write it as a list: [{item}]"));
            report.push(wrong_type(node, "a list").help_if(help));
            return None;
        };
        let read = |item: &Node<'_>| {
            Some(Located {
                value: T::read(item, report)?,
                at: item.at.clone(),
            })
        };
        Some(items.iter().filter_map(read).collect())
    }

    fn write(&self, reveal: bool) -> String {
        let items: Vec<_> = self.iter().map(|item| item.value.write(reveal)).collect();
        format!("[{}]", items.join(", "))
    }

    fn append(&mut self, other: Self) -> bool {
        self.extend(other);
        true
    }
}

/// Each listener costs a socket per worker, each relay address a table of its ports; hardly anybody has more than two.
const MAX_ADDRESSES: usize = 64;

/// A [`List`] of addresses that must not be empty: its key is left out instead, to have it decided at start.
#[derive(Clone, Debug)]
pub(crate) struct AtLeastOne<T>(pub(crate) List<T>);

impl<T: Setting> Setting for AtLeastOne<T> {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let count = node.items().map(|items| items.len());
        if count == Some(0) {
            let help = "leave the key out to have it decided at start";
            report.push(Diagnostic::error(&node.at, "the list is empty").help(help));
            return None;
        }
        if let Some(count) = count.filter(|count| *count > MAX_ADDRESSES) {
            let message = format!("{count} addresses are more than {MAX_ADDRESSES}");
            report.push(
                Diagnostic::error(&node.at, message)
                    .help("remove some; 0.0.0.0 and [::] listen on all"),
            );
            return None;
        }
        List::read(node, report).map(Self)
    }

    fn write(&self, reveal: bool) -> String {
        self.0.write(reveal)
    }
}

/// A whole number from `MIN` to `MAX`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounded<const MIN: u32, const MAX: u32>(pub(crate) u32);

impl<const MIN: u32, const MAX: u32> Setting for Bounded<MIN, MAX> {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Some(number) = node.integer() else {
            report.push(wrong_type(node, "a whole number").help_if(unquoting(node)));
            return None;
        };
        let inside = number
            .ok()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (MIN..=MAX).contains(n));
        if inside.is_none() {
            let nearest = if number.is_ok_and(|n| n < i64::from(MIN)) {
                MIN
            } else {
                MAX
            };
            let message = format!("out of range: must be from {MIN} to {MAX}");
            report.push(
                Diagnostic::error(&node.at, message).help(format!("the nearest is {nearest}")),
            );
        }
        inside.map(Self)
    }

    fn write(&self, _reveal: bool) -> String {
        self.0.to_string()
    }
}

/// How many workers: `"auto"` (one per core) or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workers {
    /// One per core that the process may use.
    Auto,
    /// The exact number.
    Count(u32),
}

/// A reservation token and a relay port name their worker in one byte.
pub(crate) const MAX_WORKERS: u32 = 255;

impl Setting for Workers {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        if node.text() == Some("auto") {
            return Some(Self::Auto);
        }
        if node.integer().is_none() {
            report
                .push(wrong_type(node, "\"auto\" or a number of workers").help_if(unquoting(node)));
            return None;
        }
        Bounded::<1, MAX_WORKERS>::read(node, report).map(|count| Self::Count(count.0))
    }

    fn write(&self, reveal: bool) -> String {
        match self {
            Self::Auto => quote("auto"),
            Self::Count(count) => Bounded::<1, MAX_WORKERS>(*count).write(reveal),
        }
    }
}

/// Which processor each worker stays on: `false`, `true` (one each) or `"queues"` (beside the receive queues).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinWorkers {
    /// None.
    Off,
    /// One each.
    Cores,
    /// Workers stay on the processors that handle the interrupts of the receive queues.
    Queues,
}

impl Setting for PinWorkers {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        if node.text() == Some("queues") {
            return Some(Self::Queues);
        }
        let truth = node.boolean();
        if truth.is_none() {
            let help = node.text().and_then(|text| match text {
                "true" | "false" => Some(format!("leave out the quotes: {text}")),
                _ => None,
            });
            report.push(wrong_type(node, "true, false or \"queues\"").help_if(help));
        }
        truth.map(|truth| if truth { Self::Cores } else { Self::Off })
    }

    fn write(&self, _reveal: bool) -> String {
        match self {
            Self::Off => "false".to_owned(),
            Self::Cores => "true".to_owned(),
            Self::Queues => quote("queues"),
        }
    }
}

/// How new allocations find their worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steering {
    /// On the least loaded worker where the process may load BPF programs, else by the kernel's hash.
    Auto,
    /// On the least loaded worker, or not at all.
    Bpf,
    /// By the kernel's hash.
    Hash,
}

const STEERINGS: [(&str, Steering); 3] = [
    ("auto", Steering::Auto),
    ("bpf", Steering::Bpf),
    ("hash", Steering::Hash),
];

impl FromText for Steering {
    const EXPECTED: &'static str = "\"auto\", \"bpf\" or \"hash\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &STEERINGS)
    }

    fn to_text(&self) -> String {
        let found = STEERINGS.iter().find(|(_, steering)| steering == self);
        found.map_or("auto", |(word, _)| word).to_owned()
    }
}

/// How many bytes an unproven address gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amplification {
    /// At most three times as many as it sent.
    Normal,
    /// Never more than it sent.
    Strict,
}

const AMPLIFICATIONS: [(&str, Amplification); 2] = [
    ("normal", Amplification::Normal),
    ("strict", Amplification::Strict),
];

impl FromText for Amplification {
    const EXPECTED: &'static str = "\"normal\" or \"strict\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &AMPLIFICATIONS)
    }

    fn to_text(&self) -> String {
        let found = AMPLIFICATIONS.iter().find(|(_, of)| of == self);
        found.map_or("normal", |(word, _)| word).to_owned()
    }
}

/// Whether a rate limit holds for both directions of an allocation together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateDirections {
    /// For both together.
    Together,
    /// For each by itself.
    Apart,
}

const RATE_DIRECTIONS: [(&str, RateDirections); 2] = [
    ("together", RateDirections::Together),
    ("apart", RateDirections::Apart),
];

impl FromText for RateDirections {
    const EXPECTED: &'static str = "\"together\" or \"apart\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &RATE_DIRECTIONS)
    }

    fn to_text(&self) -> String {
        let found = RATE_DIRECTIONS.iter().find(|(_, of)| of == self);
        found.map_or("together", |(word, _)| word).to_owned()
    }
}

/// A length of time in whole seconds, from `MIN` to `MAX` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seconds<const MIN: u64, const MAX: u64>(pub(crate) Duration);

impl<const MIN: u64, const MAX: u64> Setting for Seconds<MIN, MAX> {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Some(text) = node.text() else {
            let unit = node
                .integer()
                .and_then(Result::ok)
                .map(|n| format!("say the unit: \"{n}s\""));
            report.push(
                wrong_type(node, "a length of time like \"90s\", \"10m\" or \"1d\"").help_if(unit),
            );
            return None;
        };
        let seconds = match parse_seconds(text) {
            Ok(seconds) => seconds,
            Err(mistake) => {
                report.push(mistake.at(&node.at));
                return None;
            }
        };
        if !(MIN..=MAX).contains(&seconds) {
            let (min, max) = (write_seconds(MIN), write_seconds(MAX));
            let nearest = if seconds < MIN { &min } else { &max };
            let message = format!("out of range: must be from {min} to {max}");
            report.push(
                Diagnostic::error(&node.at, message).help(format!("the nearest is \"{nearest}\"")),
            );
            return None;
        }
        Some(Self(Duration::from_secs(seconds)))
    }

    fn write(&self, _reveal: bool) -> String {
        quote(&write_seconds(self.0.as_secs()))
    }
}

const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// Reads a length of time that is whole seconds: `90`, `90s`, `10m`, `1h30m`, `1d`.
pub(crate) fn parse_seconds(text: &str) -> Result<u64, Mistake> {
    let help = "the units are d, h, m and s, as in \"90s\", \"10m\", \"1h30m\" or \"1d\"";
    if text.trim().is_empty() {
        return Err(Mistake::new("empty length of time").help(help));
    }
    let time = parse_duration(text)
        .map_err(|_| Mistake::new(format!("`{text}` is not a length of time")).help(help))?;
    match time.subsec_nanos() {
        0 => Ok(time.as_secs()),
        _ => Err(Mistake::new(format!("`{text}` is not whole seconds"))),
    }
}

/// Writes seconds as [`parse_seconds`] reads them.
pub(crate) fn write_seconds(seconds: u64) -> String {
    let mut rest = seconds;
    let mut text = String::new();
    for (name, length) in UNITS {
        if rest >= length {
            text.push_str(&format!("{}{name}", rest / length));
            rest %= length;
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

/// The word of a value that [`one_of`] reads.
pub(crate) fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> String {
    let found = words.iter().find(|(_, of)| *of == value);
    found.map_or("", |(word, _)| word).to_owned()
}

/// Reads one of a few words; a misspelt one gets a suggestion.
pub(crate) fn one_of<T: Copy>(text: &str, words: &[(&'static str, T)]) -> Result<T, Mistake> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let list = words
        .iter()
        .map(|(word, _)| format!("\"{word}\""))
        .collect::<Vec<_>>()
        .join(", ");
    let near = super::suggest::nearest(text, words.iter().map(|(word, _)| *word));
    let help = near.map_or(format!("one of {list}"), |word| {
        format!("did you mean \"{word}\"? One of {list}")
    });
    Err(Mistake::new(format!("unknown value `{text}`")).help(help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_read_back_as_they_are_written() {
        for (text, seconds) in [
            ("90s", 90),
            ("90", 90),
            ("10m", 600),
            ("1h30m", 5_400),
            ("1d", 86_400),
            ("0s", 0),
            ("2d1s", 172_801),
        ] {
            assert_eq!(parse_seconds(text).ok(), Some(seconds), "{text}");
            assert_eq!(
                parse_seconds(&write_seconds(seconds)).ok(),
                Some(seconds),
                "{text}"
            );
        }
        assert_eq!(write_seconds(5_400), "1h30m");
    }

    #[test]
    fn lengths_of_time_without_sense_are_refused() {
        for text in [
            "",
            "1.5s",
            "m",
            "1x",
            "1h30",
            "-5s",
            "99999999999999999999s",
            "18446744073709551615d",
            "1 ö",
        ] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
