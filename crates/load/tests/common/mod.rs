//! A TURN server for tests: our engine, one thread, plain sockets on loopback.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use io::{Events, Interest, Poller, RecvBatch, UdpOptions, UdpSocket};
use stun::nonce::NonceKeys;
use stun::{AddressFamily, channel_data};
use turn::server::credentials::StaticCredentials;
use turn::server::{
    ClientIdentity, ClientVerdict, Config, OpenError, OpenedRelay, Output, PeerClass, PeerPolicy,
    PeerVerdict, PortRequest, RelayRequest, Server,
};
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Now, RelayKey, RequestKey, Run, Transport};

pub(crate) const REALM: &str = "example.org";
pub(crate) const USER: &str = "alice";
pub(crate) const PASSWORD: &str = "correct horse";
const LISTENER: u64 = u64::MAX;

/// Admits everybody, unless told to deny everybody.
#[derive(Debug)]
struct Policy {
    class: PeerClass,
}

impl PeerPolicy for Policy {
    fn classify(&self, _: &ClientIdentity<'_>, _: IpAddr) -> PeerClass {
        self.class
    }

    fn permits(&self, _: &ClientIdentity<'_>, _: SocketAddr) -> PeerClass {
        self.class
    }
}

/// What a test wants of its server.
pub(crate) struct RunRequest {
    pub(crate) ip: IpAddr,
    pub(crate) peers: PeerClass,
    pub(crate) change: fn(&mut Config),
}

impl Default for RunRequest {
    fn default() -> RunRequest {
        RunRequest {
            ip: Ipv4Addr::LOCALHOST.into(),
            peers: PeerClass::Peer,
            change: |_| {},
        }
    }
}

/// Stops when dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    pub(crate) fn start(run_request: &RunRequest) -> TestServer {
        let options = UdpOptions {
            recv_buffer: Some(4 << 20),
            ..UdpOptions::default()
        };
        let listener = UdpSocket::bind((run_request.ip, 0).into(), &options).expect("loopback");
        let address = listener.local_addr();
        let stop = Arc::new(AtomicBool::new(false));
        let mut users = StaticCredentials::new(REALM);
        users.add_password(USER, PASSWORD).expect("plain ASCII");
        let policy = Arc::new(Policy {
            class: run_request.peers,
        });
        let mut config = Config::new(REALM, NonceKeys::new(&[1; 32]), Arc::new(users), policy);
        config.software = Some("test server".to_owned());
        (run_request.change)(&mut config);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || Worker::new(listener, config).run(&stopped));
        TestServer {
            address,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    listener: UdpSocket,
    server: Server,
    poller: Poller,
    relays: HashMap<RelayKey, UdpSocket>,
}

fn now() -> Now {
    Now {
        mono: Mono(io::clock::monotonic_ns()),
        unix_s: io::clock::unix_s(),
    }
}

impl Worker {
    fn new(listener: UdpSocket, config: Config) -> Worker {
        let poller = Poller::new().expect("epoll");
        poller
            .add(&listener, LISTENER, Interest::Read)
            .expect("epoll");
        Worker {
            listener,
            server: Server::new(config.validate().expect("valid"), 0, [5; 32]),
            poller,
            relays: HashMap::new(),
        }
    }

    fn run(&mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(64);
        let mut batch = RecvBatch::new(32, RecvBatch::SMALL);
        while !stop.load(Ordering::Relaxed) {
            self.poller
                .wait(&mut events, Some(Duration::from_millis(20)))
                .expect("epoll");
            for event in events.iter() {
                batch.clear();
                let key = RelayKey::from_u64(event.token);
                let socket = if event.token == LISTENER {
                    Some(&self.listener)
                } else {
                    self.relays.get(&key)
                };
                let Some(socket) = socket else { continue };
                let _ = socket.recv(event.token, &mut batch);
                for datagrams in batch.iter() {
                    for datagram in datagrams.segments() {
                        if event.token == LISTENER {
                            self.serve_client(datagrams.from, datagram);
                        } else {
                            self.serve_peer(key, datagrams.from, datagram);
                        }
                    }
                }
            }
            self.server.handle_timeout(now());
            self.drain();
        }
    }

    fn serve_client(&mut self, from: SocketAddr, datagram: &[u8]) {
        let five_tuple = FiveTuple {
            transport: Transport::Udp,
            local: self.listener.local_addr(),
            remote: from,
        };
        let path = ClientPath {
            five_tuple,
            listener: ListenerKey(0),
        };
        let verdict = self
            .server
            .handle_client(now(), &path, Run::single(datagram));
        if let ClientVerdict::ToPeer {
            relay,
            peer,
            payload,
            ..
        } = verdict
            && let Some(socket) = self.relays.get(&relay)
        {
            let payload = &datagram[payload.start..payload.end.min(datagram.len())];
            let _ = socket.send_to(payload, peer, None);
        }
        self.drain();
    }

    fn serve_peer(&mut self, relay: RelayKey, from: SocketAddr, datagram: &[u8]) {
        let (path, bytes) = match self
            .server
            .handle_peer(now(), relay, from, Run::single(datagram))
        {
            PeerVerdict::ChannelData { path, channel, .. } => {
                let header = channel_data::header(channel, datagram.len() as u16);
                (path, [&header, datagram].concat())
            }
            PeerVerdict::DataIndication { path, .. } => {
                let mut header = [0; 64];
                let len = self
                    .server
                    .write_data_indication(from, datagram.len(), &mut header);
                let padding = &[0; 3][..stun::padding(datagram.len())];
                (path, [&header[..len], datagram, padding].concat())
            }
            _ => return,
        };
        let _ = self.listener.send_to(&bytes, path.five_tuple.remote, None);
    }

    fn drain(&mut self) {
        loop {
            let open = match self.server.poll_output() {
                None => return,
                Some(Output::Send { path, bytes }) => {
                    let _ = self.listener.send_to(bytes, path.five_tuple.remote, None);
                    continue;
                }
                Some(Output::CloseRelay { relay }) => {
                    self.relays.remove(&relay);
                    continue;
                }
                Some(Output::OpenRelays {
                    request, relays, ..
                }) => (request, relays.to_vec()),
                Some(_) => continue,
            };
            self.open(open.0, &open.1);
        }
    }

    fn open(&mut self, request: RequestKey, relays: &[RelayRequest]) {
        let results: Vec<_> = relays.iter().map(|relay| self.open_one(relay)).collect();
        self.server.relays_opened(now(), request, &results);
    }

    fn open_one(&mut self, relay: &RelayRequest) -> Result<OpenedRelay, OpenError> {
        let ip: IpAddr = match relay.family {
            AddressFamily::V4 => Ipv4Addr::LOCALHOST.into(),
            AddressFamily::V6 => Ipv6Addr::LOCALHOST.into(),
        };
        if relay.port != PortRequest::Any {
            return Err(OpenError::NoPort);
        }
        let options = UdpOptions {
            recv_buffer: Some(1 << 20),
            ..UdpOptions::default()
        };
        let socket = UdpSocket::bind((ip, 0).into(), &options).map_err(|_| OpenError::Other)?;
        self.poller
            .add(&socket, relay.key.as_u64(), Interest::Read)
            .map_err(|_| OpenError::Other)?;
        let local = socket.local_addr();
        self.relays.insert(relay.key, socket);
        Ok(OpenedRelay {
            local,
            advertised: local,
        })
    }
}
