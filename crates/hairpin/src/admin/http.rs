//! HTTP, just enough: one request per connection, a handful of paths, and a bound on everything that a client decides.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::health::{self, Health};
use crate::metrics::{self, Source};

/// Connections at once. One more closes the oldest: whoever opens connections and says nothing cannot keep a probe out.
pub(super) const CONNECTIONS: usize = 32;

/// Connections per second; more wait in the kernel's backlog. Scrapers come every few seconds, and a page takes a fraction of
/// a millisecond, so this is some percent of one core at worst.
const PER_SECOND: u32 = 200;

/// How long a connection lasts at most, answer included.
const LIFE: Duration = Duration::from_secs(10);

/// How long a client may take to say what it wants.
const HEADERS_WITHIN: Duration = Duration::from_secs(5);

/// The least that hyper allows; no scraper sends a tenth of it. Beyond: 431.
const HEADERS_BYTES: usize = 8 * 1024;

/// Header fields of a request. Beyond: 431.
const HEADERS: usize = 48;

/// How long to wait when the system has no descriptor left for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Version 0.0.4 of the text format, which every Prometheus reads.
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// A request. Its body is not read.
pub(crate) type Incoming = Request<hyper::body::Incoming>;

/// The response to a request of the admin listener.
pub(super) fn admin(source: Arc<Source>) -> impl Respond {
    move |request: &Incoming| respond(request, &source)
}

/// What makes the responses of a listener.
pub(crate) trait Respond:
    Fn(&Incoming) -> Response<Full<Bytes>> + Clone + Send + 'static
{
}

impl<R: Fn(&Incoming) -> Response<Full<Bytes>> + Clone + Send + 'static> Respond for R {}

/// Serves for ever.
pub(crate) async fn serve(listener: TcpListener, respond: impl Respond) {
    let mut open: Vec<JoinHandle<()>> = Vec::with_capacity(CONNECTIONS);
    let mut pace = Pace::new();
    loop {
        pace.keep().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= CONNECTIONS {
                    open.remove(0).abort();
                }
                open.push(tokio::spawn(converse(stream, respond.clone())));
            }
            // The client has gone again, or no descriptor is left: neither is a reason to end.
            Err(error) => {
                tracing::debug!("an HTTP listener accepted nothing: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

/// No more than [`PER_SECOND`] connections in a second.
struct Pace {
    since: Instant,
    count: u32,
}

impl Pace {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            count: 0,
        }
    }

    /// Waits until another connection may come.
    async fn keep(&mut self) {
        let next = self.since + Duration::from_secs(1);
        if self.count >= PER_SECOND {
            sleep_until(next).await;
        }
        if Instant::now() >= next {
            *self = Self::new();
        }
        self.count += 1;
    }
}

/// Reads one request and answers it.
async fn converse(stream: TcpStream, respond: impl Respond) {
    let service = service_fn(move |request| {
        let response = respond(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEADERS_BYTES)
        .max_headers(HEADERS)
        .half_close(true)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // Clients that are slow, or that do not speak HTTP, are not worth a line in the log.
    let _ = timeout(LIFE, connection).await;
}

/// The answer to a request; its body, if it has one, is not read.
fn respond<B>(request: &Request<B>, source: &Source) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
        let allowed = HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(ALLOW, allowed);
        return refused;
    }
    match request.uri().path() {
        "/metrics" => response(StatusCode::OK, METRICS, metrics::page(source)),
        "/healthz" => health(health::alive(&source.observer)),
        "/readyz" => health(health::ready(&source.observer, &source.stores)),
        "/" => text(StatusCode::OK, "/metrics\n/healthz\n/readyz"),
        _ => text(
            StatusCode::NOT_FOUND,
            "there are /metrics, /healthz and /readyz",
        ),
    }
}

fn health(health: Health) -> Response<Full<Bytes>> {
    let status = if health.well {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    text(status, &health.line)
}

fn text(status: StatusCode, line: &str) -> Response<Full<Bytes>> {
    response(status, PLAIN, format!("{line}\n"))
}

fn response(status: StatusCode, kind: HeaderValue, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
