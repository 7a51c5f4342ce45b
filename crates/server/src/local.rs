//! A server of one worker without a thread: for a program that has a loop of its own, and for measuring, where another
//! thread's timing would be part of the result.

use crate::builder::Made;
use crate::error::StartError;
use crate::host_watch::HostWatch;
use crate::observer::Observer;
use crate::offload::Control;
use crate::running::separate_all;
use crate::stats::WorkerStats;
use crate::worker::{EVENTS, Worker};
use io::Events;
use std::net::SocketAddr;
use std::time::Duration;

/// A server that works whenever its owner says so. Made by [`Builder::start_local`](crate::Builder::start_local).
#[derive(Debug)]
pub struct Local {
    worker: Worker,
    events: Events,
    observer: Observer,
    /// Keeps the worker's policy up to date.
    _host_watch: HostWatch,
    /// Keeps the programs attached.
    _control: Option<Control>,
}

impl Local {
    pub(crate) fn new(made: Made) -> Result<Local, StartError> {
        let worker = made.workers.into_iter().next();
        let worker = worker.ok_or(StartError::Workers(0))?;
        let (boxes, listeners) = (made.boxes, made.observer.listeners());
        let on_fallback = separate_all(boxes);
        let control = made
            .offload
            .map(|offload| offload.start(listeners, made.kept, on_fallback));
        let control = control.transpose().map_err(StartError::Thread)?;
        worker.watch_listeners().map_err(StartError::Worker)?;
        Ok(Local {
            worker,
            events: Events::with_capacity(EVENTS),
            observer: made.observer,
            _host_watch: HostWatch::start(made.changes, made.kept)?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;
    use crate::worker::WorkerMessage;
    use std::net::{Ipv4Addr, UdpSocket};
    use stun::AddressFamily;
    use turn::RelayKey;
    use turn::server::{PortRequest, RelayRequest, RelayTransport};

    #[test]
    fn relays_stop_joining_datagrams_after_a_fallback_to_tc() {
        let here = Ipv4Addr::LOCALHOST;
        let mut local = Server::builder()
            .listen((here, 0).into())
            .relay_address(here.into())
            .user("ann", "secret")
            .start_local()
            .expect("a server");
        let key = RelayKey {
            index: 0,
            generation: 1,
        };
        let request = RelayRequest {
            key,
            transport: RelayTransport::Udp,
            family: AddressFamily::V4,
            port: PortRequest::Any,
        };
        let worker = &mut local.worker;
        let core = &mut worker.core;
        let relays = &mut worker.sockets.relays;
        let _ = core.opener.open(
            &[request],
            0,
            &core.poller,
            &mut core.counters,
            &mut |relay| drop(relays.insert(relay)),
        );
        let relay = relays.get(key).expect("opened");
        let to = relay.socket.local_addr();
        relay.socket.set_gro(true).expect("since Linux 5.0");
        let told = worker.mailbox.post(WorkerMessage::Separate);
        told.expect("there is room");
        let peer = UdpSocket::bind((here, 0)).expect("a socket");
        for _ in 0..3 {
            peer.send_to(b"x", to).expect("sent");
            local.turn(Duration::from_millis(100)).expect("a turn");
        }
        let relay = local.worker.sockets.relays.get(key).expect("open");
        assert!(!relay.socket.gro(), "one by one from now on");
    }
}
