//! Follows the addresses of this host, which the policy refuses as peer addresses. The server refuses an address as
//! soon as the host gets it. It treats the address like any other after the host has lost it.
//!
//! A separate thread waits for rtnetlink notifications. No worker asks the kernel.

use crate::addresses::host_addresses;
use crate::error::StartError;
use crate::live::Changes;
use crate::privileges::KeptCapabilities;
use io::netlink::NetworkChanges;
use io::{Events, Interest, Poller, Waker};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const CHANGES: u64 = 0;
const WAKER: u64 = 1;

/// Time between two looks, at least: each change of the addresses has every worker judge every permission anew.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The handle of the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct HostWatch {
    /// `None` if the kernel sends no notifications.
    running: Option<(Arc<Waker>, JoinHandle<()>)>,
}

impl HostWatch {
    /// Starts to follow the addresses.
    ///
    /// # Errors
    /// If the thread cannot be started. If the kernel sends no notifications, this logs a warning and returns `Ok`.
    pub(crate) fn start(
        changes: Arc<Changes>,
        kept: KeptCapabilities,
    ) -> Result<HostWatch, StartError> {
        let watch = match Watch::open(changes) {
            Ok(watch) => watch,
            Err(error) => {
                tracing::warn!(%error, "cannot follow the addresses of this host: reload after a change");
                return Ok(HostWatch { running: None });
            }
        };
        let waker = Arc::clone(&watch.waker);
        let thread = std::thread::Builder::new()
            .name("hairpin-hosts".to_owned())
            .spawn(move || {
                kept.restrict_watch_thread();
                watch.run();
            })
            .map_err(StartError::Thread)?;
        Ok(HostWatch {
            running: Some((waker, thread)),
        })
    }
}

impl Drop for HostWatch {
    fn drop(&mut self) {
        if let Some((waker, thread)) = self.running.take() {
            waker.wake();
            // A panic in it has been reported.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Watch {
    poller: Poller,
    /// Only the end wakes the thread by this.
    waker: Arc<Waker>,
    network: NetworkChanges,
    changes: Arc<Changes>,
}

impl Watch {
    fn open(changes: Arc<Changes>) -> std::io::Result<Watch> {
        let poller = Poller::new()?;
        let waker = Arc::new(Waker::new(&poller, WAKER)?);
        let network = NetworkChanges::open_addresses()?;
        Ok(Watch {
            poller,
            waker,
            network,
            changes,
        })
    }

    fn run(mut self) {
        // What changed before the kernel was listened to.
        self.look();
        if let Err(error) = self.follow() {
            tracing::error!(%error, "cannot follow the addresses of this host any more: reload after a change");
        }
    }

    /// Returns when the handle is dropped.
    fn follow(&mut self) -> std::io::Result<()> {
        let mut events = Events::with_capacity(2);
        loop {
            self.poller.add(&self.network, CHANGES, Interest::Read)?;
            self.poller.wait(&mut events, None)?;
            if is_ending(&events) {
                return Ok(());
            }
            // Which addresses changed does not matter, and after an error all are read as well.
            let _ = self.network.read(|_| {});
            self.look();
            self.poller.remove(&self.network)?;
            self.poller.wait(&mut events, Some(MIN_CHECK_INTERVAL))?;
            if is_ending(&events) {
                return Ok(());
            }
        }
    }

    fn look(&self) {
        let host = host_addresses();
        let outcome = self.changes.make(|live| Ok(live.set_host(host)));
        if let Err(error) = outcome {
            tracing::error!(%error, "the peer policy still has the previous addresses of this host: reload");
        }
    }
}

fn is_ending(events: &Events) -> bool {
    events.iter().any(|event| event.token == WAKER)
}
