//! `hairpin probe`: a client that says what a server gave it, or why not.
//!
//! Status 0: the server works; 1: it does not; 2: the arguments make no sense.

mod exporter;
mod nat;
mod offload;
mod report;
mod srv;
mod target;

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use load::ServerAddress;
use load::probe::{self, Credentials, NatOptions, ProbeError, ProbeErrorKind};
use load::uri::Scheme;

use super::{creds, output};
use crate::cli::probe::{Args, Nat, Target as TargetArgs, Turn, What};
use report::Finding;
use target::Target;

/// Time-limited credentials for a probe only have to outlive it.
const CREDENTIALS_S: u64 = 3_600;

/// Status of a usage error, the same as for arguments that do not parse.
const USAGE: u8 = 2;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Offload(wanted) => offload::run(wanted),
        What::Stun(args) => match Target::new(args, Scheme::Stun) {
            Ok(target) => {
                let ask = |server| {
                    probe::stun(server, target.timeout)
                        .map(|report| Finding::Stun(Box::new(report)))
                };
                conclude(args, probe_first_responding(&target, ask), ASK_TURN)
            }
            Err(error) => Ok(usage(&error)),
        },
        What::Nat(args) => match prepare_nat(args) {
            Ok((target, options)) => {
                let ask = |server: ServerAddress| {
                    probe::nat(&server, &options).map(|report| Finding::Nat(Box::new(report)))
                };
                let servers = target.servers_for_nat(args.name_server);
                conclude(&args.target, first_of(servers, ask), ASK_TURN)
            }
            Err(error) => Ok(usage(&error)),
        },
        What::Turn(turn) => turn_once_or_again(turn),
    }
}

fn turn_once_or_again(turn: &Turn) -> Result<ExitCode> {
    match turn.exporter {
        Some(address) => exporter::run(turn, address),
        None => match prepare_turn(turn) {
            Ok((target, credentials)) => {
                let ask = |server| {
                    probe::turn(server, credentials.as_ref(), target.timeout)
                        .map(|report| Finding::Turn(Box::new(report)))
                };
                let finding = probe_first_responding(&target, ask);
                conclude(&turn.target, finding, GIVE_CREDENTIALS)
            }
            Err(error) => Ok(usage(&error)),
        },
    }
}

/// The arguments make no sense.
fn usage(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(USAGE)
}

fn prepare_nat(args: &Nat) -> Result<(Target, NatOptions)> {
    let target = Target::new(&args.target, Scheme::Stun)?;
    anyhow::ensure!(
        !target.is_dtls(),
        "RFC 5780 has no NAT behaviour discovery over DTLS: write stun:HOST, stun:HOST?transport=tcp or stuns:HOST"
    );
    anyhow::ensure!(
        target.is_udp() || args.lifetime.is_none(),
        "--lifetime is tested over UDP: leave out ?transport= and write stun:HOST or HOST"
    );
    let mut options = NatOptions::new(target.timeout);
    options.lifetime = args.lifetime;
    Ok((target, options))
}

fn prepare_turn(turn: &Turn) -> Result<(Target, Option<Credentials>)> {
    let target = Target::new(&turn.target, Scheme::Turn)?;
    Ok((target, credentials(turn)?))
}

/// What to authenticate with, if anything is given.
fn credentials(turn: &Turn) -> Result<Option<Credentials>> {
    Ok(match (&turn.user, &turn.secret) {
        (Some(user), _) => {
            let (name, password) = user
                .split_once(':')
                .context("--user: expected NAME:PASSWORD, for example alice:s3cret")?;
            Some(Credentials::new(name, password))
        }
        (None, Some(secret)) => {
            let ice = creds::make(
                secret,
                "probe",
                creds::now_unix_s() + CREDENTIALS_S,
                Vec::new(),
            );
            Some(Credentials::new(&ice.username, &ice.password))
        }
        (None, None) => None,
    })
}

/// Why there is nothing to report.
#[derive(Debug)]
enum Failure {
    /// The name leads nowhere.
    NoAddress(anyhow::Error),
    /// The failure of the last server that was tried.
    Server(SocketAddr, Box<ProbeError>),
}

/// Tries one address after the other until one answers at all.
fn probe_first_responding(
    target: &Target,
    ask: impl Fn(ServerAddress) -> Result<Finding, ProbeError>,
) -> Result<Finding, Failure> {
    first_of(target.addresses(), ask)
}

fn first_of(
    addresses: Result<Vec<ServerAddress>>,
    ask: impl Fn(ServerAddress) -> Result<Finding, ProbeError>,
) -> Result<Finding, Failure> {
    let addresses = addresses.map_err(Failure::NoAddress)?;
    let mut left = addresses.len();
    for server in addresses {
        left -= 1;
        let address = server.address;
        match ask(server) {
            Ok(finding) => return Ok(finding),
            Err(error) if left > 0 && may_differ_at_other_address(&error) => {
                let error = output::printable(&error.to_string());
                eprintln!("{error}; trying the next address");
            }
            Err(error) => return Err(Failure::Server(address, Box::new(error))),
        }
    }
    Err(Failure::NoAddress(anyhow!("there is no address to ask")))
}

/// Whether another address of the same server may do better.
fn may_differ_at_other_address(error: &ProbeError) -> bool {
    matches!(
        error.kind(),
        ProbeErrorKind::LocalSocket | ProbeErrorKind::NothingListens | ProbeErrorKind::NoAnswer
    )
}

/// What to do if a server requires credentials.
const GIVE_CREDENTIALS: &str = ": give --secret SECRET or --user NAME:PASSWORD";
/// The same for a command that sends Binding requests only.
const ASK_TURN: &str =
    ": this command sends Binding requests without credentials; hairpin probe turn has some";

/// `advice` says what to do if the server requires credentials.
fn conclude(
    args: &TargetArgs,
    finding: Result<Finding, Failure>,
    advice: &str,
) -> Result<ExitCode> {
    let finding = match finding {
        Ok(finding) => finding,
        Err(failure) => {
            if args.json {
                output::print(&format!("{}\n", report::failure_json(&failure)))?;
            }
            match failure {
                Failure::NoAddress(error) => eprintln!("error: {error:#}"),
                Failure::Server(_, error) => {
                    let advice = match error.kind() {
                        ProbeErrorKind::CredentialsNeeded => advice,
                        _ => "",
                    };
                    eprintln!("error: {}{advice}", output::printable(&error.to_string()));
                }
            }
            return Ok(ExitCode::FAILURE);
        }
    };
    output::print(&if args.json {
        format!("{}\n", finding.json())
    } else {
        finding.text()
    })?;
    match finding.fault() {
        None => Ok(ExitCode::SUCCESS),
        Some(fault) => {
            eprintln!("error: {}", output::printable(&fault));
            Ok(ExitCode::FAILURE)
        }
    }
}
