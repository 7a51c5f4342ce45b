//! What the targets of the connection layer do with an input, shared with the test in crates/streams that replays the
//! corpus.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use hairpin_streams as streams;
use streams::proxy::{self, Carried, Proxy};
use streams::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use streams::rustls::crypto::aws_lc_rs;
use streams::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use streams::rustls::version::{TLS12, TLS13};
use streams::rustls::{
    ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme,
    SupportedProtocolVersion,
};
use streams::{FirstBytes, Tls};

/// Trusts any certificate: the target is about records.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = aws_lc_rs::default_provider();
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

type Configs = (Arc<ServerConfig>, [Arc<ClientConfig>; 2]);

/// A server's configuration, and one of a client for each version.
fn configs() -> &'static Configs {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(vec!["turn.example".to_owned()]);
        let made = made.expect("a certificate");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key);
        let client = |version: &'static SupportedProtocolVersion| {
            let config = ClientConfig::builder_with_protocol_versions(&[version])
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anybody))
                .with_no_client_auth();
            Arc::new(config)
        };
        let server = server.expect("a key that fits");
        (Arc::new(server), [&TLS12, &TLS13].map(client))
    })
}

/// One side of a TLS connection, and what it has sent and received.
struct Side {
    tls: Tls,
    /// Ciphertext on its way to the other side.
    wire: VecDeque<u8>,
    sent: Vec<u8>,
    received: Vec<u8>,
    has_failed: bool,
    has_closed: bool,
}

impl Side {
    fn new(tls: Tls) -> Side {
        Side {
            tls,
            wire: VecDeque::new(),
            sent: Vec::new(),
            received: Vec::new(),
            has_failed: false,
            has_closed: false,
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        let mut out = Vec::new();
        let result = self.tls.received(bytes, &mut self.received, &mut out);
        assert!(
            !(self.has_failed || self.has_closed) || result.is_err(),
            "a connection that is over stays so"
        );
        self.has_failed |= result.is_err() && !self.has_closed;
        self.wire.extend(out);
    }

    fn send(&mut self, length: u8) {
        let plain: Vec<u8> = (0..length)
            .map(|byte| byte ^ self.sent.len() as u8)
            .collect();
        let mut out = Vec::new();
        if self.tls.encrypt(&plain, &mut out).is_ok() {
            self.sent.extend(plain);
        } else {
            assert!(out.is_empty());
        }
        self.wire.extend(out);
    }
}

/// A client and a server. The first byte selects the version; then each pair of bytes is a step: records arrive in
/// pieces, are damaged or lost, data is sent, a side closes. Whatever happens, a side receives only what the other one
/// has sent, in order; and if nothing is damaged, nothing fails.
pub fn tls(input: &[u8]) {
    let Some((first, steps)) = input.split_first() else {
        return;
    };
    let (server, clients) = configs();
    let client = Arc::clone(&clients[usize::from(first & 1)]);
    let name = ServerName::try_from("turn.example").expect("a name");
    let client = Tls::client(client, name).expect("a configuration");
    let server = Tls::server(Arc::clone(server)).expect("a configuration");
    let mut sides = [client, server].map(Side::new);
    sides[0].receive(&[]);
    let mut is_damaged = false;
    for step in steps.chunks_exact(2) {
        let (from, argument) = (usize::from(step[0] >> 7), step[1]);
        let length = usize::from(argument).min(sides[from].wire.len());
        match step[0] & 7 {
            0..=2 => {
                // All that waits, if the argument is the largest.
                let all = sides[from].wire.len();
                let length = if argument == u8::MAX { all } else { length };
                let bytes: Vec<u8> = sides[from].wire.drain(..length).collect();
                sides[1 - from].receive(&bytes);
            }
            3 | 4 => sides[from].send(argument),
            5 if length > 0 => {
                sides[from].wire[length - 1] ^= 1 << (step[0] >> 3 & 7);
                is_damaged = true;
            }
            6 if length > 0 => {
                sides[from].wire.drain(..length);
                is_damaged = true;
            }
            7 if argument == 0 => {
                let mut out = Vec::new();
                sides[from].tls.close(&mut out);
                sides[from].wire.extend(out);
                sides[from].has_closed = true;
                // The other side's handshake fails then.
                is_damaged |= sides.iter().any(|side| side.tls.is_handshaking());
            }
            _ => {}
        }
        for (side, other) in [(0, 1), (1, 0)] {
            assert!(sides[other].sent.starts_with(&sides[side].received));
            assert!(is_damaged || !sides[side].has_failed);
        }
    }
}

/// The beginning of a connection: what any bytes are taken for does not depend on how they are cut.
pub fn beginning(input: &[u8]) {
    let whole = FirstBytes::of(input);
    for end in 0..input.len() {
        let begun = FirstBytes::of(&input[..end]);
        assert!(
            begun == FirstBytes::Need || begun == whole,
            "{begun:?} {whole:?}"
        );
    }
    for carried in [Carried::Stream, Carried::Datagrams] {
        let whole = proxy::parse(input, carried);
        for end in 0..input.len() {
            match proxy::parse(&input[..end], carried) {
                Proxy::Need(need) => assert!(need > end),
                decided => assert_eq!(decided, whole),
            }
        }
        if let Proxy::Header { len, .. } = whole {
            assert!(len <= input.len());
            assert_eq!(FirstBytes::of(input), FirstBytes::Proxy);
        }
    }
    // Raw bytes as TLS: the same end however they are cut.
    let end = |piece: usize| {
        let mut tls = Tls::server(Arc::clone(&configs().0)).expect("a configuration");
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let mut pieces = input.chunks(piece.max(1));
        let failure = pieces.find_map(|piece| tls.received(piece, &mut plain, &mut out).err());
        assert!(plain.is_empty(), "no data without a handshake");
        failure.map(|error| error.failure)
    };
    assert_eq!(end(1), end(input.len()));
}
