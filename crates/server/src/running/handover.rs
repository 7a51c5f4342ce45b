//! A running server during an upgrade: as the old process, and as the new one.

use super::{RESPONSE_TIMEOUT, Running};
use crate::handover::{ForeignMessage, HandoverError, Joining, Offer, OpenListeners};
use crate::offload::Control;
use crate::ports::ForeignPorts;
use crate::privileges::KeptCapabilities;
use crate::sip::SipUpgrade;
use crate::steering::{Groups, Numbering};
use crate::worker::{Job, WorkerMessage};
use bpf::steer::Process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long all workers together may take to give their clients an entry each: 1 million take 2 s.
pub(super) const HOLD_TIMEOUT: Duration = Duration::from_secs(20);

/// What a running server needs for an upgrade.
#[derive(Debug)]
pub(super) struct Upgrade {
    pub(super) numbering: Numbering,
    /// The steering program, as this process uses it. Workers use it, too: they may keep a capability that it requires.
    pub(super) groups: Arc<Mutex<Option<Groups>>>,
    /// Copies of the listeners' sockets.
    pub(super) open: OpenListeners,
    /// Relay ports are shared by several allocations.
    pub(super) shared_ports: bool,
    /// SIP's part, if it is served.
    pub(super) sip: Option<Mutex<SipUpgrade>>,
    /// What threads keep.
    pub(super) kept: KeptCapabilities,
    /// The first port that relays may have.
    pub(super) first_port: u16,
}

impl Upgrade {
    fn groups(&self) -> MutexGuard<'_, Option<Groups>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// What a new process needs to take over from this server.
    ///
    /// # Errors
    /// If relay ports are shared by several allocations, or if no file descriptor is left.
    pub fn offer(&self) -> Result<Offer, HandoverError> {
        if self.upgrade.shared_ports {
            return Err(HandoverError::SharedPorts);
        }
        let OpenListeners { udp, others } =
            self.upgrade.open.copies().map_err(HandoverError::System)?;
        let (nonce_keys, ticket_key) = self.changes.live().seeds();
        let groups = self.upgrade.groups();
        let maps = groups.as_ref().map(Groups::copies).transpose();
        let Numbering {
            first_worker,
            workers,
            first_slot,
        } = self.upgrade.numbering;
        let held = self.changes.live().share_counts();
        Ok(Offer {
            process: groups
                .as_ref()
                .map_or(Process::Even, Groups::process)
                .number() as u8,
            first_worker,
            workers,
            first_slot,
            nonce_keys,
            ticket_key,
            maps: maps
                .map_err(HandoverError::System)?
                .map_or(Vec::new(), Vec::from),
            udp,
            sip: self.sip_offer(),
            relays: self
                .changes
                .live()
                .relays
                .shared_ports(self.upgrade.first_port),
            held: held.map_err(HandoverError::System)?,
            xdp: self.control.as_ref().and_then(Control::xdp_programs),
            others,
        })
    }

    /// Gives each client an entry in the steering table, so that the sockets of another process can join the listeners'
    /// groups. `joining` is what the new process has passed to the `hold` of its
    /// [`TakeOver`](crate::handover::TakeOver). Undo it with [`resume`](Self::resume).
    ///
    /// # Errors
    /// If a worker does not respond or the table is full, or this process may not use the tables; then everything is as
    /// before.
    pub fn hold_clients(&self, joining: Joining) -> Result<(), HandoverError> {
        let Joining {
            maps,
            relays,
            held,
            sip,
        } = joining;
        let foreign = ForeignPorts::new(relays).map_err(HandoverError::System)?;
        self.changes.live().relays.set_foreign(Some(foreign));
        self.changes.live().count_other(held)?;
        if !maps.is_empty() {
            let fds = maps
                .try_into()
                .map_err(|_| HandoverError::Offer("descriptors are missing"))?;
            self.with_groups(move |groups| {
                *groups = Some(Groups::of_fds(fds, Process::Even)?);
                Ok(())
            })?;
        }
        let held = self.hold_all();
        let held = held.and_then(|()| {
            self.with_groups(|groups| match groups {
                Some(groups) => groups.activate(),
                None => Err(HandoverError::Steering("there are none".to_owned())),
            })
        });
        let held = held.and_then(|()| sip.map_or(Ok(()), |sip| self.hand_over_sip(sip)));
        if held.is_err() {
            let _ = self.resume();
        }
        held
    }

    /// The new process serves: leaves new connections and the UDP sockets of SIP to it. Existing clients stay here.
    /// What begins anew on their SIP connections goes to the new process.
    ///
    /// # Errors
    /// If a worker does not respond.
    pub fn stop_listening(&self) -> Result<(), HandoverError> {
        self.set_listening(false)?;
        self.follow_with_sip()
    }

    /// The new process has ended or given up: this one serves everything again.
    ///
    /// # Errors
    /// If a worker does not respond, or the kernel refuses.
    pub fn resume(&self) -> Result<(), HandoverError> {
        self.forget_other();
        if let Some(control) = &self.control {
            control.replace_xdp();
        }
        let own = self.upgrade.numbering.slots(self.upgrade.open.udp.len());
        let forgotten = self.with_groups(move |groups| match groups {
            Some(groups) => groups.forget_other(own),
            None => Ok(()),
        });
        for worker in 0..self.threads.len() {
            self.send_to_worker(worker, WorkerMessage::HoldNoMore)?;
        }
        let resumed = self.resume_sip();
        self.set_listening(true)?;
        resumed.and(forgotten)
    }

    /// The process that this one has taken over from has ended.
    ///
    /// # Errors
    /// If a worker does not respond, or the kernel refuses.
    pub fn predecessor_ended(&self) -> Result<(), HandoverError> {
        self.forget_other();
        if let Some(control) = &self.control {
            control.forget_other_xdp();
        }
        for worker in 0..self.threads.len() {
            self.send_to_worker(worker, WorkerMessage::PredecessorEnded)?;
        }
        self.leave_old_sip()?;
        let own = self.upgrade.numbering.slots(self.upgrade.open.udp.len());
        self.with_groups(move |groups| match groups {
            Some(groups) => groups.forget_other(own),
            None => Ok(()),
        })
    }

    /// While two processes run: gives each the part of the rates of users, sources and realms that it has of their
    /// allocations. Call it once per second.
    pub fn share_rates(&self) {
        self.changes.live().set_rate_shares();
    }

    /// The other process neither relays nor counts any more.
    fn forget_other(&self) {
        let live = self.changes.live();
        live.relays.set_foreign(None);
        live.count_alone();
    }

    /// Has a worker handle what one of its clients has sent to the new process.
    ///
    /// # Errors
    /// If there is no such worker, or it does not respond.
    pub fn receive_foreign(&self, message: ForeignMessage) -> Result<(), HandoverError> {
        let worker = self.upgrade.numbering.index(message.worker);
        let worker = worker
            .map(usize::from)
            .ok_or(HandoverError::Busy(usize::MAX))?;
        self.send_to_worker(worker, WorkerMessage::Foreign(Box::new(message)))
    }

    /// New clients come to this process from now on.
    pub(super) fn take_over_new_clients(&self) -> Result<(), HandoverError> {
        match &mut *self.upgrade.groups() {
            Some(groups) => groups.activate(),
            None => Ok(()),
        }
    }

    pub(super) fn send_to_worker(
        &self,
        worker: usize,
        message: WorkerMessage,
    ) -> Result<(), HandoverError> {
        let told = self.post_until(worker, message, Instant::now() + RESPONSE_TIMEOUT);
        told.then_some(()).ok_or(HandoverError::Busy(worker))
    }

    /// Gives each client of each worker an entry.
    fn hold_all(&self) -> Result<(), HandoverError> {
        let (done, outcomes) = mpsc::channel();
        for worker in 0..self.threads.len() {
            let flows = match &*self.upgrade.groups() {
                Some(groups) => Some(Box::new(groups.flows()?)),
                None => None,
            };
            let done = done.clone();
            self.send_to_worker(worker, WorkerMessage::HoldClients(flows, done))?;
        }
        let deadline = Instant::now() + HOLD_TIMEOUT;
        for worker in 0..self.threads.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match outcomes.recv_timeout(left) {
                Ok(true) => {}
                _ => return Err(HandoverError::NotHeld(worker)),
            }
        }
        Ok(())
    }

    fn set_listening(&self, listens: bool) -> Result<(), HandoverError> {
        let (done, confirmed) = mpsc::channel();
        for worker in 0..self.threads.len() {
            self.send_to_worker(worker, WorkerMessage::Listen(listens, done.clone()))?;
        }
        for worker in 0..self.threads.len() {
            if confirmed.recv_timeout(RESPONSE_TIMEOUT).is_err() {
                return Err(HandoverError::Busy(worker));
            }
        }
        Ok(())
    }

    /// Changes the steering tables on a worker's thread.
    fn with_groups(
        &self,
        work: impl FnOnce(&mut Option<Groups>) -> Result<(), HandoverError> + Send + 'static,
    ) -> Result<(), HandoverError> {
        let (done, outcome) = mpsc::channel();
        let groups = Arc::clone(&self.upgrade.groups);
        let job = move || {
            let mut groups = groups.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = done.send(work(&mut groups));
        };
        self.send_to_worker(0, WorkerMessage::Job(Job(Box::new(job))))?;
        outcome
            .recv_timeout(HOLD_TIMEOUT)
            .map_err(|_| HandoverError::Busy(0))?
    }
}
