//! Implements [`Link`] over TCP and TLS.

use std::future::{Future, poll_fn};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::ReadBuf;
use tokio::net::{TcpSocket, TcpStream};
use turn::Transport;

use crate::error::ConnectError;
use crate::link::Link;
use crate::server::ConnectMethod;
use crate::stream::{Incoming, Stream, Wire};

/// The maximum number of queued bytes. With more, `try_send` refuses messages. It is a quarter of a second at 8 Mbit/s.
const MAX_QUEUED_BYTES: usize = 256 * 1024;
/// The maximum number of bytes per read.
const MAX_READ_BYTES: usize = 64 * 1024;

/// A TCP or TLS connection to the server.
pub(crate) struct StreamLink {
    /// Shared only by [`StreamLink::into_parts`].
    socket: Arc<TcpStream>,
    inner: Mutex<Inner>,
}

struct Inner {
    stream: Stream,
    chunk: Box<[u8]>,
    /// The task that receives. It also writes bytes that the socket has not accepted at once.
    receiver: Option<Waker>,
}

/// Implements `Write` for a connection. It never blocks.
pub(crate) struct Socket<'a>(pub(crate) &'a TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StreamLink {
    /// Connects. Over TLS it also completes the handshake.
    pub(crate) async fn open(
        method: &ConnectMethod,
        local: Option<SocketAddr>,
        server: SocketAddr,
    ) -> Result<StreamLink, ConnectError> {
        let tcp = |source| ConnectError::Tcp { server, source };
        let socket = connect(local, server).await.map_err(tcp)?;
        let stream = match method {
            #[cfg(feature = "tls")]
            ConnectMethod::Tls(tls) => {
                Stream::tls(tls).map_err(|error| tls_error(tls, server, &invalid(error)))?
            }
            _ => Stream::tcp(),
        };
        let link = StreamLink {
            socket: Arc::new(socket),
            inner: Mutex::new(Inner {
                stream,
                chunk: vec![0; MAX_READ_BYTES].into(),
                receiver: None,
            }),
        };
        let established = poll_fn(|cx| link.poll_established(cx)).await;
        match method {
            #[cfg(feature = "tls")]
            ConnectMethod::Tls(tls) => {
                established.map_err(|error| tls_error(tls, server, &error))?
            }
            _ => established.map_err(tcp)?,
        }
        Ok(link)
    }

    /// Takes the connection apart. Bytes that were received and not returned as messages are in [`Incoming`].
    ///
    /// # Errors
    /// If the socket is still shared, which is a bug of this crate.
    pub(crate) fn into_parts(self) -> io::Result<(TcpStream, Wire, Incoming)> {
        let socket = Arc::clone(&self.socket);
        // The link sends its last bytes when it is dropped; an empty TCP stream in its place sends nothing.
        let stream = std::mem::replace(&mut self.lock().stream, Stream::tcp());
        drop(self);
        let socket = Arc::into_inner(socket).ok_or(io::ErrorKind::ResourceBusy)?;
        let (wire, incoming) = stream.into_parts();
        Ok((socket, wire, incoming))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_established(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        loop {
            self.poll_flush(&mut inner, cx)?;
            if inner.stream.wire().is_established() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_read(&mut inner, cx))?;
        }
    }

    /// Writes queued bytes. If some remain, it wakes the task when the socket has room.
    fn poll_flush(&self, inner: &mut Inner, cx: &mut Context<'_>) -> io::Result<()> {
        while !inner.stream.flush(&mut Socket(&self.socket))? {
            match self.socket.poll_write_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Reads from the socket once.
    fn poll_read(&self, inner: &mut Inner, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let count = match self.socket.try_read(&mut inner.chunk) {
                Ok(0) => return Poll::Ready(Err(ended(&inner.stream))),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_read_ready(cx))?;
                    continue;
                }
                Err(error) => return Poll::Ready(Err(error)),
            };
            let received = inner.stream.receive(&inner.chunk[..count]);
            // Flush after an error too, because TLS has queued an alert.
            let flushed = self.poll_flush(inner, cx);
            return Poll::Ready(received.map_err(invalid).and(flushed));
        }
    }
}

async fn connect(local: Option<SocketAddr>, server: SocketAddr) -> io::Result<TcpStream> {
    let socket = if server.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // Every write has complete messages, so Nagle's algorithm would only add delay.
    socket.set_nodelay(true)?;
    if let Some(local) = local {
        socket.bind(local)?;
    }
    socket.connect(server).await
}

/// The error if the server has closed the connection.
fn ended(stream: &Stream) -> io::Error {
    let text = if stream.wire().is_established() {
        "the server closed the connection"
    } else {
        "the server closed the connection during the TLS handshake"
    };
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

pub(crate) fn invalid(error: crate::StreamError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(feature = "tls")]
fn tls_error(tls: &crate::Tls, server: SocketAddr, error: &io::Error) -> ConnectError {
    ConnectError::Tls {
        server,
        name: tls.server_name(),
        why: error.into(),
    }
}

impl Link for StreamLink {
    fn transport(&self) -> Transport {
        if self.lock().stream.wire().is_tls() {
            Transport::Tls
        } else {
            Transport::Tcp
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn try_send(&self, message: &[u8]) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.stream.backlog() >= MAX_QUEUED_BYTES {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        inner.stream.queue(&[message]);
        if !inner.stream.flush(&mut Socket(&self.socket))? {
            // The receiver writes the rest when there is room.
            inner.receiver.take().inspect(Waker::wake_by_ref);
        }
        Ok(())
    }

    fn writable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(async {
            loop {
                self.socket.writable().await?;
                let mut inner = self.lock();
                inner.stream.flush(&mut Socket(&self.socket))?;
                if inner.stream.backlog() < MAX_QUEUED_BYTES {
                    return Ok(());
                }
            }
        })
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        inner.receiver = Some(cx.waker().clone());
        self.poll_flush(&mut inner, cx)?;
        loop {
            if let Some(message) = inner.stream.next_message().map_err(invalid)? {
                let count = message.len().min(buffer.remaining());
                buffer.put_slice(&message[..count]);
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_read(&mut inner, cx))?;
        }
    }
}

impl Drop for StreamLink {
    /// Over TLS, sends close_notify if the socket has room, so that the server does not assume a truncation
    /// (RFC 8446 §6.1).
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        inner.stream.close();
        let _ = inner.stream.flush(&mut Socket(&self.socket));
    }
}
