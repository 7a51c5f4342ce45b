//! Implements [`Link`] over DTLS.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};
use turn::{Mono, Transport};

use crate::dtls_session::DtlsSession;
use crate::error::ConnectError;
use crate::link::{Link, is_hard, udp};
use crate::stream::{StreamError, Tls};

/// Longer than any UDP datagram.
const DATAGRAM_BYTES: usize = 65_536;

/// A DTLS session with the server, on a UDP socket of its own.
pub(crate) struct DtlsLink {
    socket: UdpSocket,
    start: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    session: DtlsSession,
    /// The datagram that was received last, decrypted up to `at`.
    datagram: Box<[u8]>,
    length: usize,
    at: usize,
    /// The datagram that is being sent.
    sealed: Vec<u8>,
}

impl DtlsLink {
    /// Opens a socket and completes the handshake. The caller limits the time.
    pub(crate) async fn open(
        tls: &Tls,
        local: Option<SocketAddr>,
        server: SocketAddr,
    ) -> Result<DtlsLink, ConnectError> {
        let socket = udp(local, server).await;
        let socket = socket.map_err(|source| ConnectError::Socket { server, source })?;
        let failed = |error: &io::Error| ConnectError::Dtls {
            server,
            name: tls.server_name(),
            why: error.into(),
        };
        let start = Instant::now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let session = DtlsSession::new(tls, Mono(0), unix.unwrap_or_default().as_secs());
        let link = DtlsLink {
            socket,
            start,
            inner: Mutex::new(Inner {
                session: session.map_err(|error| failed(&ended(error)))?,
                datagram: vec![0; DATAGRAM_BYTES].into(),
                length: 0,
                at: 0,
                sealed: Vec::new(),
            }),
        };
        link.handshake().await.map_err(|error| failed(&error))?;
        Ok(link)
    }

    async fn handshake(&self) -> io::Result<()> {
        let mut datagram = vec![0; DATAGRAM_BYTES];
        loop {
            let due = {
                let mut inner = self.lock();
                self.flush(&mut inner);
                if inner.session.is_established() {
                    return Ok(());
                }
                inner.session.poll_timeout()
            };
            let due = due.map_or(self.start, |at| self.start + Duration::from_nanos(at.0));
            let received = timeout_at(due, self.socket.recv(&mut datagram)).await;
            let mut inner = self.lock();
            let outcome = match received {
                Ok(Ok(length)) => inner
                    .session
                    .open(self.now(), &mut datagram[..length], 0)
                    .map(|_| ()),
                Ok(Err(error)) if is_hard(&error) => return Err(error),
                Ok(Err(_)) => Ok(()),
                Err(_) => inner.session.handle_timeout(self.now()),
            };
            if let Err(error) = outcome {
                // The alert says why.
                self.flush(&mut inner);
                return Err(ended(error));
            }
        }
    }

    fn now(&self) -> Mono {
        Mono(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what the session has to send. What the socket does not accept counts as lost: the session retransmits it.
    fn flush(&self, inner: &mut Inner) {
        while let Some(datagram) = inner.session.poll_transmit() {
            let _ = self.socket.try_send(datagram);
        }
    }
}

/// The task ends the client after an error of this kind.
fn ended(error: StreamError) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, error)
}

impl Link for DtlsLink {
    fn transport(&self) -> Transport {
        Transport::Dtls
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn try_send(&self, message: &[u8]) -> io::Result<()> {
        let inner = &mut *self.lock();
        let sealed = inner.session.seal(&[message], &mut inner.sealed);
        sealed.map_err(|error| io::Error::new(io::ErrorKind::NotConnected, error))?;
        self.socket.try_send(&inner.sealed).map(|_| ())
    }

    fn writable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(self.socket.writable())
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.lock();
        loop {
            let datagram = &mut inner.datagram[..inner.length];
            let opened = inner.session.open(self.now(), datagram, inner.at);
            self.flush(inner);
            if let Some((message, next)) = opened.map_err(ended)? {
                inner.at = next;
                let count = message.len().min(buffer.remaining());
                buffer.put_slice(&inner.datagram[message][..count]);
                return Poll::Ready(Ok(()));
            }
            (inner.length, inner.at) = (0, 0);
            let mut received = ReadBuf::new(&mut inner.datagram);
            ready!(self.socket.poll_recv(cx, &mut received))?;
            inner.length = received.filled().len();
        }
    }
}

impl Drop for DtlsLink {
    /// Sends close_notify, so that the server does not keep the session until its idle timeout.
    fn drop(&mut self) {
        let mut inner = self.lock();
        inner.session.close();
        self.flush(&mut inner);
    }
}
