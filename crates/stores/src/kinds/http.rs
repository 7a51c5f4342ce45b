//! A service that looks up users over HTTP.
//!
//! ```text
//! POST /path                                                  200 {"md5": "7da2..", "sha256": "53.."}, Cache-Control: max-age=60
//! {"realm": "north.gov", "username": "gorst"}                 404: there is no such user
//! ```

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Deserialize;

use super::Options;
use super::tls::client_config;
use crate::error::StoreError;
use crate::keys::Keys;
use crate::store::{Found, Shared, Store, StoreFuture};

/// Two keys and some white space.
const MAX_BODY: usize = 16 << 10;
/// A connection that is not used for so long is closed.
const IDLE: Duration = Duration::from_secs(30);

pub(crate) fn uri(options: &Options) -> Result<Uri, StoreError> {
    let wrong = |error: String| StoreError::Url(format!("http: {error}"));
    let uri: Uri = options
        .url
        .parse()
        .map_err(|error: hyper::http::uri::InvalidUri| wrong(error.to_string()))?;
    match uri.host().is_some_and(|host| !host.is_empty()) {
        true => Ok(uri),
        false => Err(wrong("the URL has no host".to_owned())),
    }
}

/// A client that keeps its connections open for a while.
pub(crate) type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client that trusts the certificates of these options.
pub(crate) fn client(options: &Options) -> Result<HttpClient, StoreError> {
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_nodelay(true);
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(client_config(options.ca.as_deref())?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(plain);
    Ok(Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .pool_timer(TokioTimer::new())
        .build(connector))
}

/// RFC 6750 §2.1: the password as a token.
pub(crate) fn bearer(options: &Options) -> Option<String> {
    let token = options.password.as_ref();
    token.map(|token| format!("Bearer {token}"))
}

#[derive(Debug)]
pub(super) struct Http {
    uri: Uri,
    authorization: Option<String>,
    client: HttpClient,
}

impl Http {
    pub(super) fn new(options: &Options) -> Result<Http, StoreError> {
        Ok(Http {
            uri: uri(options)?,
            authorization: bearer(options),
            client: client(options)?,
        })
    }

    async fn find(&self, realm: &str, name: &str) -> Result<Found, StoreError> {
        let question = serde_json::json!({ "realm": realm, "username": name }).to_string();
        let mut outcome = self.post(&question).await;
        // Retry on a new connection: the service may have restarted, or a load balancer may have closed the first one.
        if matches!(outcome, Err(StoreError::Connect(_))) {
            outcome = self.post(&question).await;
        }
        outcome
    }

    async fn post(&self, question: &str) -> Result<Found, StoreError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::from(question.to_owned()));
        let request = request.map_err(|error| StoreError::query(&error))?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| StoreError::connect(&error))?;
        let (head, body) = response.into_parts();
        let cache = head.headers.get(CACHE_CONTROL);
        let ttl = cache.and_then(|value| max_age(value.to_str().ok()?));
        match head.status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(Found { keys: None, ttl }),
            // RFC 9110 §15.6: these say that another attempt may succeed.
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                return Err(StoreError::Connect(format!(
                    "the service responds with {}",
                    head.status
                )));
            }
            other => {
                return Err(StoreError::Query(format!(
                    "the service responds with {other}"
                )));
            }
        }
        let body = Limited::new(body, MAX_BODY).collect().await;
        let body = body.map_err(|error| StoreError::Connect(error.to_string()))?;
        let keys = parse(&body.to_bytes())?;
        Ok(Found {
            keys: Some(keys),
            ttl,
        })
    }
}

/// The keys of a user, in hexadecimal.
#[derive(Deserialize)]
struct Written {
    md5: Option<String>,
    sha256: Option<String>,
}

fn parse(body: &[u8]) -> Result<Keys, StoreError> {
    let written: Written = serde_json::from_slice(body)
        .map_err(|error| StoreError::Query(format!("the response is malformed: {error}")))?;
    let mut keys = Keys::default();
    for text in [&written.md5, &written.sha256].into_iter().flatten() {
        let key = Keys::from_hex(text).ok_or_else(|| {
            StoreError::Query("a key is not 32 or 64 hexadecimal digits".to_owned())
        })?;
        keys = keys.or(key);
    }
    match keys == Keys::default() {
        true => Err(StoreError::Query(
            "the response has neither `md5` nor `sha256`".to_owned(),
        )),
        false => Ok(keys),
    }
}

/// RFC 9111 §5.2.2: how long a response may be used.
fn max_age(cache_control: &str) -> Option<Duration> {
    let mut ttl = None;
    for directive in cache_control.split(',') {
        let directive = directive.trim().to_ascii_lowercase();
        match directive.split_once('=') {
            None if directive == "no-store" || directive == "no-cache" => {
                return Some(Duration::ZERO);
            }
            Some(("max-age", seconds)) => {
                let seconds = seconds.trim_matches('"').parse().ok()?;
                ttl = Some(Duration::from_secs(seconds));
            }
            _ => {}
        }
    }
    ttl
}

impl Store for Http {
    fn find_user<'a>(&'a self, realm: &'a str, name: &'a str) -> StoreFuture<'a, Found> {
        Box::pin(self.find(realm, name))
    }

    /// The service has users only. This looks up the empty name, which no user has, to find out whether the service
    /// responds.
    fn shared(&self) -> StoreFuture<'_, Shared> {
        Box::pin(async {
            match self.find("", "").await {
                Ok(_) | Err(StoreError::Query(_)) => Ok(Shared {
                    has_users: true,
                    ..Shared::default()
                }),
                Err(error) => Err(error),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_control_says_how_long() {
        let s = |seconds| Some(Duration::from_secs(seconds));
        for (text, ttl) in [
            ("max-age=60", s(60)),
            ("private, Max-Age=\"5\"", s(5)),
            ("max-age=60, no-store", s(0)),
            ("no-cache", s(0)),
            ("private", None),
            ("max-age=soon", None),
        ] {
            assert_eq!(max_age(text), ttl, "{text}");
        }
    }

    #[test]
    fn an_answer_has_a_key_at_least() {
        let md5 = "7da2270ccfa49786e0115366d3a3d14d";
        let keys = parse(format!("{{\"md5\": \"{md5}\", \"more\": 1}}").as_bytes()).unwrap();
        assert_eq!(keys, Keys::from_hex(md5).unwrap());
        assert!(parse(b"{}").is_err());
        assert!(parse(b"{\"md5\": \"hero\"}").is_err());
        assert!(parse(b"hero").is_err());
    }
}
