//! A blocking DTLS connection to the server.

use dtls::{Client, ClientConfig, ClientEvent, CloseReason, Mono};
use hairpin_server::certificates::Certificates;
use hairpin_server::rustls::RootCertStore;
use hairpin_server::rustls::client::WebPkiServerVerifier;
use hairpin_server::rustls::crypto::aws_lc_rs;
use hairpin_server::rustls::pki_types::{ServerName, UnixTime};
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

/// Certificate of [`configs`].
pub(crate) const NAME: &str = "turn.example.org";

/// A new certificate, and a client's configuration that trusts it.
pub(crate) fn configs() -> (Certificates, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).expect("a certificate");
    let key = made.signing_key.serialize_pem();
    let server = Certificates::from_pem(made.cert.pem().as_bytes(), key.as_bytes());
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a certificate");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let client = ClientConfig::new(verifier.build().expect("a root"));
    (server.expect("a pair"), Arc::new(client))
}

/// One connection.
pub(crate) struct DtlsLink {
    pub(crate) socket: UdpSocket,
    pub(crate) server: SocketAddr,
    client: Client,
    begun: Instant,
    unread: VecDeque<Vec<u8>>,
    pub(crate) closed: Option<CloseReason>,
}

impl DtlsLink {
    /// Connects from this socket, which reads with a timeout.
    pub(crate) fn new(socket: UdpSocket, server: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let mut link = DtlsLink::begin(socket, server, config);
        while !link.client.is_established() {
            assert!(link.read(), "the handshake goes on: {:?}", link.closed);
        }
        link
    }

    /// Sends the first ClientHello.
    pub(crate) fn begin(socket: UdpSocket, server: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from(NAME).expect("a name");
        let client = Client::new(Arc::clone(config), name, Mono(0), UnixTime::now());
        let mut link = DtlsLink {
            socket,
            server,
            client,
            begun: Instant::now(),
            unread: VecDeque::new(),
            closed: None,
        };
        link.flush();
        link
    }

    fn flush(&mut self) {
        while let Some(datagram) = self.client.poll_transmit() {
            self.socket.send_to(datagram, self.server).expect("sent");
        }
        while let Some(event) = self.client.poll_event() {
            if let ClientEvent::Closed(reason) = event {
                self.closed = Some(reason);
            }
        }
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_established(&self) -> bool {
        self.client.is_established()
    }

    /// Reads once; `false` after a while without datagrams, or at the end.
    pub(crate) fn read(&mut self) -> bool {
        let mut buffer = vec![0; 1 << 16];
        let Ok((length, from)) = self.socket.recv_from(&mut buffer) else {
            return false;
        };
        assert_eq!(from, self.server, "the answer comes from where was asked");
        let now = Mono(u64::try_from(self.begun.elapsed().as_nanos()).expect("short"));
        let mut rest = &mut buffer[..length];
        while let Some((message, behind)) = self.client.handle_datagram(now, rest) {
            self.unread.push_back(message.to_vec());
            rest = behind;
        }
        self.flush();
        self.closed.is_none()
    }

    /// A message as a datagram, to be sent as a test likes.
    pub(crate) fn sealed(&mut self, message: &[u8]) -> Vec<u8> {
        let mut sealed = vec![0; message.len() + dtls::OVERHEAD];
        let length = self.client.seal(&[message], &mut sealed);
        sealed.truncate(length.expect("an open connection"));
        sealed
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        let sealed = self.sealed(message);
        self.socket.send_to(&sealed, self.server).expect("sent");
    }

    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        while self.unread.is_empty() {
            if !self.read() {
                return None;
            }
        }
        self.unread.pop_front()
    }

    pub(crate) fn close(&mut self) {
        self.client.close();
        self.flush();
    }
}
