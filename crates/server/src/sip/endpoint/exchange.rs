//! The items that workers send each other, also to another process during an upgrade. These are messages for another
//! worker, bytes for its connections, and changes of connections.

use super::Endpoint;
use crate::sip::BATCH_MESSAGES;
use crate::sip::balance::{ItemKind, SipBatch};
use crate::sip::other_process::OtherProcess;
use crate::sip::outgoing::Outgoing;
use crate::worker::Mailboxes;
use sip::engine::{Received, SendTo, TransactionId};
use sip::flow::{ConnectionKey, Flow, PeerName};
use sip::{Method, Scan};
use std::sync::Arc;

impl Endpoint {
    /// Sets the other process of an upgrade; `None` after its end.
    pub(in crate::sip) fn set_other_process(&mut self, other: Option<&OtherProcess>) {
        self.balance.set_other_process(other);
        self.tu.set_other_run(other.map(|other| other.run));
    }

    /// Sets whether this process wakes phones.
    pub(in crate::sip) fn set_waking(&mut self, wakes: bool) {
        self.tu.set_waking(wakes);
    }

    /// Gives new requests to the other process from now on.
    pub(in crate::sip) fn follow(&mut self) {
        self.balance.follow();
    }

    /// Whether the other process gets new requests.
    pub(in crate::sip) fn follows(&self) -> bool {
        self.balance
            .other_process()
            .is_some_and(|other| other.leads)
    }

    /// The connections of the other process that are known here.
    pub(in crate::sip) fn other_process_connections(&self) -> Vec<ConnectionKey> {
        let Some(other_process) = self.balance.other_process() else {
            return Vec::new();
        };
        let all = self.engine.open_connections();
        all.filter(|key| other_process.has(*key)).collect()
    }

    /// Takes the connections for which a message between the two processes was lost.
    pub(in crate::sip) fn take_lost(&mut self) -> Vec<ConnectionKey> {
        self.balance.take_lost()
    }

    /// Notes that a connection of another worker cannot be used any more.
    pub(in crate::sip) fn lose_connection(
        &mut self,
        key: ConnectionKey,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        self.engine.disconnected(self.now.mono, key);
        self.drain(outgoing);
    }

    /// Hands a request over to the worker of its Call-ID. It stays if that is this worker, or if its transaction is
    /// here. A request over TCP also stays if the other worker is behind, because TCP does not repeat it.
    pub(super) fn hand_over(&mut self, bytes: &[u8], flow: &Flow) -> bool {
        let Ok(scan) = Scan::of(bytes, &self.limits) else {
            return false;
        };
        let (Some(method), Some(call_id)) = (scan.method, scan.call_id) else {
            return false;
        };
        let transaction = self.engine.transaction_of(&scan);
        if let Some(worker) = transaction.and_then(|id| self.handed_to(id)) {
            self.pack(worker, flow, 0, bytes);
            return true;
        }
        // A call may ring for longer than the load has been uneven.
        let belongs_to_invite = matches!(method, Method::Ack | Method::Cancel);
        let may_be_here = belongs_to_invite || self.balance.is_young(self.now.mono);
        let owner = self.balance.owner_of(call_id);
        if owner == self.number
            || (flow.connection.is_some() && !self.balance.keeps_up(owner))
            || (may_be_here && self.engine.knows(&scan))
        {
            return false;
        }
        if let Some(id) = transaction {
            self.handed.note(id, owner);
        }
        self.pack(owner, flow, 0, bytes);
        true
    }

    /// The worker to which this one has handed over the transaction of a message. Never the worker from which the
    /// message comes.
    pub(super) fn followed(&self, received: &Received<'_>, from: Option<u16>) -> Option<u16> {
        if self.handed.is_empty() && self.balance.other_process().is_none() {
            return None;
        }
        let transaction = match received {
            Received::Request(request) => {
                let method = request.message.method()?;
                self.engine.transaction_by(&request.via, method)
            }
            Received::Ack(ack) if ack.invite.is_none() => {
                self.engine.transaction_by(&ack.via, Method::Ack)
            }
            _ => None,
        };
        let worker = self.handed_to(transaction?)?;
        (from != Some(worker)).then_some(worker)
    }

    /// The worker of a transaction that was handed over, or that is older than this process.
    fn handed_to(&self, transaction: TransactionId) -> Option<u16> {
        let handed = self.handed.find(transaction);
        handed.or_else(|| self.balance.other_process()?.owner_of(transaction))
    }

    /// Converts a flow of another worker. Another process may have other numbers for its listeners.
    fn localized(&self, flow: Flow, from: u16) -> Flow {
        let listener = match self.balance.is_foreign(from) {
            true => self.tu.listener_at(flow.local),
            false => None,
        };
        Flow {
            listener: listener.unwrap_or(flow.listener),
            ..flow
        }
    }

    /// Packs a message for another worker, with the names that the client of its connection has proved.
    pub(super) fn pack(&mut self, worker: u16, flow: &Flow, asked: u16, bytes: &[u8]) {
        let counters = &mut self.counters;
        if let Some(key) = flow.connection {
            let names = self.engine.proven_names(key);
            if !names.is_empty() {
                self.balance.pack_names(worker, key, names, counters);
            }
        }
        self.balance.pack(worker, flow, asked, bytes, counters);
    }

    /// Handles items of a batch from `first` on, at most [`BATCH_MESSAGES`]. Returns the number of messages among them.
    pub(in crate::sip) fn unpack(
        &mut self,
        batch: &SipBatch,
        first: usize,
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) -> usize {
        let mut messages = 0;
        // The names of the first message may be the last item of the part before.
        let before = first.checked_sub(1).and_then(|it| batch.items.get(it));
        let mut names = before.and_then(|item| match item.kind {
            ItemKind::Names(key) => Some((key, batch.bytes.get(item.bytes.clone())?)),
            _ => None,
        });
        for item in batch.items.iter().skip(first).take(BATCH_MESSAGES) {
            let bytes = batch.bytes.get(item.bytes.clone()).unwrap_or_default();
            match item.kind {
                ItemKind::Message { flow, asked } => {
                    messages += 1;
                    self.counters.taken_over += 1;
                    let flow = self.localized(flow, batch.from);
                    // The kernel looks at the other worker's socket by the other worker's rules.
                    if flow.connection.is_none() && self.is_filtered_out(bytes, &flow) {
                        continue;
                    }
                    self.adopt(&flow, bytes, names.take());
                    self.message(bytes, &flow, (asked, Some(batch.from)), outgoing);
                }
                ItemKind::Names(key) => names = Some((key, bytes)),
                ItemKind::Bytes(key) => {
                    if !outgoing.give(key, bytes, &mut self.counters) {
                        self.counters.unsent += 1;
                        self.balance
                            .send_closed(batch.from, key, &mut self.counters);
                    } else if let Some(trace) = &mut self.trace {
                        let to = SendTo::Stream(key);
                        trace.copy_sent(&to, bytes, outgoing, &mut self.counters);
                    }
                }
                ItemKind::Closed(key) => {
                    self.engine.disconnected(self.now.mono, key);
                    self.with_tu(|tu, transactions| tu.connection_gone(transactions, key));
                    self.drain(outgoing);
                }
                ItemKind::HalfClosed(key) => {
                    self.engine.half_closed(self.now.mono, key);
                    self.drain(outgoing);
                }
                ItemKind::Unreachable => self.unreachable(bytes, outgoing),
            }
        }
        messages
    }

    /// Handles an ICMP error for a datagram that begins with these bytes.
    pub(in crate::sip) fn unreachable(
        &mut self,
        quoted: &[u8],
        outgoing: &mut Outgoing<'_, '_, '_>,
    ) {
        if let Some(worker) = self.engine.unreachable(self.now.mono, quoted) {
            self.balance
                .send_unreachable(worker, quoted, &mut self.counters);
        }
        self.drain(outgoing);
    }

    /// Whether any worker waits for ICMP errors. Notes whether this one does.
    pub(in crate::sip) fn wants_errors(&mut self) -> bool {
        let wants = self.requests.dispatcher.has_requests();
        if wants != std::mem::replace(&mut self.has_wanted, wants) {
            self.balance.want_errors(wants);
        }
        self.balance.are_errors_wanted()
    }

    /// A request from the connection of another worker: the engine responds over this connection as over one of its
    /// own, until the other worker reports its end. `names` are those that its client has proved, one a line.
    fn adopt(&mut self, flow: &Flow, bytes: &[u8], names: Option<(ConnectionKey, &[u8])>) {
        let Some(key) = flow.connection.filter(|_| !expects_no_response(bytes)) else {
            return;
        };
        self.engine.adopt(self.now.mono, flow);
        if let Some((_, names)) = names.filter(|(of, _)| *of == key)
            && self.engine.client_names(key).is_none()
        {
            let names = String::from_utf8_lossy(names);
            let names: Arc<[PeerName]> = names.lines().map(PeerName::new).collect();
            self.engine.authenticated(key, &names);
        }
    }

    /// Takes back a batch that was delivered.
    pub(in crate::sip) fn put_back(&self, batch: SipBatch) {
        self.balance.put_back(batch);
    }

    /// Posts the batches for other workers, and compares their load from time to time. `unopened` batches of others
    /// wait here. Returns whether a batch was held back.
    pub(in crate::sip) fn post(&mut self, mailboxes: &Mailboxes, unopened: usize) -> bool {
        if let Some(trace) = &mut self.trace {
            trace.flush(&mut self.counters);
        }
        self.requests.send_queries(self.number, mailboxes);
        self.tu.begin_queries(self.number, mailboxes);
        self.balance.publish_unopened(unopened);
        let stats = self.engine.stats();
        self.balance
            .publish_transactions(stats.servers + stats.clients);
        let received = self.counters.udp_messages + self.counters.tcp_messages;
        let busy_ns = self.congestion.busy_ns();
        self.balance.compare(self.now.mono, received, busy_ns);
        self.balance.send_all(mailboxes, &mut self.counters)
    }

    /// Whether no worker has a transaction.
    pub(in crate::sip) fn is_calm(&self) -> bool {
        self.balance.is_calm()
    }
}

/// Whether a message is an ACK or a response. It gets no response over its connection.
pub(super) fn expects_no_response(bytes: &[u8]) -> bool {
    bytes.starts_with(b"ACK ") || bytes.starts_with(b"SIP/")
}
