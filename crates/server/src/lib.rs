//! The STUN and TURN server as a library: sockets, threads and policy around the engine of `hairpin-turn`.
//!
//! ```no_run
//! use hairpin_server::Server;
//!
//! let server = Server::builder()
//!     .listen("0.0.0.0:3478".parse()?)
//!     .realm("example.org")
//!     .user("alice", "correct horse battery staple")
//!     .start()?;
//! println!("listening on {:?}", server.listeners());
//! # let stats =
//! server.shutdown()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What runs where
//!
//! Each worker is a thread that owns everything of its clients: one socket of every listener's SO_REUSEPORT group, an
//! engine, relay sockets, buffers. The kernel's hash keeps a client on its worker. If its allocation was created on
//! another worker with a lower load, an entry in a BPF table does. Workers share the table of relay ports (atomics),
//! the quotas (which change when an allocation opens or closes), the configuration (an immutable snapshot) and
//! mailboxes. Mailboxes carry datagrams between relays of different workers, reserved relays and requests.
//!
//! # When not to use it
//!
//! - You want no program of your own: `hairpin serve` has a configuration file, metrics and upgrades.
//! - You want to drive the state machine yourself, for example in a simulation: use `hairpin-turn`.
//! - Your system is not Linux.
//!
//! # What it must never do
//!
//! - Allocate memory, lock, or make a system call per datagram if one per batch suffices.
//! - Send to a peer that [`policy`] denies.
//! - Drop a datagram without counting it ([`stats`]).
//! - Close a relay socket before its queued datagrams have left.
#![forbid(unsafe_code)]

pub mod access_tokens;
pub mod addresses;
pub mod alternates;
mod async_credentials;
mod builder;
pub mod certificates;
pub mod cluster_keys;
pub mod connections;
pub mod counters;
mod descriptors;
pub mod dtls;
mod error;
pub mod events;
pub mod features;
pub mod handover;
pub mod hooks;
mod host_watch;
mod inherited;
mod live;
mod local;
mod mailbox;
mod nat_discovery;
pub mod observer;
pub mod offload;
mod pinning;
pub mod policy;
pub mod ports;
pub mod privileges;
mod published;
pub mod quota;
mod random;
mod rates;
pub mod realms;
mod running;
pub mod sessions;
mod settings;
pub mod sip;
mod sources;
mod state_dir;
pub mod stats;
mod steering;
mod tcp_relays;
mod verifier;
mod words;
mod worker;

pub use builder::{BATCH_LIMIT, Builder, MAX_WORKERS, RECEIVE_BUFFER, SEND_BUFFER};
pub use error::{
    NatDiscoveryError, OpenSocketError, ReloadError, SettingsError, StartError, WorkerFailure,
};
pub use inherited::{InheritedError, InheritedSockets};
pub use io::clock::monotonic_ns;
pub use io::{QueueInterrupt, passing, queue_interrupts, stdio};
pub use ipnet::IpNet;
pub use local::Local;
pub use nat_discovery::NatDiscovery;
pub use observer::Observer;
pub use pinning::Pinning;
pub use rates::RateLimits;
pub use running::Running;
pub use settings::Settings;
pub use state_dir::StateError;
pub use steering::{Steering, SteeringInUse};

/// Signals that ask the process to end or to reload. Install them before any thread starts.
pub mod signals {
    pub use io::{Signal, SignalWaker, Signals};
}

/// Time-limited credentials, as a web service makes them.
pub mod rest {
    pub use turn::server::credentials::rest_password;
}

/// Where credentials come from; implement [`Credentials`](credentials::Credentials) for sources of your own.
pub mod credentials {
    pub use crate::async_credentials::{AsyncCredentials, KeyFuture};
    pub use turn::server::credentials::{
        AnyOf, Claim, Credentials, KeyLookup, KeyQuery, KeyReply, KnownUser, OwnedKeyQuery, UserKey,
    };
}

/// TLS, whose configuration is part of this crate's interface.
pub use streams::rustls;
/// The crate of STUN messages, whose types are part of this crate's interface.
pub use stun;
pub use stun::AddressFamily;
/// The crate of the TURN server's state machine, whose types are part of this crate's interface.
pub use turn;
pub use turn::server::MAX_REALM_BYTES;

/// The entry to this crate: `Server::builder()`.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Begins to describe a server.
    pub fn builder() -> Builder {
        Builder::default()
    }
}
