//! Which worker a client's datagrams go to, and where its allocation is made.
//!
//! ```text
//!  Allocate, authenticated, at the worker that the kernel's hash chose
//!     │ this worker is the least loaded, near enough: the allocation is made here, without any entry
//!     └ another has less to do: 1. an entry, 5-tuple -> that worker, in the group's BPF table
//!                               2. the request to its mailbox; it handles it as if it had arrived there
//!                               3. the entry goes when the allocation does
//! ```
//! The hash alone leaves the busiest of eight workers with 2.8 times its share of eight clients. Whoever has not
//! authenticated never gets an entry, and no entry gives way to another: a flow that lives never moves. Without the
//! capabilities for BPF, or when the table is full, the allocation is made where the hash sent its request.
//!
//! During an upgrade, two processes have sockets in each group (`numbering`, `shared`). Each flow of the old process
//! gets an entry. Datagrams without an entry go to the new process.

mod loads;
mod numbering;
mod placement;
mod shared;

pub(crate) use loads::Loads;
pub(crate) use numbering::{Foreign, Numbering};
pub(crate) use placement::{Placement, Target};
pub(crate) use shared::{Groups, SteeringTakeover};

use crate::error::StartError;
use crate::privileges::works_without_capabilities;
use crate::verifier;
use bpf::BpfError;
use bpf::steer::{Flow, Flows, Steering as Program};
use io::UdpSocket;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// How new allocations find their worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Steering {
    /// On the least loaded worker, if this process may load BPF programs; else as [`Steering::Hash`]. Default.
    #[default]
    Auto,
    /// On the least loaded worker; the server does not start if that is impossible.
    Bpf,
    /// Where the kernel's hash of the client's address happens to send its request.
    Hash,
}

/// The steering that is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SteeringInUse {
    /// There is only one worker.
    #[default]
    OneWorker,
    /// New allocations are placed on the least loaded worker.
    Bpf,
    /// The kernel's hash decides alone.
    Hash {
        /// Why placing is impossible; `None` if it was not wanted.
        because: Option<String>,
    },
}

impl SteeringInUse {
    /// Its name in logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            SteeringInUse::OneWorker => "one_worker",
            SteeringInUse::Bpf => "bpf",
            SteeringInUse::Hash { .. } => "hash",
        }
    }

    /// Whether a client can be led to any worker.
    pub(crate) const fn reaches_every_worker(&self) -> bool {
        matches!(self, SteeringInUse::OneWorker | SteeringInUse::Bpf)
    }

    /// Says at start why placing is impossible, if it was wanted, and what to do.
    fn log(&self) {
        if let SteeringInUse::Hash { because: Some(why) } = self {
            tracing::warn!(
                reason = %why,
                "the kernel's hash alone spreads clients over the workers, unevenly if there are few clients; \
                 set steering to hash if that is intended"
            );
        }
    }
}

/// The parts of steering that the workers get.
#[derive(Debug)]
pub(crate) struct Tables {
    /// Handles to the table of flows: each worker takes one, and the last one counts. None if there is no table.
    pub(crate) flows: Vec<Flows>,
    pub(crate) loads: Arc<Loads>,
    pub(crate) numbering: Numbering,
    /// The workers of the process that this one takes over from.
    pub(crate) foreign: Option<Foreign>,
    /// What another process could share.
    pub(crate) groups: Option<Groups>,
}

/// Most entries: at about 120 bytes each they are made as they are needed, but their buckets are not.
const MAX_FLOWS: usize = 1 << 20;

impl Tables {
    /// Loads and attaches the program, if it is wanted and can be had. `groups` has one list of sockets per listener,
    /// one socket per worker; `allocations` is how many can exist.
    pub(crate) fn set_up(
        wanted: Steering,
        groups: &[Vec<UdpSocket>],
        workers: usize,
        allocations: usize,
    ) -> Result<(SteeringInUse, Tables), StartError> {
        let mut tables = Tables::none(workers);
        let in_use = if workers == 1 {
            SteeringInUse::OneWorker
        } else if wanted == Steering::Hash {
            SteeringInUse::Hash { because: None }
        } else {
            match attach(groups, workers, allocations) {
                Ok((flows, groups)) => {
                    (tables.flows, tables.groups) = (flows, Some(groups));
                    SteeringInUse::Bpf
                }
                Err(error) if wanted == Steering::Bpf => {
                    verifier::log_at_debug(&error);
                    return Err(StartError::Steering(error));
                }
                Err(error) => {
                    verifier::log_at_debug(&error);
                    let because = Some(error.to_string());
                    SteeringInUse::Hash { because }
                }
            }
        };
        in_use.log();
        Ok((in_use, tables))
    }

    /// Without a table of flows.
    pub(crate) fn none(workers: usize) -> Tables {
        Tables {
            flows: Vec::new(),
            loads: Arc::new(Loads::new(workers)),
            numbering: Numbering::alone(workers),
            foreign: None,
            groups: None,
        }
    }

    /// Whether entries can be written without any capability. No program steers yet.
    pub(crate) fn can_write_unprivileged(&mut self) -> bool {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let flow = Flow {
            remote: nowhere,
            local: nowhere,
        };
        let Some(flows) = self.flows.first_mut() else {
            return true;
        };
        works_without_capabilities(|| flows.insert(&flow, 0).is_ok() && flows.remove(&flow))
    }
}

/// Nothing has an entry yet, so attaching moves no client.
fn attach(
    groups: &[Vec<UdpSocket>],
    workers: usize,
    allocations: usize,
) -> Result<(Vec<Flows>, Groups), BpfError> {
    let sockets = u32::try_from(groups.len() * workers).unwrap_or(u32::MAX);
    let flows = most_flows(allocations);
    let mut program = Program::load(sockets, flows)?;
    for (slot, socket) in (0..).zip(groups.iter().flatten()) {
        program.set_socket(slot, socket)?;
    }
    for socket in groups.iter().filter_map(|group| group.first()) {
        program.attach(socket)?;
    }
    let handles = (0..=workers)
        .map(|_| program.flows())
        .collect::<Result<_, _>>()?;
    Ok((handles, Groups::alone(program.tables()?)))
}

/// Entries for this many allocations, and for as many of a process that takes over.
fn most_flows(allocations: usize) -> u32 {
    let most = allocations.saturating_mul(2).clamp(1, MAX_FLOWS);
    u32::try_from(most).unwrap_or(u32::MAX)
}
