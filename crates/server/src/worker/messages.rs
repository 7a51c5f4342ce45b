//! Inter-worker messages: what workers, and the threads beside them, send to a worker's mailbox.

use super::batches::WorkerBatch;
use super::handover::Job;
use super::sockets::{PortSocket, RelaySocket};
use crate::addresses::RelayIndex;
use crate::connections::MovingConnection;
use crate::handover::ForeignMessage;
use bpf::steer::Flows;
use io::UdpSocket;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use turn::server::credentials::KeyLookup;
use turn::server::{ClaimError, ClaimedRelay, OwnedClientIdentity, VerifiedUser};
use turn::{ClientPath, LookupKey, RelayKey, RequestKey};

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
        client: Box<OwnedClientIdentity>,
        key: RelayKey,
    },
    /// A request whose allocation is better made by the worker that gets this.
    Request(Box<PlacedRequest>),
    /// A ConnectionBind request for a connection of this worker, with the client's connection.
    Connection(Box<MovedConnection>),
    /// The response to a claim: the reserved relay's socket under its new key.
    Claimed {
        request: RequestKey,
        relay: Result<Box<MovedRelay>, ClaimError>,
    },
    /// Messages of SIP that belong to this worker.
    SipMessages(crate::sip::SipBatch),
    /// What SIP does during an upgrade.
    Sip(Box<crate::sip::SipUpgradeStep>),
    /// A query about the state of SIP.
    SipQuery(Box<crate::sip::SipQuery>),
    /// The result of a DNS query of this worker.
    Name(Box<crate::sip::DnsQueryResult>),
    /// The answer of a source of credentials or of the media relay, which SIP has asked.
    LateSipResult(Box<crate::sip::LateResult>),
    /// What a source of credentials says that responds later.
    KeysFound(LookupKey, Box<KeyLookup>),
    /// Forget the keys of this user, or of all.
    ForgetUsers(Option<Arc<str>>),
    /// Publish the current counters, then confirm through the sender.
    Publish(Sender<()>),
    /// A query of an operator: lists sessions, or ends one.
    Sessions(crate::sessions::SessionQuery),
    /// Destinations are routed otherwise: look at the next hops of all channels again.
    RoutesChanged,
    /// Receive datagrams one by one from now on.
    Separate,
    /// Another process takes over. Give each client an entry in the steering table (with this worker if it has none),
    /// and report whether each has one.
    HoldClients(Option<Box<Flows>>, Sender<bool>),
    /// The other process has given up.
    HoldNoMore,
    /// Accept connections and read the sockets of SIP, or leave both to another process; then confirm through the
    /// sender.
    Listen(bool, Sender<()>),
    /// Run this job.
    Job(Job),
    /// What a client of this worker has sent to the process that has taken over.
    Foreign(Box<ForeignMessage>),
    /// The process that this one took over from has ended.
    PredecessorEnded,
    /// Close everything and end.
    Shutdown,
}

/// A client's request as it arrived at another worker.
#[derive(Debug)]
pub(crate) struct PlacedRequest {
    pub(crate) path: ClientPath,
    pub(crate) bytes: Box<[u8]>,
    /// Who has made the request; `None` if the worker that received it cannot authenticate it.
    pub(crate) user: Option<VerifiedUser>,
    /// The flow has got an entry for it.
    pub(crate) is_new: bool,
}

/// A ConnectionBind request (RFC 6062) and the connection that it came by.
#[derive(Debug)]
pub(crate) struct MovedConnection {
    pub(crate) connection: MovingConnection,
    pub(crate) bytes: Box<[u8]>,
}

/// A relay on its way from one worker to another. No worker's poller watches it.
#[derive(Debug)]
pub(crate) struct MovedRelay {
    pub(crate) key: RelayKey,
    pub(crate) socket: UdpSocket,
    pub(crate) address: RelayIndex,
    pub(crate) port: u16,
    pub(crate) claimed: ClaimedRelay,
}

impl MovedRelay {
    /// The socket, and what the engine requires.
    pub(crate) fn split(self: Box<Self>) -> (RelaySocket, ClaimedRelay) {
        let MovedRelay {
            key,
            socket,
            address,
            port,
            claimed,
        } = *self;
        let socket = RelaySocket {
            key,
            socket: PortSocket::Own(socket),
            address,
            port,
        };
        (socket, claimed)
    }
}
