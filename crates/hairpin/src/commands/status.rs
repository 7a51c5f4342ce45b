//! The exit statuses of the process besides 0 and 1.

use std::process::ExitCode;

/// The arguments are wrong. clap uses the same status.
const USAGE: u8 = 2;
/// A server changed, misdirected or repeated what it should pass on.
const DAMAGED: u8 = 98;
/// A threshold was crossed. Other load generators use the same status.
const THRESHOLD: u8 = 99;

/// Says what is wrong with the arguments.
pub(super) fn usage(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(USAGE)
}

/// The status of a measurement in which something arrived changed or twice.
pub(super) fn damaged() -> ExitCode {
    ExitCode::from(DAMAGED)
}

/// The status of a measurement that was made, and of the gates it had to pass.
pub(super) fn measured(complete: bool, passed: bool) -> ExitCode {
    match (complete, passed) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(THRESHOLD),
        (true, true) => ExitCode::SUCCESS,
    }
}
