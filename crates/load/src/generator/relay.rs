//! The `relay` workload: data through allocations, in one direction or both, or to a peer that sends it back.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use io::UdpSocket;

use super::frame::Frames;
use super::plan::{Flows, ROUND_TRIP, Work};
use super::setup::{Framing, OptionsError, Setup, SetupError, TurnClients, reserve_descriptors};
use super::{Lane, Plan, ReceiveSocket, Stopper, Stream, Target, local_peers};
use crate::measure::Payload;
use crate::peer::{Peer, PeerOptions};

/// What the `relay` workload needs beyond the plan's own settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RelayOptions {
    /// The clients and their server.
    pub turn: TurnClients,
    /// Allocations; at least 1.
    pub clients: u32,
    /// Peers of each client; at least 1.
    pub peers: u32,
    /// How data travels between client and server.
    pub framing: Framing,
    /// Payload of each datagram in bytes, [`Payload::MIN`] to [`Payload::MAX`].
    pub size: usize,
    /// Where data goes.
    pub path: Path,
}

/// Where relayed data goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// Between the clients and peers in this process; latencies are one way.
    Peers {
        /// The direction of the data.
        direction: Direction,
        /// The peers' address; `None` is the one from which this machine reaches the relayed addresses. It must not be
        /// behind a NAT, because the server sends to this address.
        ip: Option<IpAddr>,
        /// Peers in all, one socket each; at least as many as each client has.
        sockets: u32,
    },
    /// To a peer in this process that sends it back; latencies are round trips.
    Reflector {
        /// The peer's address, as in [`Path::Peers`].
        ip: Option<IpAddr>,
        /// The peer's threads.
        threads: usize,
        /// The peer's ports; at least as many as each client has peers.
        ports: u32,
    },
    /// To peers elsewhere that send it back, such as `hairpin peer`; latencies are round trips.
    Echo(Vec<Target>),
    /// From one client to the relayed address of another one; latencies are one way. Clients 0 and 1 are a pair, then 2
    /// and 3.
    Clients {
        /// `Up` is from the first to the second client of each pair, `Down` from the second to the first.
        direction: Direction,
    },
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From clients to peers.
    #[default]
    Up,
    /// From peers to clients.
    Down,
    /// Both.
    Both,
}

impl Direction {
    pub(super) fn is_up(self) -> bool {
        self != Direction::Down
    }

    pub(super) fn is_down(self) -> bool {
        self != Direction::Up
    }
}

impl RelayOptions {
    /// Ten clients that send payloads of 120 bytes in ChannelData. All send to one peer, a socket of this process.
    #[must_use]
    pub fn new(turn: TurnClients) -> RelayOptions {
        RelayOptions {
            turn,
            clients: 10,
            peers: 1,
            framing: Framing::Channels,
            size: 120,
            path: Path::Peers {
                direction: Direction::Up,
                ip: None,
                sockets: 1,
            },
        }
    }

    /// Checks the numbers of clients, peers and flows, and the payload's size.
    fn check(&self) -> Result<(), OptionsError> {
        if self.clients == 0 {
            return Err(OptionsError::NoClients);
        }
        if self.peers == 0 {
            return Err(OptionsError::NoPeers);
        }
        if !(Payload::MIN..=Payload::MAX).contains(&self.size) {
            return Err(OptionsError::Size(self.size));
        }
        let flows = u64::from(self.clients) * u64::from(self.peers) * 2;
        if flows > 1 << 24 {
            return Err(OptionsError::TooManyFlows(flows));
        }
        let there = match &self.path {
            Path::Peers { sockets, .. } => *sockets,
            Path::Reflector { ports, .. } => *ports,
            Path::Echo(peers) => peers.len() as u32,
            Path::Clients { .. } if self.peers != 1 || !self.clients.is_multiple_of(2) => {
                return Err(OptionsError::NotPairs);
            }
            Path::Clients { .. } => 1,
        };
        if self.peers > there {
            let wanted = self.peers;
            return Err(OptionsError::TooFewPeers { wanted, there });
        }
        Ok(())
    }

    /// How many sockets the clients and the peers of this process need.
    fn sockets(&self) -> u64 {
        let peers = match &self.path {
            Path::Peers { sockets, .. } => u64::from(*sockets),
            Path::Reflector { threads, ports, .. } => *threads as u64 * u64::from(*ports),
            Path::Echo(_) | Path::Clients { .. } => 0,
        };
        u64::from(self.clients) + peers
    }
}

/// Makes an allocation for each client, and binds channels or installs permissions. Returns a plan of what to send.
/// Blocks until all clients are ready, or until `stopper` is used. The same `stopper` ends the run later.
///
/// # Errors
/// [`SetupError`]. Then no allocation stays.
pub fn relay(options: &RelayOptions, stopper: &Stopper) -> Result<Plan, SetupError> {
    options.check()?;
    reserve_descriptors(options.sockets())?;
    let mut setup = Setup::allocate(&options.turn, options.clients, stopper)?;
    let mut sides = Sides::open(options, &setup)?;
    setup.connect(options.framing, |client| sides.peers_of(client), stopper)?;
    let (streams, receive_sockets) = sides.flows(options, setup)?;
    let target = options.turn.target();
    let flows = Flows {
        streams,
        receive_sockets,
        peers: sides.reflector.take().into_iter().collect(),
        one_sided: false,
        via: options.turn.via.clone(),
    };
    let mut plan = Plan::new("relay", &target, Work::Flows(flows));
    plan.stopper = stopper.clone();
    if matches!(options.path, Path::Reflector { .. } | Path::Echo(_)) {
        plan.latency_is = ROUND_TRIP.to_owned();
    }
    describe(&mut plan, options);
    Ok(plan)
}

/// Writes the options into the plan's settings, which the report shows.
fn describe(plan: &mut Plan, options: &RelayOptions) {
    let path = match &options.path {
        Path::Peers { direction, .. } => format!("own peers, {direction:?}"),
        Path::Reflector { .. } => "own reflector".to_owned(),
        Path::Echo(peers) => {
            let peers: Vec<_> = peers
                .iter()
                .map(|peer| peer.address().to_string())
                .collect();
            format!("echo by {}", peers.join(" "))
        }
        Path::Clients { direction } => format!("client to client, {direction:?}"),
    };
    for (name, value) in [
        ("clients", options.clients.to_string()),
        ("peers", options.peers.to_string()),
        ("framing", format!("{:?}", options.framing).to_lowercase()),
        ("size", options.size.to_string()),
        ("path", path.to_lowercase()),
        ("transport", options.turn.via.to_string()),
    ] {
        plan.settings.insert(name.to_owned(), value);
    }
}

/// The peers, and which of them each client has.
struct Sides {
    /// Peers of each client.
    peers: u32,
    kind: Kind,
    /// The addresses of all peers. For pairs, these are the relayed addresses of the clients.
    addresses: Vec<SocketAddr>,
    /// The peer of this process that sends data back, if there is one.
    reflector: Option<Peer>,
}

enum Kind {
    /// Peers of this process, with their sockets in the order of the addresses.
    Own(Direction, Vec<Arc<UdpSocket>>),
    /// Peers that send data back, of this process or elsewhere.
    Echo,
    /// Each client is the peer of another client.
    Pairs(Direction),
}

impl Sides {
    fn open(options: &RelayOptions, setup: &Setup) -> Result<Sides, SetupError> {
        let relayed = setup.relayed_all()?;
        let mut sides = Sides {
            peers: options.peers,
            kind: Kind::Echo,
            addresses: Vec::new(),
            reflector: None,
        };
        match &options.path {
            Path::Peers {
                direction,
                ip,
                sockets,
            } => {
                let ip = local_peers::address(*ip, relayed[0])?;
                let sockets = local_peers::sockets(ip, *sockets)?;
                sides.addresses = sockets.iter().map(|socket| socket.local_addr()).collect();
                sides.kind = Kind::Own(*direction, sockets);
            }
            Path::Reflector { ip, threads, ports } => {
                let ip = local_peers::address(*ip, relayed[0])?;
                let listen = vec![SocketAddr::new(ip, 0); *ports as usize];
                let peer = Peer::start(&PeerOptions {
                    threads: *threads,
                    ..PeerOptions::echo(listen)
                })?;
                sides.addresses = peer.addresses().to_vec();
                sides.reflector = Some(peer);
            }
            Path::Echo(peers) => {
                sides.addresses = peers.iter().map(|peer| peer.address()).collect();
            }
            Path::Clients { direction } => {
                sides.addresses = relayed;
                sides.kind = Kind::Pairs(*direction);
            }
        }
        Ok(sides)
    }

    /// The indexes of a client's peers in `addresses`.
    fn places_of(&self, client: u32) -> Vec<usize> {
        match self.kind {
            // The other one of the pair.
            Kind::Pairs(_) => vec![client as usize ^ 1],
            // A client's peers are consecutive, so they differ. They follow those of the client before, so all are
            // used.
            Kind::Own(..) | Kind::Echo => {
                let first = client as usize * self.peers as usize;
                let places = first..first + self.peers as usize;
                places.map(|place| place % self.addresses.len()).collect()
            }
        }
    }

    fn peers_of(&self, client: u32) -> Vec<SocketAddr> {
        let places = self.places_of(client).into_iter();
        places.map(|place| self.addresses[place]).collect()
    }

    /// Whether this client sends to its peers, and whether its peers of this process send to it.
    fn directions(&self, client: u32) -> (bool, bool) {
        match &self.kind {
            Kind::Own(direction, _) => (direction.is_up(), direction.is_down()),
            Kind::Echo => (true, false),
            Kind::Pairs(direction) if client.is_multiple_of(2) => (direction.is_up(), false),
            Kind::Pairs(direction) => (direction.is_down(), false),
        }
    }

    /// The streams to send, and the sockets to receive from. The clients in `setup` must be ready.
    fn flows(
        &self,
        options: &RelayOptions,
        setup: Setup,
    ) -> Result<(Vec<Stream>, Vec<ReceiveSocket>), SetupError> {
        let frames = Frames::new(options.framing, options.size);
        let relayed = setup.relayed_all()?;
        let pairs: Vec<(u32, usize)> = (0..setup.len())
            .flat_map(|client| {
                let places = self.places_of(client).into_iter();
                places.map(move |place| (client, place))
            })
            .collect();
        let headers: Vec<_> = pairs
            .iter()
            .map(|&(client, place)| setup.channel(client, self.addresses[place]))
            .collect();
        let clients = setup.into_parts();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for (&(client, place), channel) in pairs.iter().zip(headers) {
            if self.directions(client).0 {
                let parts = &clients[client as usize];
                let flow = up.len() as u32;
                let lane = frames.lane(parts, flow, self.addresses[place], channel);
                up.push(match &self.kind {
                    Kind::Own(_, sockets) => lane.with_receiver(&sockets[place].clone().into()),
                    Kind::Pairs(_) => lane.with_receiver(&clients[place].socket),
                    Kind::Echo => lane,
                });
            }
        }
        for &(client, place) in &pairs {
            if let (Kind::Own(_, sockets), (_, true)) = (&self.kind, self.directions(client)) {
                let flow = (up.len() + down.len()) as u32;
                let to = relayed[client as usize];
                let lane = frames.peer_lane(sockets[place].clone(), flow, to);
                down.push(lane.with_receiver(&clients[client as usize].socket));
            }
        }
        let mut receive_sockets: Vec<ReceiveSocket> =
            clients.into_iter().map(ReceiveSocket::turn).collect();
        if let Kind::Own(_, sockets) = &self.kind {
            receive_sockets.extend(sockets.iter().cloned().map(ReceiveSocket::raw));
        }
        let streams = [("up", up), ("down", down)];
        let streams = streams.into_iter().filter(|(_, lanes)| !lanes.is_empty());
        let streams = streams.map(|(name, lanes): (&str, Vec<Lane>)| Stream::new(name, lanes));
        Ok((streams.collect(), receive_sockets))
    }
}
