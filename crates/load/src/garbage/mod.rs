//! Garbage: floods of random, malformed and unauthenticated datagrams from very many sources.
//!
//! What a server on the open internet sees all day, at a rate of your choice. The sources are `ports` sockets times
//! `addresses` loopback addresses. Every address in 127.0.0.0/8 is local, and ancillary data select the source address
//! of each datagram. So one socket sends from thousands of addresses. Answers come back to the same sockets and are
//! counted until the kernel's buffers are full; nobody waits for them.
//!
//! The flood is open loop: datagrams leave by a fixed schedule regardless of the server, and it ends after a fixed
//! number.

mod datagrams;
mod sources;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use io::{RecvBatch, SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket};

pub use datagrams::{Corpus, Kind};
pub use sources::Sources;

/// How a [`flood`] looks.
#[derive(Clone, Debug, PartialEq)]
pub struct FloodOptions {
    /// The server: an IPv4 loopback address.
    pub target: SocketAddr,
    /// Source addresses in 127.0.0.0/8, 1 to 65,536.
    pub addresses: u32,
    /// Source ports, 1 to 4,096: one socket each.
    pub ports: u16,
    /// Datagrams to send in all.
    pub count: u64,
    /// Datagrams per second; `None` is as fast as they leave.
    pub rate: Option<f64>,
    /// The same seed gives the same datagrams in the same order.
    pub seed: u64,
}

/// What became of a [`flood`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FloodReport {
    /// Datagrams the kernel took.
    pub sent: u64,
    /// Their payload bytes.
    pub sent_bytes: u64,
    /// Datagrams that did not leave, for lack of buffers.
    pub not_sent: u64,
    /// Answers read. A lower bound: those that found a full buffer are not seen.
    pub answers: u64,
    /// Bytes of the answers read.
    pub answer_bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Why a [`flood`] could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FloodError {
    /// Source addresses can be chosen freely on loopback only.
    #[error("the target {0} is not an IPv4 loopback address; this flood never leaves the machine")]
    NotLoopback(SocketAddr),
    /// `addresses` or `ports` out of range.
    #[error("the number of source addresses must be 1 to 65536, that of source ports 1 to 4096")]
    OutOfRange,
    /// A socket could not be opened.
    #[error("cannot open a socket for the flood (raise the limit on open files?)")]
    Socket(#[from] std::io::Error),
}

/// Datagrams pushed between two looks at the clock: small enough to be smooth at 10,000/s, large enough for `sendmmsg`.
const BURST: u64 = 64;

/// Sends the flood and returns when the last datagram has left.
///
/// # Errors
/// [`FloodError`]: a target off loopback, counts out of range, no sockets. Nothing was sent then.
pub fn flood(options: &FloodOptions) -> Result<FloodReport, FloodError> {
    check(options)?;
    let corpus = Corpus::new(options.seed, 4096);
    let sockets = open(options.ports)?;
    let mut queue = SendQueue::new(&SendOptions {
        gso: false,
        ..SendOptions::default()
    });
    let mut answers = RecvBatch::new(64, RecvBatch::SMALL);
    let mut report = FloodReport::default();
    let started = io::clock::monotonic_ns();
    let mut pushed = 0u64;
    while pushed < options.count {
        pace(started, pushed, options.rate);
        let burst = BURST.min(options.count - pushed);
        // One socket a burst, so that the burst leaves with one system call.
        let socket = &sockets[(pushed / BURST) as usize % sockets.len()];
        let mut out = queue.start();
        for n in pushed..pushed + burst {
            let mut to = SendTo::new(socket, options.target);
            to.from_ip = Some(source(n, options));
            out.push(&to, corpus.datagram(n));
        }
        let flushed = out.flush();
        drop(out);
        report.sent += flushed.sent;
        report.sent_bytes += flushed.sent_bytes;
        report.not_sent += flushed.dropped();
        pushed += burst;
        drain(socket, &mut answers, &mut report);
    }
    report.elapsed = Duration::from_nanos(io::clock::monotonic_ns() - started);
    Ok(report)
}

fn check(options: &FloodOptions) -> Result<(), FloodError> {
    if !matches!(options.target.ip(), IpAddr::V4(ip) if ip.is_loopback()) {
        return Err(FloodError::NotLoopback(options.target));
    }
    if !(1..=65_536).contains(&options.addresses) || !(1..=4096).contains(&options.ports) {
        return Err(FloodError::OutOfRange);
    }
    Ok(())
}

fn open(ports: u16) -> Result<Vec<UdpSocket>, FloodError> {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    // Small receive buffers: thousands of sockets full of answers nobody reads would be the generator's memory, not the
    // server's.
    let options = UdpOptions {
        recv_buffer: Some(64 * 1024),
        ..UdpOptions::default()
    };
    (0..ports)
        .map(|_| UdpSocket::bind(any, &options).map_err(FloodError::from))
        .collect()
}

/// The source address of datagram `n`: each burst of one socket walks through the addresses, so that after
/// `addresses * ports` datagrams every pair has spoken once.
fn source(n: u64, options: &FloodOptions) -> IpAddr {
    let round = n / (BURST * u64::from(options.ports));
    Sources::loopback_at(round * BURST + n % BURST, options.addresses)
}

fn pace(started_ns: u64, pushed: u64, rate: Option<f64>) {
    let Some(rate) = rate else { return };
    let due = started_ns + (pushed as f64 / rate * 1e9) as u64;
    let now = io::clock::monotonic_ns();
    if due > now + 50_000 {
        std::thread::sleep(Duration::from_nanos(due - now));
    }
}

fn drain(socket: &UdpSocket, batch: &mut RecvBatch, report: &mut FloodReport) {
    batch.clear();
    if socket.recv(0, batch).is_err() {
        return;
    }
    for answer in batch.iter() {
        report.answers += 1;
        report.answer_bytes += answer.bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn options(addresses: u32, ports: u16, count: u64) -> FloodOptions {
        FloodOptions {
            target: "127.0.0.1:9".parse().unwrap(),
            addresses,
            ports,
            count,
            rate: None,
            seed: 1,
        }
    }

    #[test]
    fn every_pair_of_address_and_port_sends_once_in_a_full_turn() {
        let options = options(1024, 8, 0);
        let turn = 1024 * 8;
        let pairs: HashSet<_> = (0..turn)
            .map(|n| (source(n, &options), (n / BURST) % 8))
            .collect();
        assert_eq!(pairs.len() as u64, turn);
    }

    #[test]
    fn refuses_to_leave_the_machine() {
        let mut options = options(1, 1, 1);
        options.target = "192.0.2.1:3478".parse().unwrap();
        assert!(matches!(flood(&options), Err(FloodError::NotLoopback(_))));
    }

    #[test]
    fn a_flood_arrives_from_many_sources() {
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        server
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let mut options = options(32, 2, 128);
        options.target = server.local_addr().unwrap();
        options.rate = Some(20_000.0);
        let report = flood(&options).unwrap();
        assert_eq!((report.sent, report.not_sent), (128, 0));
        let mut sources = HashSet::new();
        let mut buffer = [0u8; 2048];
        while let Ok((_, from)) = server.recv_from(&mut buffer) {
            sources.insert(from);
        }
        assert_eq!(sources.len(), 64);
        assert!(report.elapsed >= Duration::from_millis(3));
    }
}
