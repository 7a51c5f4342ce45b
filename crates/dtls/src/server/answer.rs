//! The server's first flight. It requires an ephemeral key pair and a signature.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::sign::{CertifiedKey, Signer};

use crate::crypto::group::KeyPair;
use crate::crypto::schedule::{Randoms, Secret, Side};
use crate::crypto::{self, Authentication, Group, Opener, Sealer, Suite};
use crate::flight::Flight;
use crate::reassembly::Message;
use crate::transcript::Transcript;
use crate::wire::client_hello::ClientHello;
use crate::wire::handshake::{kind, message};
use crate::wire::server_hello::ServerHello;
use crate::wire::{DTLS12, certificate, key_exchange};
use crate::{Config, HandshakeError};

/// The state between the server's flight and the ClientKeyExchange.
#[derive(Debug)]
pub(super) struct AwaitingKeyExchange {
    pub(super) agreed: Negotiated,
    pair: KeyPair,
    client_random: [u8; 32],
    server_random: [u8; 32],
    extended_master_secret: bool,
    transcript: Transcript,
}

/// The parameters that the hello messages have negotiated.
#[derive(Clone, Debug)]
pub(super) struct Negotiated {
    pub(super) suite: &'static Suite,
    pub(super) protocol: Option<Box<[u8]>>,
    /// The name in the ClientHello.
    pub(super) server_name: Option<Box<str>>,
    /// Sequence number of the server's next handshake message.
    pub(super) next_sequence: u16,
}

/// The state between the key derivation and the client's Finished message.
#[derive(Debug)]
pub(super) struct Derived {
    pub(super) agreed: Negotiated,
    pub(super) secret: Secret,
    pub(super) transcript: Transcript,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
}

struct Chosen {
    suite: &'static Suite,
    group: Group,
    certificate: Arc<CertifiedKey>,
    signer: Box<dyn Signer>,
    protocol: Option<Box<[u8]>>,
}

/// Selects certificate, cipher suite, group and signature scheme for a ClientHello.
fn choose(
    hello: &ClientHello<'_>,
    listener: u32,
    config: &Config,
) -> Result<Chosen, HandshakeError> {
    // RFC 6347 §4.1: a greater number is an older version. DTLS 1.3 clients also send the number of 1.2 here.
    if hello.start.version > DTLS12 {
        return Err(HandshakeError::Version);
    }
    if !hello.offers_no_compression() {
        return Err(HandshakeError::Malformed);
    }
    let certificate = config.certificates.find(listener, hello.server_name);
    let certificate = certificate
        .filter(|certificate| !certificate.cert.is_empty())
        .ok_or(HandshakeError::NoCertificate)?;
    let nothing = HandshakeError::NothingInCommon;
    let authentication = Authentication::of_key(certificate.key.algorithm()).ok_or(nothing)?;
    let offered: Vec<u16> = hello.suites().collect();
    let suite = Suite::choose(offered.iter().copied(), authentication).ok_or(nothing)?;
    let group = match hello.groups() {
        // RFC 8422 §4: without the extension, the server may select any group. All clients support P-256.
        None => Group::P256,
        Some(groups) => {
            let groups: Vec<u16> = groups.collect();
            let shared = Group::ALL
                .into_iter()
                .find(|group| groups.contains(&group.id()));
            shared.ok_or(nothing)?
        }
    };
    let schemes: Vec<SignatureScheme> = hello
        .signature_schemes()
        .map(SignatureScheme::from)
        .collect();
    let signer = certificate.key.choose_scheme(&schemes).ok_or(nothing)?;
    let protocol = protocol(hello, config)?;
    Ok(Chosen {
        suite,
        group,
        certificate,
        signer,
        protocol,
    })
}

fn protocol(hello: &ClientHello<'_>, config: &Config) -> Result<Option<Box<[u8]>>, HandshakeError> {
    let Some(offered) = hello.protocols() else {
        return Ok(None);
    };
    if config.protocols.is_empty() {
        return Ok(None);
    }
    let offered: Vec<&[u8]> = offered.collect();
    let shared = config
        .protocols
        .iter()
        .find(|ours| offered.contains(&&ours[..]));
    shared
        .map(|protocol| Some(protocol.as_slice().into()))
        .ok_or(HandshakeError::NoProtocol)
}

/// Makes the server's flight for a ClientHello with a valid cookie: ServerHello to ServerHelloDone. `first_sequence` is
/// the message_seq of the ServerHello (RFC 6347 §4.2.2).
pub(super) fn answer(
    hello: &Message,
    first_sequence: u16,
    listener: u32,
    config: &Config,
) -> Result<(AwaitingKeyExchange, Flight), HandshakeError> {
    let parsed = ClientHello::parse(hello.body()).ok_or(HandshakeError::Malformed)?;
    let chosen = choose(&parsed, listener, config)?;
    let server_random = crypto::random()?;
    let pair = chosen.group.generate()?;
    let mut flight = Flight::default();
    let out = &mut flight.messages;
    let reply = ServerHello {
        random: &server_random,
        suite: chosen.suite.id,
        extended_master_secret: parsed.extended_master_secret,
        secure_renegotiation: parsed.secure_renegotiation,
        point_formats: parsed.point_formats,
        // RFC 6066 §3 asks for an empty extension if the name selected the certificate. pion's DTLS client (3.1) drops
        // a ServerHello that has it, and retransmits until its caller gives up. All clients accept a ServerHello
        // without it, as OpenSSL sends it by default.
        server_name: false,
        protocol: chosen.protocol.as_deref(),
    };
    message(out, kind::SERVER_HELLO, first_sequence, |out| {
        reply.write(out)
    });
    message(out, kind::CERTIFICATE, first_sequence + 1, |out| {
        certificate::write(out, &chosen.certificate.cert)
    });
    let mut params = Vec::with_capacity(128);
    key_exchange::write_params(&mut params, chosen.group.id(), pair.public());
    let signed = [&parsed.start.random[..], &server_random, &params].concat();
    let signature = chosen
        .signer
        .sign(&signed)
        .map_err(|_| HandshakeError::Internal)?;
    message(out, kind::SERVER_KEY_EXCHANGE, first_sequence + 2, |out| {
        out.extend_from_slice(&params);
        key_exchange::write_signature(out, chosen.signer.scheme().into(), &signature);
    });
    message(out, kind::SERVER_HELLO_DONE, first_sequence + 3, |_| ());
    let mut transcript = Transcript::new(chosen.suite);
    transcript.add(hello.bytes());
    transcript.add(&flight.messages);
    let offered = AwaitingKeyExchange {
        agreed: Negotiated {
            suite: chosen.suite,
            protocol: chosen.protocol,
            server_name: parsed.server_name.map(Into::into),
            next_sequence: first_sequence + 4,
        },
        pair,
        client_random: *parsed.start.random,
        server_random,
        extended_master_secret: parsed.extended_master_secret,
        transcript,
    };
    Ok((offered, flight))
}

/// Computes the keys from the ClientKeyExchange.
pub(super) fn derive(
    offered: AwaitingKeyExchange,
    exchange: &Message,
) -> Result<Derived, HandshakeError> {
    let public = key_exchange::parse_client(exchange.body()).ok_or(HandshakeError::Malformed)?;
    let mut transcript = offered.transcript;
    transcript.add(exchange.bytes());
    let randoms = Randoms {
        client: &offered.client_random,
        server: &offered.server_random,
    };
    let suite = offered.agreed.suite;
    let pre_master = offered
        .pair
        .agree(public)
        .map_err(|_| HandshakeError::KeyShare)?;
    // RFC 7627 §3: the hash of everything until this message.
    let session_hash = offered.extended_master_secret.then(|| transcript.hash());
    let secret = Secret::new(
        suite,
        &pre_master,
        randoms,
        session_hash.as_ref().map(AsRef::as_ref),
    )?;
    let (sealer, opener) = secret.keys(Side::Server, randoms)?;
    Ok(Derived {
        agreed: offered.agreed,
        secret,
        transcript,
        sealer,
        opener,
    })
}
