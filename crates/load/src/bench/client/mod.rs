//! The TURN client of the benchmark: allocations with a channel, made by real sockets, whose
//! 5-tuples the injected frames then imitate; and allocation churn.
//!
//! It sends what a WebRTC client sends: long-term credentials, MD5 and HMAC-SHA1, 401 first.

mod driver;
mod request;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use stun::{Class, Message, Method, TransactionId};

use super::error::{Doing, SideError};
use super::layout::{self, SERVER_ADDRESS};
use super::topology::Topology;
pub(crate) use driver::Churned;
use driver::{Driver, Goal};

/// Clients at work at once while allocations are made or renewed: enough to keep a server busy, few
/// enough not to overrun its receive buffer.
const WINDOW: usize = 32;

/// Clients whose sockets stay open between requests when sockets send the load. With those of more clients, a benchmark of
/// several servers would run out of descriptors.
pub(crate) const HELD_SOCKETS: u16 = 1024;

/// Allocations that are held.
#[derive(Debug)]
pub(crate) struct Allocations {
    driver: Driver,
    renewed: Instant,
    held: u16,
}

impl Allocations {
    /// Opens the sockets of `count` clients. Apart from [`Allocations::allocate`], so that the
    /// kernel memory of the clients can be told from that of the server.
    pub(crate) fn open(topology: &Topology, count: u16) -> Result<Allocations, SideError> {
        let driver =
            Driver::new(sockets(topology, count)?, Goal::Hold).doing("watch client sockets")?;
        Ok(Allocations {
            driver,
            renewed: Instant::now(),
            held: count,
        })
    }

    /// Allocates for every client and binds its channel to its peer.
    pub(crate) fn allocate(&mut self) -> Result<(), SideError> {
        self.renewed = Instant::now();
        self.driver.finish_all(WINDOW)
    }

    /// Closes the sockets of all clients but the first `held`, then and whenever they have been renewed. Injected frames
    /// need none.
    pub(crate) fn close_sockets(&mut self, held: u16) {
        self.held = held;
        self.driver.close_sockets(held.into());
    }

    /// Renews channels and permissions if their time (5 minutes, RFC 8656 §9) could run out soon.
    pub(crate) fn keep_alive(&mut self, topology: &Topology) -> Result<(), SideError> {
        const SOON: Duration = Duration::from_secs(150);
        if self.renewed.elapsed() < SOON {
            return Ok(());
        }
        let closed = self.driver.closed();
        let reopen = || {
            // As many clients as ports.
            let open =
                |&client: &usize| Ok((client, client_socket(layout::client(client as u16))?));
            closed.iter().map(open).collect::<io::Result<Vec<_>>>()
        };
        for (client, socket) in topology.in_client(reopen).doing("open client sockets")? {
            self.driver
                .reopen(client, socket)
                .doing("watch a client socket")?;
        }
        self.driver.restart(Goal::Renew);
        self.allocate()?;
        self.close_sockets(self.held);
        Ok(())
    }

    /// The relayed transport address of each flow.
    pub(crate) fn relays(&self) -> Vec<SocketAddr> {
        self.driver.relays()
    }

    /// Client sockets, of the first flows.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.driver.sockets()
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

/// Makes and deletes allocations with `in_flight` clients at a time for `duration`.
pub(crate) fn churn(
    topology: &Topology,
    in_flight: u16,
    duration: Duration,
) -> Result<Churned, SideError> {
    let work = || {
        let sockets = (0..in_flight)
            .map(|_| fresh_socket())
            .collect::<io::Result<Vec<_>>>()?;
        let mut driver = Driver::new(sockets, Goal::Churn)?;
        Ok(driver.churn(duration, fresh_socket))
    };
    topology.in_client(work).doing("open client sockets")?
}

/// A client socket on a port that has not been used for as long as possible. The kernel would
/// choose at random, and so soon take one whose allocation the server has deleted but not yet
/// forgotten, and refuses (437).
fn fresh_socket() -> io::Result<UdpSocket> {
    const FIRST: u32 = 10_000;
    const PORTS: u32 = 50_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Below 60,000.
        let port = (FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS) as u16;
        match client_socket(SocketAddr::new(layout::CLIENT_IP.into(), port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
}

/// Waits until the server answers a Binding request. `alive` may say that waiting is in vain.
pub(crate) fn wait_for_answer(
    topology: &Topology,
    patience: Duration,
    mut alive: impl FnMut() -> Result<(), SideError>,
) -> Result<bool, SideError> {
    const POLL: Duration = Duration::from_millis(50);
    let open = || client_socket(SocketAddr::new(layout::CLIENT_IP.into(), 0));
    let socket = topology.in_client(open).doing("open a client socket")?;
    socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_read_timeout(Some(POLL)))
        .doing("set a timeout")?;
    let deadline = Instant::now() + patience;
    let id = TransactionId(*b"hairpinbench");
    let mut buffer = [0; 1500];
    while Instant::now() < deadline {
        alive()?;
        // Refused as long as the server has no socket; then the loop must not spin.
        let sent = request::binding(&id).map_or(0, |bytes| socket.send(&bytes).unwrap_or(0));
        match socket.recv(&mut buffer) {
            Ok(length) if is_success(&buffer[..length], &id) => return Ok(true),
            Err(error) if sent == 0 || error.kind() == io::ErrorKind::ConnectionRefused => {
                std::thread::sleep(POLL)
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

/// A socket that speaks to the server only.
fn client_socket(local: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(local)?;
    socket.connect(SERVER_ADDRESS)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
