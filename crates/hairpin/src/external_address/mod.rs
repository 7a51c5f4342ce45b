//! The public addresses of this host, queried at startup and again while the server runs: by STUN (RFC 8489 Binding),
//! or in the DNS.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use server::stun::{self, Class, Message, Method, TransactionId, XorMappedAddress};

use crate::config::{Config, ExternalIp, ExternalSources, StunServer};

/// Time between two checks: after a home line has another address, calls fail for half a minute.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// How long to wait for a response to each transmission of a request.
const WAITS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(1_500),
];

/// How checks went.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) same: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// Asks again and again, on a separate thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    checks: Receiver<Result<Vec<ExternalIp>, String>>,
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What to ask, and for which relay addresses.
#[derive(Debug, Clone)]
struct AddressQuery {
    sources: ExternalSources,
    relays: Vec<IpAddr>,
}

/// Asks for what the configuration leaves open, and begins to watch it. `None` if everything is known.
pub(crate) fn find(config: &Config, relays: &[IpAddr]) -> Result<Option<(Vec<ExternalIp>, Watch)>> {
    let sources = config.external_sources.clone();
    if sources == ExternalSources::default() {
        return Ok(None);
    }
    let is_known = |relay: &IpAddr| {
        let holds = |external: &ExternalIp| match external.private {
            Some(private) => private == *relay,
            None => external.public.is_ipv4() == relay.is_ipv4(),
        };
        config.external_ip.iter().any(holds)
    };
    let relays = relays.iter().filter(|relay| !is_known(relay));
    let question = AddressQuery {
        sources,
        relays: relays.copied().collect(),
    };
    let found = question
        .ask()
        .context("relay.external_ip: the external address is not known")?;
    for external in &found {
        tracing::info!(%external, "external address");
    }
    Ok(Some((found, Watch::start(question, CHECK_INTERVAL)?)))
}

impl Watch {
    fn start(question: AddressQuery, interval: Duration) -> Result<Watch> {
        let (report, checks) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("hairpin-address".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    let found = question.ask().map_err(|error| format!("{error:#}"));
                    if report.send(found).is_err() {
                        return;
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(Watch {
            checks,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// What the checks since the last call have found, oldest first.
    pub(crate) fn checks(&self) -> impl Iterator<Item = Result<Vec<ExternalIp>, String>> + '_ {
        self.checks.try_iter()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // At most the time of one question.
            let _ = thread.join();
        }
    }
}

impl AddressQuery {
    /// The external addresses of all relay addresses that have one.
    fn ask(&self) -> Result<Vec<ExternalIp>> {
        let found = match &self.sources.name {
            Some(name) => self.look_up(name)?,
            None => self.ask_servers()?,
        };
        if found.is_empty() {
            bail!("no relay address is of a family that could be asked for");
        }
        Ok(found)
    }

    fn look_up(&self, name: &str) -> Result<Vec<ExternalIp>> {
        let addresses = (name, 0).to_socket_addrs();
        let addresses = addresses.with_context(|| format!("the DNS does not know {name}"))?;
        let addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
        let of = |relay: &IpAddr| {
            let is_fit = |ip: &&IpAddr| ip.is_ipv4() == relay.is_ipv4();
            let public = *addresses.iter().find(is_fit)?;
            Some(mapped(*relay, public))
        };
        Ok(self.relays.iter().filter_map(of).collect())
    }

    fn ask_servers(&self) -> Result<Vec<ExternalIp>> {
        let servers = addresses(&self.sources.servers)?;
        let mut found = Vec::new();
        for &relay in &self.relays {
            let mut servers = servers
                .iter()
                .filter(|server| server.is_ipv4() == relay.is_ipv4())
                .peekable();
            if servers.peek().is_none() {
                continue;
            }
            let mut answers =
                servers.map(|&server| seen_by(relay, server).map_err(|error| (server, error)));
            let mut failed = None;
            let public =
                answers.find_map(|answer| answer.map_err(|error| failed = Some(error)).ok());
            match (public, failed) {
                (Some(public), _) => found.push(mapped(relay, public)),
                (None, Some((server, error))) => {
                    return Err(anyhow!(error).context(format!(
                        "no STUN server answers {relay}, the last one was {server}"
                    )));
                }
                (None, None) => {}
            }
        }
        Ok(found)
    }
}

const fn mapped(private: IpAddr, public: IpAddr) -> ExternalIp {
    ExternalIp {
        public,
        private: Some(private),
    }
}

/// The addresses of all servers, from the DNS.
fn addresses(servers: &[StunServer]) -> Result<Vec<SocketAddr>> {
    let mut found = Vec::new();
    let mut failed = None;
    for server in servers {
        match (server.host.as_str(), server.port).to_socket_addrs() {
            Ok(addresses) => found.extend(addresses),
            Err(error) => failed = Some((server, error)),
        }
    }
    match failed {
        Some((server, error)) if found.is_empty() => {
            Err(anyhow!(error).context(format!("the DNS does not know {}", server.host)))
        }
        _ => Ok(found),
    }
}

/// The address that a STUN server sees requests from `local` come from.
fn seen_by(local: IpAddr, server: SocketAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind((local, 0))?;
    socket.connect(server)?;
    let mut id = [0; 12];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let id = TransactionId(id);
    let mut request = [0; 20];
    let builder = stun::Builder::new(&mut request, Class::Request, Method::BINDING, &id);
    // 20 bytes are a header, which is all there is.
    let _ = builder.map_err(io::Error::other)?.finish();
    for wait in WAITS {
        socket.send(&request)?;
        if let Some(ip) = response(&socket, &id, Instant::now() + wait)? {
            return Ok(ip);
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Waits for the response. `None` if it does not come in time.
fn response(socket: &UdpSocket, id: &TransactionId, until: Instant) -> io::Result<Option<IpAddr>> {
    let mut buffer = [0; 1_500];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left))?;
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let Ok(message) = Message::parse(&buffer[..length]) else {
            continue;
        };
        let is_it = message.class() == Class::Success && message.transaction_id() == *id;
        if is_it && let Ok(Some(XorMappedAddress(seen))) = message.get() {
            return Ok(Some(seen.ip()));
        }
    }
}

#[cfg(test)]
mod tests;
