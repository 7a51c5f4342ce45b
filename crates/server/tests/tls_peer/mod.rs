//! The other end of TLS connections, for tests: certificates of one issuer, and blocking connections in both
//! directions.
#![allow(dead_code, reason = "each test file uses a part of it")]

use hairpin_server::certificates::Certificates;
use hairpin_server::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use hairpin_server::rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};
use hairpin_server::sip::client_verifier;
use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than any machine takes.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Who issues certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

/// A certificate and its key.
pub(crate) struct Pair {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    pem: (String, String),
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Authority {
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a root");
        Arc::new(roots)
    }

    /// The issuer's own certificate.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for these names; with a colon they are URIs.
    pub(crate) fn issue(&self, names: &[&str]) -> Pair {
        let name = |name: &&str| {
            let text = Ia5String::try_from(*name).expect("a name");
            match name.contains(':') {
                true => SanType::URI(text),
                false => SanType::DnsName(text),
            }
        };
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.iter().map(name).collect();
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Pair {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
            pem: (certificate.pem(), key.serialize_pem()),
        }
    }
}

impl Pair {
    /// The certificate and its key.
    pub(crate) fn pem(&self) -> (String, String) {
        self.pem.clone()
    }

    pub(crate) fn certificates(&self) -> Certificates {
        let (certificate, key) = &self.pem;
        Certificates::from_pem(certificate.as_bytes(), key.as_bytes()).expect("a pair")
    }
}

/// A connection and its TLS.
pub(crate) struct Link {
    socket: TcpStream,
    tls: Connection,
    unread: Vec<u8>,
    has_ended: bool,
}

impl Link {
    fn new(socket: TcpStream, tls: Connection) -> std::io::Result<Link> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TEST_TIMEOUT))?;
        let mut link = Link {
            socket,
            tls,
            unread: Vec::new(),
            has_ended: false,
        };
        while link.tls.is_handshaking() {
            link.tls.complete_io(&mut link.socket)?;
        }
        // Messages may have come with the end of the handshake.
        link.take()?;
        Ok(link)
    }

    /// Connects, with a certificate if one is given.
    pub(crate) fn connect(
        to: SocketAddr,
        name: &str,
        roots: Arc<RootCertStore>,
        own: Option<&Pair>,
    ) -> std::io::Result<Link> {
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match own {
            Some(own) => config
                .with_client_auth_cert(vec![own.certificate.clone()], own.key.clone_key())
                .expect("a pair"),
            None => config.with_no_client_auth(),
        };
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let tls = ClientConnection::new(Arc::new(config), name).expect("a configuration");
        Link::new(TcpStream::connect(to)?, tls.into())
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.tls.writer().write_all(text.as_bytes()).expect("room");
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket).expect("sent");
        }
    }

    /// Says that nothing more comes: close_notify, and the end of the TCP stream.
    pub(crate) fn stop_sending(&mut self) {
        self.tls.send_close_notify();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket).expect("sent");
        }
        let end = self.socket.shutdown(std::net::Shutdown::Write);
        end.expect("an open connection");
    }

    /// Reads once; `false` at the end.
    fn read(&mut self) -> std::io::Result<bool> {
        let read = self.tls.read_tls(&mut self.socket)?;
        Ok(self.take()? && read > 0)
    }

    /// Takes what was decrypted; `false` if the other end has closed the connection.
    fn take(&mut self) -> std::io::Result<bool> {
        let state = self
            .tls
            .process_new_packets()
            .map_err(std::io::Error::other)?;
        let mut plain = vec![0; state.plaintext_bytes_to_read()];
        self.tls.reader().read_exact(&mut plain)?;
        self.unread.extend_from_slice(&plain);
        Ok(!state.peer_has_closed())
    }

    /// The next message; `None` at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            let end = self.unread.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                let head = String::from_utf8_lossy(&self.unread[..end]).into_owned();
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("Content-Length: "))
                    .map_or(0, |length| length.parse().expect("a length"));
                if self.unread.len() >= end + 4 + length {
                    let message = self.unread.drain(..end + 4 + length).collect();
                    return Some(String::from_utf8(message).expect("text"));
                }
            }
            match self.read() {
                Ok(true) => {}
                // The last message may have come with the end.
                Ok(false) if !std::mem::replace(&mut self.has_ended, true) => {}
                Ok(false) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("nothing came for {TEST_TIMEOUT:?}")
                }
                Err(_) => return None,
            }
        }
    }

    /// The next request; responses are passed over.
    pub(crate) fn request(&mut self) -> String {
        loop {
            let message = self.next().expect("a request before the end");
            if !message.starts_with("SIP/2.0 ") {
                return message;
            }
        }
    }

    /// Answers a request with 200.
    pub(crate) fn answer(&mut self, request: &str) {
        let copied = ["Via:", "From:", "To:", "Call-ID:", "CSeq:"];
        let lines = request
            .lines()
            .filter(|line| copied.iter().any(|kind| line.starts_with(kind)));
        let lines: Vec<&str> = lines.collect();
        let text = format!(
            "SIP/2.0 200 OK\r\n{}\r\nContent-Length: 0\r\n\r\n",
            lines.join("\r\n")
        );
        self.send(&text);
    }

    /// The name that the other end has asked for.
    pub(crate) fn asked_for(&self) -> Option<String> {
        match &self.tls {
            Connection::Server(server) => server.server_name().map(str::to_owned),
            Connection::Client(_) => None,
        }
    }

    /// The certificate of the other end.
    pub(crate) fn is_from(&self, pair: &Pair) -> bool {
        let chain = self.tls.peer_certificates().unwrap_or_default();
        chain.first() == Some(&pair.certificate)
    }
}

/// A server that is connected to.
pub(crate) struct Peer {
    listener: TcpListener,
    config: Arc<ServerConfig>,
}

impl Peer {
    /// With this certificate; `clients` must have one by these roots.
    pub(crate) fn new(pair: &Pair, clients: Option<Arc<RootCertStore>>) -> Peer {
        let config = ServerConfig::builder();
        let config = match clients {
            Some(roots) => {
                config.with_client_cert_verifier(client_verifier(roots, true).expect("roots"))
            }
            None => config.with_no_client_auth(),
        };
        let config = config
            .with_single_cert(vec![pair.certificate.clone()], pair.key.clone_key())
            .expect("a pair");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        listener.set_nonblocking(true).expect("an option");
        Peer {
            listener,
            config: Arc::new(config),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().expect("an address").port()
    }

    /// The next connection; an error if its handshake fails.
    pub(crate) fn accept(&self) -> std::io::Result<Link> {
        let begun = Instant::now();
        let socket = loop {
            match self.listener.accept() {
                Ok((socket, _)) => break socket,
                Err(_) => assert!(begun.elapsed() < TEST_TIMEOUT, "nobody connects"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        socket.set_nonblocking(false)?;
        let tls = ServerConnection::new(Arc::clone(&self.config)).expect("a configuration");
        Link::new(socket, tls.into())
    }

    /// Whether somebody is connecting now.
    pub(crate) fn is_called(&self) -> bool {
        self.listener.accept().is_ok()
    }
}
