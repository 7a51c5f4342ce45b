//! Certificates, and a pair of endpoint and client with a network between them.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test says no more")]

use std::sync::Arc;
use std::time::Duration;

use hairpin_dtls::{
    Certificates, Client, ClientConfig, ClientEvent, Config, CookieKey, Endpoint, Event, Limits,
    Path, Received,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SignatureAlgorithm,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use timers::Mono;

/// A root, an intermediate and a certificate for `turn.example`, localhost and 127.0.0.1.
pub(crate) struct Authority {
    pub(crate) root_pem: String,
    pub(crate) chain_pem: String,
    pub(crate) key_pem: String,
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) verifier: Arc<dyn ServerCertVerifier>,
}

fn ca(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    params
}

fn key_pair(algorithm: &'static SignatureAlgorithm) -> KeyPair {
    KeyPair::generate_for(algorithm).unwrap()
}

impl Authority {
    /// The end entity's key has this algorithm; the issuers' keys are P-256.
    pub(crate) fn new(algorithm: &'static SignatureAlgorithm) -> Authority {
        let root =
            CertifiedIssuer::self_signed(ca("test root"), key_pair(&rcgen::PKCS_ECDSA_P256_SHA256))
                .unwrap();
        let middle = CertifiedIssuer::signed_by(
            ca("test intermediate"),
            key_pair(&rcgen::PKCS_ECDSA_P256_SHA256),
            &root,
        )
        .unwrap();
        let key = key_pair(algorithm);
        let names = ["turn.example", "localhost", "127.0.0.1"].map(String::from);
        let leaf = CertificateParams::new(names)
            .unwrap()
            .signed_by(&key, &middle)
            .unwrap();
        let chain = vec![
            CertificateDer::from(leaf.der().to_vec()),
            CertificateDer::from(middle.der().to_vec()),
        ];
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let signing = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der).unwrap();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from(root.der().to_vec()))
            .unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        Authority {
            root_pem: root.pem(),
            chain_pem: format!("{}{}", leaf.pem(), middle.pem()),
            key_pem: key.serialize_pem(),
            key: Arc::new(CertifiedKey::new(chain, signing)),
            verifier,
        }
    }

    pub(crate) fn ecdsa() -> Authority {
        Authority::new(&rcgen::PKCS_ECDSA_P256_SHA256)
    }

    pub(crate) fn config(&self, limits: Limits) -> Arc<Config> {
        Arc::new(Config {
            certificates: Arc::new(self.key.clone()),
            protocols: vec![b"stun.turn".to_vec(), b"stun.nat-discovery".to_vec()],
            limits,
        })
    }

    pub(crate) fn endpoint(&self, limits: Limits) -> Endpoint {
        Endpoint::new(self.config(limits), CookieKey::new(&[9; 32]), [1, 2])
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new(self.verifier.clone());
        config.protocols = vec![b"stun.turn".to_vec()];
        config
    }

    pub(crate) fn client(&self, now: Mono) -> Client {
        client_of(self.client_config(), "turn.example", now)
    }
}

pub(crate) fn client_of(config: ClientConfig, name: &str, now: Mono) -> Client {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    Client::new(Arc::new(config), name, now, unix())
}

/// rcgen's certificates are valid from 1975 to 4096.
pub(crate) fn unix() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(1_790_000_000))
}

/// A source without certificates.
#[derive(Debug)]
pub(crate) struct NoCertificates;

impl Certificates for NoCertificates {
    fn find(&self, _: u32, _: Option<&str>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

pub(crate) fn path(client: u16) -> Path {
    Path {
        listener: 7,
        local: "192.0.2.1:3478".parse().unwrap(),
        remote: format!(
            "198.51.{}.{}:{}",
            client >> 8,
            client & 0xff,
            1000 + u32::from(client)
        )
        .parse()
        .unwrap(),
    }
}

pub(crate) const MS: u64 = 1_000_000;

/// All that an endpoint wants to send.
pub(crate) fn transmits(endpoint: &mut Endpoint) -> Vec<(Path, Vec<u8>)> {
    std::iter::from_fn(|| {
        endpoint
            .poll_transmit()
            .map(|(path, bytes)| (path, bytes.to_vec()))
    })
    .collect()
}

pub(crate) fn client_transmits(client: &mut Client) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| client.poll_transmit().map(<[u8]>::to_vec)).collect()
}

pub(crate) fn events(endpoint: &mut Endpoint) -> Vec<Event> {
    std::iter::from_fn(|| endpoint.poll_event()).collect()
}

pub(crate) fn client_events(client: &mut Client) -> Vec<ClientEvent> {
    std::iter::from_fn(|| client.poll_event()).collect()
}

/// Hands a datagram to the endpoint, does all its work, and returns the messages.
pub(crate) fn give(
    endpoint: &mut Endpoint,
    now: Mono,
    path: &Path,
    datagram: &[u8],
) -> Vec<Vec<u8>> {
    let mut bytes = datagram.to_vec();
    let mut rest = &mut bytes[..];
    let mut messages = Vec::new();
    while let Received::Data {
        message,
        rest: behind,
        ..
    } = endpoint.handle_datagram(now, path, rest)
    {
        messages.push(message.to_vec());
        rest = behind;
    }
    while endpoint.step(now) {}
    messages
}

pub(crate) fn give_client(client: &mut Client, now: Mono, datagram: &[u8]) -> Vec<Vec<u8>> {
    let mut bytes = datagram.to_vec();
    let mut rest = &mut bytes[..];
    let mut messages = Vec::new();
    while let Some((message, behind)) = client.handle_datagram(now, rest) {
        messages.push(message.to_vec());
        rest = behind;
    }
    messages
}

/// Exchanges datagrams until nobody has any.
pub(crate) fn exchange(endpoint: &mut Endpoint, client: &mut Client, now: Mono, path: &Path) {
    loop {
        let to_server = client_transmits(client);
        let quiet = to_server.is_empty();
        for datagram in to_server {
            give(endpoint, now, path, &datagram);
        }
        let to_client = transmits(endpoint);
        if quiet && to_client.is_empty() {
            return;
        }
        for (to, datagram) in to_client {
            assert_eq!(to, *path);
            give_client(client, now, &datagram);
        }
    }
}

/// An established pair.
pub(crate) fn connected(authority: &Authority, limits: Limits) -> (Endpoint, Client) {
    let mut endpoint = authority.endpoint(limits);
    let mut client = authority.client(Mono(0));
    exchange(&mut endpoint, &mut client, Mono(0), &path(1));
    assert!(client.is_established(), "{:?}", client_events(&mut client));
    (endpoint, client)
}
