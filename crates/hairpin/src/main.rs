//! The one binary of hairpin.

#![forbid(unsafe_code)]

mod acme;
mod admin;
mod api_client;
mod audit;
mod cli;
mod commands;
mod config;
mod control;
mod events;
mod external_address;
mod import;
mod log_fields;
mod log_queue;
mod metrics;
mod push;
#[cfg(test)]
mod reference;
mod systemd;
mod telemetry;

use std::process::ExitCode;

fn main() -> ExitCode {
    // Without them, user space relays.
    let _ = server::privileges::use_permitted();
    commands::run(cli::parse())
}
