//! The SIP workloads: transactions, registrations and calls, begun by a schedule or kept up in a window.
//!
//! A unit of work counts as one datagram does elsewhere: sent when it begins, received when it has succeeded, lost if
//! it has not. Its latency begins at the scheduled start and ends with the final response, after all retransmissions
//! and the challenge. The latency of a call ends with the 200 to its INVITE. The steps of a call have separate
//! latencies.
//!
//! ```text
//!   schedule ─▶ Core::begin ─▶ Out ─▶ sendmmsg, writev ─▶ server
//!                  │   ▲ timers A, B, E, F                   │
//!               Slots ◀┴──── Core::take ◀── recvmmsg, read ◀─┘
//! ```

mod answer;
mod authorize;
mod closing;
mod core;
mod enrol;
mod options;
mod pattern;
mod requests;
mod responses;
mod runs;
mod server_check;
mod slots;
mod sweep;
mod tally;
mod tcp;
mod template;
mod teststack;
mod texts;
mod udp;
mod worker;

use std::io as stdio;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use ::io::{Offloads, Poller};

use super::plan::{Closed, ROUND_TRIP, Work};
use super::setup::{SetupError, reserve_descriptors};
use super::shared::Shared;
use super::{Plan, Stopper, Target};
use crate::measure::Schedule;
use crate::sip::Transport;
use core::Setting;
pub use options::{SipCredentials, SipOptions, SipWorkload};
use runs::Runs;
pub use server_check::{ServerCheckError, check_server};
pub use sweep::{SweepOptions, SweepProgress, sweep};
use tcp::Connections;
pub use teststack::{TestStack, TestStackError, TestStackReport};
use texts::Words;
use udp::Datagrams;
use worker::{EnrolmentCounts, Start, Wire, Worker};

/// SIP as a plan has it.
#[derive(Debug)]
pub(super) struct Sip {
    options: Arc<SipOptions>,
    pub(super) schedule: Option<Schedule>,
    pub(super) gso: bool,
}

/// What the report calls the time from the try that was answered, which may have been a retransmission.
pub(super) const LAST_TRY: &str = "last try";
/// Units of work in flight without a schedule or a window.
const DEFAULT_IN_FLIGHT: u32 = 100;

impl Sip {
    /// What the report calls the steps of a call.
    const CALL_PARTS: [&'static str; 4] = ["ringing", "answer", "bye", LAST_TRY];

    /// Messages go over connections.
    pub(super) fn is_stream(&self) -> bool {
        self.options.transport.is_stream()
    }

    /// Names of the parts of the latencies.
    pub(super) fn part_names(&self) -> Vec<String> {
        let names = Sip::part_names_of(self.options.workload).iter();
        names.map(|name| (*name).to_owned()).collect()
    }

    fn part_names_of(workload: SipWorkload) -> &'static [&'static str] {
        match workload {
            SipWorkload::Call | SipWorkload::Proxy => &Sip::CALL_PARTS,
            // The first is that of the whole, which has a place of its own.
            _ => &["whole", LAST_TRY],
        }
    }

    /// The workers of a run, with their sockets open, their connections made and their callees registered.
    pub(super) fn workers(
        &self,
        count: usize,
        closed: Option<Closed>,
        shared: &Shared,
    ) -> stdio::Result<Vec<Worker>> {
        let window = closed.map(|closed| closed.window);
        let window = window.or(self.schedule.is_none().then_some(DEFAULT_IN_FLIGHT));
        let most = self.options.links.min(window.unwrap_or(u32::MAX));
        let count = count.min(most.max(1) as usize);
        let runs = Runs::new(self.options.runs);
        let workers = (0..count).map(|index| self.worker(index, count, window, runs.clone()));
        let mut workers: Vec<Worker> = workers.collect::<stdio::Result<_>>()?;
        enrol(&mut workers, self.options.targets[0], shared).map_err(stdio::Error::other)?;
        Ok(workers)
    }

    fn worker(
        &self,
        index: usize,
        count: usize,
        window: Option<u32>,
        runs: Runs,
    ) -> stdio::Result<Worker> {
        let options = &self.options;
        let part = |whole: u32| {
            let (index, count) = (index as u32, count as u32);
            whole / count + u32::from(index < whole % count)
        };
        let links = part(options.links).max(1) as usize;
        let own =
            |link: usize| options.targets[(index + link * count) % options.targets.len()].address();
        let mut targets: Vec<SocketAddr> = (0..links).map(own).collect();
        for further in &options.further {
            targets.extend(vec![further.address(); links]);
        }
        let poller = Poller::new()?;
        let wire = match options.transport {
            Transport::Udp => {
                let local = local_ip(options.local, targets[0])?;
                let gso = self.gso.then(Offloads::probe).filter(|probed| probed.gso);
                let gso = gso.map(|probed| probed.max_segments);
                Wire::Udp(Box::new(Datagrams::open(links, local, gso, &poller)?))
            }
            _ => Wire::Tcp(Connections::open(
                &targets,
                links,
                options.local,
                options.way(),
                &poller,
            )?),
        };
        let setting = Setting {
            words: Words::new(options, options.targets[0].address(), salt()?),
            options: options.clone(),
            index: index as u32,
            count: count as u32,
            limit: part(options.in_flight).max(1),
        };
        let start = Start {
            setting,
            wire,
            poller,
            targets,
            per_server: links,
            schedule: self.schedule.clone().filter(|_| window.is_none()),
            window: part(window.unwrap_or(0)) as usize,
            runs,
            // One of the workers measures the server's processor time.
            server: options.server_process.filter(|_| index == 0),
        };
        Ok(Worker::new(start))
    }
}

/// How long callees may take to register: longer than one request may take.
const ENROLMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Registers the callees of all workers.
fn enrol(workers: &mut [Worker], target: Target, shared: &Shared) -> Result<(), String> {
    let mut all = EnrolmentCounts::default();
    for worker in workers {
        let part = worker.enrol(false, ENROLMENT_TIMEOUT, shared);
        all.wanted += part.wanted;
        all.succeeded += part.succeeded;
        all.unreachable += part.unreachable;
        for (code, count) in part.failed {
            *all.failed.entry(code).or_default() += count;
        }
    }
    if all.succeeded == all.wanted || shared.stopping() {
        return Ok(());
    }
    let server = target.address();
    if all.succeeded == 0 && all.unreachable > 0 {
        return Err(format!("nothing listens on UDP {server}"));
    }
    let mut text = format!(
        "{} of {} callees are registered at {server}",
        all.succeeded, all.wanted
    );
    for (code, count) in all.failed {
        text += &match code {
            1 => format!(", {count} had no answer"),
            401 | 403 | 407 => format!(", {count} were answered {code}: see --user and --aor"),
            code => format!(", {count} were answered {code}"),
        };
    }
    Err(text)
}

/// The method of the first request of a unit of work.
fn method(workload: SipWorkload) -> ::sip::Method<'static> {
    match workload {
        SipWorkload::Options => ::sip::Method::Options,
        SipWorkload::Register => ::sip::Method::Register,
        SipWorkload::Call | SipWorkload::Proxy => ::sip::Method::Invite,
    }
}

/// Eight characters that no other run has.
fn salt() -> stdio::Result<String> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|error| stdio::Error::other(error.to_string()))?;
    Ok(format!("{:08x}", u32::from_le_bytes(bytes)))
}

/// The address that requests to `target` leave from: it has to stand in their Via.
fn local_ip(wanted: Option<IpAddr>, target: SocketAddr) -> stdio::Result<IpAddr> {
    if let Some(ip) = wanted {
        return Ok(ip);
    }
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting sends nothing; it asks the routes.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    socket.local_addr().map(|address| address.ip())
}

/// Puts a SIP workload into a plan. Until it is given a schedule it keeps 100 units of work in flight. Nothing is sent
/// yet.
///
/// # Errors
/// [`SetupError`]: the limit on open files is too low.
pub fn sip(options: &SipOptions, stopper: &Stopper) -> Result<Plan, SetupError> {
    reserve_descriptors(options.links.into())?;
    let target = format!(
        "sip:{};transport={}",
        options.targets[0].address(),
        options.transport.name()
    );
    let sip = Sip {
        options: Arc::new(options.clone()),
        schedule: None,
        gso: false,
    };
    let mut plan = Plan::new(options.workload.name(), &target, Work::Sip(Box::new(sip)));
    plan.latency_is = match options.workload {
        SipWorkload::Call | SipWorkload::Proxy => "INVITE to 200".to_owned(),
        _ => ROUND_TRIP.to_owned(),
    };
    plan.stopper = stopper.clone();
    let name = match options.transport {
        Transport::Udp => "sockets",
        _ => "connections",
    };
    plan.settings
        .insert(name.to_owned(), options.links.to_string());
    if matches!(options.workload, SipWorkload::Register | SipWorkload::Proxy) {
        plan.settings
            .insert("AORs".to_owned(), options.aors.to_string());
    }
    if !options.further.is_empty() {
        let further: Vec<String> = options
            .further
            .iter()
            .map(|target| target.address().to_string())
            .collect();
        plan.settings
            .insert("fails over to".to_owned(), further.join(" "));
    }
    if !options.obey {
        plan.settings
            .insert("Retry-After".to_owned(), "not heeded".to_owned());
    }
    let digest = options.credentials.is_some();
    if digest {
        let how = match options.reuse_nonces {
            true => "nonces used again",
            false => "each time",
        };
        plan.settings.insert("digest".to_owned(), how.to_owned());
    }
    Ok(plan)
}
