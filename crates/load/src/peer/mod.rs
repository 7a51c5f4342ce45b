//! The other end of a measurement: a UDP reflector that is never the bottleneck.
//!
//! Every thread has its own socket for every listening address (SO_REUSEPORT), its own event loop and its own counters.
//! Trains come in by GRO and leave by GSO, so that an echo costs a fraction of what the relay under test costs.
//!
//! Modes: [`Mode::Echo`] returns each datagram. [`Mode::Sink`] checks and counts it, one run at a
//! time. [`Mode::Source`] sends a measured
//! stream to each address that has sent it a datagram within the last ten seconds.

mod report;
mod runs;
mod worker;

use std::io as stdio;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use io::{UdpOptions, UdpSocket};

use crate::measure::{Counters, Payload, Rate, Snapshot};

pub use report::PeerReport;

/// What a peer does with a datagram.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mode {
    /// Send it back to where it came from.
    Echo,
    /// Check and count it.
    Sink,
    /// Count it, and send a stream back.
    Source {
        /// Datagrams per second to each address that has spoken.
        rate: Rate,
        /// Payload bytes of each, [`Payload::MIN`] to [`Payload::MAX`].
        size: usize,
    },
}

/// How a [`Peer`] runs.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerOptions {
    /// Where to listen. Port 0 lets the kernel choose.
    pub listen: Vec<SocketAddr>,
    /// Threads, at least 1.
    pub threads: usize,
    /// What to do with what comes.
    pub mode: Mode,
    /// Take and send trains as one where the kernel can.
    pub offload: bool,
    /// Receive and send buffer of each socket in bytes.
    pub buffer: u32,
    /// The key of the payloads that a sink checks or a source sends. 0: no key.
    pub payload_key: u64,
}

impl PeerOptions {
    /// An echo on `listen`, one thread, offloads on, 4 MiB of buffer.
    #[must_use]
    pub fn echo(listen: Vec<SocketAddr>) -> PeerOptions {
        PeerOptions {
            listen,
            threads: 1,
            mode: Mode::Echo,
            offload: true,
            buffer: 4 << 20,
            payload_key: 0,
        }
    }
}

/// Why a peer could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// There is no address to listen on, or no thread.
    #[error("a peer needs at least one address and one thread")]
    Nothing,
    /// The payload size of a source is out of range.
    #[error("payloads of {0} bytes cannot be measured: choose {min} to {max}", min = Payload::MIN, max = Payload::MAX)]
    Size(usize),
    /// An address could not be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Which one.
        address: SocketAddr,
        /// Why.
        source: stdio::Error,
    },
    /// No epoll instance or no thread.
    #[error("cannot start a thread of the peer: {0}")]
    Thread(#[source] stdio::Error),
}

/// A running peer. Dropping it stops it.
#[derive(Debug)]
pub struct Peer {
    addresses: Vec<SocketAddr>,
    counters: Arc<[Counters]>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    started: Instant,
}

impl Peer {
    /// Binds every address and starts the threads.
    ///
    /// # Errors
    /// [`PeerError`]; nothing runs then.
    pub fn start(options: &PeerOptions) -> Result<Peer, PeerError> {
        if options.listen.is_empty() || options.threads == 0 {
            return Err(PeerError::Nothing);
        }
        if let Mode::Source { size, .. } = options.mode
            && !(Payload::MIN..=Payload::MAX).contains(&size)
        {
            return Err(PeerError::Size(size));
        }
        // All sockets are bound before any thread reads: one that joins a SO_REUSEPORT group later moves flows.
        let groups = bind_all(options)?;
        let addresses = groups[0].iter().map(UdpSocket::local_addr).collect();
        let mut peer = Peer {
            addresses,
            counters: groups.iter().map(|_| Counters::new()).collect(),
            stop: Arc::default(),
            threads: Vec::new(),
            started: Instant::now(),
        };
        let runs = Arc::new(runs::Runs::default());
        for (index, sockets) in groups.into_iter().enumerate() {
            let worker = worker::Worker::new(sockets, options, Arc::clone(&runs));
            let worker = worker.map_err(PeerError::Thread)?;
            let (counters, stop) = (peer.counters.clone(), peer.stop.clone());
            let thread = std::thread::Builder::new()
                .name(format!("peer-{index}"))
                .spawn(move || worker.run(&counters[index], &stop))
                .map_err(PeerError::Thread)?;
            peer.threads.push(thread);
        }
        Ok(peer)
    }

    /// The addresses it listens on, with the ports it was given.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The counters of all threads, added up.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.counters.iter())
    }

    /// How long it has been running.
    #[must_use]
    pub fn running(&self) -> Duration {
        self.started.elapsed()
    }

    /// Stops the threads and says what they did.
    #[must_use]
    pub fn stop(mut self) -> PeerReport {
        self.stop_threads();
        PeerReport::new(&self.addresses, &self.counters, self.started.elapsed())
    }

    fn stop_threads(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panicking thread has already said why on stderr.
            let _ = thread.join();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

/// One group of sockets for each thread.
fn bind_all(options: &PeerOptions) -> Result<Vec<Vec<UdpSocket>>, PeerError> {
    let mut addresses = options.listen.clone();
    let mut groups = Vec::with_capacity(options.threads);
    for _ in 0..options.threads {
        let mut group = Vec::with_capacity(addresses.len());
        for address in &mut addresses {
            let socket = bind(*address, options)?;
            // The first thread finds out which port the kernel chose; the others share it.
            *address = socket.local_addr();
            group.push(socket);
        }
        groups.push(group);
    }
    Ok(groups)
}

fn bind(address: SocketAddr, options: &PeerOptions) -> Result<UdpSocket, PeerError> {
    let socket_options = UdpOptions {
        reuse_port: options.threads > 1,
        local_address: address.ip().is_unspecified(),
        gro: options.offload,
        recv_buffer: Some(options.buffer),
        send_buffer: Some(options.buffer),
        ..UdpOptions::listener()
    };
    UdpSocket::bind(address, &socket_options).map_err(|source| PeerError::Bind { address, source })
}
