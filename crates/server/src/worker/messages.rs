//! Inter-worker messages: what workers, and the threads beside them, send to a worker's mailbox.

use super::batches::WorkerBatch;
use super::sockets::RelaySocket;
use crate::addresses::RelayIndex;
use io::UdpSocket;
use std::sync::mpsc::Sender;
use turn::server::OpenedRelay;
use turn::{ClientPath, RelayKey, RequestKey};

/// An inter-worker message.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    /// Datagrams for relays of this worker, from relays of another one.
    Datagrams(WorkerBatch),
    /// Another worker's client has a reservation token of this worker.
    Claim {
        from: u16,
        request: RequestKey,
        token: [u8; 8],
        user: Box<str>,
        key: RelayKey,
    },
    /// A request whose allocation is better made by the worker that gets this.
    Request(Box<PlacedRequest>),
    /// The answer: the reserved relay's socket under its new key, if there was one.
    Claimed {
        request: RequestKey,
        relay: Option<Box<MovedRelay>>,
    },
    /// Messages of SIP that belong to this worker.
    SipMessages(crate::sip::SipBatch),
    /// What the DNS says of a name that this worker has asked for.
    Name(Box<crate::sip::Answered>),
    /// Publish the current counters, then confirm through the sender.
    Publish(Sender<()>),
    /// Destinations are routed otherwise: look at the next hops of all channels again.
    RoutesChanged,
    /// Receive datagrams one by one from now on.
    Separate,
    /// Close everything and end.
    Shutdown,
}

/// A client's request as it arrived at another worker.
#[derive(Debug)]
pub(crate) struct PlacedRequest {
    pub(crate) path: ClientPath,
    pub(crate) bytes: Box<[u8]>,
    /// The flow has got an entry for it.
    pub(crate) is_new: bool,
}

/// A relay on its way from one worker to another. No worker's poller watches it.
#[derive(Debug)]
pub(crate) struct MovedRelay {
    pub(crate) key: RelayKey,
    pub(crate) socket: UdpSocket,
    pub(crate) address: RelayIndex,
    pub(crate) port: u16,
    pub(crate) opened: OpenedRelay,
}

impl From<Box<MovedRelay>> for RelaySocket {
    fn from(moved: Box<MovedRelay>) -> RelaySocket {
        let MovedRelay {
            key,
            socket,
            address,
            port,
            ..
        } = *moved;
        RelaySocket {
            key,
            socket,
            address,
            port,
        }
    }
}
