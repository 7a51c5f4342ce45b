//! Certificates of TLS and DTLS listeners. The server name in the ClientHello (SNI) selects one. A pair can belong to
//! some listeners only. Files are read again when they change.
//!
//! ```no_run
//! use hairpin_server::certificates::{CertificateFiles, Certificates};
//!
//! let files = CertificateFiles {
//!     certificate: "/etc/hairpin/tls.crt".into(),
//!     key: "/etc/hairpin/tls.key".into(),
//!     ..CertificateFiles::default()
//! };
//! let certificates = Certificates::from_files(vec![files])?;
//! let server = hairpin_server::Server::builder()
//!     .listen("0.0.0.0:3478".parse()?)
//!     .listen_tls("0.0.0.0:5349".parse()?)
//!     .certificates(certificates);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod challenge;
mod files;
mod fingerprint;
mod pair;
mod watch;

#[cfg(test)]
mod handshake_tests;
#[cfg(test)]
mod tests;

pub use challenge::AcmeValidation;
pub use fingerprint::{Fingerprint, NoFingerprint};
pub(crate) use pair::self_sign;
pub use pair::{CertificateError, CertificateFiles, CertificateInfo};
pub(crate) use watch::CertificateWatch;

use arc_swap::ArcSwap;
use challenge::Challenges;
use files::Stamp;
use pair::Pair;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use streams::rustls::client::ResolvesClientCert;
use streams::rustls::crypto::aws_lc_rs;
use streams::rustls::pki_types::CertificateDer;
use streams::rustls::server::danger::ClientCertVerifier;
use streams::rustls::server::{ClientHello, NoClientAuth, ResolvesServerCert};
use streams::rustls::sign::CertifiedKey;
use streams::rustls::{
    RootCertStore, ServerConfig, SignatureScheme, SupportedProtocolVersion, version,
};

/// Application protocols (RFC 7443, RFC 8737). The server rejects a client that offers only others, and accepts one
/// that offers none.
const PROTOCOLS: [&[u8]; 3] = [b"stun.turn", b"stun.nat-discovery", challenge::PROTOCOL];

/// Certificates that all workers share. Clones refer to the same certificates.
///
/// If a pair names a listener, the value that [`at`](Self::at) returns for it uses only such pairs. Any other value
/// uses the pairs without a listener.
#[derive(Debug, Clone)]
pub struct Certificates {
    shared: Arc<Shared>,
    /// The listener whose own pairs a handshake uses; `None`: the pairs for all listeners.
    listener: Option<SocketAddr>,
}

struct Shared {
    /// Read once per handshake. Workers never wait for a lock.
    pairs: ArcSwap<Vec<Pair>>,
    /// The files of each pair, in the same order; empty if the pairs come from memory. The mutex is held while `pairs`
    /// are replaced.
    sources: Mutex<Vec<Source>>,
    generation: AtomicU64,
    failed_reloads: AtomicU64,
    challenges: Challenges,
}

/// The files of a pair, and their last known state.
#[derive(Debug)]
struct Source {
    files: CertificateFiles,
    /// The state of the files at the last read.
    stamp: Option<Stamp>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("pairs", &self.pairs())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn pairs(&self) -> Arc<Vec<Pair>> {
        self.pairs.load_full()
    }

    fn sources(&self) -> MutexGuard<'_, Vec<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, pairs: Vec<Pair>) {
        self.pairs.store(Arc::new(pairs));
        self.generation.fetch_add(1, Ordering::Release);
    }
}

fn share(pairs: Vec<Pair>, sources: Vec<Source>) -> Result<Certificates, CertificateError> {
    if pairs.is_empty() {
        return Err(CertificateError::Empty);
    }
    Ok(Certificates {
        shared: Arc::new(Shared {
            pairs: ArcSwap::from_pointee(pairs),
            sources: Mutex::new(sources),
            generation: AtomicU64::new(0),
            failed_reloads: AtomicU64::new(0),
            challenges: Challenges::default(),
        }),
        listener: None,
    })
}

impl Certificates {
    /// Reads PEM files. A running server reads them again when they change.
    ///
    /// # Errors
    /// [`CertificateError`]: which file cannot be used, why, and what to do.
    pub fn from_files(files: Vec<CertificateFiles>) -> Result<Certificates, CertificateError> {
        let mut pairs = Vec::with_capacity(files.len());
        let mut sources = Vec::with_capacity(files.len());
        for files in files {
            // The stamp is taken before the read. So a change during the read is detected later.
            let stamp = Stamp::of(&files);
            pairs.push(pair::read(&files)?);
            sources.push(Source { files, stamp });
        }
        share(pairs, sources)
    }

    /// Uses one pair from memory: a chain and a private key in PEM.
    ///
    /// # Errors
    /// [`CertificateError`]: why the pair cannot be used.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Certificates, CertificateError> {
        let pair = pair::parse(certificate, key, "memory", "memory")?;
        share(vec![pair], Vec::new())
    }

    /// Makes a self-signed certificate for these DNS names and IP addresses, with a new P-256 key. No client trusts it.
    /// For development and tests.
    ///
    /// # Errors
    /// [`CertificateError::Generate`] if a name is not valid in a certificate.
    pub fn self_signed(names: &[String]) -> Result<Certificates, CertificateError> {
        let pem = Certificates::self_signed_pem(names)?;
        Certificates::from_pem(pem.as_bytes(), pem.as_bytes())
    }

    /// The same as text in PEM: the certificate, and its key.
    ///
    /// # Errors
    /// [`CertificateError::Generate`] if a name is not valid in a certificate.
    pub fn self_signed_pem(names: &[String]) -> Result<String, CertificateError> {
        let made = rcgen::generate_simple_self_signed(names)
            .map_err(|error| CertificateError::Generate(error.to_string()))?;
        Ok(made.cert.pem() + &made.signing_key.serialize_pem())
    }

    /// The certificates as this listener uses them: the pairs that name it
    /// ([`listeners`](CertificateFiles::listeners)), or else those for all listeners.
    #[must_use]
    pub fn at(&self, listener: SocketAddr) -> Certificates {
        let pairs = self.shared.pairs.load();
        let has_own = pairs.iter().any(|pair| pair.listeners.contains(&listener));
        Certificates {
            shared: Arc::clone(&self.shared),
            listener: has_own.then_some(listener),
        }
    }

    /// The listeners with pairs of their own.
    #[must_use]
    pub fn listeners(&self) -> Vec<SocketAddr> {
        let pairs = self.shared.pairs.load();
        let mut all: Vec<_> = pairs
            .iter()
            .flat_map(|pair| pair.listeners.to_vec())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether a handshake finds no pair: all pairs are for other listeners.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.shared.pairs.load().iter().any(|pair| self.has(pair))
    }

    fn has(&self, pair: &Pair) -> bool {
        match &self.listener {
            Some(listener) => pair.listeners.contains(listener),
            None => pair.listeners.is_empty(),
        }
    }

    /// Names, validity and fingerprint of the pair that a handshake without a server name gets.
    #[must_use]
    pub fn default_info(&self) -> Option<CertificateInfo> {
        let pairs = self.shared.pairs.load();
        let first = pairs.iter().find(|pair| self.has(pair));
        first.map(|pair| pair.about.clone())
    }

    /// Names, validity and fingerprint of each certificate of all listeners, in their order.
    #[must_use]
    pub fn info(&self) -> Vec<CertificateInfo> {
        let pairs = self.shared.pairs();
        pairs.iter().map(|pair| pair.about.clone()).collect()
    }

    /// The number of replacements. A changed number shows the holder of a copy that the copy is old.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// How many times changed files could not be used.
    #[must_use]
    pub fn failed_reloads(&self) -> u64 {
        self.shared.failed_reloads.load(Ordering::Relaxed)
    }

    /// The chain of the default pair, the server's own certificate first: for clients that shall trust a self-signed
    /// one.
    #[must_use]
    pub fn default_chain(&self) -> Vec<CertificateDer<'static>> {
        self.shared.pairs()[0].key.cert.clone()
    }

    /// A configuration for TLS 1.2 and 1.3, or 1.3 only. It always uses the current certificates. Clients resume
    /// sessions with tickets, whose keys change every few hours. A ticket is for this configuration only: a client that
    /// has one of another listener makes a full handshake, and gets the certificate of this one.
    #[must_use]
    pub fn server_config(&self, only_tls13: bool) -> Arc<ServerConfig> {
        self.server_config_for_clients(only_tls13, Arc::new(NoClientAuth))
    }

    /// The same for clients that have certificates themselves, which `verifier` judges.
    #[must_use]
    pub fn server_config_for_clients(
        &self,
        only_tls13: bool,
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> Arc<ServerConfig> {
        const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
        let versions = if only_tls13 { &BOTH[..1] } else { BOTH };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions);
        // This does not fail: the provider has cipher suites of both versions.
        let config = config.unwrap_or_else(|_| ServerConfig::builder());
        let mut config = config
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        if let Ok(ticketer) = aws_lc_rs::Ticketer::new() {
            config.ticketer = ticketer;
        }
        // A client with one connection requires one ticket. Each ticket adds 200 bytes to the handshake.
        config.send_tls13_tickets = 1;
        // With tickets the server stores no sessions.
        config.session_storage = Arc::new(streams::rustls::server::NoServerSessionStorage {});
        Arc::new(config)
    }

    /// Root certificates in PEM files, for verifying others. Unlike pairs they are read once.
    ///
    /// # Errors
    /// [`CertificateError`]: which file cannot be used, and why.
    pub fn roots(files: &[impl AsRef<Path>]) -> Result<Arc<RootCertStore>, CertificateError> {
        let mut roots = RootCertStore::empty();
        for file in files {
            pair::read_roots(file.as_ref(), &mut roots)?;
        }
        Ok(Arc::new(roots))
    }

    /// Reads changed files again. If a new pair cannot be used, the old one stays in service. Logs and returns the
    /// result for each changed pair. A running server does this every few seconds.
    pub fn reload(&self) -> Vec<Result<CertificateInfo, CertificateError>> {
        let mut sources = self.shared.sources();
        let current = self.shared.pairs();
        let mut outcomes = Vec::new();
        let mut pairs: Vec<Option<Pair>> = Vec::with_capacity(sources.len());
        for (source, old) in sources.iter_mut().zip(current.iter()) {
            let stamp = Stamp::of(&source.files);
            if stamp == source.stamp {
                pairs.push(None);
                continue;
            }
            // Files that cannot be used are read only once, until they change again.
            source.stamp = stamp;
            let read = pair::read(&source.files).and_then(|new| reject_expired(new, old));
            match read {
                Ok(new) => {
                    outcomes.push(Ok(new.about.clone()));
                    pairs.push(Some(new));
                }
                Err(error) => {
                    self.shared.failed_reloads.fetch_add(1, Ordering::Relaxed);
                    outcomes.push(Err(error));
                    pairs.push(None);
                }
            }
        }
        if pairs.iter().any(Option::is_some) {
            let merged = pairs.into_iter().zip(current.iter());
            let merged = merged.map(|(new, old)| new.unwrap_or_else(|| old.share()));
            self.shared.replace(merged.collect());
        }
        outcomes.iter().for_each(watch::log_outcome);
        outcomes
    }

    /// Whether the pairs come from files.
    pub(crate) fn has_files(&self) -> bool {
        !self.shared.sources().is_empty()
    }

    fn select(&self, server_name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let pairs = self.shared.pairs.load();
        let mut own = pairs.iter().filter(|pair| self.has(pair));
        let mut best = (0, own.next()?);
        if let Some(name) = server_name {
            best.0 = best.1.about.fits(name);
            for pair in own {
                let fit = pair.about.fits(name);
                if fit > best.0 {
                    best = (fit, pair);
                }
            }
        }
        Some(Arc::clone(&best.1.key))
    }
}

impl Pair {
    fn share(&self) -> Pair {
        Pair {
            key: Arc::clone(&self.key),
            private: self.private.clone_key(),
            about: self.about.clone(),
            listeners: Arc::clone(&self.listeners),
        }
    }
}

/// Rejects an expired pair if the old pair has not expired.
fn reject_expired(new: Pair, old: &Pair) -> Result<Pair, CertificateError> {
    if new.about.days_left() < 0 && old.about.days_left() >= 0 {
        let place = new.about.place;
        return Err(CertificateError::Expired { place });
    }
    Ok(new)
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if Challenges::is_validation(&hello) {
            return self.shared.challenges.find(hello.server_name());
        }
        self.select(hello.server_name())
    }
}

/// The first pair authenticates this server to other servers.
impl ResolvesClientCert for Certificates {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let pairs = self.shared.pairs.load();
        let pair = pairs.first()?;
        pair.key.key.choose_scheme(schemes)?;
        Some(Arc::clone(&pair.key))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The certificates of each UDP listener, by its number.
#[derive(Debug)]
pub(crate) struct OfListeners(pub(crate) Vec<Certificates>);

impl dtls::Certificates for OfListeners {
    fn find(&self, listener: u32, server_name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        self.0.get(listener as usize)?.select(server_name)
    }
}
