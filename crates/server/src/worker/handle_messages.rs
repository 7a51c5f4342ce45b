//! Handles the messages in a worker's mailbox: from other workers, and from the threads that control them.

use super::messages::{MovedRelay, PlacedRequest};
use super::session::{Change, Session};
use super::sockets::RelaySocket;
use super::{Listener, PortSocket, Worker, WorkerMessage};
use crate::live::Configuration;
use turn::server::{ClaimError, ClientIdentity, UsersToForget};
use turn::{RelayKey, RequestKey};

/// Messages read per wake-up, so that other workers cannot keep this one from its own sockets.
const MAX_MESSAGES: usize = 256;

impl Worker {
    /// Takes messages, a bounded number of them.
    pub(super) fn read_mailbox(&mut self) {
        self.mailbox.begin();
        self.messages_left = true;
        for _ in 0..MAX_MESSAGES {
            match self.mailbox.take() {
                Some(WorkerMessage::Datagrams(batch)) => self.batches.push(batch),
                Some(message) => self.handle_message(message),
                None => {
                    self.messages_left = false;
                    break;
                }
            }
        }
        self.deliver_batches();
    }

    /// Delivers the datagrams of all batches.
    fn deliver_batches(&mut self) {
        if self.batches.is_empty() {
            return;
        }
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        for batch in &self.batches {
            for item in &batch.items {
                session.worker_sent(item, &batch.bytes[item.bytes.clone()]);
            }
        }
        drop(session);
        self.batches
            .drain(..)
            .for_each(|batch| self.core.mailboxes.put_back(batch));
        self.apply_changes();
    }

    /// Sends a relay, or the reason why there is none, to the worker that has requested it.
    fn send_claimed(
        &mut self,
        to: u16,
        request: RequestKey,
        relay: Result<Box<MovedRelay>, ClaimError>,
    ) {
        let answer = self
            .core
            .mailboxes
            .post(to, WorkerMessage::Claimed { request, relay });
        if let Err(WorkerMessage::Claimed {
            relay: Ok(moved), ..
        }) = answer
        {
            self.core.counters.mailbox_full += 1;
            self.core.close(moved.split().0);
        }
    }

    /// Handles an inter-worker message.
    pub(super) fn handle_message(&mut self, message: WorkerMessage) {
        let Some(message) = self.handle_upgrade(message) else {
            return self.drain_and_update_sockets();
        };
        match message {
            WorkerMessage::Datagrams(batch) => self.batches.push(batch),
            WorkerMessage::Claim {
                from,
                request,
                token,
                client,
                key,
            } => {
                let relay = self.give_relay(token, &client.identity(), key);
                self.send_claimed(from, request, relay);
            }
            WorkerMessage::Claimed { request, relay } => self.receive_relay(request, relay),
            WorkerMessage::Request(placed) => self.serve_placed(&placed),
            WorkerMessage::Connection(moved) => self.receive_connection(*moved),
            WorkerMessage::SipMessages(batch) => {
                if let Some(sip) = &mut self.sip {
                    sip.receive(batch);
                }
            }
            WorkerMessage::SipQuery(query) => {
                if let Some(sip) = &mut self.sip {
                    sip.answer_query(*query);
                }
            }
            WorkerMessage::Name(answered) => {
                if let Some(sip) = &mut self.sip {
                    sip.receive_answer(*answered);
                }
            }
            WorkerMessage::LateSipResult(answer) => {
                if let Some(sip) = &mut self.sip {
                    sip.receive_late_answer(*answer);
                }
            }
            WorkerMessage::KeysFound(lookup, found) => {
                // The request may have been given up by now.
                self.core.engine.keys_found(self.core.now, lookup, *found);
            }
            WorkerMessage::ForgetUsers(user) => {
                let which = user
                    .as_deref()
                    .map_or(UsersToForget::All, UsersToForget::User);
                self.core.engine.forget_users(which);
            }
            WorkerMessage::Publish(reply) => {
                self.publish();
                // The caller may have stopped waiting.
                let _ = reply.send(());
            }
            WorkerMessage::Sessions(query) => query.answer(&mut self.core.engine, self.core.now),
            // It is awake, and looks at the number of changes.
            WorkerMessage::RoutesChanged => {}
            // Handled before.
            WorkerMessage::HoldClients(..)
            | WorkerMessage::HoldNoMore
            | WorkerMessage::Listen(..)
            | WorkerMessage::Job(_)
            | WorkerMessage::Sip(_)
            | WorkerMessage::Foreign(_)
            | WorkerMessage::PredecessorEnded => {}
            WorkerMessage::Separate => {
                self.core.opener.gro = false;
                let listeners = &mut self.sockets.listeners;
                listeners.iter_mut().for_each(Listener::separate);
            }
            WorkerMessage::Shutdown => self.stopping = true,
        }
        self.drain_and_update_sockets();
    }

    /// Works by another configuration from now on.
    pub(super) fn configure(&mut self, configuration: Configuration) {
        let Configuration {
            engine,
            sip,
            hooks,
            streams,
        } = configuration;
        if let Some(dtls) = &mut self.core.dtls {
            dtls.set_limits(&streams);
        }
        self.core.connections.set_limits(streams);
        self.core.hooks = hooks;
        if let Some(flows) = &mut self.core.flows {
            flows.set_limited(engine.limits_rate());
        }
        self.core.engine.set_config(self.core.now, engine);
        if let Some(of_sip) = &mut self.sip {
            of_sip.apply_settings(sip);
        }
        self.drain_and_update_sockets();
    }

    fn serve_placed(&mut self, placed: &PlacedRequest) {
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        session.request_placed(placed);
    }

    /// Another worker's client has the token of a relay that is reserved here.
    fn give_relay(
        &mut self,
        token: [u8; 8],
        client: &ClientIdentity<'_>,
        key: RelayKey,
    ) -> Result<Box<MovedRelay>, ClaimError> {
        let claimed = self
            .core
            .engine
            .claim_reservation(self.core.now, token, client)?;
        let RelaySocket {
            socket,
            address,
            port,
            ..
        } = self
            .sockets
            .relays
            .remove(claimed.relay)
            .ok_or(ClaimError::Unknown)?;
        // Shared ports are never reserved.
        let PortSocket::Own(socket) = socket else {
            return Err(ClaimError::Unknown);
        };
        self.core.opener.withdraw(address, port);
        // It could only fail for a socket that is not watched; then nothing is left to undo.
        let _ = self.core.poller.remove(&socket);
        self.core.counters.relays_given += 1;
        Ok(Box::new(MovedRelay {
            key,
            socket,
            address,
            port,
            claimed,
        }))
    }

    /// The answer to a claim of ours.
    fn receive_relay(&mut self, request: RequestKey, relay: Result<Box<MovedRelay>, ClaimError>) {
        let mut adopted = None;
        let claimed = relay.and_then(|moved| {
            let (key, (socket, claimed)) = (moved.key, moved.split());
            let relay = self
                .core
                .opener
                .adopt(socket, &self.core.poller)
                .ok_or(ClaimError::Unknown)?;
            self.core.counters.relays_received += 1;
            self.core.changes.push(Change::Open(relay));
            adopted = Some(key);
            Ok(claimed)
        });
        let known = self
            .core
            .engine
            .reservation_claimed(self.core.now, request, claimed);
        if let (false, Some(key)) = (known, adopted) {
            self.core.changes.push(Change::Close(key));
        }
    }
}
