//! Push notifications over HTTP (RFC 8599), for phones whose app is suspended.
//!
//! ```text
//!  worker ── PushHook ──▶ queue (1,024) ── thread hairpin-push ──▶ POST to sip.push_gateway
//!              └─ full: dropped and counted
//! ```
//!
//! The body is JSON, as docs/sip-push.md describes it. The gateway responds with 2xx when it has accepted the
//! notification.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::json;
use server::rustls::{ClientConfig, RootCertStore, crypto};
use server::sip::{Push, PushHook, PushReason, PushSettings};
use tokio::sync::{Semaphore, mpsc};

use crate::config::PushConfig;

/// Notifications that wait. A call waits for its phone for some seconds, so older ones are of no use. A phone that is to
/// refresh its binding is tried again.
const MAX_QUEUED_PUSHES: usize = 1024;
/// Requests to the gateway at a time.
const AT_ONCE: usize = 64;
/// The longest time until the gateway responds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that is not used for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// A phone that has registered within this time is awake.
const AWAKE_TIME: Duration = Duration::from_secs(10);

/// Notifications by their outcome, for the metrics.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// The gateway has responded with 2xx.
    pub(crate) accepted: AtomicU64,
    /// The gateway has responded with another code.
    pub(crate) refused: AtomicU64,
    /// There was no response in time.
    pub(crate) failed: AtomicU64,
}

/// Of this process.
pub(crate) static OUTCOMES: Outcomes = Outcomes {
    accepted: AtomicU64::new(0),
    refused: AtomicU64::new(0),
    failed: AtomicU64::new(0),
};

/// The gateway in use. With another configuration, its queue closes, and its thread ends.
static GATEWAY: Mutex<Option<(PushConfig, PushHook)>> = Mutex::new(None);

/// How the server wakes phones; `None` without a gateway. Starts the thread that sends notifications, unless it runs.
pub(crate) fn settings(config: Option<&PushConfig>) -> Option<PushSettings> {
    let mut gateway = GATEWAY.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(config) = config else {
        *gateway = None;
        return None;
    };
    let hook = match &*gateway {
        Some((running, hook)) if running == config => hook.clone(),
        _ => {
            let hook = start(config)
                .inspect_err(|error| tracing::error!(%error, "push notifications are off"))
                .ok()?;
            *gateway = Some((config.clone(), hook.clone()));
            hook
        }
    };
    Some(PushSettings {
        providers: config.providers.clone(),
        wait: config.wait,
        awake: AWAKE_TIME,
        calls: config.calls,
        refresh: config.refresh,
        hook,
    })
}

fn start(config: &PushConfig) -> Result<PushHook> {
    let sender = Arc::new(Sender::new(config)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot make a runtime for push notifications")?;
    let (queue, pushes) = mpsc::channel(MAX_QUEUED_PUSHES);
    let thread = std::thread::Builder::new().name("hairpin-push".to_owned());
    thread
        .spawn(move || {
            // The thread only connects; without the right to give up capabilities it has none.
            let _ = server::privileges::drop_all();
            runtime.block_on(send_all(sender, pushes));
        })
        .context("cannot start a thread for push notifications")?;
    Ok(PushHook::new(move |push| {
        // A caller waits for a phone, so refreshes leave room for calls.
        let is_call = push.reason != PushReason::Refresh;
        (is_call || queue.capacity() > MAX_QUEUED_PUSHES / 2) && queue.try_send(push).is_ok()
    }))
}

async fn send_all(sender: Arc<Sender>, mut pushes: mpsc::Receiver<Push>) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(push) = pushes.recv().await {
        // It is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let sender = Arc::clone(&sender);
        tokio::spawn(async move {
            sender.send(&push).await;
            drop(place);
        });
    }
}

/// Sends notifications to one gateway.
struct Sender {
    uri: Uri,
    authorization: Option<String>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    next_line: Mutex<Option<Instant>>,
}

impl Sender {
    fn new(config: &PushConfig) -> Result<Sender> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_nodelay(true);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(plain);
        let token = Some(&config.token).filter(|token| !token.is_empty());
        Ok(Sender {
            uri: config.gateway.parse()?,
            authorization: token.map(|token| format!("Bearer {token}")),
            client: Client::builder(TokioExecutor::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_timer(TokioTimer::new())
                .build(connector),
            next_line: Mutex::new(None),
        })
    }

    async fn send(&self, push: &Push) {
        let error = match tokio::time::timeout(RESPONSE_TIMEOUT, self.post(push)).await {
            Ok(Ok(code)) if (200..300).contains(&code) => {
                OUTCOMES.accepted.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Ok(Ok(code)) => {
                OUTCOMES.refused.fetch_add(1, Ordering::Relaxed);
                format!("the gateway responds with {code}")
            }
            Ok(Err(error)) => {
                OUTCOMES.failed.fetch_add(1, Ordering::Relaxed);
                format!("{error:#}")
            }
            Err(_) => {
                OUTCOMES.failed.fetch_add(1, Ordering::Relaxed);
                "no response within 5 s".to_owned()
            }
        };
        // Each call may fail, so the lines are limited.
        let mut next = self
            .next_line
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if next.is_none_or(|next| now >= next) {
            *next = Some(now + LOG_INTERVAL);
            tracing::warn!(
                provider = push.provider,
                aor = push.aor,
                error,
                "push notification failed"
            );
        }
    }

    async fn post(&self, push: &Push) -> Result<u16> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::from(body(push)))?;
        let response = self.client.request(request).await?;
        Ok(response.status().as_u16())
    }
}

fn body(push: &Push) -> String {
    let reason = match push.reason {
        PushReason::Call => "call",
        PushReason::Refresh => "refresh",
    };
    let of_call = |text: &str| (push.reason == PushReason::Call).then(|| text.to_owned());
    json!({
        "reason": reason,
        "provider": push.provider,
        "prid": push.prid,
        "param": push.param,
        "aor": push.aor,
        "from": of_call(&push.from),
        "call_id": of_call(&push.call_id),
        "expires_s": push.wait.as_secs(),
    })
    .to_string()
}
