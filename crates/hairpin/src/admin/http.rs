//! A small HTTP server: one request per connection, with TLS if the client starts a TLS handshake. Everything that a
//! client decides has a limit.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use server::rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

/// Connections at once. One more closes the oldest, so clients that open connections and send nothing cannot keep a
/// probe out.
pub(super) const MAX_CONNECTIONS: usize = 32;

/// Connections per second; more wait in the kernel's backlog. Scrapers come every few seconds, and a page takes a
/// fraction of a millisecond, so this is some percent of one core at worst.
const PER_SECOND: u32 = 200;

/// How long a connection lasts at most, response included.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(10);

/// A response is ready at most this long after the exchange has begun ([`Peer::begun`]). The rest of
/// [`MAX_CONNECTION_TIME`] is for a client that reads slowly.
pub(super) const RESPONSE_WITHIN: Duration = Duration::from_secs(8);

const _: () = assert!(RESPONSE_WITHIN.as_secs() + 2 <= MAX_CONNECTION_TIME.as_secs());

/// How long a stream of events lasts at most. Its client connects again.
const MAX_STREAM_TIME: Duration = Duration::from_secs(3_600);

/// How long a client may take to say what it wants.
const HEADERS_WITHIN: Duration = Duration::from_secs(5);

/// The least that hyper allows; no scraper sends a tenth of it. Beyond: 431.
const HEADERS_BYTES: usize = 8 * 1024;

/// Header fields of a request. Beyond: 431.
const MAX_HEADER_FIELDS: usize = 48;

/// How long to wait when the system has no descriptor left for another connection.
const ACCEPT_RETRY_TIME: Duration = Duration::from_millis(100);

/// The first byte of a TLS record with a handshake (RFC 8446 §5.1). No HTTP method begins with it.
const TLS_HANDSHAKE: u8 = 22;

/// Version 0.0.4 of the text format, which every Prometheus reads.
pub(crate) const METRICS: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// A request whose body has not been read.
pub(crate) type Incoming = Request<hyper::body::Incoming>;

/// What the connection of a request says about its client.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The source address of the connection.
    pub(crate) address: SocketAddr,
    /// Whether the connection uses TLS.
    pub(crate) is_tls: bool,
    /// Whether the listener has a certificate, so that the client can use TLS.
    pub(crate) has_tls: bool,
    /// When the exchange has begun: when the connection was accepted or, with TLS, after the handshake.
    pub(crate) begun: Instant,
    /// The response is a stream of events: it can last longer than [`MAX_CONNECTION_TIME`], and a new connection does
    /// not close it.
    is_stream: Arc<AtomicBool>,
}

impl Peer {
    /// Marks the response as a stream that can last longer than [`MAX_CONNECTION_TIME`].
    pub(super) fn set_stream(&self) {
        self.is_stream.store(true, Ordering::Relaxed);
    }
}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Body {
    /// The whole body.
    Whole(Full<Bytes>),
    /// A stream of parts, which ends when the sender is dropped.
    Parts(mpsc::Receiver<Bytes>),
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Whole(Full::from(text))
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Self {
        Self::Whole(Full::from(bytes))
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(whole) => Pin::new(whole).poll_frame(context),
            Self::Parts(parts) => parts
                .poll_recv(context)
                .map(|part| part.map(|part| Ok(Frame::data(part)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => hyper::body::Body::is_end_stream(whole),
            Self::Parts(_) => false,
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(whole) => hyper::body::Body::size_hint(whole),
            Self::Parts(_) => hyper::body::SizeHint::default(),
        }
    }
}

/// Makes the responses of a listener.
pub(crate) trait Respond: Clone + Send + Sync + 'static {
    /// The response to a request.
    fn respond(&self, request: Incoming, peer: Peer)
    -> impl Future<Output = Response<Body>> + Send;
}

/// Serves for ever, also over TLS if `tls` is set.
pub(crate) async fn serve(
    listener: TcpListener,
    respond: impl Respond,
    tls: Option<Arc<ServerConfig>>,
) {
    let mut open: Vec<(JoinHandle<()>, Arc<AtomicBool>)> = Vec::with_capacity(MAX_CONNECTIONS);
    let tls = tls.map(TlsAcceptor::from);
    let mut accept_limit = AcceptLimit::new();
    loop {
        accept_limit.wait_and_count().await;
        match listener.accept().await {
            Ok((stream, address)) => {
                open.retain(|(connection, _)| !connection.is_finished());
                if open.len() >= MAX_CONNECTIONS {
                    // The limit of event streams is below that of connections, so at least one connection is not a
                    // stream.
                    let oldest = open
                        .iter()
                        .position(|(_, is_stream)| !is_stream.load(Ordering::Relaxed));
                    open.remove(oldest.unwrap_or(0)).0.abort();
                }
                let peer = Peer {
                    address,
                    is_tls: false,
                    has_tls: tls.is_some(),
                    begun: Instant::now(),
                    is_stream: Arc::default(),
                };
                let is_stream = Arc::clone(&peer.is_stream);
                let task = tokio::spawn(serve_client(stream, peer, tls.clone(), respond.clone()));
                open.push((task, is_stream));
            }
            // The client has closed the connection, or no descriptor is left: neither is a reason to end.
            Err(error) => {
                tracing::debug!("an HTTP listener accepted nothing: {error}");
                sleep(ACCEPT_RETRY_TIME).await;
            }
        }
    }
}

/// The rate limit of accepted connections: [`PER_SECOND`] in each second.
struct AcceptLimit {
    since: Instant,
    count: u32,
}

impl AcceptLimit {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            count: 0,
        }
    }

    /// Waits for the next second if this one has had [`PER_SECOND`] connections. Then counts one connection.
    async fn wait_and_count(&mut self) {
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

/// Detects TLS by the first byte, reads one request and responds to it.
async fn serve_client(
    stream: TcpStream,
    mut peer: Peer,
    tls: Option<TlsAcceptor>,
    respond: impl Respond,
) {
    let Some(tls) = tls else {
        return exchange(stream, peer, respond).await;
    };
    let mut first = [0];
    match timeout(HEADERS_WITHIN, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first[0] == TLS_HANDSHAKE => {
            if let Ok(Ok(stream)) = timeout(HEADERS_WITHIN, tls.accept(stream)).await {
                peer.is_tls = true;
                exchange(stream, peer, respond).await;
            }
        }
        Ok(Ok(1)) => exchange(stream, peer, respond).await,
        _ => {}
    }
}

/// Reads one request and responds to it.
async fn exchange<S>(stream: S, mut peer: Peer, respond: impl Respond)
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    peer.begun = Instant::now();
    let is_stream = Arc::clone(&peer.is_stream);
    let service = service_fn(move |request| {
        let (respond, peer) = (respond.clone(), peer.clone());
        async move { Ok::<_, Infallible>(respond.respond(request, peer).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEADERS_BYTES)
        .max_headers(MAX_HEADER_FIELDS)
        .half_close(true)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // Clients that are slow, or that do not speak HTTP, are not worth a line in the log.
    if timeout(MAX_CONNECTION_TIME, connection.as_mut())
        .await
        .is_err()
        && is_stream.load(Ordering::Relaxed)
    {
        let _ = timeout(MAX_STREAM_TIME, connection).await;
    }
}

/// A response of one line of text.
pub(super) fn text(status: StatusCode, line: &str) -> Response<Body> {
    response(status, PLAIN, format!("{line}\n"))
}

/// A response with `Cache-Control: no-store`.
pub(crate) fn response(
    status: StatusCode,
    kind: HeaderValue,
    body: impl Into<Body>,
) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
