//! The grammar of durations and numbers, for command lines and configuration files.

use std::time::Duration;

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a length of time: write 10, 10s, 1.5s, 500ms, 1m30s or 1d")]
pub struct ParseDurationError(String);

/// Units of time in seconds, from the longest to the shortest.
const UNITS: [(&str, f64); 6] = [
    ("d", 86_400.0),
    ("h", 3_600.0),
    ("m", 60.0),
    ("s", 1.0),
    ("ms", 1e-3),
    ("us", 1e-6),
];
/// The longest that is understood: a hundred years.
const MAX_S: f64 = 100.0 * 366.0 * 86_400.0;

/// Parses a duration: numbers with the units d, h, m, s, ms and us, from the longest to the shortest (`1m30s`, `1.5s`).
/// A number without a unit is in seconds (`10`).
///
/// # Errors
/// [`ParseDurationError`]: anything else, and more than a hundred years.
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let wrong = || ParseDurationError(text.to_owned());
    let mut rest = text.trim();
    if let Some(seconds) = decimal(rest) {
        return whole(seconds).ok_or_else(wrong);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let (mut total, mut longer) = (Duration::ZERO, usize::MAX);
    while !rest.is_empty() {
        let end = rest.find(|byte: char| !byte.is_ascii_digit() && byte != '.');
        let (number, tail) = rest.split_at(end.unwrap_or(rest.len()));
        let end = tail.find(|byte: char| byte.is_ascii_digit());
        let (unit, next) = tail.split_at(end.unwrap_or(tail.len()));
        let place = UNITS.iter().position(|(name, _)| *name == unit.trim());
        let place = place.filter(|&place| longer == usize::MAX || place > longer);
        let (Some(place), Some(number)) = (place, decimal(number)) else {
            return Err(wrong());
        };
        let part = whole(number * UNITS[place].1).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        (longer, rest) = (place, next);
    }
    Ok(total)
}

/// To the microsecond, which no product of the above is finer than.
fn whole(seconds: f64) -> Option<Duration> {
    let us = (seconds * 1e6).round();
    (seconds <= MAX_S).then(|| Duration::from_micros(us as u64))
}

/// Reads a number that may end in k, M or G: `10000`, `10k`, `2.5M`. It is finite and not negative.
#[must_use]
pub fn parse_number(text: &str) -> Option<f64> {
    let text = text.trim();
    let (number, factor) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1e3),
        (at, 'M') => (&text[..at], 1e6),
        (at, 'G') => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    decimal(number).map(|number| number * factor)
}

/// Digits, and more of them behind a point.
fn decimal(text: &str) -> Option<f64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number(whole) && is_number(part);
    number
        .then(|| text.parse().ok())
        .flatten()
        .filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_as_people_write_them() {
        for (text, ms) in [
            ("10", 10_000),
            ("10s", 10_000),
            ("1.5s", 1_500),
            ("1.5", 1_500),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
            ("2s500ms", 2_500),
            ("0", 0),
            ("0.1s", 100),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        assert_eq!(parse_duration("200us"), Ok(Duration::from_micros(200)));
        for text in [
            "",
            "s",
            "1x",
            "1h30",
            "-5s",
            "1s1m",
            "1s2s",
            "1..5s",
            ".5s",
            "1e3",
            "inf",
            "1 ö",
            "99999999999999999999s",
            "soon",
            "NaN",
            "18446744073709551615d",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_may_end_in_a_factor() {
        for (text, number) in [
            ("7", 7.0),
            ("10k", 1e4),
            ("2.5M", 2.5e6),
            ("1G", 1e9),
            ("0", 0.0),
        ] {
            assert_eq!(parse_number(text), Some(number), "{text}");
        }
        for text in ["", "k", "-1", "1e5", "5 k m", "é", "NaN", "inf", "1k5"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }
}
