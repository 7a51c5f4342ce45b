//! A socket that blocks for a while: UDP, TCP, TLS or DTLS.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ::io::{Events, Interest, Poller, TcpConnection};
use client::{Stream, StreamError};

use super::Connected;
use super::dtls::Session;
use super::link::is_timeout;
use crate::{ServerAddress, Via};

/// Shortest wait that a socket's read timeout can express.
pub(super) const MIN_WAIT: Duration = Duration::from_micros(100);
/// Bytes that are read from a connection at once.
const MAX_READ_BYTES: usize = 16 * 1024;

/// A socket that is connected to one server. Over UDP, the kernel then reports ICMP errors.
pub(super) enum Socket {
    Udp(UdpSocket),
    Stream(Box<Connection>),
    Dtls(Box<Session>),
}

/// A TCP connection and what goes through it.
pub(super) struct Connection {
    socket: TcpStream,
    stream: Stream,
    connected: Connected,
}

impl Socket {
    /// Opens a socket to a server, from any local address. Over TLS and DTLS, completes the handshake.
    pub(super) fn open(server: &ServerAddress, timeout: Duration) -> io::Result<Socket> {
        if let Via::Dtls(tls) = &server.via {
            let session = Session::open(server.address, tls, timeout)?;
            return Ok(Socket::Dtls(Box::new(session)));
        }
        match server.via.stream() {
            None => udp(server.address).map(Socket::Udp),
            Some(stream) => {
                let stream = stream.map_err(invalid)?;
                let connection = Connection::open(server, stream, None, timeout)?;
                Ok(Socket::Stream(Box::new(connection)))
            }
        }
    }

    /// Opens a TCP or TLS connection from `local`. Other connections of this process may use `local` at the same time.
    pub(super) fn open_from(
        local: SocketAddr,
        server: &ServerAddress,
        timeout: Duration,
    ) -> io::Result<Socket> {
        let stream = server.via.stream().ok_or(io::ErrorKind::Unsupported)?;
        let stream = stream.map_err(invalid)?;
        let connection = Connection::open(server, stream, Some(local), timeout)?;
        Ok(Socket::Stream(Box::new(connection)))
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        let address = match self {
            Socket::Udp(socket) => socket.local_addr(),
            Socket::Stream(connection) => connection.socket.local_addr(),
            Socket::Dtls(session) => session.local_addr(),
        };
        // A bound socket has an address; the call cannot fail.
        address.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    pub(super) fn connected(&self) -> Option<Connected> {
        match self {
            Socket::Udp(_) => None,
            Socket::Stream(connection) => Some(connection.connected.clone()),
            Socket::Dtls(session) => Some(session.connected()),
        }
    }

    pub(super) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Socket::Udp(socket) => socket.send(message).map(|_| ()),
            Socket::Stream(connection) => {
                connection.stream.queue(&[message]);
                connection.stream.flush(&mut connection.socket).map(|_| ())
            }
            Socket::Dtls(session) => session.send(message),
        }
    }

    /// Waits for a message, at most for `wait`, and returns its length.
    pub(super) fn receive(&mut self, wait: Duration, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Udp(socket) => {
                socket.set_read_timeout(Some(wait.max(MIN_WAIT)))?;
                socket.recv(buffer)
            }
            Socket::Stream(connection) => connection.receive(wait, buffer),
            Socket::Dtls(session) => session.receive(wait, buffer),
        }
    }
}

impl Connection {
    /// Connects, from `local` if it is given, and completes the handshake of TLS. Measures both times.
    fn open(
        server: &ServerAddress,
        mut stream: Stream,
        local: Option<SocketAddr>,
        timeout: Duration,
    ) -> io::Result<Connection> {
        let start = Instant::now();
        let mut socket = match local {
            None => TcpStream::connect_timeout(&server.address, timeout)?,
            Some(local) => connect_from(local, server.address, timeout)?,
        };
        let tcp = start.elapsed();
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(timeout))?;
        stream.flush(&mut socket)?;
        while !stream.wire().is_established() {
            let rest = timeout.saturating_sub(start.elapsed());
            if rest.is_zero() {
                let text = "the TLS handshake did not end in time";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            match read(&mut socket, &mut stream, rest) {
                Err(error) if is_timeout(error.kind()) => {}
                other => other?,
            }
        }
        // Sends the last message of the TLS handshake.
        stream.flush(&mut socket)?;
        let tls = match server.via {
            Via::Tls(_) => stream
                .wire()
                .handshake()
                .map(|tls| (start.elapsed() - tcp, tls)),
            _ => None,
        };
        let connected = Connected {
            tcp: Some(tcp),
            tls,
        };
        Ok(Connection {
            socket,
            stream,
            connected,
        })
    }

    fn receive(&mut self, wait: Duration, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(message) = self.stream.next_message().map_err(invalid)? {
                // The buffer is longer than any message.
                buffer[..message.len()].copy_from_slice(message);
                return Ok(message.len());
            }
            read(&mut self.socket, &mut self.stream, wait)?;
        }
    }
}

impl Drop for Connection {
    /// Over TLS, sends close_notify.
    fn drop(&mut self) {
        self.stream.close();
        let _ = self.stream.flush(&mut self.socket);
    }
}

/// Connects from an address that other connections have as well.
fn connect_from(local: SocketAddr, to: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let connection = TcpConnection::connect_from(local, to)?;
    let poller = Poller::new()?;
    poller.add(&connection, 0, Interest::Write)?;
    let mut events = Events::with_capacity(1);
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        poller.wait(&mut events, Some(left))?;
        if events.iter().next().is_some() {
            break;
        }
    }
    connection.take_error()?;
    let socket = TcpStream::from(connection.as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Reads once, and writes what TLS answers.
fn read(socket: &mut TcpStream, stream: &mut Stream, wait: Duration) -> io::Result<()> {
    socket.set_read_timeout(Some(wait.max(MIN_WAIT)))?;
    let mut chunk = [0; MAX_READ_BYTES];
    let count = socket.read(&mut chunk)?;
    if count == 0 {
        let text = match stream.wire().is_established() {
            true => "it closed the connection",
            false => "it closed the connection during the TLS handshake",
        };
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
    }
    let received = stream.receive(&chunk[..count]);
    // Also after an error: TLS has queued the alert that says why.
    let flushed = stream.flush(socket);
    received.map_err(invalid)?;
    flushed.map(|_| ())
}

pub(super) fn udp(server: SocketAddr) -> io::Result<UdpSocket> {
    let any = match server.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    Ok(socket)
}

fn invalid(error: StreamError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
