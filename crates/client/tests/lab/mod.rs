//! A TURN server without sockets on tokio's clock, a link to it, and peers that send everything back.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hairpin_client as client;

use client::Link;
use client::stun::{self, channel_data, nonce::NonceKeys};
use client::turn::server::credentials::StaticCredentials;
use client::turn::server::{
    ClientIdentity, ClientVerdict, Config, OpenedRelay, Output, PeerClass, PeerPolicy, PeerVerdict,
    RelayRequest, Server,
};
use client::turn::{
    ClientPath, FiveTuple, ListenerKey, Mono, Now, RelayKey, RequestKey, Run, Transport,
};
use tokio::io::ReadBuf;
use tokio::time::Instant;

pub(crate) const USER: &str = "alice";
pub(crate) const PASSWORD: &str = "correct horse";

#[derive(Debug)]
struct Everybody;

impl PeerPolicy for Everybody {
    fn classify(&self, _: &ClientIdentity<'_>, _: IpAddr) -> PeerClass {
        PeerClass::Peer
    }

    fn permits(&self, _: &ClientIdentity<'_>, _: SocketAddr) -> PeerClass {
        PeerClass::Peer
    }
}

/// What waits for a client.
#[derive(Default)]
struct Inbound {
    messages: VecDeque<Vec<u8>>,
    waker: Option<Waker>,
}

struct State {
    server: Server,
    origin: Instant,
    relays: HashMap<RelayKey, SocketAddr>,
    clients: HashMap<SocketAddr, Inbound>,
    next_port: u16,
    /// The server has stopped: nothing reaches it.
    down: bool,
}

/// The server and its network.
#[derive(Clone)]
pub(crate) struct Lab(Arc<Mutex<State>>);

/// A client's way to the server of a [`Lab`].
pub(crate) struct LabLink {
    lab: Lab,
    local: SocketAddr,
}

impl Lab {
    pub(crate) fn server_address() -> SocketAddr {
        ([192, 0, 2, 1], 3478).into()
    }

    pub(crate) fn start() -> Lab {
        let mut users = StaticCredentials::new("example.org");
        users.add_password(USER, PASSWORD).expect("plain ASCII");
        let keys = NonceKeys::new(&[1; 32]);
        let mut config = Config::new("example.org", keys, Arc::new(users), Arc::new(Everybody));
        // RFC 8656 §9: a permission is refreshed by name or by its channel, and lapses otherwise.
        config.channel_keeps_permission = false;
        let lab = Lab(Arc::new(Mutex::new(State {
            server: Server::new(config.validate().expect("valid"), 0, [9; 32]),
            origin: Instant::now(),
            relays: HashMap::new(),
            clients: HashMap::new(),
            next_port: 50_000,
            down: false,
        })));
        tokio::spawn(lab.clone().tick());
        lab
    }

    pub(crate) fn link(&self, port: u16) -> LabLink {
        let local = SocketAddr::from(([198, 51, 100, 1], port));
        self.0
            .lock()
            .expect("unpoisoned")
            .clients
            .insert(local, Inbound::default());
        LabLink {
            lab: self.clone(),
            local,
        }
    }

    pub(crate) fn allocations(&self) -> usize {
        self.0.lock().expect("unpoisoned").relays.len()
    }

    pub(crate) fn stop(&self) {
        self.0.lock().expect("unpoisoned").down = true;
    }

    /// Sends `count` datagrams from `peer` to a relayed address.
    pub(crate) fn flood(&self, peer: SocketAddr, relayed: SocketAddr, count: u16) {
        let mut state = self.0.lock().expect("unpoisoned");
        let relay = state
            .relays
            .iter()
            .find(|(_, address)| **address == relayed);
        let relay = *relay.expect("a relay").0;
        (0..count).for_each(|number| state.serve_peer(relay, peer, &number.to_be_bytes()));
    }

    async fn tick(self) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut state = self.0.lock().expect("unpoisoned");
            let now = state.now();
            state.server.handle_timeout(now);
            state.drain();
        }
    }
}

impl State {
    fn now(&self) -> Now {
        let mono = Mono::default().plus(self.origin.elapsed());
        let unix_s = 1_700_000_000 + self.origin.elapsed().as_secs();
        Now { mono, unix_s }
    }

    fn serve_client(&mut self, from: SocketAddr, bytes: &[u8]) {
        if self.down {
            return;
        }
        let path = ClientPath {
            five_tuple: FiveTuple {
                transport: Transport::Udp,
                local: Lab::server_address(),
                remote: from,
            },
            listener: ListenerKey(0),
        };
        let now = self.now();
        let verdict = self.server.handle_client(now, &path, Run::single(bytes));
        if let ClientVerdict::ToPeer {
            relay,
            peer,
            payload,
            ..
        } = verdict
        {
            let payload = &bytes[payload.start..payload.end.min(bytes.len())];
            self.serve_peer(relay, peer, payload);
        }
        self.drain();
    }

    fn serve_peer(&mut self, relay: RelayKey, peer: SocketAddr, payload: &[u8]) {
        let now = self.now();
        let verdict = self
            .server
            .handle_peer(now, relay, peer, Run::single(payload));
        let (path, message) = match verdict {
            PeerVerdict::ChannelData { path, channel, .. } => {
                let header = channel_data::header(channel, payload.len() as u16);
                (path, [&header, payload].concat())
            }
            PeerVerdict::DataIndication { path, .. } => {
                let mut header = [0; 64];
                let len = self
                    .server
                    .write_data_indication(peer, payload.len(), &mut header);
                let padding = &[0; 3][..stun::padding(payload.len())];
                (path, [&header[..len], payload, padding].concat())
            }
            _ => return,
        };
        self.deliver(&path, message);
    }

    fn deliver(&mut self, path: &ClientPath, message: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&path.five_tuple.remote) {
            client.messages.push_back(message);
            client.waker.take().inspect(Waker::wake_by_ref);
        }
    }

    fn drain(&mut self) {
        loop {
            let (request, relays) = match self.server.poll_output() {
                Some(Output::Send { path, bytes }) => {
                    let (path, bytes) = (path, bytes.to_vec());
                    self.deliver(&path, bytes);
                    continue;
                }
                Some(Output::OpenRelays {
                    request, relays, ..
                }) => (request, relays.to_vec()),
                Some(Output::CloseRelay { relay }) => {
                    self.relays.remove(&relay);
                    continue;
                }
                Some(_) => continue,
                None => return,
            };
            self.open(request, &relays);
        }
    }

    fn open(&mut self, request: RequestKey, relays: &[RelayRequest]) {
        let mut opened = Vec::new();
        for relay in relays {
            let ip: IpAddr = match relay.family {
                stun::AddressFamily::V4 => [203, 0, 113, 1].into(),
                stun::AddressFamily::V6 => "2001:db8::1".parse().expect("an address"),
            };
            let local = SocketAddr::new(ip, self.next_port);
            self.next_port += 1;
            self.relays.insert(relay.key, local);
            opened.push(Ok(OpenedRelay {
                local,
                advertised: local,
            }));
        }
        let now = self.now();
        self.server.relays_opened(now, request, &opened);
    }
}

impl Link for LabLink {
    fn transport(&self) -> Transport {
        Transport::Udp
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn try_send(&self, message: &[u8]) -> io::Result<()> {
        let mut state = self.lab.0.lock().expect("unpoisoned");
        state.serve_client(self.local, message);
        Ok(())
    }

    fn writable(&self) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lab.0.lock().expect("unpoisoned");
        let inbound = state.clients.get_mut(&self.local).expect("a client");
        match inbound.messages.pop_front() {
            Some(message) => {
                buffer.put_slice(&message);
                Poll::Ready(Ok(()))
            }
            None => {
                inbound.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
