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

/// The object as far as it is written, without its last brace.
struct Line(String);

impl Line {
    fn push(&mut self, name: &str, value: &Value) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        // Memory is all that writing to a string can lack.
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
        let list = list(&format!("{value:#?}"));
        let value = list.unwrap_or_else(|| Value::from(format!("{value:?}")));
        self.push(field.name(), &value);
    }
}

/// The elements of a list that `{:#?}` has printed, one per line; `None` for anything else, such as a list of lists.
fn list(printed: &str) -> Option<Value> {
    if printed == "[]" {
        return Some(Value::Array(Vec::new()));
    }
    let lines = printed.strip_prefix("[\n")?.strip_suffix(",\n]")?;
    let element = |line: &str| {
        let text = line.strip_prefix("    ")?.trim_end_matches(',');
        let is_nested = text.starts_with(' ') || text.ends_with(['{', '[', '(']);
        (!is_nested).then(|| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)))
    };
    lines
        .lines()
        .map(element)
        .collect::<Option<_>>()
        .map(Value::Array)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn lists_become_arrays_and_other_values_stay_text() {
        let addresses: [SocketAddr; 2] =
            ["127.0.0.1:80".parse().unwrap(), "[::1]:80".parse().unwrap()];
        let cases = [
            (
                format!("{addresses:#?}"),
                Some(r#"["127.0.0.1:80","[::1]:80"]"#),
            ),
            (
                format!("{:#?}", ["a", "b \"c\", d"]),
                Some(r#"["a","b \"c\", d"]"#),
            ),
            (format!("{:#?}", [1, 2]), Some("[1,2]")),
            (format!("{:#?}", [0; 0]), Some("[]")),
            (format!("{:#?}", [[1]]), None),
            (format!("{:#?}", [Some(1)]), None),
            (format!("{:#?}", Some([1])), None),
            ("[::1]".to_owned(), None),
            ("[not a list]".to_owned(), None),
        ];
        for (printed, expected) in cases {
            assert_eq!(
                list(&printed).map(|value| value.to_string()).as_deref(),
                expected,
                "{printed}"
            );
        }
    }
}
