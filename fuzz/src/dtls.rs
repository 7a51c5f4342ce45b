//! The DTLS endpoint and a client, with a network between them that the input drives.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hairpin_dtls::{
    Client, ClientConfig, Config, CookieKey, Endpoint, Event, Limits, Mono, Path, Received,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// Trusts any certificate: the target is about messages.
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
        Vec::new()
    }
}

fn certificate() -> Arc<CertifiedKey> {
    static KEY: OnceLock<Arc<CertifiedKey>> = OnceLock::new();
    let make = || {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params =
            rcgen::CertificateParams::new(vec!["turn.example".to_owned()]).expect("a name");
        let leaf = params.self_signed(&key).expect("a certificate");
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let signing =
            rustls::crypto::aws_lc_rs::sign::any_supported_type(&der).expect("a signing key");
        // The same certificate twice, so that the flight takes more than one datagram.
        Arc::new(CertifiedKey::new(
            vec![leaf.der().clone(), leaf.der().clone()],
            signing,
        ))
    };
    KEY.get_or_init(make).clone()
}

struct World {
    endpoint: Endpoint,
    client: Client,
    now: Mono,
    last: Vec<u8>,
    /// What the client has sent as messages; the endpoint must hand out nothing else.
    said: Vec<Vec<u8>>,
    /// Of a source without a connection.
    unproven_sent: usize,
    unproven_got: usize,
}

fn path(port: u16) -> Path {
    Path {
        listener: 0,
        local: ([192, 0, 2, 1], 3478).into(),
        remote: ([198, 51, 100, 1], port).into(),
    }
}

const CLIENT: u16 = 1;
const UNPROVEN: u16 = 2;

impl World {
    fn new() -> World {
        let limits = Limits {
            half_open: 2,
            connections: 3,
            ..Limits::default()
        };
        let config = Config {
            certificates: Arc::new(certificate()),
            protocols: vec![b"stun.turn".to_vec()],
            limits,
        };
        let mut client_config = ClientConfig::new(Arc::new(Anybody));
        client_config.protocols = vec![b"stun.turn".to_vec()];
        let name = ServerName::try_from("turn.example").expect("a name");
        let unix = UnixTime::since_unix_epoch(Duration::from_secs(1_790_000_000));
        World {
            endpoint: Endpoint::new(Arc::new(config), CookieKey::new(&[3; 32]), [1, 2]),
            client: Client::new(Arc::new(client_config), name, Mono(0), unix),
            now: Mono(0),
            last: Vec::new(),
            said: Vec::new(),
            unproven_sent: 0,
            unproven_got: 0,
        }
    }

    fn deliver(&mut self, port: u16, datagram: &[u8]) {
        if port == UNPROVEN {
            self.unproven_sent += datagram.len();
        }
        let mut bytes = datagram.to_vec();
        let mut rest = &mut bytes[..];
        while let Received::Data {
            message,
            rest: behind,
            ..
        } = self.endpoint.handle_datagram(self.now, &path(port), rest)
        {
            assert!(
                port == CLIENT && self.said.iter().any(|said| said == message),
                "a message that nobody sent"
            );
            rest = behind;
        }
    }

    fn endpoint_sends(&mut self) -> Option<Vec<u8>> {
        loop {
            let (to, bytes) = self.endpoint.poll_transmit()?;
            if to == path(CLIENT) {
                return Some(bytes.to_vec());
            }
            self.unproven_got += bytes.len();
        }
    }

    fn say(&mut self, text: &[u8]) {
        let mut sealed = vec![0; text.len() + hairpin_dtls::OVERHEAD];
        if let Ok(length) = self.client.seal(&[text], &mut sealed) {
            self.said.push(text.to_vec());
            self.last = sealed[..length].to_vec();
            let datagram = self.last.clone();
            self.deliver(CLIENT, &datagram);
        }
    }

    fn pass_time(&mut self, by: u64) {
        self.now = Mono(self.now.0 + by * 100_000_000);
        self.endpoint.handle_timeout(self.now);
        self.client.handle_timeout(self.now);
    }

    fn check(&mut self) {
        let mut closed = 0;
        while let Some(event) = self.endpoint.poll_event() {
            closed += usize::from(matches!(event, Event::Closed { .. }));
        }
        assert!(closed <= 4);
        let (half_open, connections) = (self.endpoint.half_open(), self.endpoint.connections());
        assert!(half_open <= connections && half_open <= 2 && connections <= 3);
        // An unproven source never has a cookie, unless it guesses 160 bits.
        assert!(self.unproven_got <= self.unproven_sent, "amplified");
    }
}

fn flip(datagram: &mut [u8], input: &mut &[u8]) {
    if let [high, low, bits, rest @ ..] = *input
        && !datagram.is_empty()
    {
        let at = usize::from(u16::from_be_bytes([*high, *low])) % datagram.len();
        datagram[at] ^= bits;
        *input = rest;
    }
}

/// Each byte of the input is a step; some take bytes that follow.
pub fn endpoint(mut input: &[u8]) {
    let mut world = World::new();
    while let [step, rest @ ..] = input {
        input = rest;
        match step & 7 {
            0 => {
                let length = input
                    .first()
                    .map_or(0, |length| usize::from(*length))
                    .min(input.len());
                let (datagram, rest) = input.split_at(length);
                input = rest;
                let port = if step & 8 == 0 { UNPROVEN } else { CLIENT };
                world.deliver(port, datagram);
            }
            number @ (1 | 3) => {
                if let Some(mut datagram) = world.client.poll_transmit().map(<[u8]>::to_vec) {
                    world.last.clone_from(&datagram);
                    if number == 3 {
                        flip(&mut datagram, &mut input);
                    }
                    // Somebody may send the client's first hello from elsewhere; a hello with a cookie is of no use
                    // there.
                    world.deliver(if step & 8 == 0 { CLIENT } else { UNPROVEN }, &datagram);
                }
            }
            number @ (2 | 4) => {
                if let Some(mut datagram) = world.endpoint_sends() {
                    if number == 4 {
                        flip(&mut datagram, &mut input);
                    }
                    let mut rest = &mut datagram[..];
                    while let Some((_, behind)) = world.client.handle_datagram(world.now, rest) {
                        rest = behind;
                    }
                    while world.client.poll_event().is_some() {}
                }
            }
            5 => world.pass_time(u64::from(step >> 3)),
            6 => {
                let mut datagram = world.last.clone();
                if step & 8 != 0 {
                    flip(&mut datagram, &mut input);
                }
                world.deliver(CLIENT, &datagram);
            }
            _ if step & 8 == 0 => drop(world.endpoint.step(world.now)),
            _ if step & 16 == 0 => world.say(&[*step; 20]),
            _ => world.client.close(),
        }
        world.check();
    }
}
