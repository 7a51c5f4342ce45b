//! A log line as a JSON object: time, level and fields. A field that holds a list is an array.

use std::fmt::{self, Write as _};

use serde_json::Value;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::registry::LookupSpan;

use crate::log_fields::Fields;

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
        event.record(&mut Fields(|name, value| line.push(name, &value)));
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
