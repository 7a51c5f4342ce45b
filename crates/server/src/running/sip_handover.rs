//! SIP's part of an upgrade. `sip::upgrade` has the steps of a worker.

use super::Running;
use super::handover::HOLD_TIMEOUT;
use crate::handover::{HandoverError, JoiningSip, OfferedSip};
use crate::sip::{Frame, OtherProcess, ProcessLink, SipUpgrade, SipUpgradeStep};
use crate::worker::WorkerMessage;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

impl Running {
    fn sip(&self) -> Option<MutexGuard<'_, SipUpgrade>> {
        let sip = self.upgrade.sip.as_ref()?;
        Some(sip.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What a new process requires of this one's SIP.
    pub(super) fn sip_offer(&self) -> Option<OfferedSip> {
        self.sip().map(|sip| sip.offered())
    }

    /// The new process: messages travel between the workers of the two from now on.
    pub(super) fn start_sip_link(&self) -> std::io::Result<()> {
        let threads = self.sip().and_then(|mut sip| sip.threads.take());
        let start = threads.map(|threads| {
            let (boxes, numbering) = (Arc::clone(&self.boxes), self.upgrade.numbering);
            threads.start(boxes, numbering, self.upgrade.kept)
        });
        start.unwrap_or(Ok(()))
    }

    /// The old process: finishes what has come, then gives up the log. After that, no process writes it until the new
    /// one has opened it.
    pub(super) fn hand_over_sip(&self, joining: JoiningSip) -> Result<(), HandoverError> {
        let JoiningSip {
            numbering,
            run,
            place_id,
            link,
        } = joining;
        let Some(mut sip) = self.sip() else {
            return Ok(());
        };
        let system = HandoverError::System;
        let (link, threads) = ProcessLink::new(UnixStream::from(link)).map_err(system)?;
        let boxes = Arc::clone(&self.boxes);
        threads
            .start(boxes, self.upgrade.numbering, self.upgrade.kept)
            .map_err(system)?;
        sip.link = Some(Arc::clone(&link));
        self.run_step_on_all(SipUpgradeStep::Pause)?;
        let other_process = OtherProcess {
            numbering,
            run,
            link: Arc::clone(&link),
            transactions: Arc::default(),
        };
        let log = sip.log.as_ref();
        let sends_bindings = log.is_none_or(|log| log.place_id() != place_id);
        self.run_step_on_all(|done| SipUpgradeStep::HandOver {
            other_process: other_process.clone(),
            sends_bindings,
            done,
        })?;
        if let Some(log) = &sip.log {
            if !log.flush() {
                return Err(HandoverError::Log);
            }
            self.run_step_on_all(SipUpgradeStep::Release)?;
            log.release();
        }
        link.send(Frame::Settled);
        Ok(())
    }

    /// The new process serves.
    pub(super) fn follow_with_sip(&self) -> Result<(), HandoverError> {
        let Some(sip) = self.sip().filter(|sip| sip.link.is_some()) else {
            return Ok(());
        };
        let has_log = sip.log.is_some();
        self.send_sip_step(|| SipUpgradeStep::Follow { has_log })
    }

    /// After [`stop_listening`](Self::stop_listening), SIP connections stay until their clients close them. From now
    /// on, the server closes those that have no transaction; their clients then connect to the new process.
    ///
    /// # Errors
    /// If a worker does not respond.
    pub fn close_sip_connections(&self) -> Result<(), HandoverError> {
        self.send_sip_step(|| SipUpgradeStep::Close)
    }

    /// Takes SIP back after the new process has ended or given up. Opens the log again and restores the bindings of
    /// each worker.
    pub(super) fn resume_sip(&self) -> Result<(), HandoverError> {
        let Some(mut sip) = self.sip().filter(|sip| sip.link.is_some()) else {
            return Ok(());
        };
        sip.link = None;
        let released = sip.log.as_ref().filter(|log| log.is_released());
        let kept = released
            .map(|log| log.reopen(crate::sip::now()))
            .transpose();
        let mut outcome = Ok(());
        let mut kept = kept
            .unwrap_or_else(|error| {
                tracing::error!(%error, "registration bindings are not saved any more: restart the server");
                outcome = Err(HandoverError::Log);
                None
            })
            .unwrap_or_default()
            .into_iter();
        self.send_sip_step(|| SipUpgradeStep::Resume(kept.next().map(Box::new)))?;
        outcome
    }

    /// The old process has ended.
    pub(super) fn leave_old_sip(&self) -> Result<(), HandoverError> {
        let Some(mut sip) = self.sip() else {
            return Ok(());
        };
        sip.link = None;
        self.send_sip_step(|| SipUpgradeStep::PredecessorEnded)
    }

    fn send_sip_step(
        &self,
        mut order: impl FnMut() -> SipUpgradeStep,
    ) -> Result<(), HandoverError> {
        for worker in 0..self.threads.len() {
            self.send_to_worker(worker, WorkerMessage::Sip(Box::new(order())))?;
        }
        Ok(())
    }

    /// Gives each worker an order, and waits until all have done it.
    fn run_step_on_all(
        &self,
        order: impl Fn(Sender<()>) -> SipUpgradeStep,
    ) -> Result<(), HandoverError> {
        let (done, confirmed) = mpsc::channel();
        self.send_sip_step(|| order(done.clone()))?;
        let deadline = Instant::now() + HOLD_TIMEOUT;
        for worker in 0..self.threads.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if confirmed.recv_timeout(left).is_err() {
                return Err(HandoverError::Busy(worker));
            }
        }
        Ok(())
    }
}
