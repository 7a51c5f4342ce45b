//! How the NAT in front of this machine behaves (RFC 5780), asked of a server with two addresses and two ports.
//!
//! [`steps`] asks, through the [`Network`] trait: the tests put a simulated NAT and the server's own engine behind it,
//! [`sockets`] the real network.

mod message;
mod report;
mod sockets;
mod steps;
mod streams;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

pub use report::{Behaviour, Hairpinning, Lifetime, NatReport};
use sockets::UdpSockets;
use steps::Prober;

use super::ProbeError;
use crate::{ServerAddress, Via};

/// What is to be found out, and how long it may take.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NatOptions {
    /// How long a response is waited for. Up to five steps may get no response, because filters drop it silently.
    pub timeout: Duration,
    /// The longest idle time after which a binding is tested: the test takes as long. `None` does not test.
    pub lifetime: Option<Duration>,
}

impl NatOptions {
    /// All tests but the lifetime of bindings.
    #[must_use]
    pub const fn new(timeout: Duration) -> NatOptions {
        NatOptions {
            timeout,
            lifetime: None,
        }
    }
}

/// Finds out how the NAT on the way to `server` behaves: over UDP all of it, over TCP and TLS the mapping only. RFC
/// 5780 §9.2 does not have DTLS.
///
/// # Errors
/// [`ProbeError`], if the server does not respond or does not serve RFC 5780.
pub fn nat(server: &ServerAddress, options: &NatOptions) -> Result<NatReport, ProbeError> {
    let address = server.address;
    let failed = |error| ProbeError::local(address, error);
    match &server.via {
        Via::Udp => {
            let network = UdpSockets::new(address).map_err(failed)?;
            Prober::new(network, address, options.timeout).probe(options.lifetime)
        }
        Via::Tcp | Via::Tls(_) => streams::probe(server, options.timeout),
        Via::Dtls(_) => Err(failed(io::ErrorKind::Unsupported.into())),
    }
}

/// Sockets and time.
trait Network {
    /// Opens a socket on a port that has not been used, and returns its number.
    fn open(&mut self) -> io::Result<usize>;
    /// The socket's address.
    fn local(&self, socket: usize) -> SocketAddr;
    fn send(&mut self, socket: usize, to: SocketAddr, datagram: &[u8]) -> io::Result<()>;
    /// Waits until `until` for a datagram at any socket.
    fn receive(&mut self, until: Duration) -> io::Result<Option<Received>>;
    /// Time since some moment.
    fn now(&self) -> Duration;
    /// Lets time pass.
    fn wait(&mut self, until: Duration);
    /// Bytes that nobody can guess.
    fn random(&mut self) -> io::Result<[u8; 12]>;
}

/// A datagram.
struct Received {
    socket: usize,
    from: SocketAddr,
    bytes: Vec<u8>,
}
