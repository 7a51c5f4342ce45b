//! UDP sockets, waited for together.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ::io::{Events, Interest, Poller};

use super::{Network, Received};

/// RFC 5780 §4.1: ports are chosen at random among 49152 to 65535, so that none has been used a moment ago.
const FIRST_PORT: u16 = 49_152;
const PORT_COUNT: u16 = u16::MAX - FIRST_PORT + 1;
/// How often another port is tried if one is taken.
const MAX_ATTEMPTS: u32 = 64;
/// The longest UDP datagram.
const DATAGRAM_BYTES: usize = 65_536;

/// Sockets on this machine's address towards one server.
pub(super) struct UdpSockets {
    local: IpAddr,
    sockets: Vec<UdpSocket>,
    poller: Poller,
    events: Events,
    start: Instant,
    buffer: Vec<u8>,
}

impl UdpSockets {
    pub(super) fn new(server: SocketAddr) -> io::Result<UdpSockets> {
        // Connected for the system's choice of an address; nothing is sent from it.
        let towards = super::super::socket::udp(server)?;
        Ok(UdpSockets {
            local: towards.local_addr()?.ip(),
            sockets: Vec::new(),
            poller: Poller::new()?,
            events: Events::with_capacity(16),
            start: Instant::now(),
            buffer: vec![0; DATAGRAM_BYTES],
        })
    }

    fn bind(&mut self) -> io::Result<UdpSocket> {
        let mut last = None;
        for _ in 0..MAX_ATTEMPTS {
            match UdpSocket::bind((self.local, random_port()?)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
                bound => return bound,
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }

    /// A datagram that waits at one of the sockets.
    fn take(&mut self) -> io::Result<Option<Received>> {
        for (number, socket) in self.sockets.iter().enumerate() {
            match socket.recv_from(&mut self.buffer) {
                Ok((length, from)) => {
                    let bytes = self.buffer[..length].to_vec();
                    let socket = number;
                    return Ok(Some(Received {
                        socket,
                        from,
                        bytes,
                    }));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // An ICMP error about something sent earlier: a response may still come.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

pub(super) fn random_port() -> io::Result<u16> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(FIRST_PORT + u16::from_be_bytes(bytes) % PORT_COUNT)
}

impl Network for UdpSockets {
    fn open(&mut self) -> io::Result<usize> {
        let socket = self.bind()?;
        socket.set_nonblocking(true)?;
        let number = self.sockets.len();
        self.poller.add(&socket, number as u64, Interest::Read)?;
        self.sockets.push(socket);
        Ok(number)
    }

    fn local(&self, socket: usize) -> SocketAddr {
        let address = self.sockets.get(socket).map(UdpSocket::local_addr);
        // A bound socket has an address; the call cannot fail.
        address
            .and_then(Result::ok)
            .unwrap_or(SocketAddr::new(self.local, 0))
    }

    fn send(&mut self, socket: usize, to: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        match self.sockets.get(socket) {
            Some(socket) => socket.send_to(datagram, to).map(drop),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn receive(&mut self, until: Duration) -> io::Result<Option<Received>> {
        loop {
            if let Some(received) = self.take()? {
                return Ok(Some(received));
            }
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return Ok(None);
            }
            self.poller.wait(&mut self.events, Some(left))?;
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&mut self, until: Duration) {
        std::thread::sleep(until.saturating_sub(self.now()));
    }

    fn random(&mut self) -> io::Result<[u8; 12]> {
        let mut bytes = [0; 12];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }
}
