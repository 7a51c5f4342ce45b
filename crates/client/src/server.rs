//! Which server, and how to talk to it.

use std::net::SocketAddr;
use std::time::Duration;

use turn::client::{ClientConfig, Credentials, Retransmission, Security};

/// Datagrams that one queue holds: half a megabyte of full-size ones.
const MAX_DATAGRAMS: usize = 256;
/// How long a TCP connection and a TLS or DTLS handshake may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What to connect by.
#[derive(Clone, Debug)]
pub(crate) enum ConnectMethod {
    Udp,
    Tcp,
    #[cfg(feature = "tls")]
    Tls(crate::Tls),
    #[cfg(feature = "tls")]
    Dtls(crate::Tls),
}

/// A TURN or STUN server and how to talk to it. The defaults are those of the RFCs.
#[derive(Clone, Debug)]
pub struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) method: ConnectMethod,
    pub(crate) connect_timeout: Duration,
    pub(crate) queue: usize,
    pub(crate) config: ClientConfig,
}

impl Server {
    /// The server at this address. Names are for the program to resolve, for example with `tokio::net::lookup_host`.
    #[must_use]
    pub fn new(address: SocketAddr) -> Server {
        Server {
            address,
            local: None,
            method: ConnectMethod::Udp,
            connect_timeout: CONNECT_TIMEOUT,
            queue: MAX_DATAGRAMS,
            config: ClientConfig::default(),
        }
    }

    /// The user name and the password for it (the long-term credential mechanism, RFC 8489 §9.2).
    #[must_use]
    pub fn credentials(mut self, username: &str, password: &str) -> Server {
        self.config.credentials = Some(Credentials::new(username, password));
        self
    }

    /// Connects over TCP. No request is repeated then; each is given up after 39.5 seconds.
    #[must_use]
    pub fn tcp(mut self) -> Server {
        self.method = ConnectMethod::Tcp;
        self
    }

    /// Connects over TLS. The ports of servers for TLS are usually 5349 and 443.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: crate::Tls) -> Server {
        self.method = ConnectMethod::Tls(tls);
        self
    }

    /// Connects over DTLS 1.2 (RFC 7350). The port of servers for DTLS is usually 5349.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn dtls(mut self, tls: crate::Tls) -> Server {
        self.method = ConnectMethod::Dtls(tls);
        self
    }

    /// How long a TCP connection may take, with the TLS handshake, or a DTLS handshake. Default: 10 seconds.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Server {
        self.connect_timeout = timeout;
        self
    }

    /// How to authenticate. Default: as strongly as the server offers.
    #[must_use]
    pub fn security(mut self, security: Security) -> Server {
        self.config.security = security;
        self
    }

    /// The local address to send from. Default: any port of the address that the route wants.
    #[must_use]
    pub fn local(mut self, address: SocketAddr) -> Server {
        self.local = Some(address);
        self
    }

    /// Received datagrams that each queue holds, at least 1; more are dropped and counted ([`Stats`](crate::Stats)).
    /// Default: 256.
    #[must_use]
    pub fn queue(mut self, datagrams: usize) -> Server {
        self.queue = datagrams;
        self
    }

    /// The SOFTWARE attribute of requests, at most 763 bytes; empty leaves it out. Default: hairpin and its version.
    #[must_use]
    pub fn software(mut self, software: &str) -> Server {
        self.config.software = software.into();
        self
    }

    /// Whether every request ends with a FINGERPRINT. Default: no.
    #[must_use]
    pub fn fingerprint(mut self, fingerprint: bool) -> Server {
        self.config.fingerprint = fingerprint;
        self
    }

    /// When requests are repeated and given up (RFC 8489 §6.2.1). Default: the RFC's, 39.5 seconds in all.
    #[must_use]
    pub fn retransmission(mut self, retransmission: Retransmission) -> Server {
        self.config.retransmission = retransmission;
        self
    }

    /// Whether allocation, permissions and channels are refreshed before they expire. Default: yes.
    #[must_use]
    pub fn keep_alive(mut self, keep_alive: bool) -> Server {
        self.config.keep_alive = keep_alive;
        self
    }
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Server {
        Server::new(address)
    }
}
