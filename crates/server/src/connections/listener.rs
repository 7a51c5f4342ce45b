//! Listening sockets of TCP, one per worker and address.

use io::TcpListener;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::sync::Arc;
use streams::rustls::ServerConfig;

/// What is spoken on a listener of TCP.
#[derive(Debug, Clone)]
pub(crate) struct Speaks {
    /// STUN and TURN without TLS.
    pub(crate) plain: bool,
    /// STUN and TURN over TLS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Sources whose connections begin with a PROXY header: load balancers.
    pub(crate) proxies: Arc<[IpNet]>,
}

/// One address, at one worker.
#[derive(Debug)]
pub(crate) struct StreamListener {
    pub(crate) socket: TcpListener,
    pub(crate) speaks: Speaks,
}

impl StreamListener {
    /// Whether connections from this address begin with a PROXY header.
    pub(crate) fn is_proxy(&self, from: SocketAddr) -> bool {
        self.speaks
            .proxies
            .iter()
            .any(|network| network.contains(&from.ip()))
    }
}
