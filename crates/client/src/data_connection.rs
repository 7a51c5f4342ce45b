//! Data connections (RFC 6062 §4.3): further connections to the server, each of which carries the bytes of one peer.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use stun::ConnectionId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::sleep_until;
use turn::client::{Client as Engine, Event, RequestError};

use crate::allocation::Allocation;
use crate::client::with_timeout;
use crate::endpoint::{Endpoint, Input};
use crate::error::{ConnectError, DataConnectionError, Disconnect};
use crate::link::Link;
use crate::server::ConnectMethod;
use crate::shared::Shared;
use crate::stream::{Incoming, Wire};
use crate::stream_link::{Socket, StreamLink, invalid};

/// Longer than any response to a ConnectionBind request.
const MAX_RESPONSE_BYTES: usize = 4096;
/// The maximum number of bytes per read over TLS: one record.
const MAX_READ_BYTES: usize = 16 * 1024;
/// TLS accepts no more data from the program while the socket has not accepted this many bytes.
const MAX_UNSENT_BYTES: usize = 64 * 1024;

/// How to make another connection to the server.
pub(crate) struct ConnectOptions {
    pub(crate) server: SocketAddr,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) method: ConnectMethod,
    pub(crate) timeout: Duration,
}

impl ConnectOptions {
    async fn open(&self) -> Result<StreamLink, ConnectError> {
        // RFC 6062 §4.3: "This connection MUST be made using a different local transport address."
        let local = self.local.map(|local| SocketAddr::new(local.ip(), 0));
        let link = StreamLink::open(&self.method, local, self.server);
        with_timeout(self.server, self.timeout, link).await
    }
}

/// Opens a connection to the server and binds it to the connection with a peer.
pub(crate) async fn open(
    allocation: Allocation,
    engine: Engine,
    peer: SocketAddr,
    id: ConnectionId,
) -> Result<PeerStream, DataConnectionError> {
    let shared = allocation.shared();
    let link = shared.dial.open().await?;
    bind(shared, &link, engine, id).await?;
    let parts = link.into_parts();
    let (socket, wire, incoming) = parts.map_err(|error| lost(&error))?;
    Ok(PeerStream {
        allocation,
        peer,
        socket,
        chunk: match wire.is_tls() {
            true => vec![0; MAX_READ_BYTES].into(),
            false => Box::default(),
        },
        wire,
        incoming,
        is_finished: false,
    })
}

fn lost(error: &io::Error) -> DataConnectionError {
    DataConnectionError::Disconnected(Disconnect::from(error))
}

/// Sends ConnectionBind requests until there is a response. Bytes behind the response stay in the link.
async fn bind(
    shared: &Shared,
    link: &StreamLink,
    engine: Engine,
    id: ConnectionId,
) -> Result<(), DataConnectionError> {
    let server = shared.dial.server;
    let mut endpoint = Endpoint::adopt(server, Box::new(engine));
    endpoint.with(shared.now(), |client, now| client.bind_connection(now, id));
    let mut buffer = [0; MAX_RESPONSE_BYTES];
    loop {
        endpoint.timeout(shared.now());
        let mut outcome: Option<Result<(), RequestError>> = None;
        let mut failed = None;
        endpoint.drain(
            |request| failed = link.try_send(request).err().or(failed.take()),
            |event| match event {
                Event::ConnectionBound { .. } => outcome = Some(Ok(())),
                Event::ConnectionBindFailed { error, .. } => outcome = Some(Err(error)),
                _ => {}
            },
        );
        match (outcome, failed) {
            (Some(outcome), _) => return outcome.map_err(DataConnectionError::Request),
            (None, Some(error)) => return Err(lost(&error)),
            (None, None) => {}
        }
        let deadline = endpoint.deadline().and_then(|at| shared.instant(at));
        let passed = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            received = receive(link, &mut buffer) => {
                let length = received.map_err(|error| lost(&error))?;
                // Other messages are ignored: only the response to the ConnectionBind request counts.
                let _: Input = endpoint.input(shared.now(), server, &buffer[..length]);
            }
            () = passed => {}
        }
    }
}

async fn receive(link: &StreamLink, buffer: &mut [u8]) -> io::Result<usize> {
    let mut buffer = ReadBuf::new(buffer);
    poll_fn(|cx| link.poll_recv(cx, &mut buffer)).await?;
    Ok(buffer.filled().len())
}

/// A stream of bytes from and to a peer (RFC 6062), through the server. It keeps the allocation.
///
/// Reading returns 0 bytes after the peer has closed its direction; the program may still write. `shutdown` closes the
/// other direction. The stream ends when the allocation ends. When the stream is dropped, both connections are closed.
///
/// Over TLS, the end of the connection without close_notify is [`UnexpectedEof`](io::ErrorKind::UnexpectedEof): bytes
/// may be missing.
pub struct PeerStream {
    allocation: Allocation,
    peer: SocketAddr,
    socket: TcpStream,
    wire: Wire,
    /// Bytes that came behind the response; over TLS also decrypted bytes.
    incoming: Incoming,
    /// The read buffer for TLS. Empty over TCP.
    chunk: Box<[u8]>,
    /// Nothing more is written.
    is_finished: bool,
}

impl std::fmt::Debug for PeerStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerStream")
            .field("peer", &self.peer)
            .field("wire", &self.wire)
            .finish_non_exhaustive()
    }
}

impl PeerStream {
    /// The peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address of this machine that the data connection leaves from.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The relayed transport address that the peer is connected with.
    #[must_use]
    pub fn relayed(&self) -> SocketAddr {
        self.allocation.relayed_for(self.peer)
    }

    /// Writes what is queued. `Pending` while some of it is left.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.wire.flush(&mut Socket(&self.socket))? {
            ready!(self.socket.poll_write_ready(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads and decrypts once. `false` at the end.
    fn poll_decrypt(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.wire.has_ended() {
            return Poll::Ready(Ok(false));
        }
        loop {
            let count = match self.socket.try_read(&mut self.chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_read_ready(cx))?;
                    continue;
                }
                other => other?,
            };
            if count == 0 {
                let text = "the server closed the connection without close_notify";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
            }
            let received = self.wire.receive(&self.chunk[..count], &mut self.incoming);
            // TLS may have to send something, also an alert after an error. Bytes that the socket does not accept wait
            // for the next write.
            let flushed = self.wire.flush(&mut Socket(&self.socket));
            received.map_err(invalid)?;
            flushed?;
            return Poll::Ready(Ok(true));
        }
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let rest = this.incoming.rest();
            if !rest.is_empty() || buffer.remaining() == 0 {
                let count = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..count]);
                this.incoming.consume(count);
                return Poll::Ready(Ok(()));
            }
            if !this.wire.is_tls() {
                return Pin::new(&mut this.socket).poll_read(cx, buffer);
            }
            if !ready!(this.poll_decrypt(cx))? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if !this.wire.is_tls() {
            return Pin::new(&mut this.socket).poll_write(cx, bytes);
        }
        while this.wire.backlog() >= MAX_UNSENT_BYTES {
            ready!(this.poll_drain(cx))?;
        }
        let count = bytes.len().min(MAX_UNSENT_BYTES);
        this.wire.queue(&[&bytes[..count]]);
        // Bytes that the socket does not accept now leave with the next write or flush.
        this.wire.flush(&mut Socket(&this.socket))?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_drain(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        if !this.is_finished {
            this.is_finished = true;
            this.wire.finish();
        }
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}

impl Drop for PeerStream {
    /// Over TLS, sends close_notify if the socket has room, so that the server does not assume a truncation
    /// (RFC 8446 §6.1).
    fn drop(&mut self) {
        self.wire.close();
        let _ = self.wire.flush(&mut Socket(&self.socket));
    }
}
