//! `hairpin load`: measures a STUN, TURN or SIP server with the generator of [`load::generator`].
//!
//! `turn`, `stun` and `sip` turn arguments into a plan, `run` carries it out while `live` shows it, `conclude` reports.
//! There are two kinds of errors: those of the arguments (status 2) and those of the run (status 1).

mod compare;
mod conclude;
mod live;
mod place;
mod run;
mod sip;
mod stun;
mod turn;

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use load::Via;
use load::generator::{PlanError, RunError, ServerCheckError, SetupError};
use load::probe::ProbeErrorKind;

use super::{output, status};
use crate::cli::load::course::TimingArgs;
use crate::cli::load::{Args, What};

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let outcome = match &args.what {
        What::Turn(args) => turn::run(args),
        What::Stun(args) => stun::run(args),
        What::Sip(args) => sip::run(args),
        What::Compare(args) => return compare::run(args),
    };
    match outcome {
        Ok(code) => Ok(code),
        Err(Fault::Usage(error)) => Ok(status::usage(&error)),
        Err(Fault::Run(error)) => Err(error),
    }
}

/// Why there is no report.
#[derive(Debug)]
enum Fault {
    /// The arguments make no sense.
    Usage(anyhow::Error),
    /// The machine, the network or the server.
    Run(anyhow::Error),
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Fault {
        Fault::Run(error)
    }
}

impl From<SetupError> for Fault {
    fn from(error: SetupError) -> Fault {
        let advice = match &error {
            SetupError::Server { source, .. } => match source.kind() {
                ProbeErrorKind::CredentialsNeeded => {
                    ": give --secret SECRET or --user NAME:PASSWORD"
                }
                _ => "",
            },
            _ => "",
        };
        // Some of it comes from the network.
        let text = anyhow!("{}{advice}", output::printable(&error.to_string()));
        if error.is_usage() {
            Fault::Usage(text)
        } else {
            Fault::Run(text)
        }
    }
}

impl From<ServerCheckError> for Fault {
    fn from(error: ServerCheckError) -> Fault {
        let advice = match &error {
            ServerCheckError::CredentialsNeeded { .. } => ": give --user NAME:PASSWORD",
            _ => "",
        };
        Fault::Run(anyhow!("{error}{advice}"))
    }
}

impl From<RunError> for Fault {
    fn from(error: RunError) -> Fault {
        match error {
            RunError::Plan(PlanError::NoAnswers) => Fault::Usage(anyhow!(
                "--closed: {error}: for `relay` that is --reflector or --peer"
            )),
            RunError::Plan(_) => Fault::Usage(error.into()),
            _ => Fault::Run(error.into()),
        }
    }
}

/// A flag, whether it was given, and the workloads that it is for.
type ForWorkloads = (&'static str, bool, &'static [&'static str]);

/// Refuses flags that would do nothing: who gives them believes that they do.
fn check_flags(workload: &str, flags: &[ForWorkloads]) -> Result<(), Fault> {
    for &(flag, given, workloads) in flags {
        if given && !workloads.contains(&workload) {
            return Err(Fault::Usage(anyhow!(
                "{flag} has no effect with --workload {workload}: it is for {}",
                workloads.join(" and ")
            )));
        }
    }
    Ok(())
}

/// Refuses over connections what only plain UDP can do.
fn check_transport(workload: &str, via: &Via, course: &TimingArgs) -> Result<(), Fault> {
    let mistake = if !via.has_connections() {
        return Ok(());
    } else if workload == "garbage" {
        "--workload garbage is datagrams: give a URI for UDP"
    } else if course.gso {
        "--gso applies to UDP only: it has no effect over TCP, TLS and DTLS"
    } else {
        return Ok(());
    };
    Err(Fault::Usage(anyhow!(mistake)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_other_workloads_are_refused() {
        let flags: &[ForWorkloads] = &[
            ("--pairs", true, &["relay"]),
            ("--calls", false, &["mixed"]),
        ];
        assert!(check_flags("relay", flags).is_ok());
        let Err(Fault::Usage(error)) = check_flags("mixed", flags) else {
            panic!("--pairs was taken")
        };
        assert!(error.to_string().contains("--pairs"), "{error}");
    }
}
