//! A blocking connection to the server, plain or TLS, cut into messages.

use hairpin_server::rustls::pki_types::ServerName;
use hairpin_server::rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use streams::Tls;
use stun::stream::{Frame, frame_rfc5766};

/// Certificate of [`configs`].
pub(crate) const NAME: &str = "turn.example.org";

/// A server's configuration with a new certificate, and a client's that trusts it.
pub(crate) fn configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).expect("a certificate");
    let key = made.signing_key.serialize_der().try_into().expect("a key");
    let certificate = made.cert.der().clone();
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key);
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a certificate");
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server.expect("a key that fits")), Arc::new(client))
}

/// One connection.
pub(crate) struct StreamLink {
    pub(crate) socket: TcpStream,
    tls: Option<Tls>,
    unread: Vec<u8>,
}

impl StreamLink {
    pub(crate) fn tcp(server: SocketAddr) -> StreamLink {
        let socket = TcpStream::connect(server).expect("the server accepts");
        socket.set_nodelay(true).expect("TCP_NODELAY");
        socket
            .set_read_timeout(Some(super::TEST_TIMEOUT))
            .expect("a timeout");
        StreamLink {
            socket,
            tls: None,
            unread: Vec::new(),
        }
    }

    pub(crate) fn tls(server: SocketAddr, config: &Arc<ClientConfig>) -> StreamLink {
        let mut link = StreamLink::tcp(server);
        let name = ServerName::try_from(NAME).expect("a name");
        link.tls = Some(Tls::client(Arc::clone(config), name).expect("a configuration"));
        link.take(&[]);
        while link.tls.as_ref().is_some_and(Tls::is_handshaking) {
            assert!(link.read(), "the handshake goes on");
        }
        link
    }

    pub(crate) fn version(&self) -> Option<u16> {
        Some(self.tls.as_ref()?.version()?.into())
    }

    fn take(&mut self, bytes: &[u8]) {
        let Some(tls) = &mut self.tls else {
            self.unread.extend_from_slice(bytes);
            return;
        };
        let mut out = Vec::new();
        tls.received(bytes, &mut self.unread, &mut out)
            .expect("TLS that is in order");
        self.socket.write_all(&out).expect("room");
    }

    /// Reads once; `false` at the end, or after a while without bytes.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 1 << 16];
        match self.socket.read(&mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(bytes) => {
                self.take(&buffer[..bytes]);
                true
            }
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        match &mut self.tls {
            None => self.socket.write_all(bytes).expect("room"),
            Some(tls) => {
                let mut out = Vec::new();
                tls.encrypt(bytes, &mut out).expect("an open connection");
                self.socket.write_all(&out).expect("room");
            }
        }
    }

    /// The same; false if the server has ended the connection.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        let Some(tls) = &mut self.tls else {
            return self.socket.write_all(bytes).is_ok();
        };
        let mut out = Vec::new();
        tls.encrypt(bytes, &mut out).expect("an open connection");
        self.socket.write_all(&out).is_ok()
    }

    /// Sends these bytes and closes its direction, over TLS in one write with close_notify.
    pub(crate) fn send_and_close(&mut self, bytes: &[u8]) {
        let mut out = Vec::new();
        match &mut self.tls {
            None => out.extend_from_slice(bytes),
            Some(tls) => {
                tls.encrypt(bytes, &mut out).expect("an open connection");
                tls.close(&mut out);
            }
        }
        self.socket.write_all(&out).expect("room");
        self.socket
            .shutdown(std::net::Shutdown::Write)
            .expect("an open connection");
    }

    /// So many bytes that are no messages.
    pub(crate) fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.unread.len() < count {
            assert!(self.read(), "{} of {count} bytes", self.unread.len());
        }
        self.unread.drain(..count).collect()
    }

    /// Says that nothing more comes, and goes on to read.
    pub(crate) fn finish(&mut self) {
        if let Some(tls) = &mut self.tls {
            let mut out = Vec::new();
            tls.finish(&mut out);
            self.socket.write_all(&out).expect("room");
        }
        let write = std::net::Shutdown::Write;
        self.socket.shutdown(write).expect("an open connection");
    }

    /// The next message, without its padding.
    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            match frame_rfc5766(&self.unread) {
                Frame::Message { len, padded_len } => {
                    let message = self.unread[..len].to_vec();
                    assert!(
                        self.unread[len..padded_len].iter().all(|&byte| byte == 0),
                        "padding is zero"
                    );
                    self.unread.drain(..padded_len);
                    return Some(message);
                }
                Frame::Need(_) if self.read() => {}
                Frame::Need(_) => return None,
                Frame::Invalid => panic!("the server sends what is no message: {:?}", self.unread),
            }
        }
    }

    /// Waits until the server ends the connection. Returns whether it did.
    pub(crate) fn is_ended(&mut self) -> bool {
        let mut buffer = [0; 1 << 16];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}
