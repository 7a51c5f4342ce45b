//! The TURN clients of the benchmark: allocations with a channel, made by real sockets, whose
//! 5-tuples the injected frames then imitate; and allocation churn.
//!
//! The clients are those of [`crate::client`]. They send what a WebRTC client sends: long-term credentials, MD5 and
//! HMAC-SHA1, 401 first.

mod churn;
mod setup;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stun::{Builder, Class, Message, Method, TransactionId};
use turn::client::{AllocateOptions, Client, ClientConfig, Credentials, Retransmission, Security};

use super::error::{IoContext, SideError};
use super::layout::{self, server_address};
use super::side::{PASSWORD, USERNAME};
use super::topology::Topology;
use crate::client::{AddError, ClientId, ClientParts, Driver, DriverOptions};
pub(crate) use churn::{Churned, churn};
use setup::SetupStep;

/// Clients whose sockets stay open between requests when sockets send the load. With those of more clients, a benchmark
/// of several servers would run out of descriptors.
pub(crate) const HELD_SOCKETS: u16 = 1024;

/// An hour: longer than any round. Servers that grant less are held to what they grant.
const LIFETIME_S: u32 = 3600;

/// RFC 8489 §6.2.1 starts at 500 ms; on a link without loss and delay a fifth of that is long.
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(100);

/// The configuration of every client.
fn config() -> Arc<ClientConfig> {
    Arc::new(ClientConfig {
        credentials: Some(Credentials::new(USERNAME, PASSWORD)),
        security: Security::Classic,
        software: "".into(),
        retransmission: Retransmission {
            timeout: RETRANSMISSION_TIMEOUT,
            ..Retransmission::default()
        },
        // Allocations are renewed between scenarios, so that no request disturbs one.
        keep_alive: false,
        ..ClientConfig::default()
    })
}

/// Without a REQUESTED-ADDRESS-FAMILY, a server allocates an IPv4 address (RFC 8656 §7.2).
fn allocate_options() -> AllocateOptions {
    AllocateOptions {
        mobility: false,
        lifetime_s: Some(LIFETIME_S),
        relay: turn::client::RequestedRelays::One {
            family: layout::is_ipv6().then_some(stun::AddressFamily::V6),
            port: turn::client::RequestedPort::Any,
        },
        dont_fragment: false,
    }
}

fn driver() -> Result<Driver, SideError> {
    Driver::new(&DriverOptions::default()).doing("watch client sockets")
}

/// The result of opening a client's socket.
fn io_error(error: AddError) -> io::Error {
    match error {
        AddError::Socket { source, .. } | AddError::Poll(source) => source,
        other => io::Error::other(other),
    }
}

/// The client of a flow: in the driver, or without a socket.
#[derive(Debug)]
enum ClientSlot {
    Open(ClientId),
    Closed(Box<Client>),
}

/// Allocations that are held.
#[derive(Debug)]
pub(crate) struct Allocations {
    driver: Driver,
    /// The client of each flow.
    seats: Vec<ClientSlot>,
    relays: Vec<SocketAddr>,
    /// Second descriptors of the first flows' sockets, connected to the server.
    sockets: Vec<UdpSocket>,
    renewed: Instant,
    held: u16,
}

impl Allocations {
    /// Opens the sockets of `count` clients. Apart from [`Allocations::allocate`], so that the kernel memory of the
    /// clients can be distinguished from that of the server.
    pub(crate) fn open(topology: &Topology, count: u16) -> Result<Allocations, SideError> {
        Allocations::open_from(topology, 0, count)
    }

    /// The same for the flows from `first` on.
    pub(crate) fn open_from(
        topology: &Topology,
        first: u16,
        count: u16,
    ) -> Result<Allocations, SideError> {
        let (mut driver, config) = (driver()?, config());
        let open = || {
            let mut add =
                |flow| driver.add(layout::client(flow), server_address(), Arc::clone(&config));
            let ids = (first..first + count)
                .map(|flow| add(flow).map(ClientSlot::Open).map_err(io_error));
            ids.collect::<io::Result<Vec<_>>>()
        };
        let seats = topology.in_client(open).doing("open client sockets")?;
        Ok(Allocations {
            driver,
            seats,
            relays: Vec::new(),
            sockets: Vec::new(),
            renewed: Instant::now(),
            held: count,
        })
    }

    /// Allocates for every client and binds its channel to its peer.
    pub(crate) fn allocate(&mut self) -> Result<(), SideError> {
        self.relays = self.reach(SetupStep::Allocate)?;
        Ok(())
    }

    /// Lets every client reach a goal; returns the relayed transport addresses of those that have got one.
    fn reach(&mut self, goal: SetupStep) -> Result<Vec<SocketAddr>, SideError> {
        self.renewed = Instant::now();
        let open = |seat: &ClientSlot| match seat {
            ClientSlot::Open(id) => Some(*id),
            ClientSlot::Closed(_) => None,
        };
        let ids = self.seats.iter().filter_map(open).collect();
        setup::reach(&mut self.driver, ids, goal)
    }

    /// Closes the sockets of all clients but the first `held`, then and whenever they have been renewed. Injected
    /// frames need none.
    pub(crate) fn close_sockets(&mut self, held: u16) -> Result<(), SideError> {
        self.held = held;
        for seat in self.seats.iter_mut().skip(held.into()) {
            let parts = match seat {
                ClientSlot::Open(id) => self.driver.release(*id),
                ClientSlot::Closed(_) => None,
            };
            if let Some(parts) = parts {
                *seat = ClientSlot::Closed(parts.client);
            }
        }
        if self.sockets.is_empty() {
            let held = self.seats.iter().take(held.into());
            let open = held.filter_map(|seat| match seat {
                ClientSlot::Open(id) => self.driver.socket(*id),
                ClientSlot::Closed(_) => None,
            });
            let sockets = open.map(|socket| connected(socket.as_fd().try_clone_to_owned()?.into()));
            self.sockets = sockets
                .collect::<io::Result<_>>()
                .doing("duplicate client sockets")?;
        }
        Ok(())
    }

    /// Renews channels and permissions if their time (5 minutes, RFC 8656 §9) could run out soon.
    pub(crate) fn keep_alive(&mut self, topology: &Topology) -> Result<(), SideError> {
        const RENEWAL_INTERVAL: Duration = Duration::from_secs(150);
        if self.renewed.elapsed() < RENEWAL_INTERVAL {
            return Ok(());
        }
        self.reopen(topology)?;
        self.reach(SetupStep::Renew)?;
        self.close_sockets(self.held)
    }

    /// Gives every client a new socket at the address that the server has.
    fn reopen(&mut self, topology: &Topology) -> Result<(), SideError> {
        let options = DriverOptions::default().socket;
        let (driver, seats) = (&mut self.driver, std::mem::take(&mut self.seats));
        let reopen = || {
            let open = |(flow, seat)| match seat {
                ClientSlot::Open(id) => Ok(ClientSlot::Open(id)),
                ClientSlot::Closed(client) => {
                    let socket = ::io::UdpSocket::bind(layout::client(flow), &options)?;
                    let parts = ClientParts {
                        client,
                        socket: Arc::new(socket).into(),
                        server: server_address(),
                    };
                    driver.adopt(parts).map(ClientSlot::Open).map_err(io_error)
                }
            };
            (0..).zip(seats).map(open).collect::<io::Result<Vec<_>>>()
        };
        self.seats = topology.in_client(reopen).doing("open client sockets")?;
        Ok(())
    }

    /// The relayed transport address of each flow.
    pub(crate) fn relays(&self) -> Vec<SocketAddr> {
        self.relays.clone()
    }

    /// Client sockets, of the first flows.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.sockets.iter()
    }
}

/// The sockets of the first `count` flows' clients.
pub(crate) fn sockets(topology: &Topology, count: u16) -> Result<Vec<UdpSocket>, SideError> {
    topology
        .in_client(|| {
            (0..count)
                .map(|flow| client_socket(layout::client(flow)))
                .collect()
        })
        .doing("open client sockets")
}

/// Waits until the server answers a Binding request. `alive` may say that waiting is useless.
pub(crate) fn wait_for_answer(
    topology: &Topology,
    limit: Duration,
    mut alive: impl FnMut() -> Result<(), SideError>,
) -> Result<bool, SideError> {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    let open = || client_socket(SocketAddr::new(layout::client_ip(), 0));
    let socket = topology.in_client(open).doing("open a client socket")?;
    socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_read_timeout(Some(POLL_INTERVAL)))
        .doing("set a timeout")?;
    let deadline = Instant::now() + limit;
    let id = TransactionId(*b"hairpinbench");
    let mut request = [0; stun::HEADER_LEN];
    let request = Builder::new(&mut request, Class::Request, Method::BINDING, &id)
        .map_err(io::Error::other)
        .doing("write a request")?
        .finish();
    let mut buffer = [0; 1500];
    while Instant::now() < deadline {
        alive()?;
        // Refused as long as the server has no socket; then the loop must not spin.
        let sent = socket.send(request).unwrap_or(0);
        match socket.recv(&mut buffer) {
            Ok(length) if is_success(&buffer[..length], &id) => return Ok(true),
            Err(error) if sent == 0 || error.kind() == io::ErrorKind::ConnectionRefused => {
                std::thread::sleep(POLL_INTERVAL)
            }
            _ => {}
        }
    }
    Ok(false)
}

fn is_success(bytes: &[u8], id: &TransactionId) -> bool {
    Message::parse(bytes).is_ok_and(|message| {
        message.class() == Class::Success
            && message.method() == Method::BINDING
            && message.transaction_id() == *id
    })
}

/// A socket that is connected to the server.
fn client_socket(local: SocketAddr) -> io::Result<UdpSocket> {
    connected(UdpSocket::bind(local)?)
}

fn connected(socket: UdpSocket) -> io::Result<UdpSocket> {
    socket.connect(server_address())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
