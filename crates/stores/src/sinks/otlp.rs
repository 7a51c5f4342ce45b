//! An OpenTelemetry collector: POST requests with OTLP in JSON.
//!
//! <https://opentelemetry.io/docs/specs/otlp/#otlphttp>

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    RETRY_AFTER, TRANSFER_ENCODING,
};
use hyper::{Method, Request, StatusCode, Uri};
use serde::Deserialize;

use super::{SendError, TIMEOUT};
use crate::error::StoreError;
use crate::kinds::Options;
use crate::kinds::http::{HttpClient, client, uri};

/// A response has a few numbers and a sentence.
const MAX_BODY: usize = 64 << 10;
/// The longest Retry-After that counts. A mistake in the configuration of a collector must not stop the export for a
/// day.
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Fields that the client sets itself.
const OWN: [HeaderName; 5] = [
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    HOST,
    TRANSFER_ENCODING,
];

/// Where a collector is.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OtlpOptions {
    /// Its base URL, such as `http://collector:4318`. The path of the signal is appended.
    pub url: String,
    /// Header fields of each request: a name and a value, for authentication.
    pub headers: Vec<(String, String)>,
    /// A file with the certificates that the collector must have; `None`: those of the system.
    pub ca: Option<PathBuf>,
}

/// Values of header fields stay out of logs.
impl std::fmt::Debug for OtlpOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("OtlpOptions")
            .field("headers", &names)
            .field("ca", &self.ca)
            .finish_non_exhaustive()
    }
}

impl OtlpOptions {
    fn at(&self) -> Options {
        Options {
            url: self.url.clone(),
            ca: self.ca.clone(),
            ..Options::default()
        }
    }
}

/// A kind of data that a program exports to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpSignal {
    /// Log records.
    Logs,
    /// Spans.
    Traces,
}

impl OtlpSignal {
    /// Its name in settings and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            OtlpSignal::Logs => "logs",
            OtlpSignal::Traces => "traces",
        }
    }

    const fn path(self) -> &'static str {
        match self {
            OtlpSignal::Logs => "/v1/logs",
            OtlpSignal::Traces => "/v1/traces",
        }
    }
}

/// Checks a base URL.
///
/// # Errors
/// What is wrong with it.
pub fn check_otlp_url(url: &str) -> Result<(), StoreError> {
    of_signal(url, OtlpSignal::Logs).map(drop)
}

/// Checks a header field.
///
/// # Errors
/// What is wrong with it. The text does not have the value.
pub fn check_otlp_header(name: &str, value: &str) -> Result<(), StoreError> {
    header(name, value).map(drop)
}

fn of_signal(url: &str, signal: OtlpSignal) -> Result<Uri, StoreError> {
    let wrong = |why: &str| Err(StoreError::Url(why.to_owned()));
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return wrong("expected a URL that begins with http:// or https://");
    }
    if url.contains(['?', '#']) {
        return wrong("the URL has a query: give only the base, such as http://collector:4318");
    }
    let base = url.trim_end_matches('/');
    if [OtlpSignal::Logs, OtlpSignal::Traces]
        .iter()
        .any(|of| base.ends_with(of.path()))
    {
        return wrong(
            "the URL has the path of one signal: give the base, such as http://collector:4318",
        );
    }
    let uri = uri(&Options {
        url: format!("{base}{}", signal.path()),
        ..Options::default()
    })?;
    // RFC 9110 §4.2.4: user information in a URL is deprecated, and the client would not send it.
    match uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        true => wrong(
            "the URL has a user name: put an Authorization field into the file with header fields",
        ),
        false => Ok(uri),
    }
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), StoreError> {
    let wrong = |why: String| StoreError::Url(why);
    let name = HeaderName::try_from(name)
        .map_err(|_| wrong(format!("`{name}` is not the name of a header field")))?;
    if OWN.contains(&name) {
        return Err(wrong(format!("hairpin sets `{name}` itself")));
    }
    let mut value = HeaderValue::try_from(value)
        .map_err(|_| wrong(format!("the value of `{name}` has a control character")))?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Exports one signal to a collector.
#[derive(Debug)]
pub struct Otlp {
    uri: Uri,
    headers: HeaderMap,
    client: HttpClient,
}

impl Otlp {
    /// Connects to nothing.
    ///
    /// # Errors
    /// If the URL, a header field or the file of certificates is wrong.
    pub fn new(options: &OtlpOptions, signal: OtlpSignal) -> Result<Otlp, StoreError> {
        let headers = options
            .headers
            .iter()
            .map(|(name, value)| header(name, value));
        let mut headers = headers.collect::<Result<HeaderMap, _>>()?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Otlp {
            uri: of_signal(&options.url, signal)?,
            headers,
            client: client(&options.at())?,
        })
    }

    /// Sends a batch. Call it within a tokio runtime. Returns what the collector has not accepted.
    ///
    /// # Errors
    /// Why the collector does not have the batch.
    pub async fn post(&self, body: Bytes) -> Result<Rejected, SendError> {
        let attempt = tokio::time::timeout(TIMEOUT, self.attempt(body)).await;
        attempt.unwrap_or_else(|_| Err(StoreError::Timeout(TIMEOUT).into()))
    }

    async fn attempt(&self, body: Bytes) -> Result<Rejected, SendError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let response = self.client.request(request).await;
        let response = response.map_err(|error| StoreError::connect(&error))?;
        let status = response.status();
        let pause = retry_after(response.headers());
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let why = format!("the collector responds with {status}");
        match status {
            status if status.is_success() => {
                let body = body.map(|body| body.to_bytes()).unwrap_or_default();
                Ok(Rejected::read(&body))
            }
            // The specification: only these may be repeated, and Retry-After says when.
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(match pause {
                Some(pause) => SendError::After(why, pause.min(MAX_PAUSE)),
                None => SendError::Later(why),
            }),
            _ => Err(SendError::Refused(why)),
        }
    }
}

/// RFC 9110 §10.2.3: a number of seconds. A date is not read: then the pause of the caller applies.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// The part of a batch that a collector has not accepted (`partial_success`). It must not be sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// How many records or spans.
    pub count: u64,
    /// Why, in the words of the collector.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reply {
    partial_success: Option<Partial>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Partial {
    rejected_log_records: Count,
    rejected_spans: Count,
    error_message: String,
}

/// An int64 of Protobuf in JSON: a text, but a number is permitted, too.
#[derive(Deserialize)]
#[serde(untagged)]
enum Count {
    Text(String),
    Number(u64),
}

impl Default for Count {
    fn default() -> Count {
        Count::Number(0)
    }
}

impl Count {
    fn get(&self) -> u64 {
        match self {
            Count::Text(text) => text.parse().unwrap_or(0),
            Count::Number(number) => *number,
        }
    }
}

impl Rejected {
    /// The body of a response with a status of success. One that cannot be read rejects nothing.
    fn read(body: &[u8]) -> Rejected {
        let reply: Option<Reply> = serde_json::from_slice(body).ok();
        let partial = reply.and_then(|reply| reply.partial_success);
        let partial = partial.unwrap_or_default();
        let (logs, spans) = (&partial.rejected_log_records, &partial.rejected_spans);
        Rejected {
            count: logs.get().saturating_add(spans.get()),
            why: partial.error_message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_the_signal_is_appended_to_the_base() {
        let uri = |url| of_signal(url, OtlpSignal::Traces).map(|uri| uri.to_string());
        for (base, expected) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            (
                "https://otlp.example/otlp",
                "https://otlp.example/otlp/v1/traces",
            ),
        ] {
            assert_eq!(uri(base).ok().as_deref(), Some(expected), "{base}");
        }
        for wrong in [
            "collector:4318",
            "grpc://collector:4317",
            "http://",
            "http://collector/v1/logs",
            "http://collector/?a=b",
            "http://user:secret@collector",
        ] {
            let error = uri(wrong).expect_err(wrong).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn header_fields_are_checked_and_their_values_are_hidden() {
        assert!(check_otlp_header("Authorization", "Bearer t0ken").is_ok());
        for (name, value) in [
            ("a b", "x"),
            ("", "x"),
            ("Content-Type", "text/plain"),
            ("host", "x"),
            ("X-Token", "secret\n"),
        ] {
            let error = check_otlp_header(name, value).expect_err(name).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        let options = OtlpOptions {
            url: "http://secret.example".to_owned(),
            headers: vec![("Authorization".to_owned(), "secret".to_owned())],
            ca: None,
        };
        let shown = format!(
            "{options:?} {:?}",
            Otlp::new(&options, OtlpSignal::Logs).map(|it| it.headers)
        );
        assert!(
            shown.contains("authorization") && !shown.contains("secret"),
            "{shown}"
        );
    }

    #[test]
    fn a_partial_success_says_how_many_were_rejected() {
        let read = |text: &str| Rejected::read(text.as_bytes());
        for text in [
            "",
            "{}",
            "<html>",
            r#"{"partialSuccess":{}}"#,
            r#"{"partialSuccess":null}"#,
        ] {
            assert_eq!(read(text), Rejected::default(), "{text}");
        }
        let some = read(r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}"#);
        assert_eq!((some.count, &*some.why), (3, "too old"));
        assert_eq!(
            read(r#"{"partialSuccess":{"rejectedLogRecords":2}}"#).count,
            2
        );
    }
}
