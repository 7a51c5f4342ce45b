//! What can go wrong, by operation.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use turn::client::{Advice, AllocationLoss, CallError, RequestError};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The socket could not be opened or connected.
    #[error("cannot open a socket to {server}: {source}")]
    Socket {
        /// The server.
        server: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There is no TCP connection: nothing listens there, or the network does not lead there.
    #[error("cannot connect to {server} over TCP: {source}")]
    Tcp {
        /// The server.
        server: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The TLS handshake failed: what came is no TLS, the certificate is rejected, or the server ended it.
    #[cfg(feature = "tls")]
    #[error("no TLS with {server} as {name}: {why}")]
    Tls {
        /// The server.
        server: SocketAddr,
        /// The name that its certificate must be for.
        name: String,
        /// What went wrong.
        why: Disconnect,
    },
    /// The DTLS handshake failed: nothing listens there, the certificate is rejected, or the server ended it.
    #[cfg(feature = "tls")]
    #[error("no DTLS with {server} as {name}: {why}")]
    Dtls {
        /// The server.
        server: SocketAddr,
        /// The name that its certificate must be for.
        name: String,
        /// What went wrong.
        why: Disconnect,
    },
    /// There was no connection, or no end of the handshake, in time.
    #[error("no connection to {server} within {} s", .after.as_secs_f64())]
    TimedOut {
        /// The server.
        server: SocketAddr,
        /// How long it was waited for.
        after: Duration,
    },
    /// The system gives no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Randomness(String),
}

/// Why a TCP or TLS connection or a DTLS session has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    kind: io::ErrorKind,
    text: Arc<str>,
}

impl Disconnect {
    /// What kind of error it was: `UnexpectedEof` if the server closed the connection, `InvalidData` if what came makes
    /// no sense.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }
}

impl std::fmt::Display for Disconnect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Disconnect {}

impl From<&io::Error> for Disconnect {
    fn from(error: &io::Error) -> Disconnect {
        Disconnect {
            kind: error.kind(),
            text: error.to_string().into(),
        }
    }
}

/// Why a Binding request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindingError {
    /// The server refused, did not respond, or cannot be trusted.
    #[error("the Binding request failed: {0}")]
    Request(#[source] RequestError),
    /// The TCP or TLS connection is no more.
    #[error("the connection to the server is lost: {0}")]
    Disconnected(Disconnect),
    /// The client's task has ended.
    #[error("the client is closed")]
    Closed,
}

/// Why there is no allocation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// The server refused, did not respond, or cannot be trusted.
    #[error("the Allocate request failed: {error}")]
    Request {
        /// Why.
        #[source]
        error: RequestError,
        /// What RFC 8656 §7.4 advises to do now.
        advice: Advice,
    },
    /// This client has an allocation, or waits for one. A 5-tuple has one allocation: use another client.
    #[error("this client has an allocation already; close it first, or use another client")]
    AlreadyAllocated,
    /// A TCP allocation requires a connection to the server over TCP or TLS (RFC 6062 §4.1).
    #[error("a TCP allocation requires TCP or TLS to the server: use Server::tcp or Server::tls")]
    NotStream,
    /// The TCP or TLS connection is no more.
    #[error("the connection to the server is lost: {0}")]
    Disconnected(Disconnect),
    /// The client's task has ended.
    #[error("the client is closed")]
    Closed,
}

/// Why there is no connection with a peer (RFC 6062).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectPeerError {
    /// The server refused, or could not connect to the peer (447: try again after 10 seconds at the earliest).
    #[error("the Connect request failed: {0}")]
    Request(#[source] RequestError),
    /// The allocation has no address of the peer's family.
    #[error("the allocation has no address of the peer's address family")]
    PeerFamily,
    /// Another call of `connect` for this peer is not complete yet.
    #[error("the server is connecting to this peer already")]
    Connecting,
    /// There is no data connection.
    #[error(transparent)]
    Data(#[from] DataConnectionError),
    /// There is no allocation any more.
    #[error(transparent)]
    Ended(Ended),
}

/// Why there is no data connection (RFC 6062 §4.3). The server closes its connection with the peer after 30 seconds.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataConnectionError {
    /// The client could not open another connection to the server.
    #[error("no data connection: {0}")]
    Connect(#[from] ConnectError),
    /// The server refused: 400 if the connection with the peer has ended.
    #[error("the ConnectionBind request failed: {0}")]
    Request(#[source] RequestError),
    /// The data connection ended before it was bound.
    #[error("the data connection is lost: {0}")]
    Disconnected(Disconnect),
}

/// Why no peer's connection was accepted (RFC 6062).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// There is no data connection; others may be accepted.
    #[error(transparent)]
    Data(#[from] DataConnectionError),
    /// There is no allocation any more.
    #[error(transparent)]
    Ended(Ended),
}

/// Why an allocation is no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The program closed it.
    #[error("the allocation is closed")]
    Closed,
    /// The server does not have the allocation any more (437): it was restarted, or another server responds at its
    /// address.
    #[error("the server does not know the allocation any more")]
    Forgotten,
    /// Its time ran out: no Refresh was answered.
    #[error("the allocation has expired")]
    Expired,
    /// The server refused to refresh it.
    #[error("the server refused to refresh the allocation: {0}")]
    Refused(RequestError),
    /// The TCP or TLS connection is no more, and the allocation with it (RFC 8656 §3.2: it is tied to its 5-tuple).
    #[error("the connection to the server is lost: {0}")]
    Disconnected(Disconnect),
}

impl From<AllocationLoss> for Ended {
    fn from(loss: AllocationLoss) -> Ended {
        match loss {
            AllocationLoss::Forgotten => Ended::Forgotten,
            AllocationLoss::Refused(error) => Ended::Refused(error),
            // `AllocationLoss` may get more variants; with each of them, the allocation is over.
            _ => Ended::Expired,
        }
    }
}

/// Why a permission was not installed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PermitError {
    /// The server refused or did not respond.
    #[error("the CreatePermission request failed: {0}")]
    Request(#[source] RequestError),
    /// The allocation has no address of the peer's family.
    #[error("the allocation has no address of the peer's address family")]
    PeerFamily,
    /// There is no allocation any more.
    #[error(transparent)]
    Ended(Ended),
}

/// Why a channel was not bound.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The server refused or did not respond.
    #[error("the ChannelBind request failed: {0}")]
    Request(#[source] RequestError),
    /// The allocation has no address of the peer's family.
    #[error("the allocation has no address of the peer's address family")]
    PeerFamily,
    /// All 4,096 channels are bound, or were too recently (RFC 8656 §12).
    #[error("all 4096 channels are in use")]
    NoFreeChannel,
    /// There is no allocation any more.
    #[error(transparent)]
    Ended(Ended),
}

/// Why a Refresh failed. The allocation lasts until its time runs out.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefreshError {
    /// The server refused or did not respond.
    #[error("the Refresh request failed: {0}")]
    Request(#[source] RequestError),
    /// There is no allocation any more.
    #[error(transparent)]
    Ended(Ended),
}

/// Why data was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no permission for the peer, and the server gave none.
    #[error("no permission for the peer: {0}")]
    Permit(#[from] PermitError),
    /// There is no permission for the peer yet.
    #[error("there is no permission for this peer; ask for one with Allocation::permit")]
    NotPermitted,
    /// The data does not fit into one message.
    #[error("the data does not fit into one message")]
    TooLong,
    /// There is no allocation any more.
    #[error(transparent)]
    Ended(Ended),
    /// The link to the server did not accept the message; `WouldBlock` from the functions that do not wait.
    #[error("cannot send to the server: {0}")]
    Link(#[source] io::Error),
}

/// Why no more data comes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// There is no allocation any more.
    #[error(transparent)]
    Ended(Ended),
}

/// What the engine may refuse about a peer, as one of the errors above.
pub(crate) trait FromCallError {
    fn from_call(error: CallError) -> Self;
}

impl FromCallError for PermitError {
    fn from_call(error: CallError) -> PermitError {
        match error {
            CallError::PeerFamily => PermitError::PeerFamily,
            _ => PermitError::Ended(Ended::Closed),
        }
    }
}

impl FromCallError for ChannelError {
    fn from_call(error: CallError) -> ChannelError {
        match error {
            CallError::PeerFamily => ChannelError::PeerFamily,
            CallError::NoFreeChannel => ChannelError::NoFreeChannel,
            _ => ChannelError::Ended(Ended::Closed),
        }
    }
}

impl FromCallError for ConnectPeerError {
    fn from_call(error: CallError) -> ConnectPeerError {
        match error {
            CallError::PeerFamily => ConnectPeerError::PeerFamily,
            CallError::Connecting => ConnectPeerError::Connecting,
            _ => ConnectPeerError::Ended(Ended::Closed),
        }
    }
}
