//! `hairpin peer`: a reflector for measurements, with a line a second.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use load::measure::{Counter, Payload, Snapshot};
use load::peer::{Mode, Peer, PeerError, PeerOptions};
use server::signals::Signals;

use super::reports::Destinations;
use super::status;
use crate::cli::peer::Args;

const SECOND: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let options = match options(args) {
        Ok(options) => options,
        Err(error) => return Ok(status::usage(&error)),
    };
    let reports = Destinations::new(&[("--json", args.json.as_deref())])?;
    // Before any thread starts, so that no signal is missed.
    let mut signals = Signals::install().context("cannot catch SIGINT and SIGTERM")?;
    let peer = Peer::start(&options).map_err(explain)?;
    announce(&peer, &options);
    watch(&peer, &mut signals, args.duration)?;
    let report = peer.stop();
    reports.summary(&format!("{report}\n"))?;
    reports.write("--json", || {
        serde_json::to_string_pretty(&report.to_json()).context("cannot write the report")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &Args) -> Result<PeerOptions> {
    let mode = match (args.sink, args.source) {
        (true, _) => Mode::Sink,
        (_, Some(rate)) if rate.0 <= 0.0 => {
            bail!("--source: the rate must be above 0; to send nothing, use --sink")
        }
        (_, Some(rate)) => Mode::Source {
            rate,
            size: args.size,
        },
        _ => Mode::Echo,
    };
    if !(Payload::MIN..=Payload::MAX).contains(&args.size) {
        bail!(
            "--size: payloads of {} bytes cannot be measured: choose {} to {}",
            args.size,
            Payload::MIN,
            Payload::MAX
        );
    }
    Ok(PeerOptions {
        listen: args
            .listen
            .iter()
            .flat_map(|list| &list.0)
            .copied()
            .collect(),
        threads: args.threads.into(),
        mode,
        offload: !args.no_offload,
        buffer: args.buffer << 10,
        payload_key: args.payload_key,
    })
}

/// What to do about what the kernel says.
fn explain(error: PeerError) -> anyhow::Error {
    use std::io::ErrorKind;
    let advice = match &error {
        PeerError::Bind { source, .. } => match source.kind() {
            ErrorKind::AddrInUse => {
                ": another program has the port; choose one with --listen ADDRESS:PORT"
            }
            ErrorKind::AddrNotAvailable => ": the address is not one of this machine",
            ErrorKind::PermissionDenied => ": ports below 1024 take root",
            _ if source.raw_os_error() == Some(TOO_MANY_FILES) => {
                ": fewer ports or threads, or a higher `ulimit -n`"
            }
            _ => "",
        },
        _ => "",
    };
    anyhow!("{error}{advice}")
}

/// EMFILE.
const TOO_MANY_FILES: i32 = 24;

fn announce(peer: &Peer, options: &PeerOptions) {
    let addresses = peer.addresses();
    match addresses {
        [first, .., last] if addresses.len() > 8 => {
            eprintln!(
                "listening on {} addresses, {first} to {last}",
                addresses.len()
            );
        }
        few => few
            .iter()
            .for_each(|address| eprintln!("listening on {address}")),
    }
    let open = |ip: std::net::IpAddr| !ip.is_loopback();
    if matches!(options.mode, Mode::Source { .. })
        && addresses.iter().any(|address| open(address.ip()))
    {
        eprintln!(
            "warning: the stream goes to every address that speaks, forged ones too: not for a network with strangers in it"
        );
    }
}

/// A line a second until a signal or the end of the time.
fn watch(peer: &Peer, signals: &mut Signals, duration: Option<Duration>) -> Result<()> {
    let started = Instant::now();
    let end = duration.and_then(|duration| started.checked_add(duration));
    let mut next = started + SECOND;
    let mut last = peer.snapshot();
    loop {
        let until = end.map_or(next, |end| end.min(next));
        let left = until.saturating_duration_since(Instant::now());
        if signals
            .wait(Some(left))
            .context("cannot wait for signals")?
            .is_some()
        {
            return Ok(());
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            return Ok(());
        }
        if Instant::now() >= next {
            let now = peer.snapshot();
            eprintln!("{}", line(started.elapsed(), &now.since(&last)));
            last = now;
            next += SECOND;
        }
    }
}

/// What happened within one second.
fn line(at: Duration, change: &Snapshot) -> String {
    let megabits = change.get(Counter::ReceivedBytes) as f64 * 8.0 / 1e6;
    format!(
        "at_s={:.0} recv_pps={} send_pps={} recv_mbit={megabits:.1} foreign={} corrupt={} not_sent={} overflow={}",
        at.as_secs_f64(),
        change.get(Counter::Received),
        change.get(Counter::Sent),
        change.get(Counter::Foreign),
        change.get(Counter::Corrupt),
        change.get(Counter::NotSent),
        change.get(Counter::Overflow),
    )
}
