//! The other process of an upgrade: what the SIP of this process knows about it.

use super::balance::SipBatch;
use super::link::ProcessLink;
use crate::steering::Numbering;
use sip::engine::TransactionId;
use sip::flow::{ConnectionKey, Flow};
use sip_server::flow::{FlowId, Runs};
use std::collections::HashMap;
use std::sync::Arc;

use super::outgoing::worker_of;

/// The other process of an upgrade.
#[derive(Debug, Clone)]
pub(crate) struct OtherProcess {
    /// The numbers of its workers.
    pub(crate) numbering: Numbering,
    /// The number of its run, in flow tokens.
    pub(crate) run: u32,
    pub(crate) link: Arc<ProcessLink>,
    /// The server transactions that it had when this process took over, with the numbers of their workers. Empty in the
    /// old process, because the new one had none then.
    pub(crate) transactions: Arc<HashMap<u64, u16>>,
}

/// What one worker knows about the other process.
#[derive(Debug)]
pub(super) struct OtherProcessState {
    pub(super) numbering: Numbering,
    pub(super) link: Arc<ProcessLink>,
    transactions: Arc<HashMap<u64, u16>>,
    open: Vec<Option<SipBatch>>,
    /// The other process gets requests that begin a transaction.
    pub(super) leads: bool,
}

impl OtherProcessState {
    pub(super) fn new(other: &OtherProcess) -> OtherProcessState {
        OtherProcessState {
            numbering: other.numbering,
            link: Arc::clone(&other.link),
            transactions: Arc::clone(&other.transactions),
            open: (0..other.numbering.workers).map(|_| None).collect(),
            leads: false,
        }
    }

    /// The batch that is open for one of its workers.
    pub(super) fn place_of(&mut self, worker: u16) -> Option<&mut Option<SipBatch>> {
        let place = self.numbering.index(worker)?;
        self.open.get_mut(usize::from(place))
    }

    /// All open batches, with the numbers of the workers that they are for.
    pub(super) fn take_open(&mut self) -> impl Iterator<Item = (u16, SipBatch)> {
        let places = (self.numbering.first_worker..).zip(&mut self.open);
        places.filter_map(|(worker, place)| Some((worker, place.take()?)))
    }

    /// Its worker that has had this server transaction since before the upgrade.
    pub(super) fn owner_of(&self, transaction: TransactionId) -> Option<u16> {
        self.transactions.get(&transaction.0).copied()
    }

    /// Whether a connection is one of its own.
    pub(super) fn has(&self, connection: ConnectionKey) -> bool {
        self.numbering.index(worker_of(connection)).is_some()
    }
}

/// The identity of a worker, for flow tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerIdentity {
    /// Its number.
    pub(super) number: u16,
    /// The numbers of all workers of this process.
    pub(super) numbering: Numbering,
    pub(super) runs: Runs,
}

impl WorkerIdentity {
    /// A flow, with the worker that has it and the run of its process.
    pub(super) fn flow_id(&self, flow: &Flow) -> FlowId {
        let worker = flow.connection.map_or(self.number, worker_of);
        let run = match self.numbering.index(worker) {
            Some(_) => self.runs.own,
            // The other process may have just ended. Then its connection is no flow of this run.
            None => self.runs.other.unwrap_or(!self.runs.own),
        };
        FlowId {
            worker,
            run,
            flow: *flow,
        }
    }
}
