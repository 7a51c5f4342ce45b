//! A service that looks up users over HTTP.
//!
//! ```text
//! request:   POST /path
//!            {"realm": "north.gov", "username": "gorst"}
//! responses: 200, Cache-Control: max-age=60
//!            {"md5": "7da2..", "sha256": "53.."}
//!            404: there is no such user
//! ```
//!
//! The response to the empty name in the empty realm, which no user has, can have the SIP tables.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
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
use crate::store::{Found, Shared, SipRouteRow, SipTables, Store, StoreFuture};

/// Two keys and some white space.
const MAX_BODY: usize = 16 << 10;
/// The SIP tables.
const MAX_TABLES: usize = 8 << 20;
/// A connection that is not used for so long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

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

/// Where the service is. The path and the query may select its contents.
pub(crate) fn place(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    let default = if uri.scheme_str() == Some("http") {
        80
    } else {
        443
    };
    let port = uri.port_u16().unwrap_or(default);
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    format!("{host} {port} {path}")
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
        .pool_idle_timeout(IDLE_TIMEOUT)
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
    /// The response to the empty name whose body, with the SIP tables, has not been read.
    unread: Mutex<Option<Result<Head, StoreError>>>,
    /// Whether a response has had SIP tables.
    has_had_tables: AtomicBool,
}

impl Http {
    pub(super) fn new(options: &Options) -> Result<Http, StoreError> {
        Ok(Http {
            uri: uri(options)?,
            authorization: bearer(options),
            client: client(options)?,
            unread: Mutex::default(),
            has_had_tables: AtomicBool::new(false),
        })
    }

    async fn find(&self, realm: &str, name: &str) -> Result<Found, StoreError> {
        let Head { ttl, body } = self.ask(realm, name).await?;
        let keys = match body {
            Some(body) => Some(parse(&whole(body, MAX_BODY).await?)?),
            None => None,
        };
        Ok(Found { keys, ttl })
    }

    async fn ask(&self, realm: &str, name: &str) -> Result<Head, StoreError> {
        let question = serde_json::json!({ "realm": realm, "username": name }).to_string();
        let mut outcome = self.post(&question).await;
        // Retry on a new connection: the service may have restarted, or a load balancer may have closed the first one.
        if matches!(outcome, Err(StoreError::Connect(_))) {
            outcome = self.post(&question).await;
        }
        outcome
    }

    async fn post(&self, question: &str) -> Result<Head, StoreError> {
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
        let said = || format!("the service responds with {}", head.status);
        match head.status {
            StatusCode::OK => Ok(Head {
                ttl,
                body: Some(body),
            }),
            StatusCode::NOT_FOUND => Ok(Head { ttl, body: None }),
            // RFC 9110 §15.6: these say that another attempt may succeed.
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(StoreError::Connect(said())),
            _ => Err(StoreError::Query(said())),
        }
    }

    /// Asks for the empty name, and leaves the body unread. A status that rejects this question shows, too, that the
    /// service responds.
    async fn probe(&self) -> Result<Shared, StoreError> {
        let outcome = match self.ask("", "").await {
            Err(error) if !matches!(error, StoreError::Query(_)) => return Err(error),
            outcome => outcome,
        };
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        *unread = Some(outcome);
        Ok(Shared {
            has_users: true,
            ..Shared::default()
        })
    }

    async fn read_sip_tables(&self) -> Result<SipTables, StoreError> {
        let unread = self.unread.lock();
        let unread = unread.unwrap_or_else(PoisonError::into_inner).take();
        let outcome = match unread {
            Some(outcome) => outcome,
            None => self.ask("", "").await,
        };
        let body = match outcome {
            Ok(head) => head.body,
            // A service that has only users may reject the empty name. So a rejection means: no SIP tables.
            Err(StoreError::Query(_)) if !self.has_had_tables.load(Ordering::Relaxed) => None,
            Err(error) => return Err(error),
        };
        let Some(body) = body else {
            return Ok(SipTables::default());
        };
        let body = whole(body, MAX_TABLES).await?;
        // Megabytes of JSON: look-ups of users continue in that time.
        let reading = tokio::task::spawn_blocking(move || tables(&body));
        let read = reading.await.map_err(|error| error.to_string()).flatten();
        let read = read.map_err(StoreError::Query)?;
        if !read.aliases.is_empty() || !read.routes.is_empty() {
            self.has_had_tables.store(true, Ordering::Relaxed);
        }
        Ok(read)
    }
}

/// The lifetime of a response, and its body; no body for 404.
#[derive(Debug)]
struct Head {
    ttl: Option<Duration>,
    body: Option<Incoming>,
}

/// A body of at most so many bytes.
async fn whole(body: Incoming, most: usize) -> Result<Bytes, StoreError> {
    match Limited::new(body, most).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        // The service works; this response cannot be used.
        Err(error) if error.is::<LengthLimitError>() => Err(StoreError::Query(format!(
            "the response has more than {most} bytes"
        ))),
        Err(error) => Err(StoreError::Connect(error.to_string())),
    }
}

/// The tables as the service writes them. `null` stands for nothing.
#[derive(Deserialize)]
struct WrittenTables {
    sip_aliases: Option<BTreeMap<String, Option<String>>>,
    sip_routes: Option<Vec<Option<BTreeMap<String, serde_json::Value>>>>,
}

/// The tables of a body. Other keys have no effect.
fn tables(body: &[u8]) -> Result<SipTables, String> {
    let written: WrittenTables = serde_json::from_slice(body)
        .map_err(|error| format!("the response to the empty name is malformed: {error}"))?;
    let aliases = written.sip_aliases.unwrap_or_default().into_iter();
    let aliases = aliases.filter_map(|(alias, aor)| Some((alias, aor?)));
    let routes = written.sip_routes.unwrap_or_default().into_iter();
    let mut tables = SipTables {
        aliases: aliases.collect(),
        routes: routes.flatten().map(route).collect(),
        omitted: 0,
    };
    for count in [tables.aliases.len(), tables.routes.len()] {
        tables.omitted += count.saturating_sub(SipTables::MAX_ROWS);
    }
    tables.aliases.truncate(SipTables::MAX_ROWS);
    tables.routes.truncate(SipTables::MAX_ROWS);
    Ok(tables)
}

fn route(keys: BTreeMap<String, serde_json::Value>) -> SipRouteRow {
    let mut row = SipRouteRow::default();
    for (key, value) in keys {
        let text = match value {
            serde_json::Value::String(text) => text,
            serde_json::Value::Null => continue,
            serde_json::Value::Array(mut items) => {
                items.retain(|item| !item.is_null());
                serde_json::Value::Array(items).to_string()
            }
            // A number, say.
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
struct WrittenKeys {
    md5: Option<String>,
    sha256: Option<String>,
}

fn parse(body: &[u8]) -> Result<Keys, StoreError> {
    let written: WrittenKeys = serde_json::from_slice(body)
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

    /// The service has users. This looks up the empty name, which no user has, to know whether the service responds.
    fn shared(&self) -> StoreFuture<'_, Shared> {
        Box::pin(self.probe())
    }

    fn sip_tables(&self) -> StoreFuture<'_, SipTables> {
        Box::pin(self.read_sip_tables())
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

    /// A service that has this body for the empty name, and knows no user.
    fn service(body: String) -> Options {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let url = format!("http://{address}/");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (mut text, mut part) = (String::new(), [0; 4096]);
                while !text.ends_with('}') {
                    match stream.read(&mut part) {
                        Ok(length @ 1..) => {
                            text.push_str(&String::from_utf8_lossy(&part[..length]))
                        }
                        _ => break,
                    }
                }
                let (status, body) = match text.contains("\"username\":\"\"") {
                    true => ("200 OK", &*body),
                    false => ("404 Not Found", ""),
                };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                // Who has seen enough ends the connection.
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(body.as_bytes());
            }
        });
        Options {
            url,
            ..Options::default()
        }
    }

    #[test]
    fn tables_that_are_too_large_leave_the_users() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let tables = "{\"sip_aliases\": {\"info@a.org\": \"ann@a.org\"}}";
        for (space, fits) in [(MAX_TABLES - tables.len(), true), (MAX_TABLES, false)] {
            let options = service(format!("{}{tables}", " ".repeat(space)));
            runtime.block_on(async {
                let store = Http::new(&options).unwrap();
                assert!(store.shared().await.unwrap().has_users);
                let read = store.sip_tables().await;
                match fits {
                    true => assert_eq!(read.unwrap().aliases.len(), 1),
                    false => assert!(matches!(read, Err(StoreError::Query(_))), "{read:?}"),
                }
                assert_eq!(
                    store.find_user("a.org", "ann").await.unwrap(),
                    Found::default()
                );
            });
        }
    }

    #[test]
    fn null_is_nothing() {
        let body = br#"{"sip_aliases": {"a@a.org": null, "b@a.org": "ann@a.org"},
            "sip_routes": [null, {"name": "out", "prefixes": ["+49", null], "trunks": ["carrier"], "reject": null}]}"#;
        let read = tables(body).unwrap();
        assert_eq!(
            read.aliases,
            [("b@a.org".to_owned(), "ann@a.org".to_owned())]
        );
        assert_eq!(read.routes.len(), 1);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let keys = [
            pair("prefixes", "[\"+49\"]"),
            pair("trunks", "[\"carrier\"]"),
        ];
        assert_eq!(read.routes[0].keys, keys);
        let none = tables(b"{\"sip_aliases\": null, \"sip_routes\": null}").unwrap();
        assert_eq!(none, SipTables::default());
    }

    #[test]
    fn entries_beyond_the_bound_are_counted() {
        let entries = (0..SipTables::MAX_ROWS + 3).map(|n| format!("\"{n}@a.org\": \"ann@a.org\""));
        let entries: Vec<String> = entries.collect();
        let routes = vec!["{}"; SipTables::MAX_ROWS + 4].join(",");
        let body = format!(
            "{{\"sip_aliases\": {{{}}}, \"sip_routes\": [{routes}]}}",
            entries.join(",")
        );
        let read = tables(body.as_bytes()).unwrap();
        let most = SipTables::MAX_ROWS;
        assert_eq!(
            (read.aliases.len(), read.routes.len(), read.omitted),
            (most, most, 7)
        );
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
