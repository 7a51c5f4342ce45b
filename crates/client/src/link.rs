//! What carries messages between the client and its server.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use turn::Transport;

/// A connection to one server, as messages: STUN messages and ChannelData messages, each whole.
///
/// UDP, TCP, TLS and DTLS are built in ([`Client::connect`](crate::Client::connect)). A program with another connection
/// to a server implements this trait. Examples are a socket that ICE uses too, or a simulated network in a test.
pub trait Link: Send + Sync + 'static {
    /// The transport protocol: over streams (TCP, TLS) no request is repeated, and ChannelData is padded.
    fn transport(&self) -> Transport;

    /// The address that messages leave from.
    ///
    /// # Errors
    /// What the system says.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Sends a message, whole or not at all.
    ///
    /// # Errors
    /// `WouldBlock` while there is no room for it: see [`writable`](Link::writable). `ConnectionRefused` if the network
    /// says that nothing listens there.
    fn try_send(&self, message: &[u8]) -> io::Result<()>;

    /// Waits until there may be room. Any number of tasks may wait.
    fn writable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>>;

    /// Receives one message. Only one task ever waits.
    ///
    /// # Errors
    /// As [`try_send`](Link::try_send). Over a stream every error is its end. Over UDP and DTLS, `UnexpectedEof` is the
    /// end, and after other errors the client goes on.
    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;
}

/// A UDP socket for one client, connected to the server. So the kernel drops datagrams of other senders, and reports
/// ICMP errors.
#[derive(Debug)]
pub(crate) struct UdpLink(UdpSocket);

impl UdpLink {
    /// Binds `local`, or any port of any address.
    pub(crate) async fn open(local: Option<SocketAddr>, server: SocketAddr) -> io::Result<UdpLink> {
        udp(local, server).await.map(UdpLink)
    }
}

pub(crate) async fn udp(local: Option<SocketAddr>, server: SocketAddr) -> io::Result<UdpSocket> {
    let any = match server.ip() {
        IpAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        IpAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    };
    let socket = UdpSocket::bind(local.unwrap_or(any)).await?;
    socket.connect(server).await?;
    // tokio learns from its first poll that a socket is writable; until then `try_send` refuses everything.
    socket.writable().await?;
    Ok(socket)
}

impl Link for UdpLink {
    fn transport(&self) -> Transport {
        Transport::Udp
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn try_send(&self, message: &[u8]) -> io::Result<()> {
        self.0.try_send(message).map(|_| ())
    }

    fn writable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(self.0.writable())
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_recv(cx, buffer)
    }
}

/// RFC 8489 §6.2.1: a hard ICMP error fails the transaction. RFC 1122 §4.2.3.9 calls "port unreachable" one, but not a
/// network or a host that cannot be reached at the moment.
pub(crate) fn is_hard(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied
    )
}
