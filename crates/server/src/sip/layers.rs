//! What lies between the bytes of a connection and its messages: TLS, and a WebSocket (RFC 7118).

use io::TcpListener;
use sip::flow::{PeerName, Transport};
use std::net::SocketAddr;
use std::sync::Arc;
use streams::Tls;
use streams::rustls::pki_types::ServerName;
use streams::rustls::{ClientConfig, ServerConfig};
use streams::tls::{Failure, TlsError};
use streams::websocket::{Accept, AcceptRules, CloseCode, MessageKinds, MessageLimits, WebSocket};

use super::settings::{SipConfig, SipSettings};

/// A listener for connections other than plain TCP, at one worker.
#[derive(Debug)]
pub(crate) struct StreamListener {
    pub(crate) socket: TcpListener,
    pub(crate) local: SocketAddr,
    pub(crate) transport: Transport,
    /// For TLS and WSS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// For connections from here to others over TLS.
    pub(crate) connect: Option<Arc<ClientConfig>>,
}

/// A WebSocket of a connection.
#[derive(Debug)]
pub(crate) enum WebSocketState {
    /// The handshake goes on.
    Accepting(Accept),
    Open(Box<WebSocket>),
}

impl WebSocketState {
    /// Whether something has begun to come.
    pub(crate) const fn is_begun(&self) -> bool {
        match self {
            WebSocketState::Accepting(_) => true,
            WebSocketState::Open(socket) => socket.is_begun(),
        }
    }

    /// Appends a Ping, if there is a WebSocket.
    pub(crate) fn ping(&mut self, out: &mut Vec<u8>) {
        if let WebSocketState::Open(socket) = self {
            socket.ping(out);
        }
    }

    /// Appends a Close frame, if there is a WebSocket to close.
    pub(crate) fn close(&mut self, code: CloseCode, out: &mut Vec<u8>) {
        if let WebSocketState::Open(socket) = self {
            socket.close(code, "", out);
        }
    }
}

/// The layers of a connection. Plain TCP has none.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub(crate) tls: Option<Box<Tls>>,
    /// Where the TLS records end.
    pub(crate) records: Records,
    /// Taken out while its messages are handled.
    pub(crate) web: Option<WebSocketState>,
    /// The peer is a node of the cluster. Until the handshake is complete, this is only a claim.
    pub(crate) node: Option<NodeSide>,
    /// Both nodes have accepted the certificate of the other one.
    pub(crate) is_node_accepted: bool,
}

/// Whether this node has accepted or opened a connection between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeSide {
    Accepted,
    Connected,
}

/// Why a connection between two nodes has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeFailure {
    /// No published fingerprint is that of the other node's certificate, or it has none.
    Refused,
    /// The other node has no published fingerprint of this node's certificate.
    RefusedByOther,
    /// Anything else.
    Other,
}

impl NodeFailure {
    /// `is_accepted`: each node had accepted the certificate of the other one. Anybody can connect and send an alert,
    /// so only a node that this one connects to can refuse.
    pub(crate) fn of(side: NodeSide, error: &TlsError, is_accepted: bool) -> NodeFailure {
        let is_refusal = error.refuses_certificate() && !is_accepted;
        match (side, error.failure) {
            (_, Failure::Certificate) => NodeFailure::Refused,
            (NodeSide::Connected, _) if is_refusal => NodeFailure::RefusedByOther,
            _ => NodeFailure::Other,
        }
    }
}

impl Layers {
    /// What a connection that was accepted here needs. `None` if the configuration of TLS cannot be used.
    pub(crate) fn accepted(
        transport: Transport,
        tls: Option<&Arc<ServerConfig>>,
    ) -> Option<Layers> {
        let tls = match tls {
            Some(config) => Some(Box::new(Tls::server(Arc::clone(config)).ok()?)),
            None => None,
        };
        let web = transport
            .is_websocket()
            .then(|| WebSocketState::Accepting(Accept::default()));
        Some(Layers {
            tls,
            web,
            ..Layers::default()
        })
    }

    /// A connection between two nodes.
    pub(crate) fn with_node(side: NodeSide, tls: Tls) -> Layers {
        Layers {
            tls: Some(Box::new(tls)),
            node: Some(side),
            ..Layers::default()
        }
    }

    /// What a connection to this name over TLS needs. `None` if this configuration verifies no server.
    pub(crate) fn connecting(config: &Arc<ClientConfig>, name: &PeerName) -> Option<Layers> {
        let name = ServerName::try_from(name.as_str().to_owned()).ok()?;
        let tls = Tls::client(Arc::clone(config), name).ok()?;
        Some(Layers {
            tls: Some(Box::new(tls)),
            ..Layers::default()
        })
    }

    /// Notes that bytes of a connection between two nodes were decrypted. Returns whether this shows that both nodes
    /// have accepted the certificate of the other one: once for each connection.
    ///
    /// In TLS 1.3, the handshake of the client is complete before the server checks the certificate of the client. So
    /// the client waits for the first bytes of the server.
    pub(crate) fn node_accepted(&mut self, has_plain: bool) -> bool {
        let is_accepted = match self.node {
            Some(NodeSide::Accepted) => !self.is_handshaking(),
            Some(NodeSide::Connected) => has_plain,
            None => false,
        };
        let is_first = is_accepted && !self.is_node_accepted;
        self.is_node_accepted |= is_accepted;
        is_first
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether the end of something has not come that begun below the messages.
    pub(crate) fn is_begun(&self) -> bool {
        self.records.is_begun() || self.web.as_ref().is_some_and(|web| web.is_begun())
    }
}

/// Follows the boundaries of TLS records (RFC 8446 §5.1), so that one that comes too slowly has the deadline of a
/// message.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Records {
    header: [u8; 5],
    have: usize,
    /// Bytes of the record that have not come.
    left: usize,
}

impl Records {
    pub(crate) fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            let taken = bytes.len().min(self.header.len() - self.have);
            self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == self.header.len() {
                self.have = 0;
                self.left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
            }
        }
    }

    pub(crate) const fn is_begun(&self) -> bool {
        self.have > 0 || self.left > 0
    }
}

/// The longest request of a WebSocket handshake, and its header fields: cookies of a browser included.
const MAX_HANDSHAKE_BYTES: usize = 8 << 10;
const MAX_HANDSHAKE_FIELDS: usize = 64;

/// Frames of one message. Browsers send one; libraries may cut at 16 KiB or less.
const MAX_FRAMES: u32 = 128;

/// Which WebSockets are accepted.
pub(super) fn accept_rules(settings: &SipSettings) -> AcceptRules {
    let origins = &settings.websocket_origins;
    AcceptRules {
        bytes: MAX_HANDSHAKE_BYTES,
        fields: MAX_HANDSHAKE_FIELDS,
        paths: settings.websocket_paths.clone(),
        // RFC 7118 §4.1.
        protocols: vec!["sip".to_owned()],
        origins: (!origins.is_empty()).then(|| origins.clone()),
    }
}

/// What a WebSocket may carry: RFC 7118 §4.2 has both kinds of messages accepted.
pub(super) fn message_limits(sip_config: &SipConfig) -> MessageLimits {
    MessageLimits {
        bytes: sip_config.message_bytes(),
        frames: MAX_FRAMES,
        kinds: MessageKinds::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_followed_byte_by_byte_and_at_once() {
        let record = |length: u16| {
            let header = [&[23, 3, 3][..], &length.to_be_bytes()].concat();
            [header, vec![7; usize::from(length)]].concat()
        };
        let bytes = [record(0), record(1), record(300)].concat();
        let boundaries = [0, 5, 11, bytes.len()];
        for piece in [1, 2, 7, bytes.len()] {
            let mut records = Records::default();
            let mut at = 0;
            for piece in bytes.chunks(piece) {
                records.advance(piece);
                at += piece.len();
                assert_eq!(records.is_begun(), !boundaries.contains(&at), "at {at}");
            }
        }
    }
}
