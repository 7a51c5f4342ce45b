//! Clients, one server, its embedder, peers that echo, and the clock.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use stun::nonce::NonceKeys;
use stun::{AddressFamily, channel_data};
use turn::client::{AllocateOptions, Client, ClientConfig, Event, Received};
use turn::server::credentials::StaticCredentials;
use turn::server::{
    ClientIdentity, ClientVerdict, Config, OpenedRelay, Output, PeerClass, PeerPolicy, PeerVerdict,
    PortRequest, RelayRequest, Server,
};
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Now, RelayKey, RequestKey, Run, Transport};

use crate::network::{Network, Packet, Weather};

pub(crate) const REALM: &str = "example.org";
pub(crate) const USER: &str = "alice";
pub(crate) const PASSWORD: &str = "correct horse";
const RELAY_V4: &str = "203.0.113.1";
const RELAY_V6: &str = "2001:db8:1::1";

/// What a client saw.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) events: Vec<Event>,
    pub(crate) data: Vec<(SocketAddr, Vec<u8>)>,
    pub(crate) ignored: Vec<turn::client::Ignored>,
}

pub(crate) struct Pair {
    pub(crate) now: Now,
    pub(crate) server: Server,
    pub(crate) config: Config,
    pub(crate) policy: Arc<Policy>,
    pub(crate) network: Network,
    pub(crate) clients: Vec<Client>,
    pub(crate) logs: Vec<Log>,
    /// How often each client has changed its address.
    moves: Vec<u8>,
    /// Peers outside who send back what they get.
    pub(crate) echo: bool,
    relays: BTreeMap<SocketAddr, RelayKey>,
    next_port: u16,
}

/// Denies what a test says; knows the relay addresses.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    pub(crate) denied: Mutex<Vec<IpAddr>>,
    live: Mutex<Vec<SocketAddr>>,
}

impl PeerPolicy for Policy {
    fn classify(&self, _: &ClientIdentity<'_>, peer: IpAddr) -> PeerClass {
        if self.denied.lock().expect("unpoisoned").contains(&peer) {
            PeerClass::Denied
        } else if is_relay_ip(&peer) {
            PeerClass::OwnRelay
        } else {
            PeerClass::Peer
        }
    }

    fn permits(&self, client: &ClientIdentity<'_>, peer: SocketAddr) -> PeerClass {
        match self.classify(client, peer.ip()) {
            PeerClass::OwnRelay if !self.live.lock().expect("unpoisoned").contains(&peer) => {
                PeerClass::Denied
            }
            class => class,
        }
    }
}

fn is_relay_ip(ip: &IpAddr) -> bool {
    [RELAY_V4, RELAY_V6].contains(&ip.to_string().as_str())
}

/// What an `Output` says, apart from the server that it borrows.
enum Order {
    Send(ClientPath, Vec<u8>),
    Open(RequestKey, Vec<RelayRequest>),
    Close(RelayKey),
}

impl Pair {
    pub(crate) fn new(weather: Weather, seed: u64) -> Pair {
        let mut users = StaticCredentials::new(REALM);
        users.add_password(USER, PASSWORD).expect("plain ASCII");
        let policy = Arc::new(Policy::default());
        let keys = NonceKeys::new(&[1; 32]);
        let config = Config::new(REALM, keys, Arc::new(users), Arc::clone(&policy) as _);
        Pair {
            now: Now {
                mono: Mono(5_000_000_000),
                unix_s: 1_700_000_000,
            },
            server: Server::new(config.clone().validate().expect("valid"), 0, [9; 32]),
            config,
            policy,
            network: Network::new(weather, seed),
            clients: Vec::new(),
            logs: Vec::new(),
            moves: Vec::new(),
            echo: true,
            relays: BTreeMap::new(),
            next_port: 50_000,
        }
    }

    pub(crate) fn reconfigure(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
        let config = self.config.clone().validate();
        self.server
            .set_config(self.now, config.expect("a test's configuration"));
    }

    pub(crate) fn add_client(&mut self, config: ClientConfig) -> usize {
        let seed = [self.clients.len() as u8 + 1; 32];
        self.clients.push(Client::new(Arc::new(config), seed));
        self.logs.push(Log::default());
        self.moves.push(0);
        self.clients.len() - 1
    }

    pub(crate) fn add_default_client(&mut self) -> usize {
        self.add_client(ClientConfig::with_credentials(USER, PASSWORD))
    }

    /// A client that has its allocation.
    pub(crate) fn add_allocated(&mut self) -> usize {
        let client = self.add_default_client();
        self.allocate(client, AllocateOptions::default());
        client
    }

    pub(crate) fn allocate(&mut self, client: usize, options: AllocateOptions) {
        self.with(client, |client, now| {
            client.allocate(now, options).expect("not allocated");
        });
        self.run_ms(60_000);
        assert!(
            self.clients[client].relayed().is_some(),
            "{:?}",
            self.logs[client].events
        );
    }

    /// What comes of an Allocate within a second.
    pub(crate) fn try_allocate(&mut self, client: usize, options: AllocateOptions) -> Vec<Event> {
        self.with(client, |client, now| {
            client.allocate(now, options).expect("not allocated");
        });
        self.run_s(1);
        self.events(client)
    }

    /// The client goes on from another address.
    pub(crate) fn change_address(&mut self, client: usize) {
        self.moves[client] += 1;
        self.with(client, |client, now| client.moved(now).expect("a ticket"));
    }

    pub(crate) fn relayed(&self, client: usize) -> SocketAddr {
        self.clients[client].relayed().expect("allocated")
    }

    /// Takes the events of a client.
    pub(crate) fn events(&mut self, client: usize) -> Vec<Event> {
        std::mem::take(&mut self.logs[client].events)
    }

    /// Takes the data of a client.
    pub(crate) fn data(&mut self, client: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.logs[client].data)
    }

    pub(crate) fn with<R>(&mut self, index: usize, call: impl FnOnce(&mut Client, Now) -> R) -> R {
        let result = call(&mut self.clients[index], self.now);
        self.drain_client(index);
        result
    }

    /// Sends by the channel of `peer` if it is bound, else by a Send indication; false if neither is possible.
    pub(crate) fn send(&mut self, index: usize, peer: SocketAddr, payload: &[u8]) -> bool {
        let client = &mut self.clients[index];
        let channel = client.channel_of(self.now, peer);
        let header = channel
            .and_then(|channel| client.channel_header(self.now, channel, payload.len()).ok());
        let bytes = match header {
            Some(header) => [&header, payload].concat(),
            None => {
                let mut out = vec![0; payload.len() + 100];
                let written =
                    client.write_send_indication(self.now, peer, payload, false, &mut out);
                let Ok(len) = written else { return false };
                out.truncate(len);
                out
            }
        };
        self.network.send(
            self.now.mono,
            Packet::Upstream {
                client: index,
                bytes,
            },
        );
        true
    }

    pub(crate) fn run_s(&mut self, seconds: u64) {
        self.run_ms(seconds * 1000);
    }

    /// Lets time pass, and everything happen that happens meanwhile.
    pub(crate) fn run_ms(&mut self, milliseconds: u64) {
        let end = Mono(self.now.mono.0 + milliseconds * 1_000_000);
        while let Some(at) = self.next_moment().filter(|at| *at <= end) {
            self.move_clock(at);
            while let Some(packet) = self.network.arrive(at) {
                self.arrive(packet);
            }
            for index in 0..self.clients.len() {
                self.clients[index].handle_timeout(self.now);
                self.drain_client(index);
            }
            while self.server.poll_timeout().is_some_and(|due| due <= at) {
                self.server.handle_timeout(self.now);
                self.drain_server();
            }
        }
        self.move_clock(end);
    }

    fn next_moment(&self) -> Option<Mono> {
        let clients = self.clients.iter().filter_map(Client::poll_timeout);
        clients
            .chain(self.network.next_arrival())
            .chain(self.server.poll_timeout())
            .min()
    }

    fn move_clock(&mut self, to: Mono) {
        self.now.mono = self.now.mono.max(to);
        self.now.unix_s = 1_700_000_000 + self.now.mono.0 / 1_000_000_000;
    }

    fn arrive(&mut self, packet: Packet) {
        match packet {
            Packet::Upstream { client, bytes } => self.serve_client(client, &bytes),
            Packet::Downstream { client, bytes } => {
                let log = &mut self.logs[client];
                match self.clients[client].handle_input(self.now, &bytes) {
                    Received::Data { peer, payload, .. } => {
                        log.data.push((peer, bytes[payload].to_vec()));
                    }
                    Received::Handled => {}
                    Received::NotMine => panic!("the server sent {bytes:02x?}"),
                    Received::Ignored(reason) => log.ignored.push(reason),
                }
                self.drain_client(client);
            }
            Packet::Outbound { from, to, bytes } => {
                if self.echo {
                    let (from, to) = (to, from);
                    self.network
                        .send(self.now.mono, Packet::Inbound { from, to, bytes });
                }
            }
            Packet::Inbound { from, to, bytes } => self.serve_peer(from, to, &bytes),
        }
    }

    fn serve_client(&mut self, client: usize, bytes: &[u8]) {
        let verdict = self.server.handle_client(
            self.now,
            &path(client, self.moves[client]),
            Run::single(bytes),
        );
        match verdict {
            ClientVerdict::ToPeer {
                relay,
                peer,
                payload,
                ..
            } => {
                let from = self.address_of(relay);
                let bytes = bytes[payload.start..payload.end.min(bytes.len())].to_vec();
                let to = peer;
                self.network
                    .send(self.now.mono, Packet::Outbound { from, to, bytes });
            }
            ClientVerdict::ToRelay {
                from,
                peer,
                payload,
                ..
            } => {
                let bytes = bytes[payload.start..payload.end.min(bytes.len())].to_vec();
                self.serve_peer(from, peer, &bytes);
            }
            _ => {}
        }
        self.drain_server();
    }

    fn serve_peer(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let Some(relay) = self.relays.get(&to).copied() else {
            return;
        };
        let verdict = self
            .server
            .handle_peer(self.now, relay, from, Run::single(bytes));
        let (path, bytes) = match verdict {
            PeerVerdict::ChannelData { path, channel, .. } => {
                let header = channel_data::header(channel, bytes.len() as u16);
                (path, [&header, bytes].concat())
            }
            PeerVerdict::DataIndication { path, .. } => {
                let mut header = [0; 64];
                let len = self
                    .server
                    .write_data_indication(from, bytes.len(), &mut header);
                let padding = &[0; 3][..stun::padding(bytes.len())];
                (path, [&header[..len], bytes, padding].concat())
            }
            _ => return,
        };
        let client = client_of(&path);
        self.network
            .send(self.now.mono, Packet::Downstream { client, bytes });
    }

    fn drain_client(&mut self, index: usize) {
        while let Some(bytes) = self.clients[index].poll_transmit() {
            let bytes = bytes.to_vec();
            self.network.send(
                self.now.mono,
                Packet::Upstream {
                    client: index,
                    bytes,
                },
            );
        }
        while let Some(event) = self.clients[index].poll_event() {
            self.logs[index].events.push(event);
        }
    }

    fn drain_server(&mut self) {
        while let Some(order) = self.next_order() {
            match order {
                Some(Order::Send(path, bytes)) => {
                    let client = client_of(&path);
                    self.network
                        .send(self.now.mono, Packet::Downstream { client, bytes });
                }
                Some(Order::Open(request, relays)) => self.open(request, &relays),
                Some(Order::Close(relay)) => {
                    self.relays.retain(|_, key| *key != relay);
                    self.publish_relays();
                }
                None => {}
            }
        }
    }

    fn next_order(&mut self) -> Option<Option<Order>> {
        Some(match self.server.poll_output()? {
            Output::Send { path, bytes } => Some(Order::Send(path, bytes.to_vec())),
            Output::OpenRelays {
                request, relays, ..
            } => Some(Order::Open(request, relays.to_vec())),
            Output::CloseRelay { relay } => Some(Order::Close(relay)),
            _ => None,
        })
    }

    fn open(&mut self, request: RequestKey, relays: &[RelayRequest]) {
        let mut results = Vec::new();
        for relay in relays {
            if relay.port == PortRequest::Even {
                self.next_port = self.next_port.next_multiple_of(2);
            }
            let ip = match relay.family {
                AddressFamily::V4 => RELAY_V4,
                AddressFamily::V6 => RELAY_V6,
            };
            let local = SocketAddr::new(ip.parse().expect("an address"), self.next_port);
            self.next_port += 1;
            self.relays.insert(local, relay.key);
            let advertised = local;
            results.push(Ok(OpenedRelay { local, advertised }));
        }
        self.publish_relays();
        self.server.relays_opened(self.now, request, &results);
    }

    fn publish_relays(&self) {
        *self.policy.live.lock().expect("unpoisoned") = self.relays.keys().copied().collect();
    }

    fn address_of(&self, relay: RelayKey) -> SocketAddr {
        let found = self.relays.iter().find(|(_, key)| **key == relay);
        *found.expect("a relay that is open").0
    }
}

fn path(client: usize, moves: u8) -> ClientPath {
    ClientPath {
        five_tuple: FiveTuple {
            transport: Transport::Udp,
            local: "192.0.2.1:3478".parse().expect("an address"),
            remote: SocketAddr::from(([198, 51, 100, 1 + moves], 10_000 + client as u16)),
        },
        listener: ListenerKey(0),
    }
}

fn client_of(path: &ClientPath) -> usize {
    usize::from(path.five_tuple.remote.port() - 10_000)
}

/// Whether each of `wanted` is among `data`.
pub(crate) fn all_arrived(
    data: &[(SocketAddr, Vec<u8>)],
    wanted: &HashMap<Vec<u8>, SocketAddr>,
) -> bool {
    wanted
        .iter()
        .all(|(payload, from)| data.contains(&(*from, payload.clone())))
}
