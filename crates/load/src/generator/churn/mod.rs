//! The workloads `allocate` and `connect`: allocations, or only connections, that come and go.
//!
//! A cycle is a new client with a new socket (over TCP and TLS, a connection). It sends an Allocate request (twice,
//! because the server challenges it), a Refresh, and a Refresh with lifetime 0. In the report, a cycle counts as one
//! datagram. It is sent when the cycle begins, received when its allocation is deleted, and lost otherwise. Its latency
//! begins at the scheduled start. The steps are transactions, with latencies of their own.

mod cycle;
mod ports;
mod worker;

use std::sync::Arc;

use turn::client::{AllocateOptions, ClientConfig};

use super::plan::{Closed, ROUND_TRIP, Work};
use super::setup::{SetupError, TurnClients, check_listens, reserve_descriptors, target_name};
use super::{Plan, Stopper};
use crate::Via;
use crate::measure::Schedule;
use ports::Ports;
use worker::Worker;

/// What the `allocate` workload needs beyond the plan's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChurnOptions {
    /// The clients and their server.
    pub turn: TurnClients,
    /// Cycles that may be in flight at once: what begins beyond that counts as not sent. Each takes a socket.
    pub in_flight: u32,
    /// Refresh requests between Allocate and deletion.
    pub refreshes: u32,
}

impl ChurnOptions {
    /// At most 8,192 cycles at once, one Refresh each.
    #[must_use]
    pub fn new(turn: TurnClients) -> ChurnOptions {
        ChurnOptions {
            turn,
            in_flight: 8192,
            refreshes: 1,
        }
    }
}

/// A churn as a plan has it.
#[derive(Debug)]
pub(super) struct Churn {
    options: ChurnOptions,
    kind: Kind,
    pub(super) schedule: Option<Schedule>,
}

/// The settings of every cycle.
#[derive(Clone, Debug)]
struct CycleSettings {
    turn: TurnClients,
    config: Arc<ClientConfig>,
    allocation: AllocateOptions,
    kind: Kind,
}

/// What a cycle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An allocation, with this many Refresh requests in its life.
    Allocate { refreshes: u32 },
    /// A connection, over TLS and DTLS with its handshake, and one Binding request.
    Connect,
}

impl Kind {
    /// What the report calls the steps.
    fn steps(self) -> &'static [&'static str] {
        match self {
            Kind::Allocate { .. } => &["allocate", "refresh", "release"],
            Kind::Connect => &["connect"],
        }
    }
}

/// Cycles in flight without a schedule or a window.
const DEFAULT_IN_FLIGHT: u32 = 64;

impl Churn {
    /// What the report calls the steps.
    pub(super) fn steps(&self) -> Vec<String> {
        self.kind
            .steps()
            .iter()
            .copied()
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn via(&self) -> &Via {
        &self.options.turn.via
    }

    /// The workers of a run. `closed` keeps this many cycles in flight; otherwise the schedule says when they begin.
    pub(super) fn workers(
        &self,
        count: usize,
        closed: Option<Closed>,
    ) -> std::io::Result<Vec<Worker>> {
        let turn = &self.options.turn;
        let recipe = CycleSettings {
            turn: turn.clone(),
            config: Arc::new(ClientConfig {
                keep_alive: false,
                ..turn.config()
            }),
            allocation: turn.allocation(),
            kind: self.kind,
        };
        let window = closed.map(|closed| closed.window);
        let window = window.or(self.schedule.is_none().then_some(DEFAULT_IN_FLIGHT));
        let count = count.min(window.unwrap_or(u32::MAX) as usize);
        let limit = Closed {
            window: window.unwrap_or(self.options.in_flight),
            timeout: turn.timeout,
        };
        let mut seed = [0; 4];
        getrandom::fill(&mut seed).map_err(|error| std::io::Error::other(error.to_string()))?;
        let seed = u32::from_le_bytes(seed);
        (0..count)
            .map(|index| {
                let schedule = match window {
                    None => self.schedule.clone(),
                    Some(_) => None,
                };
                let server = turn.server.address().ip();
                let place = (index as u16, count as u16);
                let ports = Ports::new(turn.local(), server, place, seed);
                let limit = limit.part(index, count).window.max(1);
                Worker::new(recipe.clone(), schedule, (index, count), limit, ports)
            })
            .collect()
    }
}

/// Puts allocations that come and go into a plan. Until it is given a schedule it keeps 64 cycles in flight. Nothing is
/// allocated yet.
///
/// # Errors
/// [`SetupError`]: nothing listens there, or the limit on open files is too low.
pub fn allocate(options: &ChurnOptions, stopper: &Stopper) -> Result<Plan, SetupError> {
    reserve_descriptors(options.in_flight.into())?;
    check_listens(&options.turn)?;
    let kind = Kind::Allocate {
        refreshes: options.refreshes,
    };
    let mut plan = plan("allocate", options, kind, stopper);
    for (name, value) in [
        ("unit", "cycles of allocate, refresh, delete".to_owned()),
        ("refreshes", options.refreshes.to_string()),
    ] {
        plan.settings.insert(name.to_owned(), value);
    }
    Ok(plan)
}

/// Puts connections that come and go into a plan: TCP or UDP, the TLS or DTLS handshake, one Binding request, the end.
/// `options.refreshes` and what concerns allocations mean nothing here.
///
/// # Errors
/// [`SetupError`]: nothing listens there, the certificate is rejected, or the limit on open files is too low.
pub fn connect(options: &ChurnOptions, stopper: &Stopper) -> Result<Plan, SetupError> {
    reserve_descriptors(options.in_flight.into())?;
    check_listens(&options.turn)?;
    let mut plan = plan("connect", options, Kind::Connect, stopper);
    let unit = "connections with one Binding request".to_owned();
    plan.settings.insert("unit".to_owned(), unit);
    if let Via::Tls(tls) = &options.turn.via {
        let resumption = if tls.resumes() { "yes" } else { "no" };
        let resumption = resumption.to_owned();
        plan.settings.insert("resumption".to_owned(), resumption);
    }
    Ok(plan)
}

fn plan(workload: &str, options: &ChurnOptions, kind: Kind, stopper: &Stopper) -> Plan {
    let target = match kind {
        Kind::Allocate { .. } => options.turn.target(),
        Kind::Connect => target_name("stun", options.turn.server.address(), &options.turn.via),
    };
    let churn = Churn {
        options: options.clone(),
        kind,
        schedule: None,
    };
    let mut plan = Plan::new(workload, &target, Work::Churn(Box::new(churn)));
    plan.latency_is = ROUND_TRIP.to_owned();
    plan.stopper = stopper.clone();
    let transport = options.turn.via.to_string();
    plan.settings.insert("transport".to_owned(), transport);
    plan
}
