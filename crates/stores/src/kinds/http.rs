//! A service that looks up users over HTTP.
//!
//! ```text
//! POST /path                                                  200 {"md5": "7da2..", "sha256": "53.."}, Cache-Control: max-age=60
//! {"realm": "north.gov", "username": "gorst"}                 404: there is no such user
//! ```
//!
//! The response to the empty name in the empty realm, which no user has, can have the tables of SIP.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
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
use crate::store::{Found, Shared, SipRouteRow, Store, StoreFuture};

/// Two keys and some white space.
const MAX_BODY: usize = 16 << 10;
/// The tables of SIP.
const MAX_TABLES: usize = 8 << 20;
/// Entries of each of them.
const MAX_ENTRIES: usize = 65_536;
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
    /// The tables of SIP as they were last read.
    tables: Mutex<SipTables>,
}

impl Http {
    pub(super) fn new(options: &Options) -> Result<Http, StoreError> {
        Ok(Http {
            uri: uri(options)?,
            authorization: bearer(options),
            client: client(options)?,
            tables: Mutex::default(),
        })
    }

    async fn find(&self, realm: &str, name: &str) -> Result<Found, StoreError> {
        let (ttl, body) = self.ask(realm, name, MAX_BODY).await?;
        let keys = body.map(|body| parse(&body)).transpose()?;
        Ok(Found { keys, ttl })
    }

    /// The lifetime and the body of the response; no body for 404.
    async fn ask(&self, realm: &str, name: &str, most: usize) -> Result<Answer, StoreError> {
        let question = serde_json::json!({ "realm": realm, "username": name }).to_string();
        let mut outcome = self.post(&question, most).await;
        // Retry on a new connection: the service may have restarted, or a load balancer may have closed the first one.
        if matches!(outcome, Err(StoreError::Connect(_))) {
            outcome = self.post(&question, most).await;
        }
        outcome
    }

    async fn post(&self, question: &str, most: usize) -> Result<Answer, StoreError> {
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
            StatusCode::NOT_FOUND => return Ok((ttl, None)),
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
        let body = Limited::new(body, most).collect().await;
        let body = body.map_err(|error| StoreError::Connect(error.to_string()))?;
        Ok((ttl, Some(body.to_bytes())))
    }

    /// Asks for the empty name. A response that cannot be read leaves the tables as they were.
    async fn read_tables(&self) -> Result<SipTables, StoreError> {
        let outcome = match self.ask("", "", MAX_TABLES).await {
            Ok((_, None)) => Ok(SipTables::default()),
            Ok((_, Some(body))) => tables(&body),
            // The service responds, and does not have them.
            Err(StoreError::Query(_)) => Ok(self.tables().clone()),
            Err(error) => return Err(error),
        };
        let mut known = self.tables();
        match outcome {
            Ok(read) => *known = read,
            Err(reason) if known.error.as_ref() == Some(&reason) => {}
            Err(reason) => {
                tracing::warn!(
                    reason,
                    "the SIP tables of a store cannot be read, the entries that were read last stay"
                );
                known.error = Some(reason);
            }
        }
        Ok(known.clone())
    }

    fn tables(&self) -> MutexGuard<'_, SipTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lifetime and the body of a response.
type Answer = (Option<Duration>, Option<Bytes>);

/// The tables of SIP, and why they could not be read the last time.
#[derive(Clone, Debug, Default)]
struct SipTables {
    aliases: Vec<(String, String)>,
    routes: Vec<SipRouteRow>,
    error: Option<String>,
}

/// The tables as the service writes them.
#[derive(Deserialize)]
struct WrittenTables {
    #[serde(default)]
    sip_aliases: BTreeMap<String, String>,
    #[serde(default)]
    sip_routes: Vec<BTreeMap<String, serde_json::Value>>,
}

/// The tables of a body. Other keys have no effect.
fn tables(body: &[u8]) -> Result<SipTables, String> {
    let written: WrittenTables = serde_json::from_slice(body)
        .map_err(|error| format!("the response to the empty name is malformed: {error}"))?;
    let aliases = written.sip_aliases.into_iter().take(MAX_ENTRIES);
    let routes = written.sip_routes.into_iter().take(MAX_ENTRIES);
    Ok(SipTables {
        aliases: aliases.collect(),
        routes: routes.map(route).collect(),
        error: None,
    })
}

fn route(keys: BTreeMap<String, serde_json::Value>) -> SipRouteRow {
    let mut row = SipRouteRow::default();
    for (key, value) in keys {
        let text = match value {
            serde_json::Value::String(text) => text,
            serde_json::Value::Null => continue,
            // A number, or an array, which the reader of the row knows.
            other => other.to_string(),
        };
        match &*key {
            "name" => row.name = text,
            _ if text.is_empty() => {}
            _ => row.keys.push((key, text)),
        }
    }
    row
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

    /// The service has users, and can have tables of SIP. This looks up the empty name, which no user has, to know
    /// whether the service responds.
    fn shared(&self) -> StoreFuture<'_, Shared> {
        Box::pin(async {
            let tables = self.read_tables().await?;
            Ok(Shared {
                has_users: true,
                sip_aliases: tables.aliases,
                sip_routes: tables.routes,
                ..Shared::default()
            })
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
    fn the_response_to_the_empty_name_can_have_tables() {
        let body = br#"{"sip_aliases": {"info@a.org": "ann@a.org"},
            "sip_routes": [{"name": "out", "prefixes": ["+49", "+43"], "priority": 7, "trunks": "carrier", "add": "", "hunt": null}],
            "more": 1}"#;
        let read = tables(body).unwrap();
        assert_eq!(
            read.aliases,
            [("info@a.org".to_owned(), "ann@a.org".to_owned())]
        );
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let keys = vec![
            pair("prefixes", "[\"+49\",\"+43\"]"),
            pair("priority", "7"),
            pair("trunks", "carrier"),
        ];
        assert_eq!(
            read.routes,
            [SipRouteRow {
                name: "out".to_owned(),
                keys
            }]
        );
        let empty = tables(b"{}").unwrap();
        assert!(empty.aliases.is_empty() && empty.routes.is_empty());
        for wrong in [
            &b"hero"[..],
            b"{\"sip_aliases\": []}",
            b"{\"sip_routes\": {}}",
        ] {
            assert!(tables(wrong).is_err());
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
