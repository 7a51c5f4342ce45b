//! Errors of the API (RFC 9457).

use hyper::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::admin::http::{Body, response};
use crate::control::protocol::Refusal;

/// The media type of a problem.
pub(super) const MEDIA_TYPE: &str = "application/problem+json";

/// An error: what failed, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
    mistakes: Vec<String>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            mistakes: Vec::new(),
        }
    }

    /// 400: the request is malformed.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404: the named object does not exist.
    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 409: the state of the server does not permit the request.
    pub(super) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// Adds mistakes of a text, each with its line.
    pub(super) fn with_mistakes(mut self, mistakes: Vec<String>) -> Self {
        self.mistakes = mistakes;
        self
    }

    /// What failed, why, and what to do.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// The HTTP response for this error.
    pub(super) fn response(&self) -> Response<Body> {
        let body = json!({
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "mistakes": self.mistakes,
        });
        let kind = HeaderValue::from_static(MEDIA_TYPE);
        let mut response = response(self.status, kind, format!("{body}\n"));
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer realm=\"hairpin\"");
                headers.insert(WWW_AUTHENTICATE, scheme);
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// The main thread rejected a change.
impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self {
            status: StatusCode::CONFLICT,
            detail: refusal.error,
            mistakes: refusal.mistakes,
        }
    }
}
