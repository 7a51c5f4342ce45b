//! The data path: from received datagrams to queued ones.
//!
//! A session borrows the sockets and the received bytes. It asks the engine about each run and queues the result of the
//! verdict. It copies bytes only for another worker. Nothing that a session borrows may change during the session. So
//! sockets to add and to close wait in [`Changes`] until the queue has been flushed. The engine requires this, too:
//! datagrams that are queued on a socket leave before the socket closes.

use super::batches::{Item, datagrams, each_datagram, slice};
use super::flows::Flows;
use super::forwarding::Forwarding;
use super::mailboxes::{Mailboxes, OutgoingRun};
use super::open::{Opener, shared_number};
use super::sockets::{RelaySocket, Sockets};
use crate::addresses::RelayIndex;
use crate::connections::Connections;
use crate::counters::Counters;
use crate::dtls::Dtls;
use crate::hooks::WorkerHooks;
use crate::steering::Placement;
use crate::tcp_relays::TcpRelays;
use io::{Datagrams, Outbox, Poller, SendQueue, SendTo};
use std::net::SocketAddr;
use std::ops::Range;
use turn::server::{ClientVerdict, PeerVerdict, Server};
use turn::{ClientPath, ListenerKey, Now, RelayKey, Run};

/// What is to happen to the relay sockets once the session is over, in this order.
pub(crate) type Changes = Vec<Change>;

/// One change.
#[derive(Debug)]
pub(crate) enum Change {
    Open(RelaySocket),
    Close(RelayKey),
}

/// What a worker has besides sockets and buffers.
#[derive(Debug)]
pub(crate) struct Core {
    /// The time at the last wake-up.
    pub(crate) now: Now,
    pub(crate) engine: Server,
    pub(crate) opener: Opener,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) poller: Poller,
    pub(crate) counters: Counters,
    pub(crate) changes: Changes,
    pub(crate) placement: Placement,
    /// Connections over TCP and TLS.
    pub(crate) connections: Connections,
    /// TCP relays, and what is connected to them.
    pub(crate) tcp: TcpRelays,
    /// Connections that the process before this one serves.
    pub(crate) forwarding: Forwarding,
    /// Connections over DTLS, where it is listened on.
    pub(crate) dtls: Option<Box<Dtls>>,
    /// Where the kernel relays.
    pub(crate) flows: Option<Box<Flows>>,
    pub(crate) hooks: WorkerHooks,
    /// Another process has relay ports on the same addresses: before and after an upgrade.
    pub(crate) shares_relays: bool,
}

/// Datagrams in, datagrams queued; `'buf` is the life of sockets and received bytes.
#[derive(Debug)]
pub(crate) struct Session<'s, 'q, 'buf> {
    pub(crate) core: &'s mut Core,
    pub(crate) sockets: &'buf Sockets,
    pub(crate) out: Outbox<'q, 'buf>,
    /// Whether something was relayed; the reader clears it.
    pub(crate) relayed: bool,
}

impl<'s, 'q, 'buf> Session<'s, 'q, 'buf> {
    pub(crate) fn new(
        core: &'s mut Core,
        sockets: &'buf Sockets,
        queue: &'q mut SendQueue,
    ) -> Session<'s, 'q, 'buf> {
        Session {
            core,
            sockets,
            out: queue.start(),
            relayed: false,
        }
    }

    /// Whether what a listener received is DTLS.
    pub(super) fn is_dtls(&self, listener: u32, bytes: &[u8]) -> bool {
        let dtls = self.core.dtls.as_ref();
        dtls.is_some_and(|dtls| dtls.takes(listener, bytes))
    }

    /// Handles datagrams that a listener has received from clients.
    #[inline(always)]
    pub(crate) fn client_sent(&mut self, listener: u32, received: &Datagrams<'buf>) {
        let Some(five_tuple) = self.five_tuple(listener, received) else {
            return;
        };
        let run = Run {
            bytes: received.bytes,
            stride: received.stride,
            tos: received.tos,
        };
        self.core.counters.client_datagrams += run.count() as u64;
        self.core.counters.client_bytes += received.bytes.len() as u64;
        let path = ClientPath {
            five_tuple,
            listener: ListenerKey(listener),
        };
        self.handle_run(&path, run);
    }

    /// Messages of one client.
    #[inline(always)]
    pub(super) fn handle_run(&mut self, path: &ClientPath, run: Run<'buf>) {
        let mut rest = Some(run);
        while let Some(run) = rest {
            let verdict = self.core.engine.handle_client(self.core.now, path, run);
            let covers = verdict.covers().max(1);
            self.relay_to_peer(verdict, covered(run, covers));
            self.drain_outputs();
            rest = run.skip(covers);
        }
    }

    /// Datagrams that a relay's socket received.
    pub(crate) fn peer_sent(&mut self, relay: RelayKey, received: &Datagrams<'buf>) {
        let run = Run {
            bytes: received.bytes,
            stride: received.stride,
            tos: received.tos,
        };
        self.core.counters.peer_datagrams += run.count() as u64;
        self.core.counters.peer_bytes += received.bytes.len() as u64;
        let mut from = received.from;
        if self.core.shares_relays {
            from = self.core.opener.relays.advertised(from);
        }
        self.deliver(relay, from, run);
    }

    /// Datagrams that a shared port received: they are for the relay that has claimed their sender.
    pub(crate) fn peer_sent_to_shared(&mut self, number: u16, received: &Datagrams<'buf>) {
        match self.core.engine.relay_for(number, received.from) {
            Some(relay) => self.peer_sent(relay, received),
            None => {
                let count = received.bytes.len().div_ceil(received.stride.max(1)).max(1);
                self.core.counters.peer_datagrams += count as u64;
                self.core.counters.peer_bytes += received.bytes.len() as u64;
                self.core.counters.peer_unclaimed += count as u64;
            }
        }
    }

    /// The relay that is in this slot, or that the sender has been claimed for on the shared port that the slot stands
    /// for.
    fn relay_at(
        &self,
        slot: u32,
        (address, port): (RelayIndex, u16),
        from: SocketAddr,
    ) -> Option<RelayKey> {
        match shared_number(slot) {
            Some(number) => self.core.engine.relay_for(number, from),
            None => {
                let relay = self.sockets.relays.at(slot, address, port)?;
                Some(relay.key)
            }
        }
    }

    /// Datagrams that another worker's relay sent to a relay of this worker.
    pub(crate) fn worker_sent(&mut self, item: &Item, bytes: &'buf [u8]) {
        let (from, stride, tos) = (item.from, item.stride, item.tos);
        let Some(key) = self.relay_at(item.slot, (item.address, item.port), from) else {
            self.core.counters.relay_not_live += item.datagrams;
            return;
        };
        let whole = bytes.len().div_ceil(stride.max(1));
        if whole > 0 {
            self.deliver(key, from, Run { bytes, stride, tos });
        }
        // Empty datagrams (all of them, or the last of a run) leave no bytes to be counted by.
        for _ in whole as u64..item.datagrams {
            self.deliver(
                key,
                from,
                Run {
                    tos,
                    ..Run::single(&[])
                },
            );
        }
    }

    /// Queues a run of datagrams of a client for its peer, as the verdict says.
    #[inline(always)]
    fn relay_to_peer(&mut self, verdict: ClientVerdict, run: Run<'buf>) {
        match verdict {
            ClientVerdict::ToPeer {
                covers,
                relay,
                peer,
                payload,
                dont_fragment,
            } => {
                let relay = self.sockets.relays.get(relay);
                let Some(socket) = relay.and_then(|relay| self.sockets.socket_of(relay)) else {
                    self.core.counters.relay_gone += covers as u64;
                    return;
                };
                let to = SendTo {
                    socket,
                    to: peer,
                    from_ip: None,
                    tos: run.tos,
                    dont_fragment,
                };
                self.relayed = true;
                self.out.push_strided(&to, run.bytes, run.stride, payload);
            }
            ClientVerdict::ToRelay {
                covers,
                from,
                peer,
                payload,
            } => self.hand_over(covers, from, peer, payload, run),
            ClientVerdict::Handled { .. } | ClientVerdict::Drop { .. } => {}
        }
    }

    /// The peer is one of our own relays: it receives in this process, at this worker or at another.
    fn hand_over(
        &mut self,
        covers: usize,
        from: SocketAddr,
        peer: SocketAddr,
        payload: Range<usize>,
        run: Run<'buf>,
    ) {
        let Some((address, owner)) = self.core.opener.relays.owner_of(peer) else {
            if !self.send_to_other_process(from, peer, &payload, run) {
                self.core.counters.relay_not_live += covers as u64;
            }
            return;
        };
        if owner.worker != self.core.opener.worker {
            let Run { bytes, stride, tos } = run;
            let outgoing = OutgoingRun {
                slot: owner.slot,
                address,
                port: peer.port(),
                from,
                tos,
                bytes,
                stride,
                payload,
            };
            self.core.counters.handed_over_away += covers as u64;
            self.core.counters.mailbox_full += self.core.mailboxes.pack(owner.worker, &outgoing);
            return;
        }
        let Some(key) = self.relay_at(owner.slot, (address, peer.port()), from) else {
            self.core.counters.relay_not_live += covers as u64;
            return;
        };
        self.core.counters.handed_over_here += covers as u64;
        for datagram in datagrams(run.bytes, run.stride) {
            let bytes = slice(datagram, &payload);
            self.deliver(
                key,
                from,
                Run {
                    bytes,
                    stride: bytes.len(),
                    tos: run.tos,
                },
            );
        }
    }

    /// The peer may be a relay of the other process on these addresses: sends by the network, from the relay's own
    /// socket. Returns `false` if it is none.
    #[cold]
    fn send_to_other_process(
        &mut self,
        from: SocketAddr,
        peer: SocketAddr,
        payload: &Range<usize>,
        run: Run<'buf>,
    ) -> bool {
        let relays = &self.core.opener.relays;
        let own = relays.owner_of(from);
        let relay = own
            .and_then(|(address, owner)| self.sockets.relays.at(owner.slot, address, from.port()));
        let socket = relay.and_then(|relay| self.sockets.socket_of(relay));
        let (Some(socket), Some(to)) = (socket, relays.relay_of_other(peer)) else {
            return false;
        };
        let to = SendTo {
            socket,
            to,
            from_ip: None,
            tos: run.tos,
            dont_fragment: false,
        };
        self.relayed = true;
        self.out
            .push_strided(&to, run.bytes, run.stride, payload.clone());
        true
    }

    /// Datagrams for the client behind a relay, from the network or from another relay.
    fn deliver(&mut self, relay: RelayKey, from: SocketAddr, run: Run<'buf>) {
        let mut rest = Some(run);
        while let Some(run) = rest {
            let verdict = self
                .core
                .engine
                .handle_peer(self.core.now, relay, from, run);
            let covers = verdict.covers().max(1);
            self.relay_to_client(verdict, from, covered(run, covers));
            self.drain_outputs();
            rest = run.skip(covers);
        }
    }

    /// Queues a run of datagrams of a peer (`from`) for the client, as ChannelData or in Data indications.
    #[inline(always)]
    fn relay_to_client(&mut self, verdict: PeerVerdict, from: SocketAddr, run: Run<'buf>) {
        match verdict {
            PeerVerdict::ChannelData { path, channel, .. } => {
                self.relayed = true;
                let Some(to) = self.sockets.client_at(&path, run.tos) else {
                    return self.queue_channel_data(&path, channel, run);
                };
                each_datagram(run.bytes, run.stride, |datagram| {
                    // The engine drops what is too long for a header's 16 bits.
                    let length = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
                    self.out.push_prefixed(
                        &to,
                        &stun::channel_data::header(channel, length),
                        datagram,
                        0,
                    );
                });
            }
            PeerVerdict::DataIndication { path, .. } => {
                self.relayed = true;
                let Some(to) = self.sockets.client_at(&path, run.tos) else {
                    return self.queue_data_indications(&path, from, run);
                };
                let mut head = [0; 64];
                each_datagram(run.bytes, run.stride, |datagram| {
                    let length =
                        self.core
                            .engine
                            .write_data_indication(from, datagram.len(), &mut head);
                    self.out.push_prefixed(
                        &to,
                        &head[..length],
                        datagram,
                        stun::padding(datagram.len()),
                    );
                });
            }
            PeerVerdict::Drop { .. } => {}
        }
    }
}

/// The part of a run that a verdict speaks for.
fn covered(run: Run<'_>, covers: usize) -> Run<'_> {
    let end = covers.saturating_mul(run.stride).min(run.bytes.len());
    Run {
        bytes: &run.bytes[..end],
        ..run
    }
}
