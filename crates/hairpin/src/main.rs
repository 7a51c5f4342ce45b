//! The one binary of hairpin.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod config;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::run(cli::parse())
}
