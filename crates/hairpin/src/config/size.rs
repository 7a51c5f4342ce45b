//! Sizes of memory.

use super::diagnostics::{Diagnostic, Report};
use super::node::Node;
use super::setting::{FromText, Mistake, Setting, quote, wrong_type};

/// A size in bytes, from `MIN` to `MAX`, written with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size<const MIN: u32, const MAX: u32>(pub(crate) u32);

impl<const MIN: u32, const MAX: u32> Setting for Size<MIN, MAX> {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Some(text) = node.text() else {
            let unit = node
                .integer()
                .and_then(Result::ok)
                .map(|n| format!("say the unit: \"{n}B\""));
            let diagnostic = wrong_type(node, "a size like \"4MiB\" or \"512KiB\"");
            report.push(match unit {
                Some(unit) => diagnostic.help(unit),
                None => diagnostic,
            });
            return None;
        };
        let bytes = match parse_bytes(text) {
            Ok(bytes) => bytes,
            Err(mistake) => {
                report.push(mistake.at(&node.at));
                return None;
            }
        };
        let inside = u32::try_from(bytes)
            .ok()
            .filter(|bytes| (MIN..=MAX).contains(bytes));
        if inside.is_none() {
            let (min, max) = (write_bytes(MIN), write_bytes(MAX));
            let nearest = if bytes < u64::from(MIN) { &min } else { &max };
            let message = format!("out of range: must be from {min} to {max}");
            report.push(
                Diagnostic::error(&node.at, message).help(format!("the nearest is \"{nearest}\"")),
            );
        }
        inside.map(Self)
    }

    fn write(&self, _reveal: bool) -> String {
        quote(&write_bytes(self.0))
    }
}

/// A data rate in bytes per second, 0 for none, written like a size with `/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate<const MIN: u64, const MAX: u64>(pub(crate) u64);

impl<const MIN: u64, const MAX: u64> FromText for Rate<MIN, MAX> {
    const EXPECTED: &'static str = "\"off\", or a rate like \"1MiB/s\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if text.trim().eq_ignore_ascii_case("off") {
            return Ok(Self(0));
        }
        let size = text.trim().strip_suffix("/s").ok_or_else(|| {
            let mistake = Mistake::new(format!("`{text}` is not a rate"));
            mistake.help("bytes per second, as in \"1MiB/s\", or \"off\"")
        })?;
        let bytes = parse_bytes(size)?;
        let inside = Some(bytes).filter(|bytes| (MIN..=MAX).contains(bytes));
        inside.map(Self).ok_or_else(|| {
            let (min, max) = (write_bytes(MIN), write_bytes(MAX));
            Mistake::new(format!("out of range: must be from {min}/s to {max}/s"))
        })
    }

    fn to_text(&self) -> String {
        match self.0 {
            0 => "off".to_owned(),
            bytes => format!("{}/s", write_bytes(bytes)),
        }
    }
}

const UNITS: [(&str, u64); 5] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("", 1),
];

/// Reads `1200`, `1200B`, `4KiB`, `2MiB` or `1GiB` into bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, Mistake> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = UNITS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()))
        .map(|(_, factor)| *factor);
    let (Ok(number), Some(factor)) = (number.parse::<u64>(), factor) else {
        let mistake = Mistake::new(format!("`{text}` is not a size"));
        return Err(match (number.is_empty(), unit.trim()) {
            (false, "K" | "k" | "M" | "m" | "G" | "g" | "KB" | "MB" | "GB") => {
                let letter = unit.trim()[..1].to_ascii_uppercase();
                mistake.help(format!("say \"{number}{letter}iB\""))
            }
            _ => mistake.help("the units are B, KiB, MiB and GiB, as in \"4MiB\""),
        });
    };
    number
        .checked_mul(factor)
        .ok_or_else(|| Mistake::new(format!("`{text}` is too large")))
}

/// Writes a size with the largest unit that leaves a whole number.
pub(crate) fn write_bytes(bytes: impl Into<u64>) -> String {
    let bytes = bytes.into();
    let (name, factor) = UNITS
        .into_iter()
        .find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor))
        .unwrap_or(("B", 1));
    format!("{}{name}", bytes / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_as_they_are_written() {
        for text in ["4MiB", "512KiB", "1B", "212992B", "1GiB", "0B"] {
            let bytes = parse_bytes(text).ok();
            let written = bytes.map(write_bytes);
            // 212992 is 208 KiB.
            let expected = if text == "212992B" { "208KiB" } else { text };
            assert_eq!(written.as_deref(), Some(expected), "{text}");
        }
        assert_eq!(parse_bytes("4 mib").ok(), Some(4 << 20));
        assert_eq!(parse_bytes("4").ok(), Some(4));
    }

    #[test]
    fn rates_read_back_as_they_are_written() {
        type Tested = Rate<1_024, 1_073_741_824>;
        for (text, rate) in [("off", 0), ("1KiB/s", 1024), ("2MiB/s", 2 << 20)] {
            let read = Tested::from_text(text).ok();
            assert_eq!(read, Some(Rate(rate)), "{text}");
            assert_eq!(read.map(|rate| rate.to_text()).as_deref(), Some(text));
        }
        for text in ["", "0", "1MiB", "1B/s", "2GiB/s", "1MB/s", "/s", "on"] {
            assert!(Tested::from_text(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_without_sense_are_refused() {
        for text in [
            "",
            "MiB",
            "4MB",
            "4k",
            "-1B",
            "1.5MiB",
            "99999999999999999999B",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert!(parse_bytes("18446744073709551615GiB").is_err());
    }
}
