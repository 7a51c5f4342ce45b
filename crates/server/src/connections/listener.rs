//! TCP listeners, one per worker and address.

use io::TcpListener;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::sync::Arc;
use streams::rustls::ServerConfig;

/// The TLS configurations of listeners, by the addresses that they are configured with.
#[derive(Debug, Clone, Default)]
pub(crate) struct TlsConfigs {
    /// For listeners without an own configuration.
    pub(crate) of_all: Option<Arc<ServerConfig>>,
    /// The own configurations. The first one of a listener applies.
    pub(crate) of_some: Vec<(SocketAddr, Arc<ServerConfig>)>,
}

impl TlsConfigs {
    /// The configuration of this listener.
    pub(crate) fn at(&self, listener: SocketAddr) -> Option<Arc<ServerConfig>> {
        let own = self.of_some.iter().find(|(known, _)| *known == listener);
        own.map(|(_, config)| config)
            .or(self.of_all.as_ref())
            .cloned()
    }
}

/// The protocols of a TCP listener.
#[derive(Debug, Clone)]
pub(crate) struct Protocols {
    /// Whether the listener accepts STUN and TURN without TLS.
    pub(crate) plain: bool,
    /// The TLS configuration, if the listener accepts STUN and TURN over TLS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Networks of load balancers. Connections from them must begin with a PROXY header.
    pub(crate) proxies: Arc<[IpNet]>,
}

/// The listener of one address at one worker.
#[derive(Debug)]
pub(crate) struct StreamListener {
    pub(crate) socket: TcpListener,
    pub(crate) protocols: Protocols,
}

impl StreamListener {
    /// Whether connections from this address must begin with a PROXY header.
    pub(crate) fn is_proxy(&self, from: SocketAddr) -> bool {
        self.protocols
            .proxies
            .iter()
            .any(|network| network.contains(&from.ip()))
    }
}
