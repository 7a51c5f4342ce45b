//! SIP during an upgrade. The workers of both processes are one group with one key. Each worker knows the worker of a
//! branch, a To tag or a connection, and passes a message to it. If that worker belongs to the other process, the
//! message goes over the [`link`](super::link).
//!
//! ```text
//!  old process                                       new process
//!  Pause: stops reading its sockets
//!  HandOver: handles received messages; writes the log;
//!            sends its list of transactions ───────▶ starts, reads the UDP sockets and the log
//!  Release: releases the log
//!  Follow: reads connections again;        ────────▶ serves new transactions
//!          passes new requests to the new process
//!  Close: closes connections without transactions    clients connect to the new process
//!  Resume if the new process ends                    PredecessorEnded if the old one ends
//! ```

use super::endpoint::Endpoint;
use super::link::{Frame, MAX_FRAME_IDS, ProcessLink};
use super::other_process::OtherProcess;
use super::outgoing::{slot_of, worker_of};
use super::store::WorkerBindings;
use super::{Sip, connections::DisconnectReason};
use io::Poller;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Addresses of record whose bindings are handed over per wake-up. That takes some milliseconds.
const PLACES_PER_WAKE_UP: usize = 4096;

/// A step of an upgrade for a worker.
#[derive(Debug)]
pub(crate) enum SipUpgradeStep {
    /// Stop reading sockets. Report when this worker sends nothing more to other workers.
    Pause(Sender<()>),
    /// Handle received messages, and hand over to this process.
    HandOver {
        other_process: OtherProcess,
        /// The new process does not have the bindings by a log.
        sends_bindings: bool,
        done: Sender<()>,
    },
    /// Stop saving bindings.
    Release(Sender<()>),
    /// The new process serves.
    Follow {
        /// It has the bindings by the log.
        has_log: bool,
    },
    /// Close connections without a transaction.
    Close,
    /// The new process has ended or given up. These are the bindings, if it had the log.
    Resume(Option<Box<WorkerBindings>>),
    /// The old process has ended.
    PredecessorEnded,
}

/// The stage of an upgrade at one worker of the old process.
#[derive(Debug, Default)]
pub(super) struct UpgradeStage {
    /// The new process serves, or served until now: connections stay open, although the server drains.
    pub(super) keeps_connections: bool,
    waiting: Option<PendingStep>,
}

/// The condition that a step waits for.
#[derive(Debug)]
enum PendingStep {
    Pause(Sender<()>),
    HandOver {
        link: Arc<ProcessLink>,
        /// The place of the next bindings to send; `None` if the worker sends none.
        next: Option<usize>,
        has_named: bool,
        done: Sender<()>,
    },
}

impl UpgradeStage {
    pub(super) const fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }
}

impl Sip {
    /// Begins a step of an upgrade; parts of it follow in later wake-ups.
    pub(crate) fn begin_step(
        &mut self,
        order: SipUpgradeStep,
        poller: &Poller,
    ) -> std::io::Result<()> {
        match order {
            SipUpgradeStep::Pause(done) => {
                self.stop_reading(poller)?;
                self.stage.waiting = Some(PendingStep::Pause(done));
            }
            SipUpgradeStep::HandOver {
                other_process,
                sends_bindings,
                done,
            } => {
                self.endpoint.set_other_process(Some(&other_process));
                // The other process has the bindings from now on, with a log or without.
                self.endpoint.set_waking(false);
                self.stage.waiting = Some(PendingStep::HandOver {
                    link: other_process.link,
                    next: sends_bindings.then_some(0),
                    has_named: false,
                    done,
                });
            }
            SipUpgradeStep::Release(done) => {
                self.endpoint
                    .kept()
                    .into_iter()
                    .for_each(WorkerBindings::release);
                // The receiver was dropped if it has waited for too long.
                let _ = done.send(());
            }
            SipUpgradeStep::Follow { has_log } => {
                if has_log {
                    self.endpoint
                        .kept()
                        .into_iter()
                        .for_each(WorkerBindings::clear);
                }
                self.stage.keeps_connections = true;
                self.endpoint.follow();
                self.connections.resume(poller);
            }
            SipUpgradeStep::Close => self.stage.keeps_connections = false,
            SipUpgradeStep::Resume(kept) => {
                // The drain of the old process may end a moment later.
                self.stage = UpgradeStage {
                    keeps_connections: self.endpoint.sip_config.draining,
                    waiting: None,
                };
                self.leave_other_process(poller);
                self.endpoint.set_waking(true);
                if let Some(kept) = kept {
                    self.endpoint.restore(*kept);
                }
                self.connections.resume(poller);
            }
            SipUpgradeStep::PredecessorEnded => self.leave_other_process(poller),
        }
        Ok(())
    }

    fn stop_reading(&mut self, poller: &Poller) -> std::io::Result<()> {
        self.set_listening(false, poller)?;
        self.connections.pause(poller);
        // Epoll reports these sockets again.
        self.ready.clear();
        Ok(())
    }

    /// Removes the connections of the other process, because it has ended.
    fn leave_other_process(&mut self, poller: &Poller) {
        let gone = self.endpoint.other_process_connections();
        self.endpoint.set_other_process(None);
        for key in gone {
            self.with_outgoing(poller, |endpoint, outgoing| {
                endpoint.lose_connection(key, outgoing);
            });
        }
    }

    /// Continues a step at the end of a wake-up.
    pub(super) fn continue_step(&mut self) {
        // Messages from other workers come first.
        if self.has_held_batch || !self.inbox.is_empty() {
            return;
        }
        match self.stage.waiting.take() {
            None => {}
            Some(PendingStep::Pause(done)) => drop(done.send(())),
            Some(PendingStep::HandOver {
                link,
                next,
                has_named,
                done,
            }) => {
                if !has_named {
                    self.endpoint.hand_over_to(&link);
                }
                let next = next.and_then(|first| self.endpoint.send_bindings(first, &link));
                match next {
                    None => drop(done.send(())),
                    next => {
                        let has_named = true;
                        let waiting = PendingStep::HandOver {
                            link,
                            next,
                            has_named,
                            done,
                        };
                        self.stage.waiting = Some(waiting);
                    }
                }
            }
        }
    }

    /// Closes connections for which a message between the two processes was lost.
    pub(super) fn close_lost(&mut self, poller: &Poller) {
        for key in self.endpoint.take_lost() {
            if worker_of(key) == self.endpoint.number() {
                self.close(slot_of(key), DisconnectReason::Unread);
            } else {
                self.with_outgoing(poller, |endpoint, outgoing| {
                    endpoint.lose_connection(key, outgoing);
                });
            }
        }
    }
}

impl Endpoint {
    /// Writes all changes of bindings, and names the server transactions of this worker.
    fn hand_over_to(&mut self, link: &ProcessLink) {
        self.kept().into_iter().for_each(WorkerBindings::flush);
        let ids: Vec<u64> = self.engine.server_transactions().map(|id| id.0).collect();
        for ids in ids.chunks(MAX_FRAME_IDS) {
            link.send(Frame::Transactions {
                worker: self.number(),
                ids: ids.to_vec(),
            });
        }
    }

    /// Sends some bindings. Returns the place of the next ones.
    fn send_bindings(&mut self, first: usize, link: &ProcessLink) -> Option<usize> {
        let now = self.now;
        let records = self.kept()?.records(now, first, PLACES_PER_WAKE_UP)?;
        link.send(Frame::Bindings(records));
        Some(first + PLACES_PER_WAKE_UP)
    }
}
