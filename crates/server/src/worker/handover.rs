//! A worker during an upgrade. It makes steering entries for all of its clients, leaves listeners to the new process,
//! and sends its clients the messages from the new process.

use super::session::Session;
use super::{Worker, WorkerMessage};
use crate::handover::ForeignMessage;
use bpf::steer::Flows;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use turn::{ClientPath, FiveTuple, ListenerKey, Run, Transport};

/// Clients that get an entry per wake-up: about 0.3 ms.
const HELD_AT_ONCE: usize = 256;

/// Clients that do not have their entry in the steering program's table yet.
#[derive(Debug)]
pub(crate) struct ClientsWithoutEntry {
    paths: Vec<ClientPath>,
    /// Gets whether each client got an entry.
    done: Sender<bool>,
    is_complete: bool,
}

/// Work for a worker's thread, which may keep a capability that others have given up.
pub(crate) struct Job(pub(crate) Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

impl Worker {
    /// Gives each client an entry in the steering table, in the wake-ups to come, and each new one at once.
    pub(super) fn hold_clients(&mut self, flows: Option<Flows>, done: Sender<bool>) {
        self.core.placement.hold_all(flows);
        self.core.shares_relays = true;
        let mut paths: Vec<ClientPath> = self.core.engine.client_paths().collect();
        if let Some(dtls) = &self.core.dtls {
            paths.extend(dtls.paths());
        }
        self.holding = Some(Box::new(ClientsWithoutEntry {
            paths,
            done,
            is_complete: true,
        }));
    }

    /// Gives some more clients an entry.
    pub(super) fn hold_some(&mut self) {
        let Some(holding) = &mut self.holding else {
            return;
        };
        let core = &mut self.core;
        for _ in 0..HELD_AT_ONCE {
            let Some(path) = holding.paths.pop() else {
                // The receiver was dropped if `Running::hold_clients` has timed out.
                let _ = holding.done.send(holding.is_complete);
                self.holding = None;
                return;
            };
            let dtls = core.dtls.as_ref();
            let is_there = core.engine.has_allocation(&path.five_tuple)
                || dtls.is_some_and(|dtls| dtls.has(&path));
            if is_there {
                holding.is_complete &= core.placement.hold(&path);
            }
        }
    }

    /// Starts or stops accepting connections and reading the sockets of SIP; another process does both meanwhile.
    pub(super) fn set_listening(&mut self, listens: bool) -> std::io::Result<()> {
        self.core
            .connections
            .set_listening(listens, &self.core.poller)?;
        if let Some(sip) = &mut self.sip {
            sip.set_listening(listens, &self.core.poller)?;
        }
        Ok(())
    }

    /// The process that this one took over from has ended.
    pub(super) fn predecessor_ended(&mut self) {
        self.core.placement.forget_foreign();
        self.core.mailboxes.forget_predecessor();
        self.core.shares_relays = false;
    }

    /// Handles what a client has sent to the new process, as if it had come here.
    pub(super) fn receive_foreign(&mut self, message: ForeignMessage) {
        let ForeignMessage {
            local,
            remote,
            bytes,
            connection,
            ..
        } = message;
        if let Some(stream) = connection {
            let core = &mut self.core;
            let adopted =
                core.connections
                    .adopt(stream, (local, remote), bytes, &core.poller, core.now.mono);
            if let Err(error) = adopted {
                tracing::debug!(client = %remote, %error, "a connection of the new process is not served");
            }
            return;
        }
        let Some(listener) = self.listener_at(local) else {
            return;
        };
        let path = ClientPath {
            five_tuple: FiveTuple {
                transport: Transport::Udp,
                local,
                remote,
            },
            listener,
        };
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        session.handle_run(&path, Run::single(&bytes));
        drop(session);
        self.apply_changes();
        // Its entry was made by the new process.
        let is_alive = self.core.engine.has_allocation(&path.five_tuple);
        self.core.placement.record_result(&path, false, is_alive);
    }

    /// The UDP listener that datagrams to this address arrive at.
    fn listener_at(&self, local: SocketAddr) -> Option<ListenerKey> {
        let listeners = &self.sockets.listeners;
        let covers = |bound: SocketAddr| {
            let is_wildcard = bound.ip().is_unspecified() && bound.is_ipv4() == local.is_ipv4();
            bound.port() == local.port() && is_wildcard
        };
        let exact = listeners
            .iter()
            .position(|listener| listener.local == local);
        let place = exact.or_else(|| listeners.iter().position(|listener| covers(listener.local)));
        let number = u32::try_from(place?).ok()?;
        Some(ListenerKey(number))
    }

    /// Handles the messages of an upgrade. Hands any other message back.
    pub(super) fn handle_upgrade(&mut self, message: WorkerMessage) -> Option<WorkerMessage> {
        match message {
            WorkerMessage::HoldClients(flows, done) => {
                self.hold_clients(flows.map(|flows| *flows), done);
            }
            WorkerMessage::HoldNoMore => {
                self.core.placement.stop_adding_entries();
                self.core.shares_relays = false;
            }
            WorkerMessage::Listen(listens, done) => {
                if let Err(error) = self.set_listening(listens) {
                    tracing::error!(%error, listens, "cannot start or stop listening");
                }
                let _ = done.send(());
            }
            WorkerMessage::Sip(order) => {
                let outcome = self
                    .sip
                    .as_mut()
                    .map(|sip| sip.begin_step(*order, &self.core.poller));
                if let Some(Err(error)) = outcome {
                    tracing::error!(%error, "cannot start or stop reading SIP sockets");
                }
            }
            WorkerMessage::Job(Job(work)) => work(),
            WorkerMessage::Foreign(message) => self.receive_foreign(*message),
            WorkerMessage::PredecessorEnded => self.predecessor_ended(),
            other => return Some(other),
        }
        None
    }
}
