//! The queue of outputs. Messages follow each other in one buffer that is reused. So a response allocates no memory.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use stun::{ChannelNumber, Method};

use super::Server;
use super::channel::Channel;
use super::credentials::{Credentials, OwnedKeyQuery};
use super::output::{
    CloseReason, OffloadedChannel, Output, RelayRequest, RelayedAddresses, Traffic,
};
use super::permission::Permission;
use super::relay::Relay;
use super::report::Failure;
use super::request_context::RequestContext;
use super::user::{User, VerifiedUser};
use crate::{
    AllocationKey, ClientPath, ConnectionKey, FiveTuple, LookupKey, Mono, RelayKey, RequestKey,
};

/// What the buffers may hold on to once all is done, in bytes and in outputs: more was a burst.
const KEEP_BYTES: usize = 1 << 20;
const KEEP_OUTPUTS: usize = 4096;

/// How an allocation ended, for its log line.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) allocation: AllocationKey,
    pub(super) user: Arc<User>,
    pub(super) path: ClientPath,
    pub(super) relayed: RelayedAddresses,
    pub(super) to_peers: Traffic,
    pub(super) to_client: Traffic,
    pub(super) duration: Duration,
    pub(super) reason: CloseReason,
}

/// A change of the 5-tuples of an allocation (RFC 8016).
#[derive(Debug)]
pub(super) enum PathChange {
    /// A client and its request belong to another engine.
    Elsewhere {
        to: u16,
        path: ClientPath,
        bytes: Range<usize>,
        user: Option<VerifiedUser>,
    },
    Added(ClientPath),
    Removed(ClientPath),
    Moved(Box<Moved>),
}

/// That a client has moved, for its log line.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) user: Arc<User>,
    pub(super) from: ClientPath,
    pub(super) to: FiveTuple,
}

/// An [`Output`] of authentication that owns its data.
#[derive(Debug)]
pub(super) enum QueuedAuth {
    FindKeys {
        lookup: LookupKey,
        query: Box<OwnedKeyQuery>,
        credentials: Arc<dyn Credentials>,
    },
    PauseReading(ClientPath),
    ResumeReading(ClientPath),
    Failed(Box<Failure>),
}

/// An [`Output`] that owns its data.
#[derive(Debug)]
pub(super) enum Queued {
    Send {
        path: ClientPath,
        bytes: Range<usize>,
    },
    OpenRelays {
        request: RequestKey,
        path: ClientPath,
        relays: [RelayRequest; 2],
        count: usize,
        message: Option<Range<usize>>,
        user: VerifiedUser,
    },
    ClaimReservation {
        request: RequestKey,
        token: [u8; 8],
        user: Arc<User>,
        path: ClientPath,
        key: RelayKey,
    },
    MoveRequest {
        to: u16,
        path: ClientPath,
        bytes: Range<usize>,
        user: VerifiedUser,
    },
    MoveConnection {
        to: u16,
        path: ClientPath,
        bytes: Range<usize>,
    },
    Path(PathChange),
    Auth(QueuedAuth),
    CloseRelay(RelayKey),
    Connection(ConnectionKey, ConnectionStep),
    Offload {
        channel: OffloadedChannel,
        own_relay: bool,
        deadline: Mono,
    },
    StopOffload(OffloadedChannel),
    Opened {
        user: Arc<User>,
        path: ClientPath,
        relayed: RelayedAddresses,
        lifetime_s: u32,
    },
    Changed(Arc<User>, ClientPath, Change),
    Closed(Box<Closed>),
}

/// What is to be done with a connection to a peer (RFC 6062).
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionStep {
    Connect { relay: RelayKey, peer: SocketAddr },
    Bind(ClientPath),
    Close,
}

impl ConnectionStep {
    const fn output(self, connection: ConnectionKey) -> Output<'static> {
        match self {
            ConnectionStep::Connect { relay, peer } => Output::Connect {
                connection,
                relay,
                peer,
            },
            ConnectionStep::Bind(path) => Output::BindConnection { connection, path },
            ConnectionStep::Close => Output::CloseConnection { connection },
        }
    }
}

/// What has changed for a client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Refreshed {
        lifetime_s: u32,
    },
    Permission {
        peer: IpAddr,
    },
    Channel {
        number: ChannelNumber,
        peer: SocketAddr,
    },
    PermissionEnded {
        peer: IpAddr,
    },
    ChannelEnded {
        number: ChannelNumber,
        peer: SocketAddr,
    },
    Authenticated {
        method: Method,
    },
}

impl Change {
    pub(super) const fn end_of_permission(permission: &Permission) -> Change {
        Change::PermissionEnded {
            peer: permission.ip,
        }
    }

    pub(super) const fn end_of_channel(channel: &Channel) -> Change {
        Change::ChannelEnded {
            number: channel.number,
            peer: channel.peer(),
        }
    }

    fn output<'a>(&self, user: &'a User, path: &ClientPath) -> Output<'a> {
        let client = user.identity(path.five_tuple);
        match *self {
            Change::Refreshed { lifetime_s } => Output::AllocationRefreshed { client, lifetime_s },
            Change::Permission { peer } => Output::PermissionInstalled { client, peer },
            Change::Channel { number, peer } => Output::ChannelBound {
                client,
                number,
                peer,
            },
            Change::PermissionEnded { peer } => Output::PermissionEnded { client, peer },
            Change::ChannelEnded { number, peer } => Output::ChannelEnded {
                client,
                number,
                peer,
            },
            Change::Authenticated { method } => Output::Authenticated { client, method },
        }
    }
}

impl Queued {
    /// What the embedder gets to see; messages are in `sent`.
    fn output<'a>(&'a self, sent: &'a [u8]) -> Output<'a> {
        match self {
            Queued::Send { path, bytes } => Output::Send {
                path: *path,
                bytes: sent.get(bytes.clone()).unwrap_or_default(),
            },
            Queued::OpenRelays {
                request,
                path,
                relays,
                count,
                message,
                user,
            } => Output::OpenRelays {
                user,
                request: *request,
                path: *path,
                relays: relays.get(..*count).unwrap_or_default(),
                message: message
                    .as_ref()
                    .map(|bytes| sent.get(bytes.clone()).unwrap_or_default()),
            },
            Queued::ClaimReservation {
                request,
                token,
                user,
                path,
                key,
            } => Output::ClaimReservation {
                request: *request,
                token: *token,
                client: user.identity(path.five_tuple),
                key: *key,
            },
            Queued::MoveRequest {
                to,
                path,
                bytes,
                user,
            } => Output::MoveRequest {
                user,
                to: *to,
                path: *path,
                message: sent.get(bytes.clone()).unwrap_or_default(),
            },
            Queued::Path(change) => change.output(sent),
            Queued::MoveConnection { to, path, bytes } => Output::MoveConnection {
                to: *to,
                path: *path,
                message: sent.get(bytes.clone()).unwrap_or_default(),
            },
            Queued::CloseRelay(relay) => Output::CloseRelay { relay: *relay },
            Queued::Connection(connection, step) => step.output(*connection),
            Queued::Offload {
                channel,
                own_relay,
                deadline,
            } => offload(*channel, *own_relay, *deadline),
            Queued::StopOffload(channel) => Output::StopOffload { channel: *channel },
            Queued::Opened {
                user,
                path,
                relayed,
                lifetime_s,
            } => opened(user, *path, *relayed, *lifetime_s),
            Queued::Closed(closed) => closed.output(),
            Queued::Changed(user, path, change) => change.output(user, path),
            Queued::Auth(output) => output.output(),
        }
    }
}

const fn offload(channel: OffloadedChannel, own_relay: bool, deadline: Mono) -> Output<'static> {
    Output::Offload {
        channel,
        own_relay,
        deadline,
    }
}

fn opened(user: &User, path: ClientPath, relayed: RelayedAddresses, lifetime_s: u32) -> Output<'_> {
    Output::AllocationOpened {
        realm: user.realm(),
        user: user.name(),
        path,
        relayed,
        lifetime_s,
    }
}

impl QueuedAuth {
    fn output(&self) -> Output<'_> {
        match self {
            QueuedAuth::FindKeys {
                lookup,
                query,
                credentials,
            } => Output::FindKeys {
                lookup: *lookup,
                query: query.query(),
                credentials,
            },
            QueuedAuth::PauseReading(path) => Output::PauseReading { path: *path },
            QueuedAuth::ResumeReading(path) => Output::ResumeReading { path: *path },
            QueuedAuth::Failed(failure) => failure.output(),
        }
    }
}

impl PathChange {
    fn output<'a>(&'a self, sent: &'a [u8]) -> Output<'a> {
        match self {
            PathChange::Elsewhere {
                to,
                path,
                bytes,
                user,
            } => Output::MoveClient {
                user: user.as_ref(),
                to: *to,
                path: *path,
                message: sent.get(bytes.clone()).unwrap_or_default(),
            },
            PathChange::Added(path) => Output::PathAdded { path: *path },
            PathChange::Removed(path) => Output::PathRemoved { path: *path },
            PathChange::Moved(moved) => moved.output(),
        }
    }
}

impl Moved {
    fn output(&self) -> Output<'_> {
        Output::ClientMoved {
            client: self.user.identity(self.to),
            from: self.from,
        }
    }
}

impl Closed {
    fn output(&self) -> Output<'_> {
        Output::AllocationClosed {
            realm: self.user.realm(),
            user: self.user.name(),
            path: self.path,
            relayed: self.relayed,
            to_peers: self.to_peers,
            to_client: self.to_client,
            duration: self.duration,
            reason: self.reason,
        }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    queue: VecDeque<Queued>,
    bytes: Vec<u8>,
    /// The output that was returned last; it owns what the embedder reads.
    current: Option<Queued>,
}

impl Outputs {
    pub(super) fn push(&mut self, output: Queued) {
        self.queue.push_back(output);
    }

    pub(super) fn push_auth(&mut self, output: QueuedAuth) {
        self.queue.push_back(Queued::Auth(output));
    }

    pub(super) fn extend(&mut self, outputs: impl IntoIterator<Item = Queued>) {
        self.queue.extend(outputs);
    }

    /// Queues a message to a client.
    pub(super) fn send(&mut self, path: ClientPath, message: &[u8]) {
        let bytes = self.store(message);
        self.queue.push_back(Queued::Send { path, bytes });
    }

    /// Asks for sockets. `message` is the request, if another engine may handle it.
    pub(super) fn open_relays(
        &mut self,
        request: RequestKey,
        path: ClientPath,
        (first, second): (RelayRequest, Option<RelayRequest>),
        message: Option<&[u8]>,
        user: Arc<User>,
    ) {
        let message = message.map(|bytes| self.store(bytes));
        self.push(Queued::OpenRelays {
            request,
            path,
            relays: [first, second.unwrap_or(first)],
            count: if second.is_some() { 2 } else { 1 },
            message,
            user: VerifiedUser(user),
        });
    }

    /// Asks the embedder to move a request to another engine.
    pub(super) fn move_request(
        &mut self,
        to: u16,
        path: ClientPath,
        message: &[u8],
        user: Arc<User>,
    ) {
        let bytes = self.store(message);
        self.push(Queued::MoveRequest {
            to,
            path,
            bytes,
            user: VerifiedUser(user),
        });
    }

    /// Asks the embedder to move a request and its client's 5-tuple to another engine.
    pub(super) fn move_client(
        &mut self,
        to: u16,
        path: ClientPath,
        message: &[u8],
        user: Option<Arc<User>>,
    ) {
        let bytes = self.store(message);
        self.push(Queued::Path(PathChange::Elsewhere {
            to,
            path,
            bytes,
            user: user.map(VerifiedUser),
        }));
    }

    /// Asks the embedder to move a request and its connection to another engine.
    pub(super) fn move_connection(&mut self, to: u16, path: ClientPath, message: &[u8]) {
        let bytes = self.store(message);
        self.push(Queued::MoveConnection { to, path, bytes });
    }

    fn store(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The end of this allocation, if it is in the queue.
    pub(super) fn closing(&mut self, allocation: AllocationKey) -> Option<&mut Closed> {
        self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Closed(closed) if closed.allocation == allocation => Some(&mut **closed),
            _ => None,
        })
    }

    /// The next output.
    pub(super) fn next(&mut self) -> Option<Output<'_>> {
        self.current = self.queue.pop_front();
        if self.current.is_none() {
            self.bytes.clear();
            self.bytes.shrink_to(KEEP_BYTES);
            self.queue.shrink_to(KEEP_OUTPUTS);
        }
        Some(self.current.as_ref()?.output(&self.bytes))
    }
}

impl Server {
    /// Reports a change to the embedder, if [`Config::report_changes`](super::Config::report_changes) is set.
    pub(super) fn report_change(&mut self, client: u32, change: Change) {
        if !self.config.report_changes {
            return;
        }
        if let Some(client) = self.clients.get(client) {
            let (user, path) = (Arc::clone(&client.user), client.path.path());
            self.outputs.push(Queued::Changed(user, path, change));
        }
    }

    /// Reports that a request has proven its user's key, if the embedder has asked for such reports.
    pub(super) fn report_authenticated(&mut self, context: &RequestContext) {
        if let Some(user) = context.user.as_ref().filter(|_| self.config.report_changes) {
            let change = Change::Authenticated {
                method: context.method,
            };
            self.outputs
                .push(Queued::Changed(Arc::clone(user), context.path, change));
        }
    }

    /// Reports the end of a relay's permissions and channels, if the embedder has asked for such reports.
    pub(super) fn report_ends(&mut self, relay: u32) {
        let Some(live) = self.relays.get(relay).and_then(Relay::live) else {
            return;
        };
        if self.config.report_changes {
            let channels = live.channels.iter().map(Change::end_of_channel);
            let permissions = live.permissions.iter().map(Change::end_of_permission);
            let ends: Vec<Change> = channels.chain(permissions).collect();
            self.report_all(live.client, ends);
        }
    }

    /// Reports changes of one client.
    pub(super) fn report_all(&mut self, client: u32, changes: Vec<Change>) {
        changes
            .into_iter()
            .for_each(|change| self.report_change(client, change));
    }
}
