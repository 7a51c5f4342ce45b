//! `hairpin check`: the same reading as `serve` does, without starting anything.

use std::process::ExitCode;

use anyhow::Result;

use super::{input, output};
use crate::cli::check::Args;
use crate::config::{self, Config, Loaded, plural};

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let inputs = input::gather(args.file.as_ref(), Vec::new())?;
    let loaded = config::load(&inputs);
    eprint!("{}", loaded.diagnostics(input::colour()));
    let Some(config) = &loaded.config else {
        eprintln!("{}: {}", name(args), loaded.count());
        return Ok(ExitCode::FAILURE);
    };
    if args.effective {
        output::print(&loaded.effective(args.show_secrets))?;
    } else {
        output::print(&summary(&name(args), config, &loaded))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn name(args: &Args) -> String {
    args.file.as_ref().map_or_else(
        || "environment".to_owned(),
        |path| path.display().to_string(),
    )
}

/// What the configuration will do, in a few lines.
fn summary(name: &str, config: &Config, loaded: &Loaded) -> String {
    let warnings = if loaded.count().is_empty() {
        String::new()
    } else {
        format!(" ({})", loaded.count())
    };
    let listen = list(
        config.listen_udp.as_deref(),
        "port 3478 of loopback and of the default route's address",
    );
    let relays = list(
        config.relay_addresses.as_deref(),
        "the default route's address",
    );
    let (first, last) = (config.relay_ports.start(), config.relay_ports.end());
    let external = match config.external_ip.as_slice() {
        [] => String::new(),
        mapped => format!(
            ", seen as {}",
            join(mapped.iter().map(|external| external.public))
        ),
    };
    let credentials = match (config.secrets.len(), config.users.len()) {
        (0, 0) => "a random secret, new at every start".to_owned(),
        (secrets, users) => format!(
            "{}, {}",
            plural(secrets, "shared secret"),
            plural(users, "user")
        ),
    };
    let peers = if config.peers_allow_local {
        "public, private and loopback"
    } else {
        "public"
    };
    format!(
        "{name}: ok{warnings}\n\
         listen       udp {listen}\n\
         relay        {relays}{external}, ports {first}-{last}\n\
         credentials  {credentials}, realm \"{}\"\n\
         peers        {peers} addresses, {} and {}\n",
        config.realm,
        plural(config.peers_allow.len(), "allow rule"),
        plural(config.peers_deny.len(), "deny rule"),
    )
}

fn list<T: std::fmt::Display>(chosen: Option<&[T]>, otherwise: &str) -> String {
    chosen.map_or_else(|| otherwise.to_owned(), |list| join(list.iter()))
}

fn join(items: impl Iterator<Item = impl std::fmt::Display>) -> String {
    items
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}
