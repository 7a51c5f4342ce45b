//! Relaying over TCP and TLS, and TLS handshakes, with the load generator's own clients and peers.
//!
//! Frames injected below the socket layer make no TCP connection. So clients and peers are sockets here, both in the
//! client's namespace. Data of a peer reaches the relayed address through the server's first interface. What is
//! delivered is counted by the generator.

use std::time::{Duration, Instant};

use bpf::count;
use bpf::inject::Injected;

use super::certificate;
use super::client::Churned;
use super::error::{IoContext, SideError};
use super::layout::{client_ip, server_address};
use super::packets::{Meter, Point};
use super::scenario::{Direction, Scenario, Transport};
use super::side::{PASSWORD, USERNAME};
use super::sip;
use super::topology::Topology;
use crate::Via;
use crate::generator::{
    self, ChurnOptions, Path, Plan, RelayOptions, Run, SetupError, SipWorkload, Stopper, Target,
    TurnClients, connect, relay,
};
use crate::measure::{Rate, Schedule};
use crate::report::{SipReport, Totals};
use crate::sip::Transport::Udp;
use client::Tls;
use turn::client::Credentials;

/// How long a server may take to listen on TCP.
const START_LIMIT: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// How long to wait for what is on its way after the last send.
pub(super) const DRAIN_TIME: Duration = Duration::from_millis(30);

/// Connects TURN clients and makes their allocations, or prepares SIP clients. `None` if the load of the scenario is
/// injected frames, which have no connections.
pub(super) fn open(
    topology: &Topology,
    scenario: &Scenario,
    server: u32,
) -> Result<Option<Plan>, SideError> {
    match *scenario {
        Scenario::Sip { work, over } => return sip::plan(work, over, None).map(Some),
        Scenario::SipOverload { work, .. } => {
            return sip::plan(work, Udp, Some(server)).map(Some);
        }
        _ => {}
    }
    let Scenario::Connections {
        transport,
        connections,
        direction,
        payload,
    } = *scenario
    else {
        return Ok(None);
    };
    let target = Target::admit(server_address(), true).map_err(failed)?;
    let mut turn = TurnClients::new(target);
    turn.via = match transport {
        Transport::Tcp => Via::Tcp,
        Transport::Tls => Via::Tls(tls()?),
    };
    turn.credentials = Some(Credentials::new(USERNAME, PASSWORD));
    let mut options = RelayOptions::new(turn);
    options.clients = connections.into();
    options.size = payload.into();
    options.path = Path::Peers {
        direction: match direction {
            Direction::ClientToPeer => generator::Direction::Up,
            Direction::PeerToClient => generator::Direction::Down,
            Direction::Both => generator::Direction::Both,
        },
        ip: Some(client_ip()),
        sockets: 1,
    };
    let plan = topology
        .in_client(|| {
            Ok(retry_until_listening(|| {
                relay(&options, &Stopper::default())
            }))
        })
        .doing("connect the clients")?;
    plan.map(Some).map_err(failed)
}

/// The server's certificate is self-signed, and clients do not verify its issuer. They verify the server's signature.
fn tls() -> Result<Tls, SideError> {
    Tls::insecure(certificate::NAME).map_err(failed)
}

/// Repeats `set_up` as long as the server does not listen.
fn retry_until_listening(
    set_up: impl Fn() -> Result<Plan, SetupError>,
) -> Result<Plan, SetupError> {
    let started = Instant::now();
    loop {
        match set_up() {
            Err(SetupError::Server { ready: 0, .. }) if started.elapsed() < START_LIMIT => {
                std::thread::sleep(RETRY_AFTER);
            }
            other => return other,
        }
    }
}

/// Opens and closes TLS connections with `in_flight` at a time for `duration`. Each has one Binding transaction.
pub(super) fn handshakes(
    topology: &Topology,
    resumed: bool,
    in_flight: u16,
    duration: Duration,
) -> Result<Churned, SideError> {
    let target = Target::admit(server_address(), true).map_err(failed)?;
    let mut turn = TurnClients::new(target);
    let tls = tls()?;
    turn.via = Via::Tls(if resumed {
        tls
    } else {
        tls.without_resumption()
    });
    let options = ChurnOptions::new(turn);
    let plan = topology
        .in_client(|| {
            Ok(retry_until_listening(|| {
                connect(&options, &Stopper::default())
            }))
        })
        .doing("connect the clients")?;
    let mut plan = plan.map_err(failed)?;
    plan.close_loop(in_flight.into());
    (plan.warm_up, plan.duration, plan.linger) = (Duration::ZERO, duration, DRAIN_TIME);
    let started = Instant::now();
    let report = topology
        .in_client(|| Ok(Run::start(plan).map(Run::finish)))
        .doing("run the generator")?
        .map_err(failed)?;
    Ok(Churned {
        cycles: report.total.received,
        // A failed cycle counts as lost; its error says why.
        errors: report.total.lost,
        wrong: corrupt(&report.total),
        elapsed: started.elapsed(),
    })
}

/// What arrived and is nothing that the server was asked for. Payloads of another run are left out: what an overload
/// has left in the buffers of connections arrives in the next measurement.
fn corrupt(total: &Totals) -> u64 {
    total.corrupt
        + total.truncated
        + total.damaged
        + total.foreign
        + total.unknown_ids
        + total.untrusted
        + total.unbound
        + total.wrong_addresses
}

/// Responses of a SIP server that no request has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnexpectedResponses {
    wrong: u64,
    second: u64,
}

impl UnexpectedResponses {
    fn of(sip: &SipReport, workload: &str) -> UnexpectedResponses {
        // A request that was sent again may be answered again (RFC 3261 §17.2.2). The 200 to an INVITE is sent again
        // until its ACK arrives (§13.3.1.4), so nothing is known of calls.
        let is_call = ![SipWorkload::Options, SipWorkload::Register]
            .iter()
            .any(|one| one.name() == workload);
        let unasked = sip.second.saturating_sub(sip.retransmissions);
        UnexpectedResponses {
            wrong: sip.wrong(),
            second: if is_call { 0 } else { unasked },
        }
    }
}

fn failed(error: impl std::error::Error) -> SideError {
    SideError::Connections(error.to_string())
}

impl Meter<'_> {
    /// One point over connections.
    pub(super) fn measure_point_over_connections(
        &mut self,
        mut plan: Plan,
        rate: Option<f64>,
        duration: Duration,
    ) -> Result<Point, SideError> {
        match rate {
            Some(rate) => plan.set_schedule(&Schedule::constant(Rate(rate))),
            None => plan.flat_out(),
        }
        let linger = self.linger;
        (plan.warm_up, plan.duration, plan.linger) = (Duration::ZERO, duration, linger);
        self.wait_until_idle()?;
        let run = self
            .bed
            .topology
            .in_client(|| Ok(Run::start(plan)))
            .doing("run the generator")?
            .map_err(failed)?;
        // The start has opened SIP connections and registered callees. Neither is part of what is measured.
        // The times of this measurement start at 0, the counters of frames have others.
        let before = self.read()?.counting(count::Totals::default());
        let (report, plan) = run
            .finish_and_keep()
            .ok_or_else(|| SideError::Connections("the run was over".into()))?;
        self.plan = Some(plan);
        let after = self.read()?;
        let total = &report.total;
        let workload = &report.run.workload;
        let sip = report.sip.as_deref();
        let sip = sip.map_or(UnexpectedResponses::default(), |sip| {
            UnexpectedResponses::of(sip, workload)
        });
        let after = after.counting(count::Totals {
            datagrams: total.received,
            packets: total.received,
            corrupt: corrupt(total) + sip.wrong,
            misdirected: total.misdelivered,
            duplicated: total.duplicates + sip.second,
            reordered: total.reordered,
            verified: total.received,
            last_ns: (report.run.last_arrival_s * 1e9) as u64,
            ..count::Totals::default()
        });
        let sent = Injected {
            frames: report.total.sent + report.total.not_sent,
            start_ns: 0,
            elapsed: duration,
            skipped: Duration::ZERO,
        };
        // The generator's threads are not this one: what others took of its processor is not known.
        let busy = duration.as_nanos() as u64;
        Ok(Point::new(&before, &after, &sent, busy))
    }

    /// Waits until the server has handled everything that was sent before.
    fn wait_until_idle(&self) -> Result<(), SideError> {
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        const MAX_POLLS: u32 = 50;
        const IDLE_NS: u64 = 1_000_000;
        let spent = || {
            let cpu = self.bed.topology.server_cpu();
            cpu.doing("read processor times").map(|cpu| cpu.processes)
        };
        let mut last = spent()?;
        for _ in 0..MAX_POLLS {
            std::thread::sleep(POLL_INTERVAL);
            let now = spent()?;
            if now.saturating_sub(last) < IDLE_NS {
                break;
            }
            last = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sip_server_that_answers_twice_is_named_unless_it_was_asked_twice() {
        let mut sip = SipReport::default();
        (sip.second, sip.retransmissions, sip.wrong_cseq) = (9, 4, 2);
        let odd = |workload: SipWorkload| UnexpectedResponses::of(&sip, workload.name());
        let found = odd(SipWorkload::Options);
        assert_eq!((found.wrong, found.second), (2, 5));
        assert_eq!(odd(SipWorkload::Register).second, 5);
        assert_eq!(odd(SipWorkload::Call).second, 0);
    }

    #[test]
    fn what_no_client_asked_for_is_damage() {
        let mut total = Totals::default();
        (total.foreign, total.unknown_ids, total.untrusted) = (1, 20, 300);
        (total.unbound, total.truncated) = (4_000, 50_000);
        assert_eq!(corrupt(&total), 54_321);
    }
}
