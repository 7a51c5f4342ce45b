//! Responses: which transaction they belong to, and the ACK and CANCEL that follow from them.

use std::net::SocketAddr;

use super::Engine;
use super::clients::{Client, Machine};
use super::compose;
use super::connections::Waiting;
use super::error::DropReason;
use super::key::ClientKey;
use super::output::Origin;
use super::received::Received;
use crate::branch::BranchKind;
use crate::congestion::Feedback;
use crate::flow::Flow;
use crate::header::Via;
use crate::message::{Framing, Message};
use crate::transaction::TuEvent;
use crate::{Method, Mono};

impl Engine {
    /// A response came in. `is_for_next`: another Via is below `via`, its topmost one.
    pub(super) fn response<'m>(
        &mut self,
        now: Mono,
        message: Message<'m>,
        (via, is_for_next): (&Via<'_>, bool),
        flow: &Flow,
    ) -> Received<'m> {
        let code = message.status_code().unwrap_or(0);
        let key = match self.match_response(&message, via) {
            // The worker of its transaction counts it.
            Ok(Matched::Elsewhere(worker)) => return Received::Elsewhere { worker },
            Ok(Matched::Here(key)) => Ok(key),
            Err(reason) => Err(reason),
        };
        self.stats.count_received(code);
        let key = match key {
            Ok(key) => key,
            Err(reason) => return self.drop_message(reason),
        };
        // RFC 3261 §16.7 step 3: nobody is left to forward it to. It must not end the transaction: the true response
        // may still come.
        let client = self.clients.slab.get(key.slot, key.generation);
        if !is_for_next && client.is_some_and(|client| client.is_forwarded) {
            return self.drop_message(DropReason::NoNextHop);
        }
        self.learn_overload(now, via, flow.remote);
        let timers = self.config.timers;
        let Some(client) = self.clients.slab.get(key.slot, key.generation) else {
            return self.drop_message(DropReason::Stray);
        };
        let (mark, is_cancel) = (client.mark, client.is_cancel);
        let step = client.machine.response(now, &timers, code);
        let told = step.tu_event == Some(TuEvent::Response);
        self.carry_out_client(now, key, step, Some(&message), false);
        if told && !is_cancel {
            return Received::Response {
                client: key,
                mark,
                message,
            };
        }
        Received::Absorbed
    }

    /// RFC 3261 §17.1.3, §18.1.2: branch and CSeq method, and a sent-by of ours.
    fn match_response(
        &mut self,
        message: &Message<'_>,
        via: &Via<'_>,
    ) -> Result<Matched, DropReason> {
        let branch = match self.codec.read(via.branch.unwrap_or_default()) {
            BranchKind::Ours(branch) => branch,
            BranchKind::Forged => return Err(DropReason::ForgedBranch),
            BranchKind::Stateless => return Err(DropReason::Stray),
            BranchKind::Foreign => return Err(DropReason::ForeignBranch),
        };
        if !self.config.is_ours(via.host, via.port_or_default()) {
            return Err(DropReason::WrongSentBy);
        }
        if branch.worker != self.config.worker {
            return Ok(Matched::Elsewhere(branch.worker));
        }
        let cseq = message.cseq().map_err(|_| DropReason::BadResponse)?;
        let method = self.matcher.method(cseq.method);
        let client = self.clients.slab.get(branch.slot, branch.generation);
        let client = client.ok_or(DropReason::Stray)?;
        if client.method == method {
            return Ok(Matched::Here(ClientKey {
                slot: branch.slot,
                generation: branch.generation,
            }));
        }
        // A CANCEL has its INVITE's branch.
        match (cseq.method, client.partner) {
            (Method::Cancel, Some(cancel)) => Ok(Matched::Here(cancel)),
            _ => Err(DropReason::WrongMethod),
        }
    }

    /// RFC 7339 §5.4: what the next hop says of its load.
    fn learn_overload(&mut self, now: Mono, via: &Via<'_>, hop: SocketAddr) {
        if !self.config.overload_control || !via.has_oc {
            return;
        }
        let mut feedback = Feedback::default();
        for param in via.params {
            feedback.note(param.name, param.value);
        }
        self.downstream.learn(now, hop, feedback);
    }

    /// Makes the ACK for a final response, which takes the INVITE's place, and sends it (RFC 3261 §17.1.1.3).
    pub(super) fn send_ack(&mut self, now: Mono, key: ClientKey, response: Option<&Message<'_>>) {
        let Some(client) = self.clients.slab.get(key.slot, key.generation) else {
            return;
        };
        let (Some(cell), Some(response)) = (&client.message, response) else {
            return;
        };
        let Ok(invite) = parse_stored(self.store.get(cell), &mut self.spans) else {
            return;
        };
        let Ok(ack) = compose::ack(&mut self.scratch, &invite, response) else {
            return;
        };
        let ack = self.store.keep(ack);
        let invite = std::mem::replace(&mut client.message, ack);
        if let Some(cell) = invite {
            self.store.release(cell);
        }
        let is_open = client
            .connection
            .is_some_and(|connection| self.connections.is_open(connection));
        if is_open || !client.to.transport.is_reliable() {
            self.transmit(now, key);
        } else if let Some(ack) = client.message.take() {
            // The transaction ends before a connection can open: the ACK waits for it alone.
            let to = client.to.clone();
            self.send_over_stream(now, to, Waiting::Response(None, ack));
        }
    }

    /// Makes the CANCEL of an INVITE and its transaction (RFC 3261 §9.1): same destination, same branch.
    pub(super) fn send_cancel(&mut self, now: Mono, key: ClientKey) {
        let timers = self.config.timers;
        let reason = self.reasons.remove(&key.slot).unwrap_or_default();
        let Some(client) = self.clients.slab.get(key.slot, key.generation) else {
            return;
        };
        let Some(cell) = &client.message else { return };
        let Ok(invite) = parse_stored(self.store.get(cell), &mut self.spans) else {
            return;
        };
        let Ok(cancel) = compose::cancel(&mut self.scratch, &invite, &reason) else {
            return;
        };
        let (to, connection, is_named) = (client.to.clone(), client.connection, client.is_named);
        let message = self.store.keep(cancel);
        let reliable = to.transport.is_reliable();
        let (slot, generation) = self.clients.slab.insert(Client {
            machine: Machine::start(now, &timers, Method::Cancel, reliable),
            method: self.matcher.method(Method::Cancel),
            to,
            connection,
            is_named,
            ends_with_connection: false,
            is_counted: false,
            older: None,
            newer: None,
            mark: None,
            message,
            partner: Some(key),
            is_cancel: true,
            is_forwarded: false,
            may_be_udp: false,
        });
        let cancel = ClientKey { slot, generation };
        if let Some(client) = self.clients.slab.get(key.slot, key.generation) {
            client.partner = Some(cancel);
        }
        self.stats.requests_sent += 1;
        self.transmit(now, cancel);
        self.set_client_timer(slot);
    }

    /// Handles an ICMP error about a datagram that this engine has sent (RFC 3261 §18.4: host, network, port or
    /// protocol unreachable). The error has the beginning of the datagram, and the branch in it names the transaction.
    /// Returns the worker that it belongs to, if that is another one: the kernel reports it to any of those that share
    /// the port.
    pub fn unreachable(&mut self, now: Mono, datagram: &[u8]) -> Option<u16> {
        if datagram.starts_with(b"SIP/") {
            return None;
        }
        let at = memchr::memmem::find(datagram, b"branch=")?;
        let rest = datagram.get(at + 7..).unwrap_or_default();
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric());
        let branch = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        let BranchKind::Ours(branch) = self.codec.read(branch) else {
            return None;
        };
        if branch.worker != self.config.worker {
            return Some(branch.worker);
        }
        let key = ClientKey {
            slot: branch.slot,
            generation: branch.generation,
        };
        self.send_failed(now, Origin::Client(key));
        None
    }
}

enum Matched {
    Here(ClientKey),
    Elsewhere(u16),
}

/// A message of ours, from the store.
fn parse_stored<'a>(
    bytes: &'a [u8],
    spans: &'a mut crate::Spans,
) -> Result<Message<'a>, crate::ParseError> {
    Message::parse_with(bytes, spans, Framing::Datagram, &crate::Limits::DEFAULT)
}
