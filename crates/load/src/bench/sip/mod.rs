//! SIP: the configurations of the servers, what clients do, overload, and memory.
//!
//! Clients and callees are those of `hairpin load sip`, in the client's namespace. A unit of work counts as a datagram
//! does in other scenarios: it is sent when it begins, and delivered when it has succeeded.

mod configs;
mod overload;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

pub(super) use configs::{Configs, side_for};
pub use overload::Overload;
pub(super) use overload::multiples;
#[cfg(test)]
pub(super) use overload::tests;

use super::certificate;
use super::error::{IoContext, SideError};
use super::layout::{client_ip, sip_address, sip_address_over};
use super::procfs;
use super::running::start_server;
use super::scenario::SipWork;
use super::side::{PASSWORD, Side};
use super::topology::Topology;
use super::upkeep::{Memory, stable_slab_bytes};
use crate::generator::{Plan, Run, SipCredentials, SipOptions, SipWorkload, Stopper, Target, sip};
use crate::measure::{Rate, Schedule};
use crate::sip::Transport;

/// The domain that has a registrar and a proxy.
const DOMAIN: &str = "bench.test";
/// Users that register, and users that call each other. The latter register before each load, so they are few.
const REGISTERING_USERS: u32 = 10_000;
pub(super) const CALLING_USERS: u32 = 20;
/// Sockets of the clients, and their connections where a transport has some.
const SOCKETS: u32 = 10;
const CONNECTIONS: u32 = 64;
/// How long the harness waits for calls and registrations that are in progress at the end of a load.
pub(super) const DRAIN_TIME: Duration = Duration::from_millis(200);
/// The load from which the search estimates what a server can do, in units per second.
pub(super) const FIRST_RATE: f64 = 2_000.0;
/// Units per second while memory is filled.
const FILL_RATE: f64 = 2_000.0;

fn failed(error: impl std::error::Error) -> SideError {
    SideError::Connections(error.to_string())
}

/// The generator's options: the workload, and for REGISTER and proxied calls also domain, users and credentials.
fn options(work: SipWork, over: Transport) -> Result<SipOptions, SideError> {
    let target = Target::admit(sip_address_over(over), true).map_err(failed)?;
    let mut options = SipOptions::new(target);
    options.transport = over;
    options.links = match over.is_stream() {
        true => CONNECTIONS,
        false => SOCKETS,
    };
    if over.is_secure() {
        // The certificate is self-signed.
        options.tls = Some(client::Tls::insecure(certificate::NAME).map_err(failed)?);
    }
    options.local = Some(client_ip());
    options.obey = false;
    options.workload = match work {
        SipWork::Options => SipWorkload::Options,
        SipWork::Call => SipWorkload::Call,
        SipWork::Register => SipWorkload::Register,
        SipWork::ProxiedCall => SipWorkload::Proxy,
    };
    if matches!(work, SipWork::Register | SipWork::ProxiedCall) {
        options.domain = Some(DOMAIN.to_owned());
        options.aors = match work {
            SipWork::Register => REGISTERING_USERS,
            _ => CALLING_USERS,
        };
        options.credentials = Some(SipCredentials {
            user: "u{n}".to_owned(),
            password: PASSWORD.to_owned(),
        });
    }
    Ok(options)
}

/// The load of a scenario. `server` is the process of the server, if the report should say what it spends.
pub(super) fn plan(work: SipWork, over: Transport, server: Option<u32>) -> Result<Plan, SideError> {
    let mut options = options(work, over)?;
    options.server_process = server;
    let mut plan = sip(&options, &Stopper::default()).map_err(failed)?;
    // The load does not stop early for a server that drops everything.
    plan.silence = Duration::ZERO;
    Ok(plan)
}

/// Sends OPTIONS requests until a datagram arrives. Returns `false` if none arrives within `limit`.
pub(super) fn wait_for_answer(
    topology: &Topology,
    limit: Duration,
    mut alive: impl FnMut() -> Result<(), SideError>,
) -> Result<bool, SideError> {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    let open = || UdpSocket::bind(SocketAddr::new(client_ip(), 0));
    let socket = topology.in_client(open).doing("open a client socket")?;
    socket
        .set_read_timeout(Some(POLL_INTERVAL))
        .doing("set a timeout")?;
    let server = sip_address();
    let here = socket.local_addr().doing("read an address")?;
    let deadline = Instant::now() + limit;
    let mut tries = 0;
    while Instant::now() < deadline {
        alive()?;
        tries += 1;
        let request = format!(
            "OPTIONS sip:{server} SIP/2.0\r\nVia: SIP/2.0/UDP {here};branch=z9hG4bKready{tries};rport\r\nMax-Forwards: 70\r\n\
             From: <sip:x@{here}>;tag=1\r\nTo: <sip:{server}>\r\nCall-ID: ready@{here}\r\nCSeq: {tries} OPTIONS\r\nContent-Length: 0\r\n\r\n"
        );
        // Before the server listens, both calls may fail with ECONNREFUSED.
        let sent = socket.send_to(request.as_bytes(), server);
        if sent.and_then(|_| socket.recv(&mut [0; 2048])).is_ok() {
            return Ok(true);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(false)
}

/// Starts a separate server and fills it with registration bindings, with calls in progress, or with the state that it
/// keeps of finished calls.
pub(super) fn memory(
    side: &Side,
    topology: &mut Topology,
    (work, count): (SipWork, u16),
) -> Result<Memory, SideError> {
    let mut server = start_server(side, topology, 0)?;
    let mut options = options(work, Transport::Udp)?;
    if work == SipWork::ProxiedCall {
        // Longer than the measurement: none ends before it.
        options.hold = Duration::from_secs(30);
    }
    let mut plan = sip(&options, &Stopper::default()).map_err(failed)?;
    plan.set_schedule(&Schedule::constant(Rate(FILL_RATE)));
    plan.silence = Duration::ZERO;
    let filled = Duration::from_secs_f64(f64::from(count) / FILL_RATE);
    (plan.warm_up, plan.duration, plan.linger) = (Duration::ZERO, filled, DRAIN_TIME);
    let stopper = plan.stopper.clone();
    let idle = topology.server_memory().doing("read the server's memory")?;
    let slab = stable_slab_bytes();
    let run = topology.in_client(|| Ok(Run::start(plan)));
    let run = run.doing("run the generator")?.map_err(failed)?;
    std::thread::sleep(filled + DRAIN_TIME);
    server.check_alive()?;
    let full = topology.server_memory().doing("read the server's memory")?;
    let full_slab = procfs::slab_bytes();
    stopper.stop();
    let report = run.finish();
    let held = report.total.sent.max(1) as f64;
    let each = |before: u64, after: u64| (after as f64 - before as f64) / held;
    Ok(Memory {
        user: each(idle, full),
        kernel: each(slab, full_slab),
        idle: idle as f64,
        rate: FILL_RATE,
    })
}
