//! Does what the engine has queued for the worker ([`Output`]): sends responses, opens relays, moves requests.

use super::flows::ChannelTraffic;
use super::log;
use super::mailboxes::Mailboxes;
use super::messages::{PlacedRequest, WorkerMessage};
use super::open::{MAX_RELAYS, Opener, Results};
use super::session::{Change, Changes, Core, Session};
use super::sockets::{PortSocket, Sockets as AllSockets};
use crate::connections::Connections;
use crate::counters::Counters;
use crate::dtls::{Dtls, unmarked};
use crate::hooks::{RelayChoice, WorkerHooks};
use crate::steering::{Placement, Target};
use crate::tcp_relays::{MovingRequest, TcpRelays};
use io::{Outbox, Poller};
use std::net::SocketAddr;
use std::sync::Arc;
use streams::Content;
use turn::server::credentials::{Credentials, KeyQuery, KeyReply};
use turn::server::{
    ClaimError, ClientIdentity, ConnectError, OffloadedChannel, OpenError, Output, PortRequest,
    RelayRequest, RelayTransport, VerifiedUser,
};
use turn::{ClientPath, ConnectionKey, LookupKey, Mono, RelayKey, RequestKey, Transport};

/// What the worker does after it has dropped the output, because the output borrows the engine.
enum DeferredOutput {
    Open(Sockets),
    /// Move the request that waits for these sockets, or open them here if that fails.
    Move(Sockets, Moving),
    /// Send a request to another worker. The engine has already removed it.
    Post(Moving),
    /// Send a request to the worker with its client's allocation, and steer the client's datagrams there (RFC 8016).
    Follow(Moving),
    NoReservation(RequestKey),
    Dial(ConnectionKey, RelayKey, SocketAddr),
    Done,
}

impl DeferredOutput {
    fn post(to: u16, path: ClientPath, message: &[u8], user: &VerifiedUser) -> DeferredOutput {
        DeferredOutput::Post(Moving::new(path, message, Some(user), Target::known(to)))
    }

    /// What an output asks for, if the output alone says it. `None` for outputs that need other parts of the worker.
    #[cold]
    #[inline(never)]
    fn of(output: &Output<'_>) -> Option<DeferredOutput> {
        match *output {
            Output::MoveRequest {
                to,
                path,
                message,
                user,
            } => Some(DeferredOutput::post(to, path, message, user)),
            Output::MoveClient {
                to,
                path,
                message,
                user,
            } => Some(DeferredOutput::Follow(Moving::new(
                path,
                message,
                user,
                Target::known(to),
            ))),
            Output::Connect {
                connection,
                relay,
                peer,
            } => Some(DeferredOutput::Dial(connection, relay, peer)),
            _ => None,
        }
    }

    fn open(sockets: Sockets, moving: Option<Moving>) -> DeferredOutput {
        match moving {
            Some(moving) => DeferredOutput::Move(sockets, moving),
            None => DeferredOutput::Open(sockets),
        }
    }
}

/// The sockets that a request waits for.
struct Sockets {
    request: RequestKey,
    relays: [RelayRequest; MAX_RELAYS],
    choices: [RelayChoice; MAX_RELAYS],
    count: usize,
}

/// A request on its way to another worker.
struct Moving {
    placed: Box<PlacedRequest>,
    target: Target,
}

impl Moving {
    fn new(
        path: ClientPath,
        message: &[u8],
        user: Option<&VerifiedUser>,
        target: Target,
    ) -> Moving {
        let placed = PlacedRequest {
            path,
            bytes: message.into(),
            user: user.cloned(),
            is_new: target.is_new,
        };
        Moving {
            placed: Box::new(placed),
            target,
        }
    }
}

/// Writes the log line of an output, and calls the hook for it.
fn report(worker: u16, hooks: &WorkerHooks, output: &Output<'_>) {
    log::output(worker, output);
    hooks.report(output);
}

impl Session<'_, '_, '_> {
    /// Does everything the engine has queued. After every `handle_*` this runs before the engine gets anything else.
    #[inline]
    pub(crate) fn drain_outputs(&mut self) {
        if self.core.engine.has_outputs() {
            self.do_outputs();
        }
    }

    #[inline(never)]
    fn do_outputs(&mut self) {
        while let Some(todo) = self.next_output() {
            match todo {
                DeferredOutput::Open(sockets) => self.open_relays(&sockets),
                DeferredOutput::Move(sockets, moving) => self.move_request(&sockets, moving),
                DeferredOutput::Post(moving) => self.post_request(moving),
                DeferredOutput::Follow(moving) => self.follow(moving),
                DeferredOutput::NoReservation(request) => {
                    self.core.engine.reservation_claimed(
                        self.core.now,
                        request,
                        Err(ClaimError::Unknown),
                    );
                }
                DeferredOutput::Dial(connection, relay, peer) => self.dial(connection, relay, peer),
                DeferredOutput::Done => {}
            }
        }
    }

    /// Opens the connection with the peer for a Connect request (RFC 6062). Tells the engine if that fails at once.
    fn dial(&mut self, connection: ConnectionKey, relay: RelayKey, peer: SocketAddr) {
        let core = &mut *self.core;
        let relays = &core.opener.relays;
        let dialled = core
            .tcp
            .dial(connection, (relay, peer), relays, &core.poller);
        if let Err(error) = dialled {
            tracing::debug!(%peer, %error, "peer not dialled");
            let _ = core
                .engine
                .connected(core.now, connection, Err(ConnectError));
        }
    }

    /// Handles a request that another worker has moved here, as if it had arrived here. It is not moved again.
    pub(crate) fn request_placed(&mut self, placed: &PlacedRequest) {
        let PlacedRequest {
            path,
            bytes,
            user,
            is_new,
        } = placed;
        // The verdict has no datagram to relay, because the other engine has already parsed the message as a request.
        let _ = self
            .core
            .engine
            .handle_moved(self.core.now, path, bytes, user.as_ref());
        self.drain_outputs();
        // The placement learns the result before the response leaves, which is at the end of this session.
        let alive = self.core.engine.has_allocation(&path.five_tuple);
        self.core.placement.record_result(path, *is_new, alive);
        self.core.counters.requests_taken += 1;
    }

    /// Takes the next output of the engine. Sends responses at once, and returns what is to be done after the borrow of
    /// the output has ended.
    fn next_output(&mut self) -> Option<DeferredOutput> {
        let worker = self.core.opener.worker;
        let output = self.core.engine.poll_output()?;
        // First, as most outputs are responses, which nothing reports.
        if let Output::Send { path, bytes } = output {
            match self.sockets.client_at(&path, 0) {
                Some(to) => self.out.push_copied(&to, bytes),
                None => {
                    let connections = (&mut self.core.connections, &self.core.poller);
                    let dtls = (self.core.dtls.as_mut(), self.sockets, &mut self.out);
                    queue_message(connections, dtls, &path, bytes, self.core.now.mono);
                }
            }
            return Some(DeferredOutput::Done);
        }
        report(worker, &self.core.hooks, &output);
        if let Some(todo) = DeferredOutput::of(&output) {
            return Some(todo);
        }
        match output {
            Output::OpenRelays {
                request,
                path,
                relays,
                message,
                user,
            } => {
                let placement = &mut self.core.placement;
                let moving =
                    choose_other_worker(placement, self.core.now.mono, path, message, user);
                let client = user.identity(path.five_tuple);
                let sockets = sockets(request, relays, &self.core.hooks, &client);
                return Some(DeferredOutput::open(sockets, moving));
            }
            Output::ClaimReservation {
                request,
                token,
                client,
                key,
            } => {
                let claim = claim(worker, request, token, &client, key);
                if !post_claim(&self.core.mailboxes, worker, token, claim) {
                    return Some(DeferredOutput::NoReservation(request));
                }
            }
            Output::FindKeys {
                lookup,
                query,
                credentials,
            } => find_keys(&self.core.mailboxes, worker, lookup, &query, credentials),
            Output::Offload {
                channel,
                own_relay,
                deadline,
            } => self.core.offload(&channel, own_relay, deadline),
            Output::StopOffload { channel } => self.core.stop_offload(&channel),
            ref output => apply_output(
                output,
                self.core.now.mono,
                (&mut self.core.opener, &mut self.core.counters),
                &mut self.core.placement,
                (
                    &mut self.core.connections,
                    &mut self.core.tcp,
                    &self.core.poller,
                ),
                &mut self.core.changes,
            ),
        }
        Some(DeferredOutput::Done)
    }

    /// Moves a request to a worker that has less to do. If that fails, opens its sockets here.
    fn move_request(&mut self, sockets: &Sockets, moving: Moving) {
        let core = &mut *self.core;
        // The engine releases the request's quota before the other worker acquires it.
        if core.mailboxes.keeps_up(moving.target.worker)
            && core
                .engine
                .request_moved(core.now, sockets.request, moving.target.worker)
        {
            self.post_request(moving);
        } else {
            core.placement.give_up(&moving.placed.path, moving.target);
            self.open_relays(sockets);
        }
    }

    /// Moves a request and its client to the worker that has the client's allocation. If that fails, the request is
    /// lost like a datagram.
    #[cold]
    fn follow(&mut self, mut moving: Moving) {
        let path = moving.placed.path;
        let to = moving.target.worker;
        let core = &mut *self.core;
        match core.placement.follow(&path, to) {
            Some(target) => {
                moving.placed.is_new = target.is_new;
                moving.target = target;
                self.post_request(moving);
            }
            None => core.counters.clients_not_moved += 1,
        }
    }

    /// Sends a request to another worker, which may be one of the old process during an upgrade. If the mailbox is
    /// full, the request is lost like a datagram, and the client retransmits it.
    fn post_request(&mut self, moving: Moving) {
        let Moving { placed, target } = moving;
        let path = placed.path;
        let core = &mut *self.core;
        if let Some(predecessor) = core.mailboxes.predecessor_of(target.worker) {
            let is_sent = predecessor.send_datagram(target.worker, &path.five_tuple, &placed.bytes);
            if is_sent {
                core.counters.requests_given += 1;
            } else {
                core.counters.mailbox_full += 1;
                core.placement.give_up(&path, target);
            }
            return;
        }
        match core
            .mailboxes
            .post(target.worker, WorkerMessage::Request(placed))
        {
            Ok(()) => core.counters.requests_given += 1,
            Err(_) => {
                core.counters.mailbox_full += 1;
                core.placement.give_up(&path, target);
            }
        }
    }

    /// Opens the relay sockets of a request, and reports the results to the engine.
    fn open_relays(&mut self, sockets: &Sockets) {
        let relays = &sockets.relays[..sockets.count];
        if relays
            .iter()
            .any(|relay| relay.transport == RelayTransport::Tcp)
        {
            return self.open_tcp_relays(sockets);
        }
        let core = &mut *self.core;
        let now_s = core.now.mono.0 / 1_000_000_000;
        let changes = &mut core.changes;
        let (results, count): Results = core.opener.open(
            relays,
            &sockets.choices,
            now_s,
            &core.poller,
            &mut core.counters,
            &mut |relay| {
                if let PortSocket::Shared(number) = relay.socket {
                    core.engine.share_port(relay.key, number);
                }
                changes.push(Change::Open(relay));
            },
        );
        if !self
            .core
            .engine
            .relays_opened(self.core.now, sockets.request, &results[..count])
        {
            // The request was dropped. So no allocation exists that would close these sockets.
            let opened = relays
                .iter()
                .zip(&results)
                .filter(|(_, result)| result.is_ok());
            self.core
                .changes
                .extend(opened.map(|(relay, _)| Change::Close(relay.key)));
        }
    }
}

impl Session<'_, '_, '_> {
    /// Opens the relays of a TCP allocation.
    fn open_tcp_relays(&mut self, sockets: &Sockets) {
        let core = &mut *self.core;
        let now_s = core.now.mono.0 / 1_000_000_000;
        let mut results = [Err(OpenError::Other); MAX_RELAYS];
        let relays = &sockets.relays[..sockets.count];
        for ((result, relay), choice) in results.iter_mut().zip(relays).zip(&sockets.choices) {
            let opener = &mut core.opener;
            let opened = opener.open_tcp(*relay, *choice, now_s, &mut core.counters);
            *result = opened.and_then(|relay| {
                let addresses = core.opener.addresses_of(&relay);
                match core.tcp.insert(relay, &core.poller) {
                    Ok(()) => Ok(addresses),
                    Err(relay) => {
                        core.opener.close_tcp(relay, &mut core.counters);
                        Err(OpenError::NoDescriptor)
                    }
                }
            });
        }
        let (now, request) = (core.now, sockets.request);
        if !core
            .engine
            .relays_opened(now, request, &results[..sockets.count])
        {
            let opened = relays.iter().filter_map(|relay| core.tcp.remove(relay.key));
            opened.for_each(|relay| core.opener.close_tcp(relay, &mut core.counters));
        }
    }
}

impl Core {
    /// Offloads a channel to the kernel, if BPF programs relay.
    fn offload(&mut self, channel: &OffloadedChannel, own_relay: bool, deadline: Mono) {
        // A flow to a relay of this server does not use the network. A relay of the other process needs the network.
        if own_relay && self.opener.relays.relay_of_other(channel.peer).is_some() {
            return self.stop_offload(channel);
        }
        if let Some(flows) = &mut self.flows {
            let carried = flows.offload(channel, own_relay, deadline, &mut self.counters);
            self.count_offloaded(channel, carried);
        }
    }

    /// Ends the in-kernel relay of a channel.
    fn stop_offload(&mut self, channel: &OffloadedChannel) {
        if let Some(flows) = &mut self.flows {
            let carried = flows.stop_offload(channel);
            self.count_offloaded(channel, carried);
        }
    }

    /// Adds what the kernel has relayed to the traffic of the allocation.
    fn count_offloaded(&mut self, channel: &OffloadedChannel, carried: ChannelTraffic) {
        if carried != ChannelTraffic::default() {
            let ChannelTraffic { to_peer, to_client } = carried;
            self.engine
                .add_offloaded_traffic(channel.allocation, to_peer, to_client);
        }
    }
}

/// The worker that has less to do than this one and may handle the request, if there is one.
fn choose_other_worker(
    placement: &mut Placement,
    now: Mono,
    path: ClientPath,
    message: Option<&[u8]>,
    user: &VerifiedUser,
) -> Option<Moving> {
    // A connection stays with the worker that accepted it.
    let message = message.filter(|_| path.five_tuple.transport == Transport::Udp)?;
    let target = placement.choose_other_worker(now, &path, message.len())?;
    Some(Moving::new(path, message, Some(user), target))
}

/// Queues a message to a client over a connection: TCP and TLS, or DTLS.
#[cold]
fn queue_message<'buf>(
    (connections, poller): (&mut Connections, &Poller),
    (dtls, sockets, out): (
        Option<&mut Box<Dtls>>,
        &'buf AllSockets,
        &mut Outbox<'_, 'buf>,
    ),
    path: &ClientPath,
    bytes: &[u8],
    now: Mono,
) {
    if path.five_tuple.transport != Transport::Dtls {
        return connections.queue(path, &[bytes], Content::Message, poller, now);
    }
    let sealed = dtls.and_then(|dtls| dtls.seal(path, &[bytes]));
    if let (Some(to), Some(sealed)) = (sockets.client_at(&unmarked(path), 0), sealed) {
        out.push_copied(&to, sealed);
    }
}

/// Applies an output to the connections, the relays or the placement of the worker. Nothing of it remains to be done.
#[inline(never)]
fn apply_output(
    output: &Output<'_>,
    now: Mono,
    (opener, counters): (&mut Opener, &mut Counters),
    placement: &mut Placement,
    (connections, tcp, poller): (&mut Connections, &mut TcpRelays, &Poller),
    changes: &mut Changes,
) {
    match output {
        Output::PauseReading { path } => connections.pause(path, poller),
        Output::ResumeReading { path } => connections.resume(path, poller),
        Output::CloseRelay { relay } => match tcp.remove(*relay) {
            Some(relay) => opener.close_tcp(relay, counters),
            None => changes.push(Change::Close(*relay)),
        },
        Output::BindConnection { connection, path } => {
            connections.hold(path, poller);
            tcp.bind_later(*connection, *path);
        }
        Output::CloseConnection { connection } => tcp.close(*connection, connections),
        Output::MoveConnection { to, path, message } => {
            connections.hold(path, poller);
            tcp.queue_leaving(MovingRequest::new(*to, *path, message));
        }
        Output::AllocationOpened { relayed, path, .. } => {
            opener.allocated(*relayed);
            connections.prove(path);
            placement.opened(now, path);
        }
        Output::AllocationClosed { path, .. } => placement.closed(now, path),
        Output::PathAdded { path } => {
            connections.prove(path);
            placement.joined(path);
        }
        Output::PathRemoved { path } | Output::ClientMoved { from: path, .. } => {
            placement.left(now, path);
        }
        _ => {}
    }
}

/// The message that claims the reservation of a token at another worker.
fn claim(
    from: u16,
    request: RequestKey,
    token: [u8; 8],
    client: &ClientIdentity<'_>,
    key: RelayKey,
) -> WorkerMessage {
    WorkerMessage::Claim {
        from,
        request,
        token,
        client: Box::new(client.to_owned()),
        key,
    }
}

/// Sends a claim to the worker that the token names. `false` if that is this worker, or the claim cannot be posted.
fn post_claim(mailboxes: &Mailboxes, worker: u16, token: [u8; 8], claim: WorkerMessage) -> bool {
    let other = u16::from(token[0]);
    other != worker && mailboxes.post(other, claim).is_ok()
}

/// Begins a look-up. The result comes to this worker as an inter-worker message, from any thread. If the mailbox is
/// full, it is lost, and the look-up times out.
fn find_keys(
    mailboxes: &Mailboxes,
    worker: u16,
    lookup: LookupKey,
    query: &KeyQuery<'_>,
    credentials: &Arc<dyn Credentials>,
) {
    let Some(mailbox) = mailboxes.mailbox(worker) else {
        return;
    };
    let reply = KeyReply::new(move |found| {
        let _ = mailbox.post(WorkerMessage::KeysFound(lookup, Box::new(found)));
    });
    credentials.begin_find(query, reply);
}

/// The sockets of a request, with the relay addresses that the hook chooses. Copies everything from the output.
fn sockets(
    request: RequestKey,
    relays: &[RelayRequest],
    hooks: &WorkerHooks,
    client: &ClientIdentity<'_>,
) -> Sockets {
    const NO_RELAY: RelayKey = RelayKey {
        index: 0,
        generation: 0,
    };
    let unused = RelayRequest {
        key: NO_RELAY,
        transport: RelayTransport::Udp,
        family: stun::AddressFamily::V4,
        port: PortRequest::Any,
    };
    let mut copy = [unused; MAX_RELAYS];
    let count = relays.len().min(MAX_RELAYS);
    copy[..count].copy_from_slice(&relays[..count]);
    let mut choices = [RelayChoice::Any; MAX_RELAYS];
    for (choice, relay) in choices.iter_mut().zip(relays) {
        *choice = hooks.relay_for(client, relay.family);
    }
    Sockets {
        request,
        relays: copy,
        choices,
        count,
    }
}
