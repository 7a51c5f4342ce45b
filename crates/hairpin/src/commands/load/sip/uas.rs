//! The answering side.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use load::generator::Stopper;
use load::sip::{Uas, UasOptions};

use super::Fault;
use super::target::SipAddress;
use crate::cli::load::sip::Args;
use crate::commands::load::live;
use crate::commands::reports::Destinations;
use crate::commands::stop;

/// Between two lines.
const SECOND: Duration = Duration::from_secs(1);

/// Answers until it is stopped.
pub(super) fn run(args: &Args, place: &SipAddress) -> Result<ExitCode, Fault> {
    let places = Destinations::new(&[("--json", args.how.results.json.as_deref())])?;
    let mut options = UasOptions::new(vec![place.address]);
    options.threads = args.how.course.receivers.into();
    options.ring = args.who.ring.unwrap_or_default();
    let stopper = Stopper::new();
    let stop_run = stopper.clone();
    stop::on_signals(move || stop_run.stop(), live::restore_terminal)?;
    let uas = Uas::start(&options).map_err(|error| Fault::Run(anyhow!(error)))?;
    for address in uas.addresses() {
        eprintln!("answering on {address}, UDP and TCP; Ctrl-C ends it");
    }
    let mut last = uas.report();
    let mut next = Instant::now() + SECOND;
    while !stopper.is_stopped() {
        std::thread::sleep(Duration::from_millis(50));
        if Instant::now() < next {
            continue;
        }
        next += SECOND;
        let now = uas.report();
        if now != last {
            eprintln!(
                "requests={}/s responses={}/s invites={}/s retransmissions={} overflow={}",
                now.requests() - last.requests(),
                now.responses - last.responses,
                now.invite - last.invite,
                now.retransmissions,
                now.overflow,
            );
        }
        last = now;
    }
    let report = uas.stop();
    places.summary(&format!(
        "answered {} requests with {} responses: OPTIONS {}, REGISTER {}, INVITE {} (again {}), ACK {}, BYE {}, others {}\n\
         200 sent again {}, calls without ACK {}, not understood {}, dropped by the receive buffer {}\n",
        report.requests(),
        report.responses,
        report.options,
        report.register,
        report.invite,
        report.repeated,
        report.ack,
        report.bye,
        report.other,
        report.retransmissions,
        report.unacknowledged,
        report.ignored,
        report.overflow,
    ))?;
    places.write("--json", || {
        serde_json::to_string_pretty(&report).context("cannot write the report")
    })?;
    Ok(ExitCode::SUCCESS)
}
