//! A server with one worker and no thread. It is for a program that has its own loop, and for measurements that the
//! timing of another thread would disturb.

use crate::alternates::Checks;
use crate::builder::PreparedServer;
use crate::certificates::CertificateWatch;
use crate::error::{ReloadError, StartError};
use crate::host_watch::HostWatch;
use crate::live::Changes;
use crate::observer::Observer;
use crate::offload::Control;
use crate::running::separate_all;
use crate::settings::Settings;
use crate::stats::WorkerStats;
use crate::worker::{EVENTS, Worker};
use io::Events;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A server that works whenever its owner says so. Made by [`Builder::start_local`](crate::Builder::start_local).
#[derive(Debug)]
pub struct Local {
    worker: Worker,
    events: Events,
    observer: Observer,
    changes: Arc<Changes>,
    /// Keeps the worker's policy up to date.
    _host_watch: HostWatch,
    _checks: Checks,
    _certificate_watches: Vec<CertificateWatch>,
    /// Keeps the programs attached.
    control: Option<Control>,
}

impl Local {
    pub(crate) fn new(made: PreparedServer) -> Result<Local, StartError> {
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
            changes: Arc::clone(&made.changes),
            _checks: Checks::start(Arc::clone(&made.changes), made.kept)?,
            _host_watch: HostWatch::start(made.changes, made.kept)?,
            _certificate_watches: made
                .certificates
                .into_iter()
                .map(CertificateWatch::start)
                .collect::<Result<_, _>>()?,
            control,
        })
    }

    /// Waits for datagrams or the next timer, at most for `limit`, and serves what is ready: each ready socket once, a
    /// bounded amount. More may be ready afterwards.
    ///
    /// # Errors
    /// If epoll itself fails; nothing can be served then.
    // Not inlined: profilers and the instruction budgets find a worker's share of the work by this name.
    #[inline(never)]
    pub fn turn(&mut self, limit: Duration) -> std::io::Result<()> {
        self.worker.turn(&mut self.events, Some(limit))
    }

    /// The addresses listened on, in the order they were asked for, with the ports that were chosen for port 0.
    #[must_use]
    pub fn listeners(&self) -> &[SocketAddr] {
        self.observer.listeners()
    }

    /// The addresses listened on for TCP connections, likewise.
    #[must_use]
    pub fn tcp_listeners(&self) -> &[SocketAddr] {
        self.observer.tcp_listeners()
    }

    /// The addresses listened on for TLS connections, likewise.
    #[must_use]
    pub fn tls_listeners(&self) -> &[SocketAddr] {
        self.observer.tls_listeners()
    }

    /// The UDP addresses listened on for DTLS, likewise.
    #[must_use]
    pub fn dtls_listeners(&self) -> &[SocketAddr] {
        self.observer.dtls_listeners()
    }

    /// The addresses that SIP is served on, over UDP and TCP, likewise.
    #[must_use]
    pub fn sip_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_listeners()
    }

    /// The addresses that SIP is served on, over TLS, likewise.
    #[must_use]
    pub fn sip_tls_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_tls_listeners()
    }

    /// The addresses that SIP is served on, over WebSocket, likewise.
    #[must_use]
    pub fn sip_ws_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_ws_listeners()
    }

    /// The addresses that SIP is served on, over WebSocket and TLS, likewise.
    #[must_use]
    pub fn sip_wss_listeners(&self) -> &[SocketAddr] {
        self.observer.sip_wss_listeners()
    }

    /// Replaces all live settings. Allocations stay. The next [`turn`](Self::turn) applies the settings before it reads
    /// a datagram.
    ///
    /// # Errors
    /// If the settings are wrong or the realm differs; then nothing has changed.
    pub fn reload(&mut self, settings: Settings) -> Result<(), ReloadError> {
        self.changes.replace_settings(settings)?;
        if let Some(control) = &self.control {
            control.set_binding(self.changes.live().answered_by_kernel());
        }
        Ok(())
    }

    /// Admits no new work from the next [`turn`](Self::turn) on: new allocations get 508; SIP requests that belong to
    /// no transaction and no dialog get 503. The server goes on serving what exists. [`is_drained`](Self::is_drained)
    /// says when that has ended.
    ///
    /// # Errors
    /// If the settings are not valid any more.
    pub fn drain(&mut self) -> Result<(), ReloadError> {
        self.observer.set_draining(true);
        self.changes.set_draining(true)
    }

    /// Whether no allocation and no SIP transaction is left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let stats = self.worker.stats();
        stats.engine.allocations == 0 && stats.sip.transactions == 0
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
    use crate::worker::{PortSocket, WorkerMessage};
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
            &[crate::hooks::RelayChoice::Any; 2],
            0,
            &core.poller,
            &mut core.counters,
            &mut |relay| drop(relays.insert(relay)),
        );
        let Some(PortSocket::Own(socket)) = relays.get(key).map(|relay| &relay.socket) else {
            panic!("a relay with a socket of its own");
        };
        let to = socket.local_addr();
        socket.set_gro(true).expect("since Linux 5.0");
        let told = worker.mailbox.post(WorkerMessage::Separate);
        told.expect("there is room");
        let peer = UdpSocket::bind((here, 0)).expect("a socket");
        for _ in 0..3 {
            peer.send_to(b"x", to).expect("sent");
            local.turn(Duration::from_millis(100)).expect("a turn");
        }
        let relay = local.worker.sockets.relays.get(key);
        let Some(PortSocket::Own(socket)) = relay.map(|relay| &relay.socket) else {
            panic!("a relay with a socket of its own");
        };
        assert!(!socket.gro(), "one by one from now on");
    }
    /// The code of the error response to a Binding request, 0 for a success response, `None` if nothing comes.
    fn answer_to_binding(local: &mut Local) -> Option<u16> {
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        client.set_nonblocking(true).expect("set");
        let mut buffer = [0; stun::HEADER_LEN];
        let id = stun::TransactionId([7; 12]);
        let (class, method) = (stun::Class::Request, stun::Method::BINDING);
        let request = stun::Builder::new(&mut buffer, class, method, &id).expect("it fits");
        let sent = client.send_to(request.finish(), local.listeners()[0]);
        sent.expect("sent");
        let mut response = [0; 500];
        (0..50).find_map(|_| {
            local.turn(Duration::from_millis(20)).expect("a turn");
            let (length, _) = client.recv_from(&mut response).ok()?;
            let message = stun::Message::parse(&response[..length]).expect("STUN");
            let code = message.get::<stun::ErrorCode<'_>>().expect("well formed");
            Some(code.map_or(0, |error| error.code))
        })
    }

    #[test]
    fn a_local_server_reloads_and_drains() {
        let mut local = Server::builder()
            .listen((Ipv4Addr::LOCALHOST, 0).into())
            .user("ann", "secret")
            .start_local()
            .expect("a server");
        assert_eq!(answer_to_binding(&mut local), Some(0));
        let mut settings = Settings {
            authenticate_binding: true,
            ..Settings::default()
        };
        local.reload(settings.clone()).expect("valid");
        assert_eq!(answer_to_binding(&mut local), Some(401));
        settings.realm = "another".to_owned();
        assert_eq!(local.reload(settings), Err(ReloadError::Realm));
        assert!(!local.observer.is_draining());
        local.drain().expect("valid");
        assert!(local.observer.is_draining() && local.is_drained());
        assert_eq!(
            answer_to_binding(&mut local),
            Some(401),
            "it goes on serving"
        );
    }
}
