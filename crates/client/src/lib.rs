//! A TURN client (RFC 8656) for tokio: allocations, permissions and channels that refresh themselves.
//!
//! ```no_run
//! # use hairpin_client as client;
//! use client::{Client, Server};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::new("192.0.2.1:3478".parse()?).credentials("alice", "secret");
//! let client = Client::connect(server).await?;
//! let allocation = client.allocate().await?;
//! println!("peers send to {}", allocation.relayed());
//! let peer = allocation.peer("198.51.100.7:5000".parse()?).await?;
//! peer.send(b"hello").await?;
//! let mut buffer = [0; 1500];
//! let len = peer.recv(&mut buffer).await?;
//! println!("{:?}", &buffer[..len]);
//! allocation.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # When not to use it
//!
//! - You drive sockets and time yourself: use [`Endpoint`], or `hairpin-turn`.
//! - You need DTLS 1.3, mobility (RFC 8016), or the look-up of servers in the DNS: the crate does not have them.
//! - You need ICE: this crate gives relayed candidates only.
//!
//! # How it works
//!
//! One task per [`Client`] owns the receiving side of a [`Link`]: a UDP socket, a TCP or TLS connection, a DTLS
//! session, or another link. It sends requests, retransmits them, and refreshes allocations, permissions and channels.
//! Handles send data themselves, in the caller's task. Received data waits in bounded queues, whose drops are counted
//! ([`Stats`]). Every future may be dropped at any time: no received data is lost, and no allocation stays by accident.
//! When the last handle is dropped, the task deletes the allocation and ends.
//!
//! # Peers over TCP
//!
//! [`Client::allocate_tcp`] requests an allocation whose peers are reached over TCP (RFC 6062).
//! [`TcpAllocation::connect`] and [`TcpAllocation::accept`] give a [`PeerStream`], which tokio reads and writes like
//! any connection. Each [`PeerStream`] has a separate connection to the server.
//!
//! # Transports
//!
//! UDP is the default, [`Server::tcp`] chooses TCP, `Server::tls` chooses TLS, and `Server::dtls` chooses DTLS 1.2
//! (feature `tls`: rustls and this project's DTLS, both with aws-lc-rs). The end of a connection or session ends the
//! allocation: [`Ended::Disconnected`] says why.
//!
//! [`Endpoint`] is the same client without tokio (turn off the feature `tokio`). It has the state machine of
//! [`turn::client`], and keeps the one invariant that every driver of it must keep. [`Stream`] does the same for the
//! bytes of a TCP or TLS connection, and `DtlsSession` for DTLS. The load generator and the probe use them with epoll.
#![forbid(unsafe_code)]

#[cfg(feature = "tokio")]
mod allocation;
#[cfg(feature = "tokio")]
mod client;
#[cfg(feature = "tokio")]
mod data_connection;
#[cfg(all(feature = "tokio", feature = "tls"))]
mod dtls_link;
#[cfg(feature = "tls")]
mod dtls_session;
mod endpoint;
#[cfg(feature = "tokio")]
mod error;
#[cfg(feature = "tokio")]
mod events;
#[cfg(feature = "tokio")]
mod link;
#[cfg(feature = "tokio")]
mod queue;
#[cfg(feature = "tokio")]
mod server;
#[cfg(feature = "tokio")]
mod shared;
mod stream;
#[cfg(feature = "tokio")]
mod stream_link;
#[cfg(feature = "tokio")]
mod task;
#[cfg(feature = "tokio")]
mod tcp;
#[cfg(feature = "tokio")]
mod waiters;

pub use stun;
pub use turn;

pub use endpoint::{Endpoint, Input};
pub use stream::{Incoming, Stream, StreamError, Wire};
#[cfg(feature = "tls")]
pub use {
    dtls,
    dtls_session::DtlsSession,
    rustls,
    stream::{Handshake, Tls, TlsConfigError},
};

#[cfg(feature = "tokio")]
pub use {
    allocation::{Allocation, Peer},
    client::{Allocate, Client},
    data_connection::PeerStream,
    error::{
        AcceptError, AllocateError, BindingError, ChannelError, ConnectError, ConnectPeerError,
        DataConnectionError, Disconnect, Ended, PermitError, RecvError, RefreshError, SendError,
    },
    link::Link,
    server::Server,
    shared::Stats,
    tcp::{AllocateTcp, Attempt, TcpAllocation},
};
