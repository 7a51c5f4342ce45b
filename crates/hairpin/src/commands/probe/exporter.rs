//! `hairpin probe turn --exporter`: a client that probes servers again and again, and shows Prometheus what it finds.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use hyper::header::HeaderValue;
use hyper::{Method, Response, StatusCode};
use load::probe::{ProbeError, ProbeErrorKind, TurnReport};

use super::report::Finding;
use super::target::Target;
use super::{Failure, credentials, probe_first_responding, usage};
use crate::admin::http::{Body, Incoming, METRICS, Peer, Respond, response, serve};
use crate::cli::probe::{Target as TargetArgs, Turn};
use crate::commands::output;
use crate::config;
use crate::metrics::probe::{Fault, Round, Rounds, probe_page};

/// A shorter pause would be load, not a probe.
const MIN_PAUSE_S: u64 = 5;
const MAX_PAUSE_S: u64 = 3_600;
/// Each has a thread, and series at Prometheus.
const MAX_TARGETS: usize = 32;

type SharedRounds = Arc<Mutex<Vec<Rounds>>>;

/// Probes until it is ended.
pub(super) fn run(turn: &Turn, address: SocketAddr) -> Result<ExitCode> {
    let (targets, every) = match prepare(turn) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(usage(&error)),
    };
    let found: SharedRounds = Arc::default();
    let list = targets.iter();
    let list = list.map(|(args, it)| Rounds::new(&args.target, it.transport()));
    found
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extend(list);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.context("cannot make the runtime of the exporter")?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address));
    let listener =
        listener.with_context(|| format!("cannot listen at {address}; set it with --exporter"))?;
    output::print(&format!(
        "metrics at http://{}/metrics\n",
        listener.local_addr()?
    ))?;
    std::thread::scope(|scope| {
        for (place, (args, _)) in targets.iter().enumerate() {
            let found = Arc::clone(&found);
            scope.spawn(move || {
                repeat(turn, args, every, |round| {
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(rounds) = found.get_mut(place) {
                        rounds.add(round);
                    }
                })
            });
        }
        runtime.block_on(serve(listener, Pages(Arc::clone(&found)), None));
    });
    Ok(ExitCode::SUCCESS)
}

/// The targets with their names, and the time from one round to the next.
fn prepare(turn: &Turn) -> Result<(Vec<(TargetArgs, Target)>, Duration)> {
    let every = config::parse_seconds(&turn.every)
        .map_err(|mistake| anyhow::anyhow!("--every: {mistake}"))?;
    ensure!(
        (MIN_PAUSE_S..=MAX_PAUSE_S).contains(&every),
        "--every: must be from {MIN_PAUSE_S}s to {MAX_PAUSE_S}s"
    );
    ensure!(
        turn.also.len() < MAX_TARGETS,
        "--also: at most {MAX_TARGETS} targets"
    );
    // Without a user name and a password, or with a wrong one, the arguments make no sense.
    credentials(turn)?;
    let mut targets: Vec<(TargetArgs, Target)> = Vec::new();
    for name in std::iter::once(&turn.target.target).chain(&turn.also) {
        let args = TargetArgs {
            target: name.clone(),
            ..turn.target.clone()
        };
        if targets.iter().any(|(known, _)| known.target == *name) {
            bail!("{name} is given twice");
        }
        let target = Target::new(&args, load::uri::Scheme::Turn)?;
        targets.push((args, target));
    }
    Ok((targets, Duration::from_secs(every)))
}

/// Rounds forever. A round that lasts longer than the pause delays the next one.
fn repeat(turn: &Turn, args: &TargetArgs, every: Duration, mut add: impl FnMut(Round)) {
    let mut next = Instant::now();
    loop {
        add(round(turn, args));
        next = (next + every).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// One round: resolves the name, makes credentials, and does what `hairpin probe turn` does. It resumes no TLS session
/// of an earlier round.
fn round(turn: &Turn, args: &TargetArgs) -> Round {
    let credentials = credentials(turn).ok().flatten();
    let target = match Target::new(args, load::uri::Scheme::Turn) {
        Ok(target) => target,
        Err(error) => return concluded(failed(Fault::Other), Some(format!("{error:#}"))),
    };
    let ask = |server| {
        load::probe::turn(server, credentials.as_ref(), target.timeout)
            .map(|report| Finding::Turn(Box::new(report)))
    };
    let (round, why) = match &probe_first_responding(&target, ask) {
        Ok(Finding::Turn(report)) => (of_report(report), fault_text(report)),
        // A probe of TURN finds nothing else.
        Ok(_) => (Round::default(), None),
        Err(Failure::NoAddress(error)) => (failed(Fault::Name), Some(format!("{error:#}"))),
        Err(Failure::Server(_, error)) => (failed(fault_of(error)), Some(error.to_string())),
    };
    concluded(round, why)
}

/// Notes the time, and says why the round has failed.
fn concluded(round: Round, why: Option<String>) -> Round {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix_s = now.map_or(0, |now| now.as_secs());
    if let Some(why) = why {
        eprintln!("{unix_s}: {}", output::printable(&why));
    }
    Round { unix_s, ..round }
}

fn failed(fault: Fault) -> Round {
    Round {
        fault: Some(fault),
        ..Round::default()
    }
}

fn of_report(report: &TurnReport) -> Round {
    let connected = report.connected.as_ref();
    let through = report.relayed_round_trip.as_ref();
    let (sent, returned) = match &report.relayed_round_trip {
        Ok(trip) => (trip.sent, trip.returned),
        Err(ProbeError::DataLost { sent, .. }) => (*sent, 0),
        Err(_) => (0, 0),
    };
    Round {
        fault: through.err().map(fault_of),
        unix_s: 0,
        connect: connected.and_then(|it| it.tcp),
        handshake: connected.and_then(|it| it.tls.as_ref().map(|(time, _)| *time)),
        allocate: Some(report.allocate),
        round_trip: through.ok().map(|trip| trip.round_trip),
        sent,
        returned,
    }
}

fn fault_text(report: &TurnReport) -> Option<String> {
    report
        .relayed_round_trip
        .as_ref()
        .err()
        .map(ToString::to_string)
}

fn fault_of(error: &ProbeError) -> Fault {
    match error.kind() {
        ProbeErrorKind::LocalSocket
        | ProbeErrorKind::NothingListens
        | ProbeErrorKind::NoAnswer
        | ProbeErrorKind::Connection => Fault::Unreachable,
        ProbeErrorKind::CredentialsNeeded | ProbeErrorKind::WrongCredentials => Fault::Credentials,
        ProbeErrorKind::Refused(_) => Fault::Refused,
        ProbeErrorKind::DataLost => Fault::DataLost,
        _ => Fault::Other,
    }
}

/// The page of metrics.
#[derive(Clone)]
struct Pages(SharedRounds);

impl Respond for Pages {
    async fn respond(&self, request: Incoming, _: Peer) -> Response<Body> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match (is_read, request.uri().path()) {
            (true, "/metrics") => {
                let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                response(StatusCode::OK, METRICS, probe_page(&found))
            }
            (false, "/metrics") => text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
            _ => text(StatusCode::NOT_FOUND, "only /metrics is here\n"),
        }
    }
}

fn text(status: StatusCode, line: &'static str) -> Response<Body> {
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response(status, plain, line.to_owned())
}
