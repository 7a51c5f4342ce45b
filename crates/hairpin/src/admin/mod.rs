//! The admin listener: `/metrics`, `/healthz` and `/readyz` for monitoring and for orchestrators, the API, and the live
//! page.
//!
//! It has a separate thread. It reads the server through an [`Observer`](server::Observer), sends each
//! [`Change`](crate::control::Change) to the main thread, and lists and ends allocations by the mailboxes of workers.
//! So it never blocks a worker. It has limits: concurrent connections, connections per second, the size of a request,
//! and the duration of a connection.

mod api;
mod failures;
pub(crate) mod health;
mod history;
pub(crate) mod http;
mod page;

#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Response, StatusCode};
use server::InheritedSockets;
use server::certificates::Certificates;
use server::rustls::ServerConfig;
use tokio::sync::oneshot;

use crate::config::AdminListen;
use crate::control::tasks::Tasks;
use crate::control::{ChangeSender, Shared};
use crate::metrics;
use api::Api;
pub(crate) use api::Applied;
use health::Health;
use history::History;
use http::{Body, Incoming, METRICS, Peer, Respond, response, text};

/// How long a server that ends waits for changes of stores. The changes of one request end within the time for its
/// response.
const MAX_FINISH_TIME: Duration = http::RESPONSE_WITHIN;

/// A socket that listens, and that no thread serves yet.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    listener: TcpListener,
    address: SocketAddr,
    /// The address in the configuration, by which a certificate can name it.
    configured: SocketAddr,
}

/// Binds the socket before anything is started, so that an address that is taken is known in time. `None` if there is
/// to be none, or if it is not configured and the default address is taken.
///
/// # Errors
/// If an address was asked for and cannot be had.
pub(crate) fn bind(
    wanted: AdminListen,
    inherited: &mut InheritedSockets,
) -> Result<Option<AdminSocket>> {
    let mut listen = |address| {
        let take = |listener| take(listener, address);
        match inherited.take_tcp(address) {
            Some(listener) => take(listener),
            None => TcpListener::bind(address).and_then(take),
        }
    };
    match wanted {
        AdminListen::Off => Ok(None),
        AdminListen::At(address) => listen(address).map(Some).map_err(|error| explain(address, &error)),
        AdminListen::Auto => Ok(listen(AdminListen::USUAL)
            .inspect_err(|error| {
                tracing::warn!(
                    "no metrics: {} cannot be listened on ({error}); say where with --admin ADDRESS:PORT or admin.listen, or \"off\"",
                    AdminListen::USUAL
                );
            })
            .ok()),
    }
}

fn take(listener: TcpListener, configured: SocketAddr) -> std::io::Result<AdminSocket> {
    listener.set_nonblocking(true)?;
    Ok(AdminSocket {
        address: listener.local_addr()?,
        configured,
        listener,
    })
}

fn explain(address: SocketAddr, error: &std::io::Error) -> anyhow::Error {
    let why = match error.kind() {
        ErrorKind::AddrInUse => "another program listens there".to_owned(),
        ErrorKind::AddrNotAvailable => "it is not an address of this machine".to_owned(),
        ErrorKind::PermissionDenied => {
            "ports below 1024 take privileges (CAP_NET_BIND_SERVICE)".to_owned()
        }
        _ => error.to_string(),
    };
    anyhow!(
        "cannot serve metrics at {address}: {why}; set it with --admin ADDRESS:PORT or admin.listen, or say \"off\""
    )
}

impl AdminSocket {
    /// A copy with a duplicate of the socket. A server that hands over in an upgrade keeps it, because it may have to
    /// serve again.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub(crate) fn try_clone(&self) -> std::io::Result<AdminSocket> {
        Ok(AdminSocket {
            listener: self.listener.try_clone()?,
            address: self.address,
            configured: self.configured,
        })
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> &TcpListener {
        &self.listener
    }

    /// Where it listens, with the port that was chosen for port 0.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the result is dropped.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be made.
    pub(crate) fn serve(
        self,
        shared: Arc<Shared>,
        changes: ChangeSender,
        certificates: Option<&Certificates>,
    ) -> Result<Serving> {
        let certificates = certificates.map(|certificates| certificates.at(self.configured));
        let tls = certificates.as_ref().filter(|it| !it.is_empty()).map(tls);
        let tasks = Tasks::default();
        let of_api = tasks.clone();
        Serving::start("hairpin-admin", tasks, move || {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let history = Arc::new(History::default());
            let admin = Admin {
                api: Api::new(Arc::clone(&shared), changes, Arc::clone(&history), of_api),
                shared: Arc::clone(&shared),
            };
            Ok(async move {
                tokio::spawn(history.run(shared));
                http::serve(listener, admin, tls).await;
            })
        })
        .context("cannot serve metrics")
    }
}

/// TLS with the certificates of the server, and HTTP/1.1 as the only ALPN protocol.
fn tls(certificates: &Certificates) -> Arc<ServerConfig> {
    let mut config = ServerConfig::clone(&certificates.server_config(false));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Responds to requests of the admin listener.
#[derive(Clone, Debug)]
struct Admin {
    shared: Arc<Shared>,
    api: Api,
}

impl Respond for Admin {
    async fn respond(&self, request: Incoming, peer: Peer) -> Response<Body> {
        if request.uri().path().starts_with(api::BASE) {
            return self.api.respond(request, &peer).await;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            let allowed = HeaderValue::from_static("GET, HEAD");
            refused.headers_mut().insert(ALLOW, allowed);
            return refused;
        }
        let source = &self.shared.source;
        match request.uri().path() {
            "/metrics" => response(StatusCode::OK, METRICS, metrics::page(source)),
            "/healthz" => health(health::liveness(&source.observer)),
            "/readyz" => {
                let cluster = source.cluster.as_ref();
                health(health::readiness(&source.observer, &source.stores(), cluster))
            }
            path => page::asset(path).unwrap_or_else(|| {
                let there = "this path does not exist: use / (the live page), /metrics, /healthz, /readyz or /api/v1/openapi.json";
                text(StatusCode::NOT_FOUND, there)
            }),
        }
    }
}

fn health(health: Health) -> Response<Body> {
    let status = if health.is_healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    text(status, &health.message)
}

/// A listener that is served; dropping it ends that.
#[derive(Debug)]
pub(crate) struct Serving {
    /// Dropping it is the sign to stop.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Runs a task for ever, on a separate thread. `make` makes the task, within the runtime that will run it. The
    /// changes that run in the end have [`MAX_FINISH_TIME`] to end as well.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be made, and what `make` returns.
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(
        name: &str,
        changes: Tasks,
        make: impl FnOnce() -> std::io::Result<F>,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let task = {
            let _inside = runtime.enter();
            make()?
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let body = move || {
            // Leaving the runtime ends what it runs.
            runtime.block_on(async {
                let task = tokio::spawn(task);
                let _ = stopped.await;
                task.abort();
                changes.finish(MAX_FINISH_TIME).await;
            });
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}
