//! Handing clients over from a running server to a new process, without the loss of an allocation.
//!
//! ```text
//!  old process                                   new process
//!  Running::offer ── Offer: sockets, keys ─────▶ Builder::take_over
//!  Running::hold_clients ◀── hold ────────────── Builder::start: before it binds its sockets
//!  (each flow gets an entry in the steering table)
//!                                                its workers run; new clients are its own
//!  Running::stop_listening ◀── the new process serves
//!  (its allocations continue; it ends when the last one has ended)
//!  Running::resume if the new process ends       Running::predecessor_ended if the old one ends
//! ```
//! The old process keeps its allocations, connections and relay ports. The new one gets the TCP listeners with the
//! connections that wait in them. It binds UDP sockets of its own in the SO_REUSEPORT groups of the old one. Both use
//! the same steering program, and the same keys of nonces and tickets. All workers of both have different numbers. Each
//! process reads the counts of quotas and rates of the other one (`held`). `docs/operation.md` lists what each process
//! owns during the upgrade.

mod held;
mod joining;
mod offer;
mod predecessor;
mod sip;
mod xdp;

pub(crate) use held::SharedCountFds;
pub use joining::Joining;
pub(crate) use offer::Key;
pub use offer::Offer;
pub(crate) use offer::OpenListeners;
pub(crate) use predecessor::Predecessor;
pub use predecessor::{ForeignMessage, MAX_FOREIGN_BYTES};
pub(crate) use sip::{JoiningSip, OfferedSip};
pub(crate) use xdp::XdpPrograms;

use std::sync::Arc;

/// Why clients cannot be handed over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// An offer that cannot be read.
    #[error(
        "the running server's offer cannot be read ({0}): use the same release, or restart the server"
    )]
    Offer(&'static str),
    /// The system refuses a descriptor.
    #[error("the system refuses: {0}")]
    System(#[source] std::io::Error),
    /// The steering program's tables cannot be used.
    #[error("the steering program's tables cannot be used: {0}")]
    Steering(String),
    /// Without the steering program, the kernel would deliver datagrams of the old process's clients to the new one.
    #[error(
        "the steering program cannot be loaded ({0}); without it the clients of two processes cannot be distinguished: give CAP_BPF and CAP_NET_ADMIN, or restart the server"
    )]
    NoProgram(String),
    /// A worker's number has one byte (`Numbering::next`).
    #[error("both processes together have more than 256 workers: use fewer")]
    TooManyWorkers,
    /// Relay ports that several allocations share cannot be bound twice.
    #[error(
        "relay.shared_ports: the ports belong to the running server until it ends; restart the server, or start another one on other ports and drain this one"
    )]
    SharedPorts,
    /// One process writes the log of registration bindings. What was accepted must be in it before another one reads
    /// it.
    #[error(
        "registration bindings cannot be saved: check the disk of server.state_dir, or the database of sip.binding_database"
    )]
    Log,
    /// The old process has not handed over its SIP transactions or bindings.
    #[error("the running server does not hand over its SIP transactions: {0}")]
    Sip(#[source] std::io::Error),
    /// The table of steered flows is full, or a worker does not respond.
    #[error("worker {0} cannot give each of its clients an entry in the steering table")]
    NotHeld(usize),
    /// A worker does not respond.
    #[error("worker {0} does not respond")]
    Busy(usize),
    /// The old process refuses.
    #[error("the running server refuses: {0}")]
    Refused(String),
}

/// Asks the old process to hold its clients.
type Hold = dyn Fn(&Joining) -> Result<(), String> + Send + Sync;

/// What a new process needs to take over from a running server.
#[derive(Clone)]
pub struct TakeOver {
    offer: Arc<Offer>,
    hold: Arc<Hold>,
    send: Option<std::sync::mpsc::SyncSender<ForeignMessage>>,
}

impl std::fmt::Debug for TakeOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TakeOver")
            .field("offer", &self.offer)
            .finish_non_exhaustive()
    }
}

impl TakeOver {
    /// Takes over the sockets and keys of `offer`. `hold` asks the old process to call
    /// [`Running::hold_clients`](crate::Running::hold_clients) with this message, waits for it, and returns why it
    /// refuses. Requests for a worker of the old process go to `send`.
    pub fn new(
        offer: Offer,
        hold: impl Fn(&Joining) -> Result<(), String> + Send + Sync + 'static,
        send: std::sync::mpsc::SyncSender<ForeignMessage>,
    ) -> TakeOver {
        TakeOver {
            offer: Arc::new(offer),
            hold: Arc::new(hold),
            send: Some(send),
        }
    }

    pub(crate) fn offer(&self) -> &Offer {
        &self.offer
    }

    pub(crate) fn hold(&self, joining: &Joining) -> Result<(), HandoverError> {
        (self.hold)(joining).map_err(HandoverError::Refused)
    }

    /// Where messages for workers of the old process go.
    pub(crate) fn predecessor(&self) -> Option<Arc<Predecessor>> {
        let send = self.send.clone()?;
        Some(Arc::new(Predecessor::new(self.offer.numbering(), send)))
    }
}
