//! Many TURN clients, brought to the point where they can send: allocations, then permissions or channels.

mod error;
mod progress;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use io::UdpOptions;
use stun::{AddressFamily, ChannelNumber};
use turn::client::{
    AllocateOptions, CallError, Client, ClientConfig, Credentials, Event, Retransmission, Security,
};
use turn::{Mono, Now};

use super::release::release_all;
use super::{Stopper, Target};
use crate::client::{ClientId, ClientParts, Data, Driver, DriverOptions, Handler};
use crate::probe::{self, ProbeError, ProbeErrorKind};
use crate::{ServerAddress, Via};

pub use error::{OptionsError, SetupError};
use progress::Progress;

/// The TURN clients of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TurnClients {
    /// Their server.
    pub server: Target,
    /// How they reach it.
    pub via: Via,
    /// The credentials for the server's challenge; without them, a challenge is an error.
    pub credentials: Option<Credentials>,
    /// How to answer it.
    pub security: Security,
    /// The address of this machine to send from; `None` leaves it to the kernel.
    pub local: Option<IpAddr>,
    /// Family of the relayed addresses; `None` leaves it to the server, which means IPv4.
    pub family: Option<AddressFamily>,
    /// Lifetime to ask for, in seconds; `None` leaves it to the server.
    pub lifetime_s: Option<u32>,
    /// Clients being set up at once.
    pub in_flight: u32,
    /// How long one request is repeated and waited for.
    pub timeout: Duration,
}

/// How data travels between client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// In ChannelData, four bytes of overhead.
    #[default]
    Channels,
    /// In Send and Data indications, 36 bytes of overhead and more.
    Indications,
}

/// Receive and send buffers of the generator's sockets: what fits into them is not lost here.
const BUFFER_BYTES: u32 = 4 << 20;
/// Files that are open for other reasons than clients.
const OTHER_FILES: u64 = 64;
/// How long to wait for an ICMP error about a port without a listener.
const ICMP_WAIT: Duration = Duration::from_millis(200);
/// How soon a stop is noticed.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// How long to wait for answers to requests that are of no interest any more.
const ANSWER_WAIT: Duration = Duration::from_millis(200);
/// A server that confirms no release for this long is left alone.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

impl TurnClients {
    /// Clients of `server`, without credentials, 64 set up at once, 5 seconds for each request.
    #[must_use]
    pub fn new(server: Target) -> TurnClients {
        TurnClients {
            server,
            via: Via::Udp,
            credentials: None,
            security: Security::default(),
            local: None,
            family: None,
            lifetime_s: None,
            in_flight: 64,
            timeout: Duration::from_secs(5),
        }
    }

    /// The settings of every client.
    pub(super) fn config(&self) -> ClientConfig {
        ClientConfig {
            credentials: self.credentials.clone(),
            security: self.security,
            retransmission: retransmission(self.timeout, self.via.transport().is_stream()),
            transport: self.via.transport(),
            ..ClientConfig::default()
        }
    }

    /// What every client asks for.
    pub(super) fn allocation(&self) -> AllocateOptions {
        let mut options = match self.family {
            Some(family) => AllocateOptions::of_family(family),
            None => AllocateOptions::default(),
        };
        options.lifetime_s = self.lifetime_s;
        options
    }

    /// What a report calls the server.
    pub(super) fn target(&self) -> String {
        target_name("turn", self.server.address(), &self.via)
    }

    /// The server and how to reach it.
    pub(super) fn address(&self) -> ServerAddress {
        ServerAddress {
            address: self.server.address(),
            via: self.via.clone(),
        }
    }

    /// Where a client binds its socket; any port.
    pub(super) fn local(&self) -> SocketAddr {
        let ip = self
            .local
            .unwrap_or(unspecified_of(self.server.address().ip()));
        SocketAddr::new(ip, 0)
    }
}

/// The unspecified address of the same family.
pub(super) fn unspecified_of(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// The URI of a server, with its transport unless that is UDP.
pub(super) fn target_name(scheme: &str, address: SocketAddr, via: &Via) -> String {
    match via {
        Via::Udp => format!("{scheme}:{address}"),
        Via::Tcp => format!("{scheme}:{address}?transport=tcp"),
        Via::Tls(_) => format!("{scheme}s:{address}"),
        Via::Dtls(_) => format!("{scheme}s:{address}?transport=udp"),
    }
}

/// How the generator opens its sockets.
pub(super) fn socket_options() -> UdpOptions {
    UdpOptions {
        recv_buffer: Some(BUFFER_BYTES),
        send_buffer: Some(BUFFER_BYTES),
        gro: true,
        overflow: true,
        tos: false,
        ..UdpOptions::default()
    }
}

/// Repeats as RFC 8489 §6.2.1 advises, but gives up after `timeout`.
pub(super) fn retransmission(timeout: Duration, is_stream: bool) -> Retransmission {
    let standard = Retransmission::default();
    if is_stream {
        // RFC 8489 §6.2.2: no request is repeated, and each is given up after Ti.
        return Retransmission {
            reliable_timeout: timeout,
            ..standard
        };
    }
    let first = standard.timeout;
    // After n transmissions (2^n - 1) first timeouts have passed.
    let sent_after = |transmissions: u8| first * ((1 << (transmissions - 1)) - 1);
    let transmissions = (1..=standard.transmissions)
        .rev()
        .find(|&count| sent_after(count) < timeout)
        .unwrap_or(1);
    let rest = timeout.saturating_sub(sent_after(transmissions));
    if transmissions == 1 {
        return Retransmission {
            timeout,
            transmissions,
            last_wait: 1,
            ..standard
        };
    }
    let last_wait = rest.as_millis().div_ceil(first.as_millis());
    Retransmission {
        transmissions,
        last_wait: u8::try_from(last_wait).unwrap_or(u8::MAX),
        ..standard
    }
}

/// Makes sure that this many sockets can be opened.
pub(super) fn reserve_descriptors(sockets: u64) -> Result<(), SetupError> {
    let needed = sockets + OTHER_FILES;
    let limit = io::rlimit::raise_open_files().map_err(|source| SetupError::Local {
        what: "raise the limit on open files",
        source,
    })?;
    if needed > limit.soft {
        let limit = limit.soft;
        return Err(SetupError::Descriptors { needed, limit });
    }
    Ok(())
}

/// Fails at once if an ICMP error of the server's machine says that nothing listens. No error proves nothing.
pub(super) fn check_listens(clients: &TurnClients) -> Result<(), SetupError> {
    let server = clients.server.address();
    if clients.via.has_connections() {
        return reach(&clients.address(), clients.timeout);
    }
    let answer = UdpSocket::bind(clients.local())
        .and_then(|socket| {
            // Only a connected socket gets ICMP errors.
            socket.connect(server)?;
            socket.set_read_timeout(Some(ICMP_WAIT))?;
            socket.send(&super::binding::request())?;
            socket.recv(&mut [0; 1500])
        })
        .map_err(|error| error.kind());
    match answer {
        Err(std::io::ErrorKind::ConnectionRefused) => Err(SetupError::Server {
            ready: 0,
            clients: 1,
            source: ProbeError::NothingListens { server },
        }),
        _ => Ok(()),
    }
}

/// Connects once, to report an error that all connections would have.
pub(super) fn reach(server: &ServerAddress, timeout: Duration) -> Result<(), SetupError> {
    match probe::stun(server.clone(), timeout) {
        Err(source)
            if matches!(
                source.kind(),
                ProbeErrorKind::NothingListens
                    | ProbeErrorKind::Connection
                    | ProbeErrorKind::NoAnswer
            ) =>
        {
            Err(SetupError::Server {
                ready: 0,
                clients: 1,
                source,
            })
        }
        // A server that refuses this request may grant others.
        _ => Ok(()),
    }
}

/// Clients with allocations. Dropping it releases those that have not been taken.
#[derive(Debug)]
pub(super) struct Setup {
    options: TurnClients,
    driver: Driver,
    /// The clients in the order of their numbers.
    ids: Vec<ClientId>,
}

impl Setup {
    /// Makes an allocation for each of `count` clients. The first client goes alone: an error that all clients would
    /// have is then reported once and soon.
    pub(super) fn allocate(
        options: &TurnClients,
        count: u32,
        stopper: &Stopper,
    ) -> Result<Setup, SetupError> {
        check_listens(options)?;
        let driver = Driver::new(&DriverOptions {
            socket: socket_options(),
            ..DriverOptions::default()
        });
        let driver = driver.map_err(|source| SetupError::Local {
            what: "wait for sockets",
            source,
        })?;
        let mut setup = Setup {
            options: options.clone(),
            driver,
            ids: Vec::new(),
        };
        let config = Arc::new(options.config());
        for numbers in [0..count.min(1), 1..count] {
            let config = config.clone();
            setup.run(numbers, count, stopper, |progress, driver, number| {
                progress.allocate(driver, number, &config)
            })?;
        }
        Ok(setup)
    }

    /// Gives every client a permission or a channel for each of its peers. `peers` returns the peers of a client by its
    /// number. The first client goes alone, as in [`Setup::allocate`].
    pub(super) fn connect(
        &mut self,
        framing: Framing,
        peers: impl Fn(u32) -> Vec<SocketAddr>,
        stopper: &Stopper,
    ) -> Result<(), SetupError> {
        let count = self.ids.len() as u32;
        for numbers in [0..count.min(1), 1..count] {
            self.run(
                numbers,
                count,
                stopper,
                |progress, driver, number| match framing {
                    Framing::Channels => progress.bind(driver, number, &peers(number)),
                    Framing::Indications => progress.permit(driver, number, &peers(number)),
                },
            )?;
        }
        Ok(())
    }

    /// Runs `start` for each client of `numbers`, and waits for the responses to all of them. At most `in_flight`
    /// clients wait at the same time. `count` is the number of all clients.
    fn run(
        &mut self,
        numbers: std::ops::Range<u32>,
        count: u32,
        stopper: &Stopper,
        start: impl FnMut(&mut Progress, &mut Driver, u32) -> Result<u32, SetupError>,
    ) -> Result<(), SetupError> {
        let ids = std::mem::take(&mut self.ids);
        let mut job = progress::Job::new(&self.options, numbers, count, ids, start);
        job.fill(&mut self.driver);
        let result = loop {
            if stopper.is_stopped() {
                break Err(SetupError::Stopped);
            }
            let done = |_: &Driver, job: &progress::Job<_>| job.is_done();
            match self.driver.run_until(MAX_SLEEP, &mut job, done) {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(source) => {
                    let what = "wait for sockets";
                    break Err(SetupError::Local { what, source });
                }
            }
        };
        let (ids, outcome) = job.end();
        self.ids = ids;
        result.and(outcome)
    }

    /// How many clients there are.
    pub(super) fn len(&self) -> u32 {
        self.ids.len() as u32
    }

    /// The relayed transport address of a client.
    pub(super) fn relayed(&self, number: u32) -> Option<SocketAddr> {
        self.driver.client(self.ids[number as usize])?.relayed()
    }

    /// The relayed addresses of all clients, by number.
    pub(super) fn relayed_all(&self) -> Result<Vec<SocketAddr>, SetupError> {
        let all = (0..self.len()).map(|number| self.relayed(number).ok_or(CallError::NoAllocation));
        Ok(all.collect::<Result<_, _>>()?)
    }

    /// The channel of a client to a peer.
    pub(super) fn channel(&self, number: u32, peer: SocketAddr) -> Option<ChannelNumber> {
        let client = self.driver.client(self.ids[number as usize])?;
        client.channel_of(now(), peer)
    }

    /// Takes the clients out, in the order of their numbers, so that dropping `self` does not release them.
    pub(super) fn into_parts(mut self) -> Vec<ClientParts> {
        let ids = std::mem::take(&mut self.ids);
        let parts = ids.into_iter().filter_map(|id| self.driver.release(id));
        parts.collect()
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let ids: Vec<ClientId> = self.driver.ids().collect();
        if ids.is_empty() {
            return;
        }
        // A request without a response may still create an allocation, which must be released, too.
        let busy = |driver: &Driver, id| driver.client(id).is_some_and(Client::is_busy);
        let quiet = |driver: &Driver, _: &IgnoreEvents| !driver.ids().any(|id| busy(driver, id));
        let _ = self.driver.run_until(ANSWER_WAIT, &mut IgnoreEvents, quiet);
        release_all(&mut self.driver, ids, RELEASE_TIMEOUT);
    }
}

/// A handler for the end, which ignores all events.
struct IgnoreEvents;

impl Handler for IgnoreEvents {
    fn event(&mut self, _: &mut Driver, _: ClientId, _: Event) {}

    fn data(&mut self, _: ClientId, _: Data<'_>) {}
}

fn now() -> Now {
    Now {
        mono: Mono(io::clock::monotonic_ns()),
        unix_s: io::clock::unix_s(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(settings: &Retransmission) -> Duration {
        let doublings = (1 << (settings.transmissions - 1)) - 1;
        let last = u32::from(settings.last_wait);
        match settings.transmissions {
            1 => settings.timeout * last,
            _ => settings.timeout * doublings + settings.timeout * last,
        }
    }

    #[test]
    fn requests_are_given_up_after_their_timeout() {
        for (ms, transmissions) in [(100, 1), (500, 1), (2_000, 3), (5_000, 4), (39_500, 7)] {
            let timeout = Duration::from_millis(ms);
            let settings = retransmission(timeout, false);
            assert_eq!(settings.transmissions, transmissions, "{ms} ms");
            let off = total(&settings).abs_diff(timeout);
            assert!(off < Duration::from_millis(500), "{ms} ms: {off:?}");
        }
    }
}
