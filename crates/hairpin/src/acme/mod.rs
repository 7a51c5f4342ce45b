//! Certificates from an ACME server (RFC 8555): ordered, renewed and replaced while the server runs.
//!
//! ```text
//!  order ──> validations answered ──> certificate.pem ──> Certificates::reload ──> workers
//!            (port 80, or TLS listeners)
//! ```
//!
//! The ACME client has a separate thread. Workers never wait for it. Until the first certificate arrives, the server
//! uses a placeholder that no client trusts.

mod order;
mod renewal;
mod responder;
mod store;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use instant_acme::{Account, CertificateIdentifier};
use server::InheritedSockets;
use server::certificates::{CertificateFiles, CertificateInfo, Certificates};
use server::rustls::pki_types::CertificateDer;
use server::rustls::pki_types::pem::PemObject as _;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::admin::http;
use crate::commands::creds::now_unix_s;
use crate::config::{Acme, Challenge};
use renewal::Window;
use responder::Responder;
use store::Store;

/// The longest time that an order may take.
const ORDER_TIMEOUT: Duration = Duration::from_secs(300);

/// The minimum time between two orders after a success. If a sixth of the certificate's lifetime is shorter, that
/// applies.
const MIN_ORDER_INTERVAL: Duration = Duration::from_secs(3_600);

/// Time until the ACME server is asked again when to renew, if it does not set this time.
const ASK_AGAIN: Duration = Duration::from_secs(6 * 3_600);

/// How many orders have succeeded, and how many have failed.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// The folder `acme.state` and the bound listeners, before the ACME client is started.
#[derive(Debug)]
pub(crate) struct AcmeSockets {
    config: Acme,
    store: Store,
    listeners: Vec<TcpListener>,
}

/// Makes the folder `acme.state`, writes a placeholder if it has no certificate for the domains, and binds the
/// listeners of HTTP-01. Returns `None` if the configuration has no domains for ACME.
///
/// # Errors
/// Which folder or address cannot be used.
pub(crate) fn bind(config: &Acme, inherited: &mut InheritedSockets) -> Result<Option<AcmeSockets>> {
    if config.domains.is_empty() {
        return Ok(None);
    }
    let store = Store::open(&config.state)?;
    store.prepare(&config.domains)?;
    let mut listeners = Vec::new();
    if config.challenge == Challenge::Http01 {
        for address in &config.listen {
            let listener = match inherited.take_tcp(*address) {
                Some(listener) => Ok(listener),
                None => TcpListener::bind(address),
            };
            let listener =
                listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
            listeners.push(listener.with_context(|| {
                format!("cannot listen on {address} for validations; set it with acme.listen, or use acme.challenge = \"tls-alpn-01\"")
            })?);
        }
    }
    Ok(Some(AcmeSockets {
        config: config.clone(),
        store,
        listeners,
    }))
}

impl AcmeSockets {
    /// A copy with duplicates of the sockets. In an upgrade, the old server keeps it, because it may have to serve
    /// again.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub(crate) fn try_clone(&self) -> std::io::Result<AcmeSockets> {
        let listeners = self.listeners.iter().map(TcpListener::try_clone);
        Ok(AcmeSockets {
            config: self.config.clone(),
            store: self.store.clone(),
            listeners: listeners.collect::<Result<_, _>>()?,
        })
    }

    /// The listening sockets for HTTP-01 validations.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &TcpListener> {
        self.listeners.iter()
    }

    /// The addresses of the listeners for HTTP-01 validations.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = SocketAddr> {
        let listeners = self.listeners.iter();
        listeners.filter_map(|listener| listener.local_addr().ok())
    }

    /// The files of the certificate. [`bind`] has made them.
    pub(crate) fn files(&self) -> CertificateFiles {
        self.store.files()
    }

    /// Starts the thread of the ACME client. It orders and renews certificates until the result is dropped.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be made.
    pub(crate) fn serve(
        self,
        certificates: Certificates,
        counters: Arc<Counters>,
    ) -> Result<Serving> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .context("cannot make the runtime of the ACME client")?;
        let responder = Responder::default();
        let (stop, stopped) = oneshot::channel::<()>();
        let body = move || {
            runtime.block_on(async {
                for listener in self.listeners {
                    let responder = responder.clone();
                    match tokio::net::TcpListener::from_std(listener) {
                        Ok(listener) => drop(tokio::spawn(http::serve(listener, responder, None))),
                        Err(error) => tracing::error!(
                            "ACME: the listener for HTTP-01 validations failed: {error}"
                        ),
                    }
                }
                let client = Client {
                    config: self.config,
                    store: self.store,
                    responder,
                    certificates,
                    counters,
                    account: None,
                };
                tokio::spawn(client.run());
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new()
            .name("hairpin-acme".to_owned())
            .spawn(body)
            .context("cannot start the thread of the ACME client")?;
        Ok(Serving {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// A running ACME client. Dropping it stops the thread, and waits for its end.
#[derive(Debug)]
pub(crate) struct Serving {
    /// The thread stops when this sender is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
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

/// The ACME client, on its thread.
struct Client {
    config: Acme,
    store: Store,
    responder: Responder,
    certificates: Certificates,
    counters: Arc<Counters>,
    account: Option<Account>,
}

impl Client {
    /// Orders or renews the certificate each time that it is due. Never returns.
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            self.wait_until_due().await;
            let result = timeout(ORDER_TIMEOUT, self.renew()).await;
            let result = result
                .unwrap_or_else(|_| Err(anyhow!("the order took more than {ORDER_TIMEOUT:?}")));
            match result {
                Ok(()) => {
                    failures = 0;
                    self.counters.succeeded.fetch_add(1, Ordering::Relaxed);
                    // Even if an ACME server always suggests a time in the past, it must not get one order after the
                    // other.
                    let lifetime_s = self.certificate().map_or(0, |info| {
                        info.expires_unix_s.saturating_sub(info.begins_unix_s)
                    });
                    sleep(Duration::from_secs(lifetime_s / 6).min(MIN_ORDER_INTERVAL)).await;
                }
                Err(error) => {
                    failures += 1;
                    self.counters.failed.fetch_add(1, Ordering::Relaxed);
                    let pause_s = renewal::pause_s(failures);
                    let domains = self.config.domains.join(", ");
                    tracing::warn!(
                        domains,
                        failures,
                        next_try_s = pause_s,
                        "no certificate from the ACME server: {error:#}; the one in use stays"
                    );
                    sleep(Duration::from_secs(pause_s)).await;
                }
            }
        }
    }

    /// Waits until the certificate must be renewed. Returns at once if there is none.
    async fn wait_until_due(&mut self) {
        let share = share();
        while let Some(info) = self.certificate() {
            let (window, ask_again) = self.suggestion().await;
            let due = renewal::due(&info, window, share);
            let now = now_unix_s();
            if due <= now {
                return;
            }
            tracing::debug!(in_s = due - now, "the certificate will be renewed");
            sleep(Duration::from_secs(due - now).min(ask_again)).await;
        }
    }

    /// The stored certificate of the ACME server; `None` if there is none for the configured domains.
    fn certificate(&self) -> Option<CertificateInfo> {
        let info = self.store.certificate();
        info.filter(|info| store::names_are(info, &self.config.domains))
    }

    /// The window in which the ACME server suggests to renew (RFC 9773), and the time until it is asked again.
    async fn suggestion(&mut self) -> (Option<Window>, Duration) {
        let asked = async {
            let file = self.certificate_file();
            let leaf = CertificateDer::from_pem_file(&file)?;
            let id = CertificateIdentifier::try_from(&leaf)
                .map_err(|error| anyhow!("{error}"))?
                .into_owned();
            let (info, retry_after) = self.account().await?.renewal_info(&id).await?;
            let unix_s = |at: i64| u64::try_from(at).unwrap_or(0);
            let window = Window {
                start: unix_s(info.suggested_window.start.unix_timestamp()),
                end: unix_s(info.suggested_window.end.unix_timestamp()),
            };
            anyhow::Ok((window, retry_after))
        };
        match timeout(ORDER_TIMEOUT, asked).await {
            Ok(Ok((window, retry_after))) => {
                (Some(window), retry_after.max(Duration::from_secs(60)))
            }
            Ok(Err(error)) => {
                tracing::debug!("the ACME server suggests no time for the renewal: {error:#}");
                (None, ASK_AGAIN)
            }
            Err(_) => (None, ASK_AGAIN),
        }
    }

    fn certificate_file(&self) -> std::path::PathBuf {
        self.store.files().certificate
    }

    /// The account at the ACME server. The first call loads or creates it.
    async fn account(&mut self) -> Result<&Account> {
        if self.account.is_none() {
            self.account = Some(order::account(&self.config, &self.store).await?);
        }
        self.account.as_ref().context("an account")
    }

    /// Orders a certificate, stores it, and makes the server use it.
    async fn renew(&mut self) -> Result<()> {
        let old = self.certificate().and_then(|_| {
            let leaf = CertificateDer::from_pem_file(self.certificate_file()).ok()?;
            let id = CertificateIdentifier::try_from(&leaf).ok()?;
            Some(id.into_owned())
        });
        self.account().await?;
        let account = self.account.as_ref().context("an account")?;
        let obtain = |replaces| {
            order::obtain(
                &self.config,
                account,
                replaces,
                &self.responder,
                &self.certificates,
            )
        };
        let issued = match obtain(old.clone()).await {
            // The ACME server may not support RFC 9773, or may no longer know the old certificate.
            Err(_) if old.is_some() => obtain(None).await?,
            result => result?,
        };
        self.store.save_certificate(&issued.key, &issued.chain)?;
        // `reload` logs the result.
        for outcome in self.certificates.reload() {
            outcome?;
        }
        Ok(())
    }
}

/// A random number, 0 to 1. It selects the time of the renewal in the suggested window.
fn share() -> f64 {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    f64::from(random) / f64::from(u32::MAX)
}
