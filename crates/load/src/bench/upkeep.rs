//! What a server spends beside relaying: allocation churn, and memory.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{self, Allocations, Churned};
use super::connections;
use super::error::{IoContext, SideError};
use super::procfs;
use super::running::start_server;
use super::side::Side;
use super::spinner::Spinner;
use super::topology::Topology;

/// Churn before the measured part: the first cycles touch memory that the later ones find warm.
const WARM_UP: Duration = Duration::from_millis(200);

/// How fast allocations or connections come and go.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Churn {
    /// Allocations made and deleted per second, or connections.
    pub rate: f64,
    /// Processor time of the server per cycle, with receive softirq, in nanoseconds.
    pub cost_ns: f64,
    /// Share of the server's processor in use.
    pub busy: f64,
    /// Share of it that went elsewhere.
    pub foreign: f64,
    /// Cycles that failed, whose request was dropped, or that had no response at the end.
    pub errors: u64,
    /// Unusable messages to the clients: malformed, truncated, wrong integrity, or not from the server.
    pub wrong: u64,
}

/// What an allocation with one channel holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// Resident memory of the server's processes.
    pub user: f64,
    /// Kernel memory (slabs: sockets, files, epoll entries, tables).
    pub kernel: f64,
    /// Resident memory of the server before the first allocation.
    pub idle: f64,
    /// Allocations per second while they were made one after the other in a small window.
    pub rate: f64,
}

/// Makes and deletes allocations of a running server.
pub(crate) fn churn(
    topology: &Topology,
    spinner: &Spinner,
    in_flight: u16,
    duration: Duration,
) -> Result<Churn, SideError> {
    let work = |duration| client::churn(topology, in_flight, duration);
    cycles(topology, spinner, duration, work)
}

/// Opens and closes TLS connections to a running server.
pub(crate) fn handshakes(
    topology: &Topology,
    spinner: &Spinner,
    (resumed, in_flight): (bool, u16),
    duration: Duration,
) -> Result<Churn, SideError> {
    let work = |duration| connections::handshakes(topology, resumed, in_flight, duration);
    cycles(topology, spinner, duration, work)
}

/// What the server spends while `work` runs for `duration`, after a warm-up.
fn cycles(
    topology: &Topology,
    spinner: &Spinner,
    duration: Duration,
    work: impl Fn(Duration) -> Result<Churned, SideError>,
) -> Result<Churn, SideError> {
    let warm_up = work(WARM_UP)?;
    let clock = Instant::now();
    let (spun, before) = (
        spinner.cpu_ns(),
        topology.server_cpu().doing("read processor times")?,
    );
    let churned = work(duration)?;
    let after = topology.server_cpu().doing("read processor times")?;
    let (spun, wall) = (spinner.cpu_ns() - spun, clock.elapsed().as_nanos() as f64);
    let used =
        (after.processes + after.softirq).saturating_sub(before.processes + before.softirq) as f64;
    let seconds = churned.elapsed.as_secs_f64();
    Ok(Churn {
        rate: churned.cycles as f64 / seconds,
        cost_ns: used / churned.cycles.max(1) as f64,
        busy: used / (seconds * 1e9),
        foreign: (1.0 - (used + spun as f64) / wall).max(0.0),
        errors: churned.errors,
        wrong: warm_up.wrong + churned.wrong,
    })
}

/// Starts a server of its own and fills it with allocations.
pub(crate) fn memory(
    side: &Side,
    topology: &mut Topology,
    allocations: u16,
) -> Result<Memory, SideError> {
    let mut server = start_server(side, topology, allocations)?;
    // Opened first, so that their own kernel memory is in both readings.
    let mut clients = Allocations::open(topology, allocations)?;
    let idle = topology.server_memory().doing("read the server's memory")?;
    let slab = stable_slab_bytes();
    let clock = Instant::now();
    clients.allocate()?;
    let elapsed = clock.elapsed().as_secs_f64();
    let full_slab = stable_slab_bytes();
    server.check_alive()?;
    let full = topology.server_memory().doing("read the server's memory")?;
    let each =
        |before: u64, after: u64| (after as f64 - before as f64) / f64::from(allocations.max(1));
    Ok(Memory {
        user: each(idle, full),
        kernel: each(slab, full_slab),
        idle: idle as f64,
        rate: f64::from(allocations) / elapsed,
    })
}

/// Waits until the kernel memory is stable, and returns it in bytes. The kernel frees memory with a delay.
pub(super) fn stable_slab_bytes() -> u64 {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    const MAX_POLLS: u32 = 20;
    const STILL: u64 = 64 << 10;
    let mut last = procfs::slab_bytes();
    for _ in 0..MAX_POLLS {
        std::thread::sleep(POLL_INTERVAL);
        let now = procfs::slab_bytes();
        if now.abs_diff(last) < STILL {
            return now;
        }
        last = now;
    }
    last
}
