//! The answering side: it responds to all requests of a client workload with success.
//!
//! ```text
//!   OPTIONS, REGISTER, BYE, others -> 200, without a memory of them: a retransmission gets the same answer
//!   INVITE                         -> 180, 200 after `ring`; the 200 again until its ACK comes (RFC 3261 §13.3.1.4)
//!   CANCEL                         -> 200, and 487 for the INVITE if it still rings
//! ```
//! Each worker is a thread with sockets of its own on every address (SO_REUSEPORT). A response is the request's own
//! header lines behind a new start line.

mod answer;
mod answerer;
mod calls;
mod counts;
mod socket;
mod stream;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ::io::{TcpListener, TcpOptions, UdpOptions, UdpSocket};

use crate::sip::Transport;
pub(crate) use answer::{Ends, Method, respond};
pub(crate) use answerer::Answerer;
pub use counts::UasReport;
use counts::WorkerCounts;
use worker::Worker;

/// What an answering side does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UasOptions {
    /// Addresses to listen on, each for UDP and TCP; port 0 is any.
    pub listen: Vec<SocketAddr>,
    /// Threads.
    pub threads: usize,
    /// From the 180 to the 200 of an INVITE.
    pub ring: Duration,
    /// Realm of the 401 for each REGISTER without credentials. Credentials are not verified. `None`: each REGISTER gets
    /// 200.
    pub challenge: Option<String>,
}

impl UasOptions {
    /// One thread on these addresses that picks up at once.
    #[must_use]
    pub fn new(listen: Vec<SocketAddr>) -> UasOptions {
        UasOptions {
            listen,
            threads: 1,
            ring: Duration::ZERO,
            challenge: None,
        }
    }
}

/// Why an answering side could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UasError {
    /// No address, or no thread.
    #[error("there must be at least one address and one thread")]
    Empty,
    /// An address cannot be listened on.
    #[error("cannot listen on {address} ({}): {source}", transport.in_via())]
    Listen {
        /// Which.
        address: SocketAddr,
        /// UDP or TCP.
        transport: Transport,
        /// What the system said.
        source: io::Error,
    },
    /// No epoll instance or no thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// An answering side at work. Dropping it ends it.
#[derive(Debug)]
pub struct Uas {
    addresses: Vec<SocketAddr>,
    worker_counts: Vec<Arc<WorkerCounts>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// How often another port is asked for where any will do.
const MAX_ATTEMPTS: usize = 64;

/// The address, with a port that nobody else has over UDP or TCP. SO_REUSEPORT, which the threads need, would let two
/// programs of one user share a port: each would get a part of the other's connections.
fn free(address: SocketAddr) -> Result<SocketAddr, UasError> {
    let refused = |transport| {
        move |source| UasError::Listen {
            address,
            transport,
            source,
        }
    };
    let udp = UdpSocket::bind(address, &UdpOptions::default()).map_err(refused(Transport::Udp))?;
    let plain = TcpOptions {
        reuse_port: false,
        ..TcpOptions::default()
    };
    let tcp = TcpListener::bind(udp.local_addr(), &plain).map_err(refused(Transport::Tcp))?;
    Ok(tcp.local_addr())
}

/// The same. For port 0, it tries several ports that the kernel chooses for UDP. Over TCP, some of them are in use,
/// also by ended connections (TIME_WAIT). If there are many addresses, each has its own tries.
fn find(address: SocketAddr) -> Result<SocketAddr, UasError> {
    let mut tries = 0;
    loop {
        match free(address) {
            Err(_) if address.port() == 0 && tries < MAX_ATTEMPTS => tries += 1,
            found => return found,
        }
    }
}

/// Binds all sockets of all threads.
fn bind(options: &UasOptions) -> Result<(Vec<SocketAddr>, Vec<Worker>), UasError> {
    let any = options.listen.iter().any(|address| address.port() == 0);
    let mut tries = 0;
    loop {
        let addresses: Result<Vec<_>, _> = options.listen.iter().map(|at| find(*at)).collect();
        let bound = addresses.and_then(|mut addresses| {
            let workers: Result<Vec<_>, _> = (0..options.threads)
                .map(|_| Worker::bind(&mut addresses, options))
                .collect();
            Ok((addresses, workers?))
        });
        match bound {
            Ok(bound) => return Ok(bound),
            // Another program may have taken a port since it was found.
            Err(_) if any && tries < MAX_ATTEMPTS => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

impl Uas {
    /// Listens, and answers from now on.
    ///
    /// # Errors
    /// [`UasError`]; nothing listens then.
    pub fn start(options: &UasOptions) -> Result<Uas, UasError> {
        if options.listen.is_empty() || options.threads == 0 {
            return Err(UasError::Empty);
        }
        // All sockets are bound before any is read: a socket that joins later changes which gets a flow.
        let (addresses, workers) = bind(options)?;
        let mut uas = Uas {
            addresses,
            worker_counts: workers.iter().map(Worker::counts).collect(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for (index, worker) in workers.into_iter().enumerate() {
            let stop = uas.stop.clone();
            let thread = std::thread::Builder::new()
                .name(format!("uas-{index}"))
                .spawn(move || worker.run(&stop))
                .map_err(UasError::Thread)?;
            uas.threads.push(thread);
        }
        Ok(uas)
    }

    /// Where it listens, in the order of the options.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What it has answered so far.
    #[must_use]
    pub fn report(&self) -> UasReport {
        let mut report = UasReport::default();
        for counts in &self.worker_counts {
            counts.add_to(&mut report);
        }
        report
    }

    /// Ends it, and says what it answered.
    #[must_use]
    pub fn stop(mut self) -> UasReport {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has said why on stderr.
            let _ = thread.join();
        }
    }
}

impl Drop for Uas {
    fn drop(&mut self) {
        self.end();
    }
}
