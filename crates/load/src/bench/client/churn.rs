//! Allocations that are made and deleted, as fast as a server can.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use turn::client::{ClientConfig, Event};

use super::{RETRANSMISSION_TIMEOUT, allocate_options, config, driver, io_error};
use crate::bench::error::{IoContext, SideError};
use crate::bench::layout::{self, server_address};
use crate::bench::topology::Topology;
use crate::client::{ClientId, Data, Driver, Handler};

/// The result of churn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Churned {
    /// Allocations made and deleted.
    pub(crate) cycles: u64,
    /// Cycles that failed or timed out, whose request was dropped, or that had no response at the end.
    pub(crate) errors: u64,
    /// Unusable messages: malformed, truncated, wrong integrity, or not from the server.
    pub(crate) wrong: u64,
    /// How long it took.
    pub(crate) elapsed: Duration,
}

/// Makes and deletes allocations with `in_flight` clients at a time for `duration`.
pub(crate) fn churn(
    topology: &Topology,
    in_flight: u16,
    duration: Duration,
) -> Result<Churned, SideError> {
    let mut driver = driver()?;
    let mut churn = Churn {
        config: config(),
        cycles: 0,
        errors: 0,
        in_flight: 0,
        clients: in_flight.into(),
        asked: Vec::new(),
        is_ending: false,
        failed: None,
    };
    let work = || {
        (0..in_flight).for_each(|_| churn.begin(&mut driver));
        let start = Instant::now();
        driver.run_until(duration, &mut churn, |_, churn| churn.failed.is_some())?;
        let (elapsed, cycles) = (start.elapsed(), churn.cycles);
        churn.is_ending = true;
        driver.run_until(DRAIN_TIME, &mut churn, |_, churn| churn.in_flight == 0)?;
        Ok((elapsed, cycles))
    };
    let (elapsed, cycles) = topology.in_client(work).doing("wait for responses")?;
    match churn.failed {
        Some(error) => Err(error).doing("open a client socket"),
        None => Ok(Churned {
            cycles,
            // A cycle that the server drops without a response is an error.
            errors: churn.errors + churn.in_flight,
            wrong: driver.stats().wrong(),
            elapsed,
        }),
    }
}

/// How long the harness waits at the end for what is in flight: longer than another task may delay a server.
const DRAIN_TIME: Duration = Duration::from_secs(2);

struct Churn {
    config: Arc<ClientConfig>,
    cycles: u64,
    errors: u64,
    in_flight: u64,
    /// The number of clients. `asked`: when each client first sent its current request, and how many cycles had ended
    /// then.
    clients: u64,
    asked: Vec<(Instant, u64)>,
    /// No cycle begins any more.
    is_ending: bool,
    failed: Option<io::Error>,
}

impl Churn {
    /// Lets a new client allocate from a port of its own.
    fn begin(&mut self, driver: &mut Driver) {
        match fresh_client(driver, &self.config) {
            Ok(id) => {
                self.in_flight += 1;
                self.ask(id);
                // If the client cannot send, its cycle never ends and counts as an error at the end.
                driver.with(id, |client, now| client.allocate(now, allocate_options()));
            }
            Err(error) => self.failed = Some(error),
        }
    }

    /// A client sends its next request. Returns whether the server dropped the earlier one: the client had to
    /// retransmit it, and in that time the server completed at least two cycles per client. If the server stalls, no
    /// client has cycles, so this is no drop.
    fn ask(&mut self, id: ClientId) -> bool {
        let now = (Instant::now(), self.cycles);
        let count = self.asked.len().max(id.index() + 1);
        self.asked.resize(count, now);
        let (at, cycles) = std::mem::replace(&mut self.asked[id.index()], now);
        now.0.duration_since(at) >= RETRANSMISSION_TIMEOUT
            && self.cycles - cycles >= 2 * self.clients
    }

    /// A cycle is over; the client's socket is closed, and another one begins, unless this is the end.
    fn next(&mut self, driver: &mut Driver, id: ClientId) {
        drop(driver.release(id));
        self.in_flight -= 1;
        if !self.is_ending {
            self.begin(driver);
        }
    }
}

impl Handler for Churn {
    fn event(&mut self, driver: &mut Driver, id: ClientId, event: Event) {
        match event {
            Event::Allocated(_) => {
                self.errors += u64::from(self.ask(id));
                driver.with(id, |client, now| client.release(now, None));
            }
            Event::Released { .. } => {
                self.cycles += 1;
                self.errors += u64::from(self.ask(id));
                self.next(driver, id);
            }
            Event::AllocateFailed { .. } | Event::RefreshFailed(_) | Event::Lost(_) => {
                self.errors += 1;
                self.next(driver, id);
            }
            _ => {}
        }
    }

    fn data(&mut self, _: ClientId, _: Data<'_>) {}
}

/// The ports of clients that come and go. The clients of flows have the ports above: the server refuses a second
/// allocation of one of them (437).
const PORTS: std::ops::Range<u32> = 1_024..layout::FIRST_CLIENT_PORT as u32;

/// A client on a port that has not been used for as long as possible. The kernel would
/// choose at random, and so soon take one whose allocation the server has deleted but not yet
/// forgotten, and refuses (437).
fn fresh_client(driver: &mut Driver, config: &Arc<ClientConfig>) -> io::Result<ClientId> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start);
        // Below FIRST_CLIENT_PORT.
        let port = (PORTS.start + number) as u16;
        let local = SocketAddr::new(layout::client_ip(), port);
        let added = driver.add(local, server_address(), Arc::clone(config));
        match added.map_err(io_error) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
}
