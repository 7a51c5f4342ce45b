//! Sinks of events: a file, a service over HTTP, a stream of Redis, a subject of NATS.
//!
//! A sink gets batches. It reports whether the receiver has the whole batch; the caller decides what to do with a batch
//! that has failed. A batch that is sent again can arrive twice, so each event has an identity.
//!
//! [`Otlp`] sends batches of log records and spans to an OpenTelemetry collector, which has its own rules for retries.

mod file;
mod http;
mod nats;
mod otlp;
mod redis;

pub use otlp::{Otlp, OtlpOptions, OtlpSignal, Rejected, check_otlp_header, check_otlp_url};

use std::time::Duration;

use crate::error::StoreError;
use crate::kinds::Options;

/// How long an attempt to send a batch may take.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// A kind of sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkKind {
    /// A file of lines.
    File,
    /// A service that gets POST requests.
    Http,
    /// A stream of Redis or Valkey.
    Redis,
    /// Subjects of NATS.
    Nats,
}

const SCHEMES: [(&str, SinkKind); 12] = [
    ("file:", SinkKind::File),
    ("http:", SinkKind::Http),
    ("https:", SinkKind::Http),
    ("redis:", SinkKind::Redis),
    ("rediss:", SinkKind::Redis),
    ("valkey:", SinkKind::Redis),
    ("valkeys:", SinkKind::Redis),
    ("redis+unix:", SinkKind::Redis),
    ("valkey+unix:", SinkKind::Redis),
    ("unix:", SinkKind::Redis),
    ("nats:", SinkKind::Nats),
    ("tls:", SinkKind::Nats),
];

impl SinkKind {
    /// The kind that a URL names.
    #[must_use]
    pub fn of(url: &str) -> Option<SinkKind> {
        let known = SCHEMES.iter().find(|(scheme, _)| url.starts_with(scheme));
        known.map(|(_, kind)| *kind)
    }

    /// Its name in metrics and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SinkKind::File => "file",
            SinkKind::Http => "http",
            SinkKind::Redis => "redis",
            SinkKind::Nats => "nats",
        }
    }
}

/// Where a sink is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkOptions {
    /// Its URL, its password and the certificates that it must have.
    pub at: Options,
    /// The stream of Redis; the first part of the subject of NATS.
    pub topic: String,
    /// Whether a batch counts as sent only when the receiver reports that it has stored it.
    pub is_durable: bool,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The last part of the subject of NATS.
    pub kind: &'static str,
    /// JSON without an end of line.
    pub json: String,
}

/// Why a batch was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A later attempt may succeed.
    #[error("{0}")]
    Later(String),
    /// A later attempt may succeed, but not before this time has passed.
    #[error("{0}")]
    After(String, Duration),
    /// The receiver rejects this batch, now and later.
    #[error("{0}")]
    Refused(String),
}

impl From<StoreError> for SendError {
    fn from(error: StoreError) -> SendError {
        SendError::Later(error.to_string())
    }
}

/// A sink.
#[derive(Debug)]
pub struct Sink(Inner);

#[derive(Debug)]
enum Inner {
    File(file::LineFile),
    Http(http::Webhook),
    Redis(redis::Stream),
    Nats(Box<nats::Nats>),
}

impl Sink {
    /// Opens a file; connects to nothing.
    ///
    /// # Errors
    /// If the URL is wrong, or if a file cannot be opened.
    pub fn open(options: &SinkOptions) -> Result<Sink, StoreError> {
        Ok(Sink(match SinkKind::of(&options.at.url) {
            Some(SinkKind::File) => Inner::File(file::LineFile::open(options)?),
            Some(SinkKind::Http) => Inner::Http(http::Webhook::new(options)?),
            Some(SinkKind::Redis) => Inner::Redis(redis::Stream::new(options)?),
            Some(SinkKind::Nats) => Inner::Nats(Box::new(nats::Nats::new(options)?)),
            None => return Err(unknown()),
        }))
    }

    /// Sends a batch. Call it within a tokio runtime of the sink's own thread: a file blocks.
    ///
    /// # Errors
    /// Why the receiver does not have the batch, or has only a part of it.
    pub async fn send(&mut self, lines: &[Line]) -> Result<(), SendError> {
        let attempt = async {
            match &mut self.0 {
                Inner::File(file) => file.append(lines),
                Inner::Http(http) => http.post(lines).await,
                Inner::Redis(redis) => redis.add(lines).await,
                Inner::Nats(nats) => nats.publish(lines).await,
            }
        };
        match tokio::time::timeout(TIMEOUT, attempt).await {
            Ok(outcome) => outcome,
            Err(_) => {
                if let Inner::Nats(nats) = &mut self.0 {
                    // Half of the batch may be on the connection.
                    nats.disconnect();
                }
                Err(StoreError::Timeout(TIMEOUT).into())
            }
        }
    }
}

fn unknown() -> StoreError {
    StoreError::Url(
        "expected a URL that begins with file:, http:, https:, redis:, nats: or tls:".to_owned(),
    )
}

/// Checks a URL without opening anything.
///
/// # Errors
/// What is wrong with it.
pub fn check(at: &Options) -> Result<SinkKind, StoreError> {
    let kind = SinkKind::of(&at.url).ok_or_else(unknown)?;
    match kind {
        SinkKind::File => file::path_of(&at.url).map(drop)?,
        SinkKind::Http => crate::kinds::http::uri(at).map(drop)?,
        SinkKind::Redis => crate::kinds::redis::info(at).map(drop)?,
        SinkKind::Nats => nats::NatsUrl::of(at).map(drop)?,
    }
    Ok(kind)
}
