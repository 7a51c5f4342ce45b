//! A log line as a JSON object: time, level and fields. A field that holds a list is an array.

use std::fmt::{self, Debug, Write as _};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::registry::LookupSpan;

/// Writes each event as one line.
pub(super) struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut line = Line(String::from("{"));
        line.push("timestamp", &Value::from(time));
        line.push("level", &Value::from(event.metadata().level().as_str()));
        event.record(&mut line);
        writeln!(writer, "{}}}", line.0)
    }
}

/// The JSON object, without the closing brace.
struct Line(String);

impl Line {
    fn push(&mut self, name: &str, value: &Value) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{comma}{}:{value}", Value::from(name));
    }
}

impl Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field.name(), &Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field.name(), &Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field.name(), &Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field.name(), &Value::from(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field.name(), &Value::from(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        let list = match text.starts_with('[') && text.ends_with(']') {
            true => parse_list(&text, &format!("{value:#?}")),
            false => None,
        };
        self.push(field.name(), &list.unwrap_or_else(|| Value::from(text)));
    }
}

/// The elements of a list. `text` is the list by `{:?}`; `lines` is the list by `{:#?}`, with a line per element.
/// `None` for anything else, such as a list of lists. Text that only looks like a list is the same in both.
fn parse_list(text: &str, lines: &str) -> Option<Value> {
    if text == "[]" {
        return Some(Value::Array(Vec::new()));
    }
    if text == lines {
        return None;
    }
    let lines = lines.strip_prefix("[\n")?.strip_suffix(",\n]")?;
    let lines = lines.split(",\n").map(|line| line.strip_prefix("    "));
    lines
        .map(|line| element(line?))
        .collect::<Option<_>>()
        .map(Value::Array)
}

/// One element. Strings and whole numbers are as in JSON; an address is text.
fn element(text: &str) -> Option<Value> {
    let is_number = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'-');
    if is_number || text.starts_with('"') {
        return serde_json::from_str(text).ok();
    }
    let is_nested = text.contains('\n') || text.ends_with(['{', '[', '(']);
    (!is_nested).then(|| Value::from(text))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn lists_become_arrays_and_other_values_stay_text() {
        let addresses: [SocketAddr; 2] =
            ["127.0.0.1:80".parse().unwrap(), "[::1]:80".parse().unwrap()];
        let cases: [(&dyn Debug, Option<&str>); 9] = [
            (&addresses, Some(r#"["127.0.0.1:80","[::1]:80"]"#)),
            (&["a", "b \"c\", d"], Some(r#"["a","b \"c\", d"]"#)),
            (&["\u{7f}"], None),
            (&[1, -2], Some("[1,-2]")),
            (&[0; 0], Some("[]")),
            (&[[1]], None),
            (&[Some(1)], None),
            (&format_args!("[::1]"), None),
            (&format_args!("[\n    x,\n]"), None),
        ];
        for (value, expected) in cases {
            let list = parse_list(&format!("{value:?}"), &format!("{value:#?}"));
            assert_eq!(
                list.map(|value| value.to_string()).as_deref(),
                expected,
                "{value:?}"
            );
        }
    }
}
