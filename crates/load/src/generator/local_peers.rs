//! Peers of this process.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use io::UdpSocket;

use super::setup::{SetupError, socket_options, unspecified_of};

/// The address to give peers: the requested one, or the one from which this machine reaches `relayed`.
pub(super) fn address(wished: Option<IpAddr>, relayed: SocketAddr) -> Result<IpAddr, SetupError> {
    if let Some(ip) = wished {
        return Ok(ip);
    }
    let any = SocketAddr::new(unspecified_of(relayed.ip()), 0);
    let local = std::net::UdpSocket::bind(any).and_then(|socket| {
        // Connecting a UDP socket sends nothing; it asks the routing table.
        socket.connect(relayed)?;
        socket.local_addr()
    });
    let local = local.map_err(|source| SetupError::Local {
        what: "find an address for the peers (choose one)",
        source,
    })?;
    Ok(local.ip())
}

/// This many sockets on `ip`, each with a port of its own.
pub(super) fn sockets(ip: IpAddr, count: u32) -> Result<Vec<Arc<UdpSocket>>, SetupError> {
    let local = SocketAddr::new(ip, 0);
    let open = |_| match UdpSocket::bind(local, &socket_options()) {
        Ok(socket) => Ok(Arc::new(socket)),
        Err(source) => Err(SetupError::Socket(crate::client::AddError::Socket {
            local,
            source,
        })),
    };
    (0..count).map(open).collect()
}
