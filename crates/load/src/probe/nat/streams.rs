//! The mapping test of RFC 5780 §4.3 over TCP and TLS: connections from one local port to the addresses of the server.
//!
//! CHANGE-REQUEST does not exist over connections (§6.1 lets no response leave by another one), so filtering is not
//! tested.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use stun::TransactionId;

use super::message::{Mapped, Outcome, RequestedTest, request, response};
use super::report::{Hairpinning, NatReport};
use super::sockets::random_port;
use super::steps::{check_other, mapping_of};
use super::{ProbeError, Received};
use crate::ServerAddress;
use crate::probe::link::is_timeout;
use crate::probe::socket::{Socket, udp};

/// How often another local port is tried if one is taken.
const MAX_ATTEMPTS: usize = 16;
/// Longer than any message.
const BUFFER_BYTES: usize = 65_536 + 8;

/// Finds out which mapped addresses the NAT gives to one local port.
pub(super) fn probe(server: &ServerAddress, timeout: Duration) -> Result<NatReport, ProbeError> {
    let address = server.address;
    let failed = |error| ProbeError::local(address, error);
    let ip = udp(address)
        .and_then(|socket| socket.local_addr())
        .map_err(failed)?
        .ip();
    let mut prober = Prober {
        server,
        timeout,
        connections: Vec::new(),
    };
    let (local, first) = prober.first(ip)?;
    let other = check_other(address, first.other)?;
    let (mapping, mappings) = mapping_of(address, first.address, other, |to| {
        prober.mapped(local, to).map(|mapped| mapped.address)
    })?;
    Ok(NatReport {
        server: address,
        other,
        origin: first.origin.filter(|origin| *origin != address),
        local,
        mapped: first.address,
        mappings,
        mapping,
        filtering: None,
        hairpinning: match local == first.address {
            true => Hairpinning::NotNeeded,
            false => Hairpinning::NotTested,
        },
        lifetime: None,
        software: first.software,
    })
}

struct Prober<'a> {
    server: &'a ServerAddress,
    timeout: Duration,
    /// They stay open, as NATs end the mapping of a port with its last connection.
    connections: Vec<Socket>,
}

impl Prober<'_> {
    /// Connects from a port that is free, and asks for its mapped address.
    fn first(&mut self, ip: IpAddr) -> Result<(SocketAddr, Mapped), ProbeError> {
        let server = self.server.address;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let port = random_port().map_err(|error| ProbeError::local(server, error))?;
            let local = SocketAddr::new(ip, port);
            match self.connect(local, server) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && attempts < MAX_ATTEMPTS => {}
                Err(error) => return Err(self.explain(server, error)),
                Ok(socket) => return Ok((local, self.ask(socket, server)?)),
            }
        }
    }

    /// The mapped address of `local` as the server's address `to` sees it.
    fn mapped(&mut self, local: SocketAddr, to: SocketAddr) -> Result<Mapped, ProbeError> {
        match self.connect(local, to) {
            Ok(socket) => self.ask(socket, to),
            Err(error) => Err(self.explain(to, error)),
        }
    }

    fn connect(&self, local: SocketAddr, to: SocketAddr) -> io::Result<Socket> {
        let to = ServerAddress {
            address: to,
            via: self.server.via.clone(),
        };
        Socket::open_from(local, &to, self.timeout)
    }

    fn explain(&self, to: SocketAddr, error: io::Error) -> ProbeError {
        ProbeError::connection(to, &self.server.via, error)
    }

    fn ask(&mut self, mut socket: Socket, to: SocketAddr) -> Result<Mapped, ProbeError> {
        let end = Instant::now() + self.timeout;
        let local = |error| ProbeError::local(to, error);
        let mut id = [0; 12];
        getrandom::fill(&mut id).map_err(|error| local(io::Error::other(error)))?;
        let id = TransactionId(id);
        let bytes = request(&id, RequestedTest::default())
            .map_err(|error| local(io::Error::other(error)))?;
        socket
            .send(&bytes)
            .map_err(|error| self.explain(to, error))?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ProbeError::NoAnswerByStream {
                    server: to,
                    request: "Binding",
                    waited: self.timeout,
                });
            }
            let length = match socket.receive(left, &mut buffer) {
                Ok(length) => length,
                Err(error) if is_timeout(error.kind()) => continue,
                Err(error) => return Err(self.explain(to, error)),
            };
            let received = Received {
                socket: 0,
                from: to,
                bytes: buffer[..length].to_vec(),
            };
            match response(&received, &id).map(|response| response.outcome) {
                Some(Outcome::Mapped(mapped)) => {
                    self.connections.push(socket);
                    return Ok(*mapped);
                }
                Some(Outcome::Refused(code, reason)) => {
                    return Err(ProbeError::refused(to, "Binding", code, &reason));
                }
                None => {}
            }
        }
    }
}
