//! What each command does. Errors end here: as one message on stderr, with what to do about it, and a status.

mod bench;
mod check;
mod control;
pub(crate) mod creds;
mod describe;
mod directory;
mod doctor;
mod ice;
mod import;
mod input;
mod load;
mod nodes;
mod output;
mod peer;
mod probe;
mod reports;
mod serve;
mod sessions;
mod sip;
mod status;
mod stop;
mod upgrade;
mod via;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::log_queue::{MAX_FLUSH_TIME, QUEUE};

pub(crate) use directory::read_users;
pub(crate) use ice::percent_encode;
pub(crate) use output::printable;
pub(crate) use serve::random_secret;

/// Runs the command and turns its result into the status of the process.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Status(args) => control::status(&args),
        Command::Reload(args) => control::reload(args),
        Command::Drain(args) => control::drain(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::Sessions(args) => sessions::run(&args),
        Command::Nodes(args) => nodes::run(&args),
        Command::User(command) => directory::user(&command),
        Command::Secret(command) => directory::secret(&command),
        Command::Realm(command) => directory::realm(&command),
        Command::Sip(args) => sip::run(&args),
        Command::Creds(args) => creds::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Peer(args) => peer::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Completions(args) => describe::completions(&args),
        Command::Man(args) => describe::man(&args),
        Command::BenchFloor(args) => bench::floor(&args),
    };
    conclude(result)
}

fn conclude(result: anyhow::Result<ExitCode>) -> ExitCode {
    let is_read = QUEUE.flush(MAX_FLUSH_TIME);
    result.unwrap_or_else(|error| {
        // If nobody reads stderr, the process would wait forever.
        if is_read {
            eprintln!("error: {error:#}");
        }
        ExitCode::FAILURE
    })
}
