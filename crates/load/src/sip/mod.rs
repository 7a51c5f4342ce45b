//! SIP as a load generator sees it: bytes with a few places that matter.
//!
//! The client side (`generator::sip`) patches templates. It finds its transactions by what it wrote into their
//! branches. The answering side ([`Uas`]) copies header lines into responses. Neither parses a whole message on its hot
//! path. The cold paths (challenges, dialogs) use the `sip` crate.

pub(crate) mod frame;
pub(crate) mod layers;
pub(crate) mod lines;
pub(crate) mod out;
pub(crate) mod stream;
pub(crate) mod timers;
pub(crate) mod uas;

pub use uas::{Uas, UasError, UasOptions, UasReport};

/// What carries the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// One datagram a message.
    #[default]
    Udp,
    /// A stream, framed by Content-Length.
    Tcp,
    /// The same over TLS.
    Tls,
    /// A WebSocket, each of whose messages is one of SIP (RFC 7118).
    Ws,
    /// The same over TLS.
    Wss,
}

impl Transport {
    /// As it is written in a Via: `UDP`.
    #[must_use]
    pub fn in_via(self) -> &'static str {
        match self {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
            Transport::Tls => "TLS",
            Transport::Ws => "WS",
            Transport::Wss => "WSS",
        }
    }

    /// As it is written in a URI: `udp`.
    #[must_use]
    pub fn in_uri(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
            // RFC 7118 §5.2: one parameter for both.
            Transport::Ws | Transport::Wss => "ws",
        }
    }

    /// As options and reports name it: `wss`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Wss => "wss",
            other => other.in_uri(),
        }
    }

    /// Over connections.
    #[must_use]
    pub fn is_stream(self) -> bool {
        self != Transport::Udp
    }

    /// Over TLS.
    #[must_use]
    pub fn is_secure(self) -> bool {
        matches!(self, Transport::Tls | Transport::Wss)
    }

    /// A WebSocket.
    #[must_use]
    pub fn is_websocket(self) -> bool {
        matches!(self, Transport::Ws | Transport::Wss)
    }
}
