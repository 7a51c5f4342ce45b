//! Errors of the API (RFC 9457).

use hyper::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::json;

use crate::admin::http::{Body, response};
use crate::control::protocol::Refusal;

/// The media type of a problem.
pub(super) const MEDIA_TYPE: &str = "application/problem+json";

/// Why a request failed, and what to do.
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

    /// The request makes no sense.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// There is nothing of this name.
    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// The server is not in the state for it.
    pub(super) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// The response.
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

/// What the main thread refused.
impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self {
            status: StatusCode::CONFLICT,
            detail: refusal.error,
            mistakes: refusal.mistakes,
        }
    }
}
