//! TLS between the nodes of a cluster. Each node has a certificate that it makes itself. The embedding program
//! publishes its fingerprint, and gives those of the other nodes.
//!
//! ```text
//!  node B ── ClientHello to the TCP port of a plain listener ──▶ node A
//!         ◀── certificate of A ──   B accepts those that A publishes, and no issuer
//!         ─── certificate of B ──▶  A accepts those that any node publishes; without one, there is no connection
//! ```
//!
//! The key of a certificate is derived from the secret of the cluster, the name of the node and an epoch. So a node has
//! the same certificate after a restart and in both processes of an upgrade. The session keys are those of TLS 1.3: who
//! learns the secret later cannot read what was recorded before.

use crate::certificates::{Fingerprint, self_sign};
use crate::cluster_keys::ClusterKeys;
use arc_swap::ArcSwap;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519, SerialNumber};
use sip::flow::Transport;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use streams::Tls;
use streams::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use streams::rustls::client::{ResolvesClientCert, Resumption};
use streams::rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use streams::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use streams::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use streams::rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use streams::rustls::sign::CertifiedKey;
use streams::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme, version,
};

/// A node publishes the fingerprints of both certificates from this time before the end of an epoch to this time after
/// it. So clocks may differ by less, and nodes may lose the engine for less.
const OVERLAP_S: u64 = 3 * 86_400;

/// How long this node keeps the fingerprints of a node that publishes nothing any more. So dialogs continue while the
/// engine is down.
const FINGERPRINTS_KEPT_TIME: Duration = Duration::from_secs(7 * 86_400);

/// The maximum of kept addresses. It is larger than a cluster, because a node may get another address.
const MAX_ADDRESSES: usize = 4_000;

/// RFC 8410 §7: the bytes before an Ed25519 key in PKCS #8.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
];

/// The fingerprints that another node publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFingerprints {
    /// Its addresses for SIP over TLS.
    pub addresses: Vec<SocketAddr>,
    /// The fingerprints of the certificates that it may use.
    pub fingerprints: Vec<Fingerprint>,
}

/// A certificate cannot be made.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot make a certificate for TLS between nodes: {0}")]
pub struct NodeTlsError(String);

/// The certificate of this node, and those of the others.
pub struct NodeTls {
    accept: Arc<ServerConfig>,
    /// Each connection gets a copy that accepts the certificates of one node.
    connect: ClientConfig,
    signatures: NodeSignatures,
    own: Arc<OwnCertificates>,
    known: Arc<ArcSwap<NodeCertificates>>,
}

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.load();
        f.debug_struct("NodeTls")
            .field("own", &self.own.current.load().fingerprints)
            .field("addresses", &known.by_address.len())
            .finish_non_exhaustive()
    }
}

/// The certificates of this node.
struct OwnCertificates {
    keys: ClusterKeys,
    node: String,
    current: ArcSwap<CurrentCertificate>,
}

#[derive(Debug)]
struct CurrentCertificate {
    /// The epochs whose fingerprints are published, in order of time.
    epochs: Vec<u64>,
    fingerprints: Vec<Fingerprint>,
    /// The current epoch, and its certificate.
    epoch: u64,
    certificate: Arc<CertifiedKey>,
}

/// The certificates of the other nodes.
#[derive(Debug, Default)]
struct NodeCertificates {
    by_address: HashMap<SocketAddr, NodeEntry>,
    /// The fingerprints of all nodes.
    all: HashSet<Fingerprint>,
}

#[derive(Debug, Clone)]
struct NodeEntry {
    fingerprints: Arc<[Fingerprint]>,
    seen: Instant,
}

impl NodeTls {
    /// The TLS of the node with this name. It does not know other nodes yet.
    ///
    /// # Errors
    /// [`NodeTlsError`]: the certificate cannot be made.
    pub fn new(keys: ClusterKeys, node: &str, unix_s: u64) -> Result<NodeTls, NodeTlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let own = Arc::new(OwnCertificates {
            current: ArcSwap::from_pointee(CurrentCertificate::at(
                &keys,
                node,
                &epochs(unix_s),
                unix_s,
            )?),
            keys,
            node: node.to_owned(),
        });
        let known = Arc::new(ArcSwap::from_pointee(NodeCertificates::default()));
        let text = |error: Error| NodeTlsError(error.to_string());
        let accept = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(text)?;
        let signatures = NodeSignatures(Arc::clone(&provider));
        let verifier = Arc::new(AnyNodeVerifier {
            known: Arc::clone(&known),
            signatures: signatures.clone(),
        });
        let mut accept = accept
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&own) as _);
        // A resumed session has no certificate to verify (RFC 8446 §2.2).
        accept.session_storage = Arc::new(NoServerSessionStorage {});
        accept.send_tls13_tickets = 0;
        let connect = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(text)?;
        let nobody = Arc::new(AddressVerifier {
            fingerprints: Arc::from([]),
            signatures: signatures.clone(),
        });
        let mut connect = connect
            .dangerous()
            .with_custom_certificate_verifier(nobody)
            .with_client_cert_resolver(Arc::clone(&own) as _);
        connect.resumption = Resumption::disabled();
        Ok(NodeTls {
            accept: Arc::new(accept),
            connect,
            signatures,
            own,
            known,
        })
    }

    /// Changes the certificate in a new epoch. Returns the fingerprints to publish: two of them around a change.
    ///
    /// # Errors
    /// [`NodeTlsError`]: the next certificate cannot be made. The current one stays.
    pub fn renew(&self, unix_s: u64) -> Result<Vec<Fingerprint>, NodeTlsError> {
        let current = self.own.current.load();
        let epochs = epochs(unix_s);
        if current.epoch == ClusterKeys::node_epoch(unix_s) && current.epochs == epochs {
            return Ok(current.fingerprints.clone());
        }
        let next = CurrentCertificate::at(&self.own.keys, &self.own.node, &epochs, unix_s)?;
        if next.epoch != current.epoch {
            let sha256 = next
                .certificate
                .cert
                .first()
                .map(|der| Fingerprint::of(der));
            let sha256 = sha256.map(|it| it.to_string()).unwrap_or_default();
            tracing::info!(sha256, "renewed the node certificate");
        }
        let fingerprints = next.fingerprints.clone();
        self.own.current.store(Arc::new(next));
        Ok(fingerprints)
    }

    /// Stores what the other nodes publish now. The fingerprints of a node that is missing here stay for a week.
    ///
    /// If several nodes publish one address, the certificates of all of them are accepted there. Each of them has the
    /// secret. A node that gets another name shares the address with its earlier name for some seconds.
    pub fn set_nodes(&self, nodes: &[NodeFingerprints], now: Instant) {
        let mut by_address = self.known.load().by_address.clone();
        by_address
            .retain(|_, entry| now.saturating_duration_since(entry.seen) < FINGERPRINTS_KEPT_TIME);
        let mut published: HashMap<SocketAddr, Vec<Fingerprint>> = HashMap::new();
        for node in nodes {
            for address in &node.addresses {
                let fingerprints = published.entry(*address).or_default();
                fingerprints.extend(&node.fingerprints);
            }
        }
        let entry = |fingerprints: Vec<Fingerprint>| NodeEntry {
            fingerprints: fingerprints.into(),
            seen: now,
        };
        let published = published.into_iter();
        by_address.extend(published.map(|(address, all)| (address, entry(all))));
        if by_address.len() > MAX_ADDRESSES {
            let mut all: Vec<_> = by_address.into_iter().collect();
            all.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.seen));
            all.truncate(MAX_ADDRESSES);
            by_address = all.into_iter().collect();
        }
        let all = by_address.values();
        let all = all.flat_map(|entry| entry.fingerprints.iter().copied());
        self.known.store(Arc::new(NodeCertificates {
            all: all.collect(),
            by_address,
        }));
    }

    /// Whether a node accepts TLS at this address.
    pub(super) fn has(&self, transport: Transport, address: SocketAddr) -> bool {
        transport == Transport::Tls && self.known.load().by_address.contains_key(&address)
    }

    /// TLS for a connection that another node opens.
    pub(super) fn accepted(&self) -> Option<Tls> {
        Tls::server(Arc::clone(&self.accept)).ok()
    }

    /// TLS for a connection to the node at this address. `None` if the address is unknown.
    pub(super) fn connecting(&self, to: SocketAddr) -> Option<Tls> {
        let known = self.known.load();
        let entry = known.by_address.get(&to)?;
        let mut config = self.connect.clone();
        let verifier = Arc::new(AddressVerifier {
            fingerprints: Arc::clone(&entry.fingerprints),
            signatures: self.signatures.clone(),
        });
        config.dangerous().set_certificate_verifier(verifier);
        // An address is no SNI (RFC 6066 §3). A node has one certificate, so none is required.
        let name = ServerName::IpAddress(to.ip().into());
        Tls::client(Arc::new(config), name).ok()
    }
}

/// The epochs whose fingerprints this node publishes at this time: one, or two around the end of one.
fn epochs(unix_s: u64) -> Vec<u64> {
    let times = [
        unix_s.saturating_sub(OVERLAP_S),
        unix_s,
        unix_s.saturating_add(OVERLAP_S),
    ];
    let mut epochs = times.map(ClusterKeys::node_epoch).to_vec();
    epochs.dedup();
    epochs
}

impl CurrentCertificate {
    fn at(
        keys: &ClusterKeys,
        node: &str,
        epochs: &[u64],
        unix_s: u64,
    ) -> Result<CurrentCertificate, NodeTlsError> {
        let epoch = ClusterKeys::node_epoch(unix_s);
        let mut fingerprints = Vec::with_capacity(epochs.len());
        for epoch in epochs {
            let made = certificate(keys, node, *epoch)?;
            fingerprints.extend(made.cert.first().map(|der| Fingerprint::of(der)));
        }
        Ok(CurrentCertificate {
            epochs: epochs.to_vec(),
            fingerprints,
            epoch,
            certificate: Arc::new(certificate(keys, node, epoch)?),
        })
    }
}

/// The certificate of a node in an epoch. Each process makes the same one, byte by byte: Ed25519 has no random number
/// (RFC 8032 §5.1.6).
fn certificate(keys: &ClusterKeys, node: &str, epoch: u64) -> Result<CertifiedKey, NodeTlsError> {
    let text = |error: rcgen::Error| NodeTlsError(error.to_string());
    let mut params = CertificateParams::default();
    params.serial_number = Some(SerialNumber::from(epoch));
    params.distinguished_name = rcgen::DistinguishedName::new();
    let name = format!("hairpin node {node}");
    params.distinguished_name.push(DnType::CommonName, name);
    let private = [&PKCS8_PREFIX[..], &keys.node_key(node, epoch)].concat();
    let private = PrivatePkcs8KeyDer::from(private);
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&private, &PKCS_ED25519).map_err(text)?;
    self_sign(&params, &key).map_err(NodeTlsError)
}

impl fmt::Debug for OwnCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnCertificates")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl ResolvesServerCert for OwnCertificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().certificate))
    }
}

impl ResolvesClientCert for OwnCertificates {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().certificate))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Accepts a certificate only if its fingerprint is listed. Its names and dates do not count.
fn verify(is_listed: bool) -> Result<(), Error> {
    match is_listed {
        true => Ok(()),
        false => Err(CertificateError::ApplicationVerificationFailure.into()),
    }
}

/// Verifies the handshake signatures of nodes, which offer TLS 1.3 only.
#[derive(Clone, Debug)]
struct NodeSignatures(Arc<CryptoProvider>);

impl NodeSignatures {
    fn refuse_tls12() -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("nodes have TLS 1.3 only".to_owned()))
    }

    fn verify_tls13(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    /// All schemes, because a later version of hairpin may use another key type than Ed25519.
    fn schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts the certificates that nodes publish for one address.
#[derive(Debug)]
struct AddressVerifier {
    fingerprints: Arc<[Fingerprint]>,
    signatures: NodeSignatures,
}

impl ServerCertVerifier for AddressVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify(self.fingerprints.contains(&Fingerprint::of(certificate)))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        NodeSignatures::refuse_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures.verify_tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.schemes()
    }
}

/// Accepts the certificates of all nodes. A client without a certificate is refused.
#[derive(Debug)]
struct AnyNodeVerifier {
    known: Arc<ArcSwap<NodeCertificates>>,
    signatures: NodeSignatures,
}

impl ClientCertVerifier for AnyNodeVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let known = self.known.load();
        verify(known.all.contains(&Fingerprint::of(certificate)))?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        NodeSignatures::refuse_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signatures.verify_tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.schemes()
    }
}

#[cfg(test)]
mod tests;
