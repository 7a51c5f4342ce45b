//! The keys of `[telemetry]`: the OpenTelemetry collector that gets logs and traces.

use std::path::{Path, PathBuf};

use stores::sinks::{OtlpOptions, OtlpSignal, check_otlp_header, check_otlp_url};

use super::diagnostics::{Diagnostic, Report};
use super::remote::small_text;
use super::schema::Settings;
use super::setting::{Bounded, FromText, Mistake, one_of};
use super::source::Located;
use crate::telemetry::TelemetrySettings;

/// Log records or spans that wait: about a kilobyte each.
pub(crate) type Queue = Bounded<16, 1_000_000>;

/// The base URL of the collector; empty: none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Otlp(String);

impl FromText for Otlp {
    const EXPECTED: &'static str = "a URL like \"http://collector:4318\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if text.is_empty() {
            return Ok(Self(String::new()));
        }
        match check_otlp_url(text) {
            Ok(()) => Ok(Self(text.to_owned())),
            Err(error) => Err(Mistake::new(format!("the URL cannot be used: {error}"))
                .help("write it like \"http://collector:4318\"")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A file; empty: none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OptionalFile(String);

impl OptionalFile {
    fn path(&self) -> Option<PathBuf> {
        (!self.0.is_empty()).then(|| PathBuf::from(&self.0))
    }
}

impl FromText for OptionalFile {
    const EXPECTED: &'static str = "a file like \"/etc/hairpin/collector\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

const SIGNALS: [(&str, OtlpSignal); 2] =
    [("logs", OtlpSignal::Logs), ("traces", OtlpSignal::Traces)];

impl FromText for OtlpSignal {
    const EXPECTED: &'static str = "\"logs\" or \"traces\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &SIGNALS)
    }

    fn to_text(&self) -> String {
        self.name().to_owned()
    }
}

/// The plain values; an inner `None` without a collector. Files have been checked.
pub(super) fn resolve(settings: &Settings) -> Option<Option<TelemetrySettings>> {
    let s = settings.clone();
    let url = s.telemetry_otlp?.value.0;
    let headers = s.telemetry_headers_file?.value.path();
    let headers = headers.map_or_else(|| Ok(Vec::new()), |path| headers_of(&path));
    let telemetry = TelemetrySettings {
        collector: OtlpOptions {
            url,
            headers: headers.ok()?,
            ca: s.telemetry_ca?.value.path(),
        },
        signals: super::values(s.telemetry_signals?.value),
        queue: s.telemetry_queue?.value.0 as usize,
    };
    let is_on = !telemetry.collector.url.is_empty();
    Some(is_on.then_some(telemetry))
}

/// Header fields in a file: one `Name: value` per line.
fn headers_of(path: &Path) -> Result<Vec<(String, String)>, String> {
    let text = small_text(path).map_err(|error| error.to_string())?;
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty());
    let field = |(line, number): (&str, u32)| {
        // The value may be a secret: it is in no message.
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| format!("line {number} has no colon: write `Name: value`"))?;
        let (name, value) = (name.trim(), value.trim());
        check_otlp_header(name, value).map_err(|error| format!("line {number}: {error}"))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    lines.map(field).collect()
}

/// Reports files that cannot be used, settings without effect, and secrets without TLS.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let (Some(url), Some(headers), Some(ca)) = (
        &settings.telemetry_otlp,
        &settings.telemetry_headers_file,
        &settings.telemetry_ca,
    ) else {
        return;
    };
    check_headers(headers, url, report);
    if let Some(path) = ca.value.path()
        && let Err(error) = server::certificates::Certificates::roots(&[&path])
    {
        let help = "give a PEM file with the certificates of the issuers";
        report.push(Diagnostic::error(&ca.at, error.to_string()).help(help));
    }
    if let Some(signals) = &settings.telemetry_signals
        && signals.value.is_empty()
        && !url.value.0.is_empty()
    {
        let message = "nothing is exported: the list of signals is empty";
        let help = "add \"logs\" or \"traces\", or remove telemetry.otlp";
        report.push(Diagnostic::error(&signals.at, message).help(help));
    }
    if let Some(signals) = &settings.telemetry_signals {
        for (at, signal) in signals.value.iter().enumerate() {
            let mut earlier = signals.value[..at].iter();
            if let Some(first) = earlier.find(|other| other.value == signal.value) {
                let message = format!("{} is listed twice", signal.value.name());
                let repeated = Diagnostic::error(&signal.at, message);
                report.push(
                    repeated
                        .see(&first.at, "first here")
                        .help("keep one of them"),
                );
            }
        }
    }
}

fn check_headers(headers: &Located<OptionalFile>, url: &Located<Otlp>, report: &mut Report) {
    let Some(path) = headers.value.path() else {
        return;
    };
    if let Err(error) = headers_of(&path) {
        let message = format!("cannot use {}: {error}", path.display());
        let help = "the file must have one header field per line, such as `Authorization: Bearer TOKEN`, and the server's user must be able to read it";
        report.push(Diagnostic::error(&headers.at, message).help(help));
    }
    if url.value.0.starts_with("http:") {
        let message = "the header fields for the collector are sent without TLS";
        report.push(Diagnostic::warning(&url.at, message).help("use an https URL"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Inputs, load};

    fn of(text: &str) -> (Option<TelemetrySettings>, String) {
        let loaded = load(&Inputs {
            file: Some(("test".to_owned(), format!("[telemetry]\n{text}\n"))),
            ..Inputs::default()
        });
        let said = loaded.one_line_each().join("\n") + &loaded.effective(false);
        (loaded.config.and_then(|config| config.telemetry), said)
    }

    #[test]
    fn a_collector_is_a_url_and_header_fields_come_from_a_file() {
        assert_eq!(of("").0, None);
        let (found, said) = of("otlp = \"http://collector:4318\"");
        let found = found.expect("it is valid");
        assert_eq!(found.signals, [OtlpSignal::Logs, OtlpSignal::Traces]);
        assert_eq!((found.queue, found.collector.headers.len()), (10_000, 0));
        assert!(!said.contains("without TLS"), "{said}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("headers");
        std::fs::write(
            &file,
            "Authorization: Basic aHVudGVyMg==\n\nX-Scope: turn\n",
        )
        .unwrap();
        let text = format!("headers_file = \"{}\"\n", file.display());
        let (found, said) = of(&format!("{text}otlp = \"https://c.example/otlp\""));
        let headers = found.expect("it is valid").collector.headers;
        assert_eq!(headers[0].1, "Basic aHVudGVyMg==");
        assert_eq!(headers[1], ("X-Scope".to_owned(), "turn".to_owned()));
        assert!(!said.contains("aHVudGVyMg"), "{said}");
        let (_, said) = of(&format!("{text}otlp = \"http://collector:4318\""));
        assert!(said.contains("without TLS"), "{said}");
    }

    #[test]
    fn mistakes_have_a_place_and_a_reason_and_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("headers");
        for (text, part) in [
            (
                "otlp = \"collector:4318\"",
                "test:2:8: the URL cannot be used: expected a URL",
            ),
            ("otlp = \"http://c/v1/logs\"", "the path of one signal"),
            (
                "otlp = \"http://c\"\nsignals = []",
                "test:3:11: nothing is exported",
            ),
            (
                "otlp = \"http://c\"\nsignals = [\"logs\", \"logs\"]",
                "logs is listed twice",
            ),
            (
                "otlp = \"http://c\"\nsignals = [\"metrics\"]",
                "test:3:12: unknown value",
            ),
            ("otlp = \"http://c\"\nqueue = 1", "out of range"),
            (
                "otlp = \"http://c\"\nheaders_file = \"/nonexistent\"",
                "cannot use /nonexistent: ",
            ),
            ("otlp = \"http://c\"\nca = \"/nonexistent\"", "/nonexistent"),
        ] {
            let (found, said) = of(text);
            assert!(found.is_none() && said.contains(part), "{text}: {said}");
        }
        for (content, part) in [
            ("hunter2", "line 1 has no colon"),
            ("\nHost: hunter2", "line 2: hairpin sets `host` itself"),
            (
                "a b: hunter2",
                "line 1: `a b` is not the name of a header field",
            ),
            ("", "the file is empty"),
        ] {
            std::fs::write(&file, content).unwrap();
            let text = format!("otlp = \"http://c\"\nheaders_file = \"{}\"", file.display());
            let (found, said) = of(&text);
            assert!(found.is_none() && said.contains(part), "{content}: {said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}
