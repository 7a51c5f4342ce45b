//! A client's connection over TCP, TLS, WebSocket or both, and a server that listens for all of them.

use super::phone::Wire;
use hairpin_server::certificates::Certificates;
use hairpin_server::rustls::pki_types::ServerName;
use hairpin_server::rustls::{ClientConfig, RootCertStore};
use hairpin_server::sip::SipSettings;
use hairpin_server::{Builder, Running, Server};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use streams::Tls;
use streams::websocket::{
    Connect, End, Event, Kind, MessageKinds, MessageLimits, Request, WebSocket,
};

pub(crate) const NAME: &str = "sip.example.org";

pub(crate) const LIMITS: MessageLimits = MessageLimits {
    bytes: 1 << 20,
    frames: 8,
    kinds: MessageKinds::All,
};

/// A server with all listeners on loopback, and what its clients trust.
pub(crate) fn serve(settings: SipSettings, workers: usize) -> (Running, Arc<ClientConfig>) {
    start(settings, workers, |builder| builder)
}

/// The same, with further settings.
pub(crate) fn start(
    settings: SipSettings,
    workers: usize,
    further: impl FnOnce(Builder) -> Builder,
) -> (Running, Arc<ClientConfig>) {
    let certificates = Certificates::self_signed(&[NAME.to_owned()]).expect("a certificate");
    let chain = certificates.default_chain();
    let mut roots = RootCertStore::empty();
    roots.add(chain[0].clone()).expect("a certificate");
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let builder = Server::builder()
        .listen(any)
        .relay_address(any.ip())
        .user("ann", "secret")
        .sip_listen(any)
        .sip_listen_tls(any)
        .sip_listen_ws(any)
        .sip_listen_wss(any)
        .certificates(certificates)
        .sip(settings)
        .workers(workers);
    let server = further(builder).start().expect("the server starts");
    (server, Arc::new(client))
}

/// A connection with any of the layers.
pub(crate) struct Link {
    pub(crate) socket: TcpStream,
    pub(crate) tls: Option<Tls>,
    pub(crate) web: Option<WebSocket>,
    pub(crate) unread: Vec<u8>,
}

impl Link {
    pub(crate) fn tcp(server: SocketAddr) -> Link {
        let socket = TcpStream::connect(server).expect("the server accepts");
        socket.set_nodelay(true).expect("TCP_NODELAY");
        let timeout = Some(Duration::from_secs(10));
        socket.set_read_timeout(timeout).expect("a timeout");
        Link {
            socket,
            tls: None,
            web: None,
            unread: Vec::new(),
        }
    }

    pub(crate) fn tls(server: SocketAddr, config: &Arc<ClientConfig>) -> Link {
        Link::tcp(server).with_tls(config)
    }

    pub(crate) fn with_tls(self, config: &Arc<ClientConfig>) -> Link {
        let mut link = self;
        let name = ServerName::try_from(NAME).expect("a name");
        link.tls = Some(Tls::client(Arc::clone(config), name).expect("a configuration"));
        link.take(&[]);
        while link.tls.as_ref().is_some_and(Tls::is_handshaking) {
            assert!(link.read(), "the handshake goes on");
        }
        link
    }

    /// Opens a WebSocket on the connection.
    pub(crate) fn web(mut self) -> Link {
        let mut bytes = Vec::new();
        let request = Request {
            host: NAME,
            target: "/",
            protocol: "sip",
            origin: "https://phone.example.org",
            key: [7; 16],
        };
        let mut connect = Connect::new(&request, &mut bytes);
        self.send_raw(&bytes);
        loop {
            let (used, result) = connect.receive(&self.unread);
            self.unread.drain(..used);
            if result.expect("a WebSocket") {
                self.web = Some(WebSocket::client(LIMITS, [9; 16]));
                return self;
            }
            assert!(self.read(), "the handshake goes on");
        }
    }

    pub(crate) fn of(transport: &str, server: &Running, config: &Arc<ClientConfig>) -> Link {
        match transport {
            "TLS" => Link::tls(server.sip_tls_listeners()[0], config),
            "WS" => Link::tcp(server.sip_ws_listeners()[0]).web(),
            "WSS" => Link::tls(server.sip_wss_listeners()[0], config).web(),
            _ => Link::tcp(server.sip_listeners()[0]),
        }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
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
    pub(crate) fn read(&mut self) -> bool {
        let mut buffer = [0; 1 << 14];
        match self.socket.read(&mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(bytes) => {
                self.take(&buffer[..bytes]);
                true
            }
        }
    }

    /// Sends bytes above TLS.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes).expect("an open connection");
    }

    fn try_send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let mut out = Vec::new();
        match &mut self.tls {
            None => out.extend_from_slice(bytes),
            Some(tls) => tls
                .encrypt(bytes, &mut out)
                .map_err(std::io::Error::other)?,
        }
        self.socket.write_all(&out)
    }

    /// What a message is on the wire, above TLS.
    pub(crate) fn framed(&mut self, message: &str) -> Vec<u8> {
        let mut out = Vec::new();
        match &mut self.web {
            None => out.extend_from_slice(message.as_bytes()),
            Some(web) => assert!(web.send(Kind::Text, message.as_bytes(), &mut out)),
        }
        out
    }

    pub(crate) fn send(&mut self, message: &str) {
        let bytes = self.framed(message);
        self.send_raw(&bytes);
    }

    /// The next message, or how the WebSocket ended.
    pub(crate) fn next(&mut self) -> Result<String, End> {
        loop {
            if let Some(web) = &mut self.web {
                let mut out = Vec::new();
                let (used, event) = web.receive(&mut self.unread, &mut out);
                let found = match event {
                    Event::Message { payload, .. } => {
                        Some(Ok(String::from_utf8_lossy(payload).into_owned()))
                    }
                    Event::Ended(end) => Some(Err(end)),
                    Event::Alive | Event::Need => None,
                };
                self.unread.drain(..used);
                if let Some(Err(end)) = found {
                    // The server may have closed the connection before our Close arrives.
                    let _ = self.try_send_raw(&out);
                    return Err(end);
                }
                // Such as a Pong.
                self.send_raw(&out);
                if let Some(found) = found {
                    return found;
                }
                if used > 0 && !self.unread.is_empty() {
                    continue;
                }
            } else if let Some(at) = find(&self.unread, b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&self.unread).into_owned();
                let length = text[..at]
                    .lines()
                    .find_map(|line| line.strip_prefix("Content-Length: "))
                    .and_then(|length| length.parse::<usize>().ok())
                    .expect("a length");
                if self.unread.len() >= at + 4 + length {
                    return Ok(
                        String::from_utf8(self.unread.drain(..at + 4 + length).collect())
                            .expect("text"),
                    );
                }
            }
            assert!(self.read(), "there is more");
        }
    }

    pub(crate) fn receive(&mut self) -> String {
        self.next().expect("a message")
    }

    /// The server ends the connection.
    pub(crate) fn ended(&mut self) -> bool {
        let mut buffer = [0; 1 << 14];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

pub(crate) fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

impl Wire for Link {
    fn send(&mut self, text: &str) {
        Link::send(self, text);
    }

    fn receive(&mut self) -> String {
        Link::receive(self)
    }
}
