//! What is logged and how it looks.

use tracing::level_filters::LevelFilter;

use super::setting::{FromText, Mistake, one_of};

/// The least severe events that are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogLevel(pub(crate) LevelFilter);

const LEVELS: [(&str, LevelFilter); 5] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
];

impl FromText for LogLevel {
    const EXPECTED: &'static str = "a log level, like \"info\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &LEVELS).map(Self)
    }

    fn to_text(&self) -> String {
        self.0.to_string()
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// [`LogFormat::Text`] on a terminal, else [`LogFormat::Json`].
    Auto,
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

const FORMATS: [(&str, LogFormat); 3] = [
    ("auto", LogFormat::Auto),
    ("text", LogFormat::Text),
    ("json", LogFormat::Json),
];

impl FromText for LogFormat {
    const EXPECTED: &'static str = "\"auto\", \"text\" or \"json\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &FORMATS)
    }

    fn to_text(&self) -> String {
        let found = FORMATS.iter().find(|(_, format)| format == self);
        found.map_or("auto", |(word, _)| word).to_owned()
    }
}
