//! A server of one worker without a thread: for a program that has a loop of its own, and for measuring, where another
//! thread's timing would be part of the result.

use crate::builder::Made;
use crate::error::StartError;
use crate::observer::Observer;
use crate::offload::Control;
use crate::running::Live;
use crate::stats::WorkerStats;
use crate::worker::{EVENTS, Letter, Worker};
use io::Events;
use std::net::SocketAddr;
use std::time::Duration;

/// A server that works whenever its owner says so. Made by [`Builder::start_local`](crate::Builder::start_local).
#[derive(Debug)]
pub struct Local {
    worker: Worker,
    events: Events,
    observer: Observer,
    /// Holds what the worker's policy and quotas are made of.
    _live: Live,
    /// Keeps the programs attached.
    _control: Option<Control>,
}

impl Local {
    pub(crate) fn new(made: Made) -> Result<Local, StartError> {
        let worker = made.workers.into_iter().next();
        let worker = worker.ok_or(StartError::Workers(0))?;
        let (boxes, listeners) = (made.boxes, made.observer.listeners());
        let on_tc = Box::new(move || {
            // A worker that does not turn has time.
            let _ = boxes[0].post(Letter::Separate);
        });
        let control = made
            .offload
            .map(|offload| offload.start(listeners, made.kept, on_tc));
        let control = control.transpose().map_err(StartError::Thread)?;
        worker.watch_listeners().map_err(StartError::Worker)?;
        Ok(Local {
            worker,
            events: Events::with_capacity(EVENTS),
            observer: made.observer,
            _live: made.live,
            _control: control,
        })
    }

    /// Waits for datagrams or the next timer, at most for `patience`, and serves what is ready: each ready socket once, a bounded
    /// amount. More may be ready afterwards.
    ///
    /// # Errors
    /// If epoll itself fails; nothing can be served then.
    // Not inlined: profilers and the instruction budgets find a worker's share of the work by this name.
    #[inline(never)]
    pub fn turn(&mut self, patience: Duration) -> std::io::Result<()> {
        self.worker.turn(&mut self.events, Some(patience))
    }

    /// The addresses listened on, in the order they were asked for, with the ports that were chosen for port 0.
    #[must_use]
    pub fn listeners(&self) -> &[SocketAddr] {
        self.observer.listeners()
    }

    /// The addresses that SIP is served on, over UDP and TCP, likewise.
    #[must_use]
    pub fn sip_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_listeners()
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> WorkerStats {
        self.worker.stats()
    }

    /// Ends every allocation, with its log line, closes every socket, and returns the final counts.
    #[must_use]
    pub fn shutdown(mut self) -> WorkerStats {
        self.worker.finish();
        self.worker.stats()
    }
}
